"""Odd and hostile input from end to end: whatever a model file or a text holds, no process ends by a signal.

What the header check alone refuses is in test_gguf.py, what the trial finds in test_probe.py.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import tiny_models
from gguf_files import text, tiny
from mutants import mutants
from proofs import sample_size

from localllm import Cancel, Message, Sampling, Settings, open_engine
from localllm.errors import Cancelled, UsageError

PROGRAM = str(Path(sys.executable).parent / "localllm")


def ask(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 100} | options
    return subprocess.run([PROGRAM, "ask", *arguments], text=True, **options)


# --- model files ------------------------------------------------------------------------------------------------


@pytest.mark.proof("hostile-gguf")
@pytest.mark.timeout(3600)
def test_no_model_file_ends_the_program(home, tmp_path, record_property):
    """Mutants of models of six architectures: each is answered with, or refused with one clear line.

    The program's exit code is always one of its own: no signal, no traceback, whatever llama.cpp does to its child.
    """
    originals = [
        tiny_models.make(architecture, tmp_path / f"{architecture}-{weights}.gguf", weights=weights)
        for architecture, weights in itertools.product(tiny_models.ARCHITECTURES, ("F32", "F16", "Q8_0", "Q4_0"))
    ]
    path, codes = tmp_path / "mutant.gguf", Counter()
    n_cases = sample_size(full=1000, sample=12)
    for what, data in itertools.islice(mutants(originals, seed=1), n_cases):
        path.unlink(missing_ok=True)  # a new file, which no earlier trial vouches for
        path.write_bytes(data)
        result = ask("--timeout", "30", "--max-tokens", "4", "--threads", "1", "-m", str(path), "Hello, world")
        told = result.stderr.splitlines()
        assert 0 <= result.returncode <= 5 or result.returncode == 124, (what, result)
        assert all(line.startswith("localllm: ") and line.isprintable() for line in told), (what, result)
        assert result.returncode == 0 or told, (what, result)
        codes[result.returncode] += 1
    assert codes[0] and codes[4], codes
    record_property("cases", n_cases)


@pytest.mark.parametrize("name", ["\x1b]0;title\x07llama", "llama\x1b[31m", "ll\na", "a" * 1000, "martian-7b"])
def test_the_name_of_an_unknown_architecture(name, home, tmp_path):
    """One line, without the escape sequences that the name may hold."""
    model = tiny()
    model.metadata["general.architecture"] = text(name)
    model.metadata |= {key.replace("llama.", f"{name}.", 1): value for key, value in model.metadata.items()}
    result = ask("-m", str(model.write(tmp_path / "odd.gguf")), "hi")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (4, "", 1)
    assert "architecture" in result.stderr and result.stderr.strip().isprintable()


# --- texts ------------------------------------------------------------------------------------------------------

# Of the 60 ways that llama.cpp has to cut text into words, some with the deepest recursion.
PRE_TOKENIZERS = ("gpt-4o", "tekken", "deepseek-v3", "default")


@pytest.fixture(scope="module", params=PRE_TOKENIZERS)
def cutting(request, tmp_path_factory):
    """An engine with this pre-tokenizer."""
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    tiny_models.make("llama", path, **{"tokenizer.ggml.pre": request.param})
    with open_engine(str(path), Settings(threads=1)) as engine:
        yield engine


@pytest.mark.slow
def test_a_hundred_thousand_equal_characters(cutting):
    """llama.cpp's regular expressions recurse once per character: in a stack of the usual size this is a crash."""
    vocab = cutting._decoder.vocab
    for character in ("-", "a", "A", " ", "\n", "中", "🙂", "\u0301"):
        ids = cutting.encode_raw(character * 100_000).ids
        assert b"".join(map(vocab.piece, ids)).decode() == character * 100_000


CRLF = "\r\n" * 20_000  # 1.5 to 7 s in one call of llama.cpp


@pytest.mark.model
def test_a_text_that_takes_long_to_tokenise_can_be_left(gemma_engine):
    """Blank CRLF lines are quadratic under Gemma's tokenizer; a deadline is noticed all the same."""
    with pytest.raises(Cancelled):
        gemma_engine.encode_raw(CRLF, Cancel(timeout_s=0.2))
    assert gemma_engine.encode_raw("hi").ids, "the engine goes on"


@pytest.mark.model
@pytest.mark.parametrize("how", ["--timeout", "SIGINT"])
def test_the_program_ends_while_it_tokenises(how, home, gemma):
    """Ctrl-C and --timeout: their exit codes, without waiting for llama.cpp.

    Not traced for coverage: CPython 3.11 loops for ever in a traced thread while another one, in C, has an
    exception waiting for it.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    limit = ["--timeout", "4"] if how == "--timeout" else []
    command = [PROGRAM, "ask", "--raw", "-m", str(gemma), *limit, "How many lines are these?"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, env=env) as process:
        process.stdin.write("Lines:" + CRLF * 20)  # ten minutes; blank text alone would count as none
        process.stdin.close()
        if how == "SIGINT":
            time.sleep(4)
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == (124 if how == "--timeout" else 130)
        assert process.stdout.read() == "" and process.stderr.read().count("\n") == 1


@pytest.mark.parametrize("text", ["\0", "a\0b", "\0" * 500, "\0<|im_end|>\0"])
def test_zero_bytes_are_text(text, tmp_path):
    """No text ends at a zero byte on its way to the tokens."""
    path = tiny_models.make("llama", tmp_path / "tiny.gguf")
    with open_engine(str(path), Settings(threads=1)) as engine:
        ids = engine.encode([Message("user", text)]).ids
        assert text in b"".join(map(engine._decoder.vocab.piece, ids)).decode()


# --- sampling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, 2**32, 2**64, float("nan"), 1.5])
def test_seeds_that_llama_cpp_would_read_otherwise_are_refused(seed):
    """2^32 - 1 and -1 mean "random" there, and what is larger wraps around."""
    with pytest.raises(UsageError, match="seed is"):
        Sampling(seed=seed)


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "max_tokens"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1])
def test_sampling_values_are_numbers_in_their_range(name, value):
    """NaN passes every comparison in llama.cpp; here it is refused like all that is out of range."""
    with pytest.raises(UsageError, match=f"{name} is"):
        Sampling(**{name: value})
