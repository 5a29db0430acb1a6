"""The first run without settings: which model is taken, that it is said once, and that it stays."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
from conftest import as_a_user
from gguf_files import Gguf, tiny
from hypothesis import given
from hypothesis import strategies as st
from servers import COMMIT, Site
from terminals import PROGRAM, Terminal

from localllm import choosing, config, default
from localllm.ceiling.hardware import Hardware
from localllm.ceiling.machine import Machine
from localllm.choosing import RECOMMENDED
from localllm.cli.first_run import choose_default
from localllm.default import Choice, default_model, last_choice
from localllm.measured import Measurement, keep
from localllm.models import hub
from localllm.models.catalog import HubSource, ModelSpec, load_catalog
from localllm.models.gguf import read_header
from localllm.models.shapes import known_shape
from localllm.models.store import find

EMBEDDED = config.DEFAULT_MODEL
CATALOG = load_catalog()


@pytest.fixture
def fresh(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with nothing in it, and no settings."""
    for name in [name for name in os.environ if name.startswith(("LOCALLLM_", "LLAMA_", "OLLAMA_"))]:
        monkeypatch.delenv(name)
    return cache


def put(spec: ModelSpec, model: Gguf) -> Path:
    """Put a file where the hub's library would have put this model of the catalog."""
    source = next(source for source in spec.sources if isinstance(source, HubSource))
    folder = hub.cache_folder() / f"models--{source.repository.replace('/', '--')}" / "snapshots" / COMMIT
    return whole(folder / source.file_name, model)


