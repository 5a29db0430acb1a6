"""What starting the program loads: commands that need no model must not wait for the libraries that run one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"llama_cpp", "numpy", "huggingface_hub", "jinja2", "prompt_toolkit", "pydantic", "matplotlib", "llguidance"}
PROGRAM = str(Path(sys.executable).with_name("localllm"))


def loaded_by(*command: str, home: Path) -> set[str]:
    """Names of all modules that Python loads while it runs the command."""
    env = {**os.environ, "HOME": str(home), "PYTHONPROFILEIMPORTTIME": "1"}
    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        env[variable] = str(home / variable)
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    # import time:  self [us] | cumulative | imported package
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("list",),
        ("template", "list"),
        ("config",),
        ("help", "privacy"),
        ("completion", "bash"),
        ("ceiling", "--gpu", "RTX 3090", "--model-bytes", "19e9"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_without_a_model_loads_no_heavy_library(arguments, tmp_path):
    """Help, lists, and ``ceiling`` for named hardware start without the libraries that run models."""
    loaded = loaded_by(PROGRAM, *arguments, home=tmp_path)
    assert "localllm.cli.main" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY


def test_importing_the_package_loads_no_heavy_library(tmp_path):
    """``import localllm`` costs a script nothing until it opens a model."""
    loaded = loaded_by("-c", "import localllm", home=tmp_path)
    assert "localllm" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY


@pytest.mark.model
def test_a_sampled_answer_needs_neither_numpy_nor_the_chat_formats_of_the_binding(smollm2, tmp_path):
    """They take longer to load than llama.cpp does."""
    loaded = loaded_by(PROGRAM, "ask", "-m", str(smollm2), "--max-tokens", "2", "--temp", "1", "hi", home=tmp_path)
    assert "llama_cpp._ctypes_extensions" in loaded
    assert not {"numpy", "llguidance", "llama_cpp.llama_chat_format", "llama_cpp.llama"} & loaded


@pytest.mark.parametrize("first", ["localllm.engine.bindings", "llama_cpp"])
def test_the_binding_can_be_used_beside_ours(first):
    """Whoever imports the whole package, before or after, gets all of it and the same library."""
    code = (
        f"import {first}, llama_cpp\nfrom localllm.engine.bindings import lib\n"
        "from llama_cpp import Llama, llama_backend_init\n"
        "assert lib is llama_cpp.llama_cpp and lib.llama_backend_init is llama_backend_init"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_architecture_names_every_module():
    """What each knows and does not know stands in its table; none is added without."""
    root = Path(__file__).resolve().parent.parent
    table = (root / "docs" / "architecture.md").read_text()
    modules = [path for path in (root / "localllm").rglob("*.py") if not path.name.startswith("__")]
    assert modules and [path.name for path in modules if f"{path.name}`" not in table] == []
