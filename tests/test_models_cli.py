"""``localllm list``, ``show``, ``pull`` and ``rm``, run as a program, and how a download looks."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from gguf_files import text, tiny
from hypothesis import given
from hypothesis import strategies as st
from servers import COMMIT, Site, serving

from localllm.models.catalog import HubSource, load_catalog
from localllm.models.gguf import read_header
from localllm.terminal import folding

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
    """A table of all models without colours; what was pulled comes first, marked, with its true size."""
    before = _run(environment, "list").stdout.splitlines()
    assert len(before) == 1 + len(load_catalog())
    assert before[0].split() == ["NAME", "SIZE", "QUANT", "HERE", "FITS", "DRAFT", "FROM"]
    assert not [line for line in before[1:] if " yes " in line]
    assert not [line for line in before if line != line.rstrip() or "\x1b" in line]
    (target,) = [line for line in before if line.startswith("qwen2.5-coder-7b ")]
    assert target.split()[3:] == ["Q4_K_M", "ram", SPEC.name, "hub:", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF"]
    _run(environment, "pull", SPEC.name)
    after = _run(environment, "ls").stdout.splitlines()
    assert after[1].split() == [
        *(SPEC.name, f"{len(MODEL) / 1e3:.0f}", "kB", "Q4_K_M", "yes", "ram", "Hugging", "Face", "cache")
    ]
    assert len(after) == len(before)
    assert not [line for line in after[2:] if " yes " in line]


def test_list_can_be_narrowed_down(environment: dict[str, str]) -> None:
    """A text leaves the names that contain it, in any case; one that none contains leaves the heading."""
    names = [line.split()[0] for line in _run(environment, "list", "Coder-7").stdout.splitlines()]
    assert names == ["NAME", "qwen2.5-coder-7b"]
    assert len(_run(environment, "list", "no such").stdout.splitlines()) == 1


def test_list_as_json(environment: dict[str, str]) -> None:
    """One object for each model; the path is null until it is here."""
    _run(environment, "pull", SPEC.name)
    objects = json.loads(_run(environment, "list", "--json").stdout)
    assert {entry["name"] for entry in objects} == set(load_catalog())
    here = [entry for entry in objects if entry["path"]]
    assert here == objects[:1]
    assert here[0]["name"] == SPEC.name
    assert Path(here[0]["path"]).read_bytes() == MODEL
    assert here[0]["files"] == [here[0]["path"]]
    assert (here[0]["file_bytes"], here[0]["fits"]) == (len(MODEL), "ram")
    assert here[0]["thinking"] is False


def test_models_of_other_programs_are_listed_and_used_by_name(environment: dict[str, str]) -> None:
    """What LM Studio, Ollama, llama.cpp and the hub's cache hold is listed with its owner, found, and not removed."""
    home = Path(environment["HOME"])
    digest = "ab" * 32
    manifest = {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}]}
    files = {
        ".lmstudio/models/studio/Tiny-GGUF/Tiny-Q8_0.gguf": MODEL,
        ".ollama/models/manifests/registry.ollama.ai/library/tiny/1b": json.dumps(manifest).encode(),
        f".ollama/models/blobs/sha256-{digest}": MODEL,
        ".cache/llama.cpp/old-Q4_0.gguf": MODEL,
        f".cache/huggingface/hub/models--user--repo/snapshots/{COMMIT}/Tiny-Q4_K_M.gguf": MODEL,
    }
    for name, content in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(content)
    listed = {entry["name"]: entry for entry in json.loads(_run(environment, "list", "--json").stdout) if entry["path"]}
    assert {name: entry["from"] for name, entry in listed.items()} == {
        "studio/Tiny-GGUF:Q8_0": "LM Studio",
        "tiny:1b": "Ollama",
        "old-Q4_0": "llama.cpp",
        "user/repo:Q4_K_M": "Hugging Face cache",
    }
    for name, entry in listed.items():
        shown = json.loads(_run(environment, "show", "--json", name).stdout)
        assert shown["model"]["path"] == entry["path"]
        assert shown["shape"]["architecture"] == "llama"
        removed = _run(environment, "rm", name)
        assert (removed.returncode, removed.stdout) == (2, "")
        assert "another program" in removed.stderr or "belongs to" in removed.stderr
        assert Path(entry["path"]).read_bytes() == MODEL