def whole(path: Path, model: Gguf) -> Path:
    """A file as long as its header says; what no header tells is a hole that takes no disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = model.header()
    with path.open("wb") as file:
        file.write(header)
        file.truncate(-(-len(header) // 32) * 32 + model.data_bytes())
    return path


def sized(megabytes: int) -> Gguf:
    """A model that can be judged, with so many megabytes."""
    model = tiny(n_vocab=48)
    model.tensors.append(("blk.0.ffn_down.weight", (64, megabytes * 10**6 // 36), 2))
    return model


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_nothing_on_this_disk_and_nobody_to_ask(fresh, serve, capsys):
    """The embedded default, said once, in lines that no terminal breaks; the hub is not even asked."""
    site = serve.hub(Site())
    choose_default(None)
    lines = said(capsys)
    assert lines[0] == f"localllm: using {EMBEDDED} (very small): nothing better is on this disk"
    assert lines[1].rpartition("localllm: for this machine: localllm pull ")[2].split()[0] in RECOMMENDED
    assert len(lines) == 2 and all(len(line) < 80 for line in lines)
    choose_default(None)
    assert said(capsys) == []
    assert default_model() == EMBEDDED
    assert site.requests == []


def test_a_model_on_this_disk_is_used_and_remembered(fresh, capsys):
    """It is said once, with the reason; later it is used without a word, also where better ones have come since."""
    path = put(CATALOG["qwen2.5-1.5b"], sized(50))
    choose_default(None)
    (line,) = said(capsys)
    assert line.startswith("localllm: using qwen2.5-1.5b: the best on this disk that is fast enough here: it fits in ")
    assert line.endswith("(-m names another one)")
    put(CATALOG["llama-3.1-8b"], sized(90))
    choose_default(None)
    assert said(capsys) == []
    assert (default_model(), last_choice()) == ("qwen2.5-1.5b", Choice("qwen2.5-1.5b", path))


def test_a_model_that_is_gone_is_not_fetched_anew(fresh, capsys):
    """Without its file a choice counts no more; the next one is made, and said."""
    path = put(CATALOG["qwen2.5-1.5b"], sized(50))
    choose_default(None)
    path.unlink()
    assert default_model() == EMBEDDED
    choose_default(None)
    using = [line.split()[2].rstrip(":") for line in said(capsys) if "using" in line]
    assert using == ["qwen2.5-1.5b", EMBEDDED]


def test_a_model_that_comes_later_replaces_the_embedded_one(fresh, capsys):
    """The embedded default only stands in."""
    choose_default(None)
    put(CATALOG["qwen2.5-1.5b"], sized(50))
    choose_default(None)
    assert said(capsys)[-1].startswith("localllm: using qwen2.5-1.5b: ")
    assert default_model() == "qwen2.5-1.5b"


@pytest.mark.parametrize(
    ("megabytes", "expected"),
    [
        ({"qwen2.5-1.5b": 40, "llama-3.2-3b": 80, "llama-3.2-1b": 20}, "llama-3.2-3b"),
        ({"qwen2.5-1.5b": 40, "llama-3.3-70b": 4 * 10**6}, "qwen2.5-1.5b"),  # more than any memory
        ({"qwen2.5-1.5b": 40, "qwen2.5-coder-7b": 80}, "qwen2.5-1.5b"),
        ({"qwen2.5-coder-7b": 80}, "qwen2.5-coder-7b"),
        ({"llama-3.3-70b": 4 * 10**6}, EMBEDDED),
    ],
)
def test_which_of_several_models(fresh, megabytes, expected):
    """The largest that fits and is fast enough; of those that were trained for code only where there is no other."""
    for name, size in megabytes.items():
        put(CATALOG[name], sized(size))
    choose_default(None)
    assert default_model() == expected


def test_a_slow_model_of_ones_own_is_better_than_none(fresh, capsys, monkeypatch):
    """Where none is fast enough the fastest that fits is used, and the line does not say otherwise."""
    monkeypatch.setattr(choosing, "READING_TOK_S", 10.0**9)
    put(CATALOG["llama-3.2-3b"], sized(80))
    put(CATALOG["llama-3.2-1b"], sized(20))
    choose_default(None)
    assert said(capsys)[0].startswith("localllm: using llama-3.2-1b: the fastest on this disk that fits here: ")


@pytest.mark.parametrize(("share", "counts"), [(0.01, False), (0.3, True)])
def test_a_rate_measured_on_a_busy_machine_chooses_no_smaller_model(fresh, capsys, monkeypatch, share, counts):
    """What was measured counts, but where it is far below what the bandwidth of memory lets expect."""
    machine = Machine((Hardware("CPU", "cpu", 25.0, 10**12, "measured", ""),))
    monkeypatch.setattr(choosing, "this_machine", lambda: (machine, []))
    path = put(CATALOG["llama-3.2-3b"], sized(80))
    put(CATALOG["llama-3.2-1b"], sized(20))
    streamed_bytes = read_header(path).streamed_bytes
    ceiling_tok_s = 25e9 / streamed_bytes
    keep([path], Measurement("m", "8", 2, False, "", streamed_bytes, ((48, share * ceiling_tok_s),), (0,)))
    choose_default(None)
    (line,) = said(capsys)
    told_tok_s = float(re.search(r"about (\d+) tokens/s", line)[1])
    assert "using llama-3.2-3b" in line
    assert told_tok_s == pytest.approx((share if counts else 0.5) * ceiling_tok_s, rel=0.1)


def test_models_that_hold_no_conversation_are_passed_over_once(fresh, tmp_path, capsys):
    """No chat template, embeddings, a damaged file: none is chosen, nor looked at again."""
    base = sized(40)
    del base.metadata["tokenizer.chat_template"]
    studio = Path(os.environ["HOME"]) / ".lmstudio" / "models" / "studio"
    whole(studio / "Base-GGUF" / "Base-Q8_0.gguf", base)
    whole(studio / "Embedding-GGUF" / "Embedding-Q8_0.gguf", sized(40))
    broken = whole(studio / "Broken-GGUF" / "Broken-Q8_0.gguf", sized(40))
    broken.write_bytes(b"GGUF")
    choose_default(None)
    assert default_model() == EMBEDDED
    kept = last_choice()
    assert kept and len(kept.passed_over) == 3
    choose_default(None)
    assert len(said(capsys)) == 2
    whole(studio / "Chat-GGUF" / "Chat-Q8_0.gguf", sized(40))
    choose_default(None)
    assert default_model() == "studio/Chat-GGUF:Q8_0"


def test_settings_come_first(fresh, capsys, monkeypatch):
    """A model that is named, or set, is used without a look at anything else."""
    choose_default("qwen3-8b")
    monkeypatch.setenv("LOCALLLM_MODEL", "qwen3-4b")
    choose_default(None)
    assert said(capsys) == []
    assert default_model() == "qwen3-4b"
    assert not (config.data_dir() / "default.json").exists()


def test_quiet_is_quiet(fresh, capsys):
    """The choice is made all the same, and kept."""
    put(CATALOG["qwen2.5-1.5b"], sized(40))
    choose_default(None, quiet=True)
    assert said(capsys) == []
    assert default_model() == "qwen2.5-1.5b"


def test_a_data_folder_that_cannot_be_written(fresh, capsys):
    """Nothing is remembered, and nothing fails."""
    config.data_dir().parent.mkdir(parents=True, exist_ok=True)
    config.data_dir().write_text("a file")
    choose_default(None)
    assert len(said(capsys)) == 2
    assert default_model() == EMBEDDED


@given(st.binary(max_size=200) | st.recursive(st.none() | st.booleans() | st.text(), st.lists).map(json.dumps))
def test_what_was_kept_is_not_trusted(tmp_path_factory, content):
    """Whatever the file holds, it is a choice or none."""
    folder = tmp_path_factory.mktemp("data", numbered=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder))
        place = config.data_dir() / "default.json"
        place.parent.mkdir()
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert last_choice() is None


@pytest.mark.parametrize("model", ["no such model", "qwen3-32b"])
def test_a_kept_name_without_a_file_fetches_nothing(fresh, model):
    """Only the embedded default may be kept without its file."""
    default.keep(Choice(model))
    assert default_model() == EMBEDDED


def test_what_is_recommended_can_be_judged():
    """Each is in the catalog, comes from the hub, and its shape is known; none is a draft or a model for code."""
    for name in RECOMMENDED:
        spec = CATALOG[name]
        assert known_shape(name), name
        assert isinstance(spec.sources[0], HubSource)
        assert "code" not in spec.description.lower() or spec.thinking
    sizes = [CATALOG[name].file_bytes for name in RECOMMENDED if CATALOG[name].file_bytes]
    assert sizes == sorted(sizes, reverse=True)


def test_the_list_marks_the_default_model(fresh):
    """A star in the column that says what is here; in JSON a key of its own."""
    put(CATALOG["qwen2.5-1.5b"], sized(40))
    choose_default(None)
    program = [sys.executable, "-m", "localllm", "list"]
    lines = subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[0] for line in lines if " * " in line] == ["qwen2.5-1.5b"]
    listed = json.loads(subprocess.run([*program, "--json"], capture_output=True, check=True).stdout)
    assert [entry["name"] for entry in listed if entry["default"]] == ["qwen2.5-1.5b"]


# --- with a person -------------------------------------------------------------------------------------------------


@pytest.fixture
def offered(fresh, serve, tmp_path) -> Site:
    """A hub that has all that may be recommended: a model of some kilobytes each time."""
    content = tiny_models.make("llama", tmp_path / "model.gguf").read_bytes()
    sources = [CATALOG[name].sources[0] for name in RECOMMENDED]
    files = {f"/{s.repository}/resolve/main/{s.file_name}": content for s in sources if isinstance(s, HubSource)}
    return serve.hub(Site({"/": b""} | files, {"X-Repo-Commit": COMMIT}))


def ask(*arguments: str) -> Terminal:
    return Terminal(*arguments, command=[PROGRAM, "ask", "--max-tokens", "1", "--no-cache", "hi"])


def test_a_yes_fetches_what_suits_and_it_stays(offered):
    """The offer says size and reason; Enter is a yes. The next call asks nothing."""
    first = ask()
    offer = first.sees(r"Fetch it\? \[Y/n\]")
    assert "suits this machine: it fits in" in offer and ("GB)" in offer or "MB)" in offer)
    first.types("\r")
    first.leaves()
    kept = last_choice()
    assert kept and kept.model in RECOMMENDED and kept.model in offer
    local = find(kept.model, CATALOG)
    assert local and local.path == kept.file
    second = ask()
    second.leaves()
    assert "localllm:" not in second.seen


@pytest.mark.model
@pytest.mark.parametrize("answer", ["n\r", "\x04"])
def test_a_no_is_remembered(offered, fresh, smollm2, answer):
    """So is the end of the input. The embedded default stands in, and the offer is not made again."""
    fresh.mkdir(parents=True)
    (fresh / smollm2.name).hardlink_to(smollm2)
    first = ask()
    first.sees(r"Fetch it\? \[Y/n\]")
    first.types(answer)
    first.sees(f"using {EMBEDDED}")
    first.leaves()
    kept = last_choice()
    assert kept == Choice(EMBEDDED, None, asked=True)
    second = ask()
    second.leaves()
    assert offered.asked("/") == [] and [method for method, _, _ in offered.requests] == ["HEAD"]


@pytest.mark.model
def test_without_a_hub_nothing_is_offered(fresh, smollm2):
    """The embedded default starts, and the line says what to fetch later."""
    fresh.mkdir(parents=True)
    (fresh / smollm2.name).hardlink_to(smollm2)
    first = ask()
    assert "Fetch it" not in first.sees(rf"using {EMBEDDED}[\s\S]*localllm pull")
    first.leaves()


@pytest.mark.model
def test_the_first_run_in_a_script(fresh, smollm2):
    """Two lines on stderr at the first call, the answer alone on stdout, and no line at the second."""
    fresh.mkdir(parents=True)
    (fresh / smollm2.name).hardlink_to(smollm2)
    command = as_a_user(PROGRAM, "ask", "--max-tokens", "1", "--temp", "0", "--no-cache", "Say hello.")
    first, second = (subprocess.run(command, capture_output=True, text=True, timeout=60) for _ in range(2))
    assert first.returncode == second.returncode == 0
    assert first.stdout == second.stdout != ""
    assert (first.stderr.count("\n"), second.stderr) == (2, "")


def test_interrupting_the_question(offered):
    """Ctrl-C leaves; nothing is kept, so that the question comes again."""
    first = ask()
    first.sees(r"Fetch it\?")
    first.child.sendintr()
    first.leaves()
    assert first.child.exitstatus == 130
    assert last_choice() is None
