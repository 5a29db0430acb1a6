"""Tries a model file in a child process before this one loads it: a bad file can end whatever process touches it.

llama.cpp asserts much of what a file says, and a failed assertion is a signal. The header check (models/gguf.py)
refuses what is known to be wrong; all else is found out here, by doing once with a file that was never loaded before
what every turn does. Files that passed are remembered.
Knows what is done with a model; knows neither catalogs nor where files come from.
"""

import dataclasses
import hashlib
import itertools
import json
import re
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING

from localllm import child
from localllm.cancel import Cancel
from localllm.errors import LocalLLMError, ModelFileError, OutOfMemory, Unavailable

if TYPE_CHECKING:
    from localllm.engine.llama import LlamaDecoder, LoadOptions

_TRIAL = 3  # counts up whenever a trial does more than before
_N_CTX = 512
_BATCH_TOKENS = 40  # more than 32, where the last of llama.cpp's ways to multiply matrices begins
_LAST_WORDS = re.compile(r"([\w-]+\.\w+:\d+: .+)|what\(\):\s+(.+)")  # an assertion; an exception that nobody caught
_HINT = "the file may be damaged, or need a newer llama.cpp; try another file of this model"


def try_out(
    parts: Sequence[Path],
    options: "LoadOptions",
    memory: Path,
    cancel: Cancel,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Return if the model in ``parts`` (several files where it is split) can be used, now or at an earlier trial.

    A trial loads the model, in a process that is gone before this returns; ``on_start`` is called before it.
    Files that passed are remembered in the folder ``memory``; where that cannot be written, they are tried again.
    Raises ModelFileError with the reason, OutOfMemory, Cancelled, and Unavailable where no process can be started.
    """
    passed = memory / _fingerprint(parts, options)
    with suppress(OSError):  # a folder that cannot be read remembers nothing
        if passed.exists():
            return
    on_start()
    _try_in_child(parts[0], options, cancel)
    with suppress(OSError):
        memory.mkdir(parents=True, exist_ok=True)
        passed.touch()


def _fingerprint(parts: Sequence[Path], options: "LoadOptions") -> str:
    """Another one whenever a file differs, or what will run on it: which llama.cpp, where, and which trial.

    A file that was changed in place and had its date put back still shows in ctime.
    """
    from localllm.engine.bindings import library

    try:
        found = [part.stat() for part in parts]
    except OSError as error:
        raise ModelFileError(f"{error.filename} cannot be read: {error.strerror}", "check the path") from None
    files = [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in found]
    code = (library(), _TRIAL, options.kv, options.gpu_layers > 0)
    return hashlib.sha256(repr((files, code)).encode()).hexdigest()


def _try_in_child(path: Path, options: "LoadOptions", cancel: Cancel) -> None:
    small = dataclasses.replace(options, n_ctx=min(options.n_ctx, _N_CTX))
    command, environment = child.python(probe_child, str(path), json.dumps(dataclasses.asdict(small)))
    try:
        finished = child.run(command, environment, lambda *_: None, cancel)
    except OSError as error:
        raise Unavailable(f"no process can be started that tries {path.name}: {error.strerror}") from None
    if not finished.ok:
        raise _failure(path.name, finished)


def _failure(name: str, finished: child.Finished) -> LocalLLMError:
    """What the end of the child means: by the signal that ended it, or by the last line that it wrote."""
    if finished.code == -SIGKILL:
        return OutOfMemory(f"{name} needs more memory than there is", "close other programs, or use a smaller model")
    if finished.code < 0:
        words = _LAST_WORDS.search(finished.output)
        said = f", {_one_line(words[1] or words[2])}" if words else ""
        return ModelFileError(f"{name} cannot be used: llama.cpp crashes on it (signal {-finished.code}{said})", _HINT)
    last = finished.output.rstrip("\n").rpartition("\n")[2]
    try:
        code, message, hint = json.loads(last)
    except (ValueError, TypeError):  # not ours: Python's own last line about an exception
        return ModelFileError(f"{name} cannot be used: {_one_line(last)}", _HINT)
    if code == OutOfMemory.code:
        return OutOfMemory(message, hint)
    return ModelFileError(
        message if code == ModelFileError.code else f"{name} cannot be used: {message}", hint or _HINT
    )


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)[:300]


def probe_child() -> None:
    """Use one model: the child process of ``try_out``. The last line that it writes is the reason of a failure."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash must not leave the model's memory on the disk
    with suppress(OSError):  # Linux: should memory run out, this process goes before all others
        Path("/proc/self/oom_score_adj").write_text("1000")
    from localllm.engine.llama import LoadOptions

    try:
        _use(Path(sys.argv[1]), LoadOptions(**json.loads(sys.argv[2])))
    except LocalLLMError as error:
        sys.stdout.write(json.dumps([error.code, error.message, error.hint]))
        sys.exit(1)


def _use(path: Path, options: "LoadOptions") -> None:
    """All that turns do with a model, in small. Later uses of llama.cpp belong here as well."""
    from localllm.engine.llama import LlamaDecoder
    from localllm.engine.worker import run_in_worker
    from localllm.values import Sampling

    decoder = LlamaDecoder(path, options)
    vocab = decoder.vocab
    list(vocab.control_tokens)  # spells out every token
    ids = run_in_worker(lambda: vocab.tokenize(_every_text()), Cancel()) or [0]
    ids = ids[:: len(ids) // min(_BATCH_TOKENS, decoder.slice_tokens) + 1]
    decoder.feed(ids, bool)
    for sampling in (Sampling(temperature=0), Sampling(repeat_penalty=1.1)):
        sampler = decoder.sampler(sampling, seed=1)
        token = sampler.sample()
        sampler.close()
        vocab.is_end(token)
        decoder.rewind(len(ids) // 2)
        decoder.feed([token], bool)
    _keep(decoder)
    if decoder.can_undo:  # as checking a draft does, and as a draft model guesses
        start = len(decoder.tokens)
        decoder.feed(ids[:4], bool, every=True)
        decoder.likeliest()
        decoder.use_threads(1)
        decoder.rewind(start + 1)
        decoder.feed(ids[:1], bool)
    decoder.close()


def _keep(decoder: "LlamaDecoder") -> None:
    """Save and restore, as the prefix cache does."""
    tokens = tuple(decoder.tokens)
    start = 0 if decoder.whole_only else max(0, len(tokens) - decoder.block_tokens)
    if state := decoder.save(start, len(tokens)):
        decoder.rewind(start)
        if len(decoder.tokens) == start:
            decoder.restore(tokens[start:], state)
    if not decoder.tokens:
        decoder.feed(tokens[:1], bool)


def _every_text() -> str:
    """Text that asks all of a tokenizer: every byte of UTF-8, and each kind of character beside each other."""
    plane = map(chr, (*range(0xD800), *range(0xE000, 0x10000)))
    beyond = map(chr, range(0x10000, 0x110000, 0x400))
    kinds = " \n\r\t\0\xa0\u3000aAé\u0301中1٣'-.🙂"
    return "".join((*plane, *beyond, *itertools.chain.from_iterable(itertools.product(kinds, repeat=3))))