def test_show_tells_all_that_is_known(environment: dict[str, str]) -> None:
    """Place, licence, shape, header and template of a model that is here; what the catalog knows of one that is not."""
    absent = _run(environment, "show", SPEC.name)
    assert absent.returncode == 0
    assert "shape" not in absent.stdout
    assert f"hub: {SPEC.sources[0].repository}" in absent.stdout  # type: ignore[union-attr]
    path = _run(environment, "pull", SPEC.name).stdout.strip()
    text = _run(environment, "show", SPEC.name).stdout
    for words in (path, SPEC.licence, SPEC.description, "context_length", "Tiny", "{{ messages }}", "48 items"):
        assert words in text
    facts = json.loads(_run(environment, "show", "--json", SPEC.name).stdout)
    assert facts["shape"]["layers"] == 2
    assert facts["header"]["llama.embedding_length"] == 64
    assert facts["chat_template"] == "{{ messages }}"


def test_show_is_harmless_for_a_terminal(environment: dict[str, str], tmp_path: Path) -> None:
    """Escape sequences in a header or a template do not come through."""
    evil = tiny()
    evil.metadata |= {
        "general.name": text("\x1b]0;title\x07"),
        "general.\x1b[31mkey": text("a\nb\x9b2J"),
        "tokenizer.chat_template": text("\x1b[2J{{ messages }}\u202e"),
    }
    shown = _run(environment, "show", str(evil.write(tmp_path / "evil.gguf")))
    assert shown.returncode == 0
    assert not set("\x1b\x07\x9b\u202e") & set(shown.stdout)


@pytest.mark.parametrize("command", ["show", "rm"])
def test_a_model_that_is_not_there(environment: dict[str, str], command: str) -> None:
    """One line, with what to do, and the exit code for a model that is not there."""
    for reference, hint in (("no-such", "localllm list"), ("a/b", "localllm pull a/b"), ("./x.gguf", "check the path")):
        finished = _run(environment, command, reference)
        assert (finished.returncode, finished.stdout) == (4, "")
        assert hint in finished.stderr
        assert finished.stderr.count("\n") == 1


def test_rm_frees_what_pull_has_fetched(environment: dict[str, str]) -> None:
    """It says how much, the model is gone from the list, and a pull brings it back; a file of one's own stays."""
    path = Path(_run(environment, "pull", SPEC.name).stdout.strip())
    removed = _run(environment, "rm", SPEC.name)
    assert (removed.returncode, removed.stderr) == (0, "")
    assert removed.stdout == f"{SPEC.name}: {len(MODEL) / 1e3:.0f} kB freed\n"
    assert not path.exists()
    assert Path(_run(environment, "pull", SPEC.name).stdout.strip()).read_bytes() == MODEL
    own = Path(environment["HOME"]) / "own.gguf"
    own.write_bytes(MODEL)
    refused = _run(environment, "rm", str(own))
    assert (refused.returncode, own.read_bytes()) == (2, MODEL)
    assert "delete it yourself" in refused.stderr


