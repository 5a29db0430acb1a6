"""Trying a model file in a child process: whatever the file does there, here it is one clear line."""

import os
import re
import signal
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import tiny_models
from gguf_files import text, texts, u32, u32s
from mutants import Model

from localllm.cancel import Cancel
from localllm.engine.llama import LoadOptions
from localllm.engine.probe import try_out
from localllm.errors import Cancelled, ModelFileError, OutOfMemory
from localllm.models.gguf import read_header


def u16(value: int) -> bytes:
    return struct.pack("<IH", 2, value)


def i32(value: int) -> bytes:
    return struct.pack("<Ii", 5, value)


class Trials:
    """Tries files with one memory, and counts how often that took a process."""

    def __init__(self, memory: Path) -> None:
        self.memory, self.count = memory, 0

    def __call__(self, *parts: Path, cancel: Cancel | None = None, **options) -> None:
        def count() -> None:
            self.count += 1

        try_out(parts, LoadOptions(**{"n_ctx": 1024} | options), self.memory, cancel or Cancel(), count)


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    return Trials(tmp_path / "cache" / "probed")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_models.make("llama", tmp_path / "tiny.gguf")


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_a_model_that_works_passes_and_is_remembered(architecture, tmp_path, trials):
    """Every kind of memory that llama.cpp has; the second time no process is started."""
    path = tiny_models.make(architecture, tmp_path / "tiny.gguf", weights="Q4_0")
    trials(path)
    trials(path)
    assert trials.count == 1


@pytest.mark.model
def test_a_real_model_passes(smollm2, trials):
    """The default model, which is exempt only because its bytes are known."""
    trials(smollm2)
    assert trials.count == 1


def test_a_file_that_changed_is_tried_again(tiny, trials):
    """Also if it was changed in place, kept its length and had its date put back."""
    trials(tiny)
    status = tiny.stat()
    with tiny.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    os.utime(tiny, ns=(status.st_atime_ns, status.st_mtime_ns))
    trials(tiny)
    assert trials.count == 2


def test_what_runs_other_code_is_tried_again(tiny, trials):
    """Another type of KV cache is computed by other code; the number of threads and the context's size are not."""
    trials(tiny, kv="f16", threads=1)
    trials(tiny, kv="f16", threads=2, n_ctx=512)
    assert trials.count == 1
    with pytest.raises(OutOfMemory, match=r"a context of 512 tokens cannot be created: .*q8_0"):
        trials(tiny, kv="q8_0")  # heads of 16 values do not fill a block


def test_a_memory_that_cannot_be_used_costs_only_time(tiny, tmp_path):
    """A read-only home, a full disk: the model passes all the same, and is tried anew each time."""
    (tmp_path / "file").touch()
    trials = Trials(tmp_path / "file" / "probed")
    trials(tiny)
    trials(tiny)
    assert trials.count == 2


def test_all_parts_of_a_split_model_count(tiny, tmp_path, trials):
    """A part that changed means a new trial; one that is missing is told by its name."""
    parts = split(Model.read(tiny), tmp_path)
    trials(*parts)
    trials(*parts)
    assert trials.count == 1
    parts[1].write_bytes(parts[1].read_bytes())
    trials(*parts)
    assert trials.count == 2
    parts[1].unlink()
    with pytest.raises(ModelFileError, match=r"part-00002-of-00002\.gguf cannot be read: No such file"):
        trials(*parts)


def split(model: Model, folder: Path) -> tuple[Path, Path]:
    """Write ``model`` as two files."""
    half, metadata = len(model.tensors) // 2, model.metadata
    paths = []
    for number, chosen in enumerate((slice(half), slice(half, None))):
        about = {"split.no": u16(number), "split.count": u16(2), "split.tensors.count": i32(len(model.tensors))}
        part = Model(metadata | about if number == 0 else about, model.tensors[chosen], data=model.data[chosen])
        paths.append(part.write(folder / f"part-{number + 1:05d}-of-00002.gguf"))
    return paths[0], paths[1]


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A model whose vocabulary sends llama.cpp's tokenizer in circles."""
    return tiny_models.make("llama", tmp_path / "endless.gguf", **{"tokenizer.ggml.model": "rwkv"})


def processes(path: Path) -> list[int]:
    """The processes that have ``path`` in their command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if str(path).encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return found


linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


@linux
def test_a_trial_without_end_can_be_stopped(endless, trials):
    """A deadline or Ctrl-C ends it, also inside llama.cpp, and leaves no process."""
    with pytest.raises(Cancelled):
        trials(endless, cancel=Cancel(timeout_s=2))
    assert not processes(endless)


@linux
def test_a_trial_that_the_system_kills_means_that_memory_ran_out(endless, trials):
    """It has asked the system to be the first to go."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(trials, endless)
        while not (found := processes(endless)):
            time.sleep(0.01)
        while Path(f"/proc/{found[0]}/oom_score_adj").read_text() != "1000\n":
            time.sleep(0.01)
        os.kill(found[0], signal.SIGKILL)
        with pytest.raises(OutOfMemory, match=r"endless\.gguf needs more memory"):
            future.result()


ASSERTION = r"6, [\w-]+\.(?:c|cpp):\d+: GGML_ASSERT\(.+\) failed"
TOKENS = list(tiny_models.TOKENS)
CRASHES = {
    "two tokens of one text": ("llama", {"tokenizer.ggml.tokens": texts(*TOKENS[:7], *TOKENS[6:-1])}, ASSERTION),
    "bytes without a token": ("llama", {"tokenizer.ggml.model": text("llama")}, "6, unordered_map::at"),
    "words with spaces": ("llama", {"tokenizer.ggml.pre": text("whitespace")}, ASSERTION),
    "a state of no size": ("qwen35", {"qwen35.ssm.inner_size": u32(0)}, ASSERTION),
    "a division by zero": ("qwen35", {"qwen35.full_attention_interval": u32(0)}, r"8\)"),
    "sections that hold nothing": ("qwen35", {"qwen35.rope.dimension_sections": u32s(0, 0, 0, 0)}, ASSERTION),
}


@pytest.mark.parametrize(("architecture", "metadata", "says"), CRASHES.values(), ids=CRASHES.keys())
def test_a_file_that_crashes_llama_cpp_is_one_clear_line(architecture, metadata, says, tmp_path, trials, capfd):
    """The header check lets it pass, and using it ends the process; ours goes on and says what happened."""
    model = Model.read(tiny_models.make(architecture, tmp_path / "tiny.gguf"))
    model.metadata |= metadata
    path = model.write(tmp_path / "bad.gguf")
    read_header(path)
    for _ in range(2):
        with pytest.raises(ModelFileError) as caught:
            trials(path)
    assert re.match(rf"bad\.gguf cannot be used: llama\.cpp crashes on it \(signal {says}", caught.value.message)
    assert caught.value.message.isprintable() and caught.value.hint
    assert trials.count == 2, "a failure is not remembered"
    assert capfd.readouterr() == ("", "")


def test_what_llama_cpp_refuses_is_said_as_it_says_it(tmp_path, trials):
    """Its own reason comes out of the child, in the words that loading the file here would have had."""
    path = tiny_models.make("llama", tmp_path / "tiny.gguf")
    model = Model.read(path)
    model.metadata["tokenizer.ggml.model"] = text("martian\x1b[31m")
    model.write(path)
    with pytest.raises(
        ModelFileError, match=r"^llama.cpp cannot load tiny.gguf: .*unknown tokenizer: 'martian\?"
    ) as caught:
        trials(path)
    assert caught.value.message.isprintable()
