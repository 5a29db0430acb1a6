"""``localllm list`` and ``localllm pull``, run as a program, and how a download looks."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf_files import tiny
from servers import COMMIT, Site, serving

from localllm.models.catalog import HubSource, load_catalog
from localllm.models.gguf import read_header

MODEL = tiny().file()
SPEC = load_catalog()["qwen2.5-coder-0.5b"]  # its checksum is not known, so any file will do
PROGRAM = [sys.executable, "-m", "localllm"]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An empty home, and a hub that has one model of the shipped catalog."""
    source = SPEC.sources[0]
    assert isinstance(source, HubSource)
    path = f"/{source.repository}/resolve/main/{source.file_name}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_", "LOCALLLM_"))}
    with serving(Site({path: MODEL}, {"X-Repo-Commit": COMMIT})) as site:
        yield kept | {"HOME": str(tmp_path), "HF_ENDPOINT": site.url, "NO_PROXY": "127.0.0.1"}


def _run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], env=environment, capture_output=True, text=True, timeout=60)


def test_pull_prints_the_path_and_nothing_else(environment: dict[str, str]) -> None:
    """The path is all of stdout, plain lines on stderr tell what is done; a second pull has nothing to tell."""
    first = _run(environment, "pull", "Qwen2.5-Coder-0.5B")
    assert first.returncode == 0
    path = Path(first.stdout.rstrip("\n"))
    assert path.read_bytes() == MODEL
    assert first.stderr.splitlines() == [
        "fetching qwen2.5-coder-0.5b from the Hugging Face hub …",
        "checking qwen2.5-coder-0.5b …",
    ]
    second = _run(environment, "pull", "qwen2.5-coder-0.5b")
    assert (second.returncode, second.stdout, second.stderr) == (0, first.stdout, "")
    assert read_header(path).name == "Tiny"


def test_pull_of_an_unknown_name(environment: dict[str, str]) -> None:
    """One line with the nearest names, and the exit code for a model that is not there."""
    finished = _run(environment, "pull", "qwen2.5-codr-0.5b")
    assert (finished.returncode, finished.stdout) == (4, "")
    assert "qwen2.5-coder-0.5b" in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_pull_without_a_network(environment: dict[str, str]) -> None:
    """One line that says what failed, after the one that says what was tried."""
    finished = _run(environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}, "pull", "qwen2.5-coder-0.5b")
    assert (finished.returncode, finished.stdout) == (4, "")
    assert "it cannot be reached" in finished.stderr.splitlines()[-1]
    assert len(finished.stderr.splitlines()) == 2


def test_list_tells_what_is_here(environment: dict[str, str]) -> None:
    """A table of all models without colours; what was pulled is marked, with its true size."""
    before = _run(environment, "list").stdout.splitlines()
    assert len(before) == 1 + len(load_catalog())
    assert before[0].split() == ["NAME", "HERE", "SIZE", "QUANT", "LICENCE", "DRAFT", "DESCRIPTION"]
    assert not [line for line in before[1:] if line.split()[1] == "yes"]
    assert not [line for line in before if line != line.rstrip() or "\x1b" in line]
    _run(environment, "pull", SPEC.name)
    (here,) = [line for line in _run(environment, "ls").stdout.splitlines()[1:] if line.split()[1] == "yes"]
    assert here.split()[:6] == [SPEC.name, "yes", f"{len(MODEL) / 1e3:.0f}", "kB", "Q4_K_M", SPEC.licence]


def test_list_as_json(environment: dict[str, str]) -> None:
    """One object for each model; the path is null until it is here."""
    _run(environment, "pull", SPEC.name)
    objects = json.loads(_run(environment, "list", "--json").stdout)
    assert [entry["name"] for entry in objects] == list(load_catalog())
    here = [entry for entry in objects if entry["path"]]
    assert [entry["name"] for entry in here] == [SPEC.name]
    assert Path(here[0]["path"]).read_bytes() == MODEL
    assert here[0]["file_bytes"] == len(MODEL)
    assert objects[0]["thinking"] is False


def test_list_loads_nothing_heavy(environment: dict[str, str]) -> None:
    """Neither the model runtime nor the hub's library nor what only a download needs."""
    command = [sys.executable, "-X", "importtime", "-m", "localllm", "list"]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    loaded = {line.split("|")[-1].strip() for line in finished.stderr.splitlines()}
    assert "localllm.models.store" in loaded
    assert not loaded & {"llama_cpp", "numpy", "huggingface_hub", "rich.progress", "zipfile", "localllm.child"}


def test_in_a_terminal_a_bar_is_drawn_and_removed(environment: dict[str, str]) -> None:
    """The bar goes to stderr only; stdout holds the path and no escape sequence."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, "pull", SPEC.name], env=environment, stdout=subprocess.PIPE, stderr=theirs
    ) as child:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
        assert child.stdout is not None
        path = child.stdout.read()
    os.close(ours)
    assert child.returncode == 0
    assert b"fetching qwen2.5-coder-0.5b" in shown
    assert b"\x1b[" in shown
    assert Path(path.decode().rstrip("\n")).read_bytes() == MODEL


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the other side is closed
        return b""