def test_a_catalog_of_ones_own(environment: dict[str, str]) -> None:
    """An entry in the config folder is listed, shown and used like a shipped one; a mistake is told with its line."""
    home = Path(environment["HOME"])
    (home / "own.gguf").write_bytes(MODEL)
    catalog = home / ".config" / "localllm" / "models.yaml"
    catalog.parent.mkdir(parents=True)
    catalog.write_text("mine:\n  description: Own\n  licence: mit\n  sources:\n    - {path: ~/own.gguf}\n")
    assert _run(environment, "list", "mine").stdout.splitlines()[1].split()[0] == "mine"
    shown = json.loads(_run(environment, "show", "--json", "mine").stdout)["model"]
    assert (shown["path"], shown["own_entry"]) == (str(home / "own.gguf"), True)
    assert json.loads(_run(environment, "show", "--json", SPEC.name).stdout)["model"]["own_entry"] is False
    assert _run(environment, "pull", "mine").stdout.strip() == str(home / "own.gguf")
    assert _run(environment, "rm", "mine").returncode == 2
    catalog.write_text("mine:\n  description: Own\n  licens: mit\n")
    for arguments in (("list",), ("pull", "mine"), ("ask", "-m", "mine", "hi")):
        broken = _run(environment, *arguments)
        assert (broken.returncode, broken.stdout) == (4, "")
        assert f"localllm: {catalog}, line 3: unknown key 'licens'; did you mean 'licence'? there" in broken.stderr
        assert broken.stderr.count("\n") == 1


def test_a_narrow_terminal_gets_no_broken_lines(environment: dict[str, str]) -> None:
    """In a terminal no line is wider than the window; in a pipe nothing is cut."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    kept = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen([*PROGRAM, "list"], env=kept, stdout=theirs, stderr=subprocess.PIPE):
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    lines = shown.decode().splitlines()
    assert len(lines) == 1 + len(load_catalog())
    assert max(map(len, lines)) == 60
    assert not [line for line in _run(environment, "list").stdout.splitlines() if "…" in line]


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


def test_the_path_outlives_the_bar(environment: dict[str, str]) -> None:
    """Where stdout and stderr are one terminal, the path is written after the bar was taken away."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*PROGRAM, "pull", SPEC.name], env=environment, stdout=theirs, stderr=theirs):
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    last_line = shown.decode().rstrip().rpartition("\n")[2]
    assert Path(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", last_line)).read_bytes() == MODEL
    assert b"\x1b[" not in shown[shown.rindex(SPEC.sources[0].file_name.encode()) :]  # type: ignore[union-attr]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the other side is closed
        return b""


CELLS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=30)


@given(
    st.integers(2, 7).flatmap(lambda n: st.lists(st.tuples(*[CELLS] * n), min_size=1, max_size=6)), st.integers(10, 90)
)
def test_a_table_fits_its_window_and_a_pipe_gets_all_of_it(rows, columns):
    """One line for each row, whatever the width; what is left out are whole columns from the end, or the last's end."""
    whole = folding.table(rows, None)
    assert [line.split() for line in whole] == [list(row) for row in rows]
    lines = folding.table(rows, columns)
    assert len(lines) == len(rows) and all(len(line) <= columns for line in lines)
    assert all(all_of_it.startswith(line.rstrip("…").rstrip()) for line, all_of_it in zip(lines, whole, strict=True))


def test_a_narrow_table_does_without_what_is_spare():
    """In the order of its names, and only as far as it must."""
    rows = [("hardware", "memory", "rate", "computed"), ("card", "24 GB", "48 tok/s", "936 GB/s ÷ 19 GB")]
    for columns, names in [(60, "hardware memory rate computed"), (30, "hardware memory rate"), (20, "hardware rate")]:
        assert folding.table(rows, columns, ("computed", "memory"))[0].split() == names.split()
        assert "…" not in folding.table(rows, columns, ("computed", "memory"))[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("show", "qwen3-32b"),
        ("ceiling", "qwen3-32b", "--gpu", "RTX 3090", "--ctx", "32768", "--why"),
        ("ceiling", "qwen3-8b", "--all-gpus"),
    ],
)
@pytest.mark.parametrize("columns", [60, 80])
def test_what_is_listed_fits_a_terminal(arguments, columns):
    """No row is broken by it, so that each line can be told from the next."""
    program, *rest = PROGRAM
    child = pexpect.spawn(program, [*rest, *arguments], dimensions=(50, columns), timeout=60, encoding="utf-8")
    lines = child.read().split("\r\n")
    child.close()
    assert child.exitstatus == 0 and len(lines) > 5
    assert [line for line in lines if len(line) > columns] == []
