"""llama.cpp as a Decoder.

Knows the low-level C API of llama-cpp-python, its structs and its traps, and turns its failures into our errors.
Knows no chat, no text and no policy: sizes, threads and layers come in as plain values.
"""

import collections
import ctypes
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm.cancel import Cancel
from localllm.engine.bindings import has_amx, lib, libggml
from localllm.engine.decoder import Sampler, TokenFilter
from localllm.engine.samplers import likeliest, new_sampler
from localllm.engine.vocabulary import LlamaVocabulary
from localllm.errors import Cancelled, DecodeError, ModelFileError, OutOfMemory
from localllm.values import KvType, Sampling

_KV_TYPES: dict[KvType, int] = {
    "f16": lib.GGML_TYPE_F16,
    "q8_0": lib.GGML_TYPE_Q8_0,
    "q4_0": lib.GGML_TYPE_Q4_0,
}
_SLICE_TOKENS = 512  # llama.cpp's default n_ubatch
_LOG_LEVEL_ERROR = 4  # enum ggml_log_level
_SLOW_TOKEN_S = 0.05  # a stop that comes at most this late is not felt
_MAX_OUTPUTS = 32  # logits of one slice; room for more is reserved, half a gigabyte of it for a large vocabulary
_ABORTED = 2  # llama_decode's return value after the abort callback said so
_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that this build of llama.cpp can use, with its free memory in bytes."""

    name: str
    free_bytes: int


class _Log:
    """Keeps llama.cpp's last errors: the only place where it says why something failed."""

    def __init__(self) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=8)
        self.callback = lib.llama_log_callback(self._take)  # referenced for as long as llama.cpp may call it

    def _take(self, level: int, text: bytes, _: object) -> None:
        if level == _LOG_LEVEL_ERROR:
            self._lines.append(text.decode("utf-8", "replace").strip())

    def reason(self) -> str:
        """The first error since the last call, in one line without control characters; or ""."""
        lines = [line for line in self._lines if line]
        self._lines.clear()
        line = lines[0].split(": ", 1)[-1] if lines else ""
        return "".join(c if c.isprintable() else "?" for c in line)[:300]


@functools.cache
def _log() -> _Log:
    """Start llama.cpp, once per process, with a log that goes to us and not to the terminal."""
    log = _Log()
    lib.llama_log_set(log.callback, ctypes.c_void_p(0))
    lib.llama_backend_init()
    return log


