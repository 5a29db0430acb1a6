"""What starting the program loads: commands that need no model must not wait for the libraries that run one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"llama_cpp", "numpy", "huggingface_hub", "jinja2", "prompt_toolkit", "pydantic", "matplotlib"}
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
    [("--help",), ("list",), ("ceiling", "--gpu", "RTX 3090", "--model-bytes", "19e9")],
    ids=lambda arguments: arguments[0],
)
def test_a_command_without_a_model_loads_no_heavy_library(arguments, tmp_path):
    """``--help``, ``list`` and ``ceiling`` for named hardware start without the libraries that run models."""
    loaded = loaded_by(PROGRAM, *arguments, home=tmp_path)
    assert "localllm.cli.main" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY


def test_importing_the_package_loads_no_heavy_library(tmp_path):
    """``import localllm`` costs a script nothing until it opens a model."""
    loaded = loaded_by("-c", "import localllm", home=tmp_path)
    assert "localllm" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