def devices() -> list[Device]:
    """The GPUs that this build can use, with their memory as it is now."""
    _log()
    libggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    libggml.ggml_backend_dev_get.argtypes, libggml.ggml_backend_dev_get.restype = (
        [ctypes.c_size_t],
        ctypes.c_void_p,
    )
    libggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    libggml.ggml_backend_dev_description.argtypes = [ctypes.c_void_p]
    libggml.ggml_backend_dev_description.restype = ctypes.c_char_p
    size_p = ctypes.POINTER(ctypes.c_size_t)
    libggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size_p, size_p]
    libggml.ggml_backend_dev_memory.restype = None
    found = []
    for index in range(libggml.ggml_backend_dev_count()):
        device = libggml.ggml_backend_dev_get(index)
        if libggml.ggml_backend_dev_type(device) in _GPU_TYPES:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            libggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            name = libggml.ggml_backend_dev_description(device).decode("utf-8", "replace")
            found.append(Device(name, free.value))
    return found


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a model. ``gpu_layers`` counts the output layer too; sizes are in tokens."""

    n_ctx: int
    kv: KvType = "f16"
    gpu_layers: int = 0
    threads: int = 1


class LlamaDecoder:
    """A model and one context with one sequence. See the Decoder protocol."""

    def __init__(self, path: Path, options: LoadOptions, cancel: Cancel | None = None) -> None:
        """Load the model. Raises ModelFileError, OutOfMemory, Cancelled."""
        self._cancelled: Callable[[], bool] = cancel or Cancel()
        self._model = _load_model(path, options, cancel or Cancel())
        self.vocab = LlamaVocabulary(self._model)
        self._ctx: Any = None
        try:
            self._ctx, self.flash_attention = _new_context(self._model, options)
        except BaseException:
            self.close()
            raise
        self.n_ctx: int = lib.llama_n_ctx(self._ctx)
        self.slice_tokens: int = lib.llama_n_ubatch(self._ctx)
        self.tokens: list[int] = []
        self._memory = lib.llama_get_memory(self._ctx)
        self._n_swa: int = lib.llama_model_n_swa(self._model)
        self._recurrent: bool = lib.llama_model_is_recurrent(self._model) or lib.llama_model_is_hybrid(self._model)
        self._buffer = (lib.llama_token * self.slice_tokens)()
        self._one = lib.llama_batch_get_one(self._buffer, 1)
        self._checked = lib.llama_batch_init(self.slice_tokens, 0, 1)
        for index in range(self.slice_tokens):
            self._checked.n_seq_id[index], self._checked.seq_id[index][0] = 1, 0
        self._abort = lib.ggml_abort_callback(lambda _: self._cancelled())
        self._watched = False
        self._token_s = 0.0

    @property
    def can_undo(self) -> bool:
        """See the protocol. A recurrent state holds no past."""
        return not self._recurrent

    def feed(self, ids: Sequence[int], cancelled: Callable[[], bool], every: bool = False) -> bool:
        """Compute ``ids``; see the protocol. Raises DecodeError."""
        self._check_open()
        if cancelled():
            return False
        count = len(ids)
        if not 0 < count <= self.slice_tokens or len(self.tokens) + count > self.n_ctx:
            raise DecodeError(f"{count} tokens do not fit behind {len(self.tokens)} in a context of {self.n_ctx}")
        self._cancelled = cancelled
        self._watch(count > 1 or self._token_s > _SLOW_TOKEN_S)
        begin_s = time.perf_counter()
        status = lib.llama_decode(self._ctx, self._batch(ids, every and count > 1))
        if status == 0:
            if count == 1:
                self._token_s = time.perf_counter() - begin_s
            self.tokens.extend(ids)
            return True
        self._repair()
        if status == _ABORTED or cancelled():
            return False
        raise DecodeError(f"llama.cpp failed to compute (status {status}): {_log().reason() or 'no reason given'}")

    def _batch(self, ids: Sequence[int], every: bool) -> Any:
        count = len(ids)
        if not every:
            self._buffer[:count] = ids
            return self._one if count == 1 else lib.llama_batch_get_one(self._buffer, count)
        batch, start = self._checked, len(self.tokens)
        batch.n_tokens = count
        for index, token in enumerate(ids):
            batch.token[index], batch.pos[index], batch.logits[index] = token, start + index, True
        return batch

    def _watch(self, wanted: bool) -> None:
        """Have llama.cpp ask whether to stop, some 500 times in a computation. A token takes 2 % longer for it."""
        if wanted != self._watched:
            callback = self._abort if wanted else lib.ggml_abort_callback()
            lib.llama_set_abort_callback(self._ctx, callback, None)
            self._watched = wanted

    def likeliest(self) -> tuple[int, float]:
        """See the protocol. Raises DecodeError where the model computes no numbers."""
        self._check_open()
        return likeliest(self._ctx, self.vocab.n_tokens)

    def use_threads(self, count: int) -> None:
        """See the protocol. A batch of several tokens has a count of its own in llama.cpp: both are set."""
        self._check_open()
        lib.llama_set_n_threads(self._ctx, count, count)

    def rewind(self, length: int) -> int:
        """Forget all but the first ``length`` tokens; see the protocol."""
        self._check_open()
        if lib.llama_memory_seq_pos_max(self._memory, 0) != len(self.tokens) - 1:
            self._repair()  # an exception, such as KeyboardInterrupt, came between llama.cpp and our count
        if length < len(self.tokens):
            possible = length > 0 and self._can_rewind(length)
            kept = length if possible and lib.llama_memory_seq_rm(self._memory, 0, length, -1) else 0
            if not kept:
                lib.llama_memory_clear(self._memory, True)
            del self.tokens[kept:]
        return len(self.tokens)

    @property
    def whole_only(self) -> bool:
        """See the protocol."""
        return self._recurrent

    @property
    def forgets(self) -> bool:
        """See the protocol."""
        return self._n_swa > 0

    @property
    def block_tokens(self) -> int:
        """See the protocol. Of a longer stretch llama.cpp leaves out what lies outside the window."""
        return min(self._n_swa or self.n_ctx, self.n_ctx)

    def save(self, start: int, stop: int) -> bytearray | None:
        """See the protocol. A part of a sequence is saved by way of the second one, which shares its cells."""
        self._check_open()
        if self._recurrent:
            return self._saved(0) if (start, stop) == (0, len(self.tokens)) else None
        if not lib.llama_memory_seq_pos_min(self._memory, 0) <= start < stop <= len(self.tokens):
            return None
        lib.llama_memory_seq_cp(self._memory, 0, 1, start, stop)
        try:
            return self._saved(1)
        finally:
            lib.llama_memory_seq_rm(self._memory, 1, -1, -1)

    def _saved(self, sequence: int) -> bytearray | None:
        size = lib.llama_state_seq_get_size_ext(self._ctx, sequence, 0)
        try:
            state = bytearray(size)
        except MemoryError:
            return None
        written = lib.llama_state_seq_get_data_ext(self._ctx, _array(state), size, sequence, 0)
        return state if written == size > 0 else None

    def restore(self, ids: Sequence[int], state: bytearray | memoryview) -> bool:
        """See the protocol."""
        self._check_open()
        start, stop = len(self.tokens), len(self.tokens) + len(ids)
        if stop > self.n_ctx or not ids:
            return False
        sequence = 0 if self._recurrent else 1
        read = lib.llama_state_seq_set_data_ext(self._ctx, _array(state), len(state), sequence, 0)
        last = lib.llama_memory_seq_pos_max(self._memory, sequence)
        if self._recurrent:
            whole = read == len(state) and last == stop - 1
        else:
            first = lib.llama_memory_seq_pos_min(self._memory, 1)
            whole = read == len(state) and (first, last) == (start, stop - 1)
            if whole:
                lib.llama_memory_seq_cp(self._memory, 1, 0, -1, -1)
            lib.llama_memory_seq_rm(self._memory, 1, -1, -1)
        if whole:
            self.tokens.extend(ids)
        else:
            self._repair()
        return bool(whole)

    def _check_open(self) -> None:
        if not self._ctx:
            raise DecodeError("the model was closed", "open it again")

    def _can_rewind(self, length: int) -> bool:
        """Recurrent state cannot go back; a sliding window only while the cells it needs are still there."""
        if self._recurrent:
            return False
        first_cell: int = lib.llama_memory_seq_pos_min(self._memory, 0)
        return self._n_swa == 0 or first_cell <= max(0, length - self._n_swa)

    def _repair(self) -> None:
        """Drop what an aborted or failed batch may have left behind, so that ``tokens`` is the truth again."""
        length = len(self.tokens)
        removed = lib.llama_memory_seq_rm(self._memory, 0, length, -1)
        if not removed or lib.llama_memory_seq_pos_max(self._memory, 0) != length - 1 or self._recurrent:
            lib.llama_memory_clear(self._memory, True)
            self.tokens.clear()

    def sampler(self, sampling: Sampling, seed: int, only: TokenFilter | None = None) -> Sampler:
        """A new sampler for one turn."""
        self._check_open()
        return new_sampler(self._ctx, self.vocab, sampling, seed, self.tokens, only)

    def close(self) -> None:
        """Free context and model."""
        if self._ctx:
            lib.llama_batch_free(self._checked)
            lib.llama_free(self._ctx)
        if self._model:
            lib.llama_model_free(self._model)
            self.vocab.close()
        self._ctx = self._model = None


@contextmanager
def glimpse(path: Path) -> "Iterator[tuple[LlamaVocabulary, bool]]":
    """The vocabulary of a model, and whether its memory can take tokens back; nothing else of it is loaded.

    Raises ModelFileError, OutOfMemory.
    """
    model = _load_model(path, LoadOptions(n_ctx=0), Cancel(), vocab_only=True)
    try:
        yield LlamaVocabulary(model), not (lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model))
    finally:
        lib.llama_model_free(model)


def _array(data: bytearray | memoryview) -> Any:
    """The same bytes for C, not copied."""
    return (ctypes.c_uint8 * len(data)).from_buffer(data)


def _load_model(path: Path, options: LoadOptions, cancel: Cancel, vocab_only: bool = False) -> Any:
    log = _log()
    params = lib.llama_model_default_params()
    params.vocab_only = vocab_only
    params.n_gpu_layers = options.gpu_layers
    params.use_extra_bufts = not has_amx()  # only weights that were rearranged for AMX are multiplied by it
    go_on = lib.llama_progress_callback(lambda _progress, _data: not cancel())
    params.progress_callback = go_on
    log.reason()
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if model:
        return model
    if cancel.reason:
        raise Cancelled(cancel.reason)
    reason = log.reason() or "no reason given"
    if "allocate" in reason:
        raise OutOfMemory(f"{path.name} does not fit into memory: {reason}", "choose a smaller model")
    raise ModelFileError(
        f"llama.cpp cannot load {path.name}: {reason}",
        "the file may be damaged, or need a newer llama.cpp; try another file of this model",
    )


def _new_context(model: Any, options: LoadOptions) -> tuple[Any, bool]:
    """A context, and whether it uses flash attention: where the build has it."""
    params = lib.llama_context_default_params()
    params.n_ctx = options.n_ctx
    params.n_batch = params.n_ubatch = min(_SLICE_TOKENS, options.n_ctx)
    # The second sequence is for saving and restoring blocks. It changes a window's numbers, so it is always there.
    params.n_seq_max = 1 if lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model) else 2
    params.kv_unified = True
    params.n_threads = params.n_threads_batch = options.threads
    params.type_k = params.type_v = _KV_TYPES[options.kv]
    params.swa_full = False
    params.n_outputs_max = _MAX_OUTPUTS
    params.no_perf = True
    for flash_attention in (1, 0):  # explicit: AUTO hides which layout was chosen
        params.flash_attn_type = flash_attention
        ctx = lib.llama_init_from_model(model, params)
        if ctx:
            return ctx, bool(flash_attention)
    raise OutOfMemory(
        f"a context of {options.n_ctx:,} tokens cannot be created: {_log().reason() or 'not enough memory'}",
        "choose a smaller --ctx-size, or --kv q8_0",
    )
