"""Makes tiny models of any architecture, with random weights: a few hundred kB that llama.cpp loads and runs.

llama.cpp itself creates the tensors that an architecture wants; only metadata and weights come from here. The same
arguments give the same file. Answers make no sense, but they are answers.
"""

import ctypes
import itertools
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from llama_cpp._ggml import libggml

from localllm.engine.bindings import lib
from localllm.engine.llama import devices


def byte_texts() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary, as GPT-2 chose them."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>")
MERGES = ("t h", "th e", "i n", "e r", "Ġ a", "a n", "an d", "Ġ the", "o n", "Ċ Ċ")
TOKENS = (*byte_texts(), *SPECIAL, *(merge.replace(" ", "") for merge in MERGES))
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_EVERY = {
    "block_count": 2,
    "context_length": 2048,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
_STATE_SPACE = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.time_step_rank": 8}

# What an architecture says beyond that. Heads stay at 16 values each, unless the architecture says so.
ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {"rope.dimension_count": 16},
    "gemma3": {  # sliding windows: every sixth layer sees everything
        "block_count": 6,
        "attention.sliding_window": 128,
        "attention.key_length": 16,
        "attention.value_length": 16,
    },
    "qwen3moe": {
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_feed_forward_length": 32,
        "attention.key_length": 16,
        "attention.value_length": 16,
    },
    "mamba": {"attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0, **_STATE_SPACE},
    "lfm2": {"attention.head_count_kv": [0, 2, 0, 2], "block_count": 4, "shortconv.l_cache": 3},  # 0: convolution
    "qwen35": {  # every fourth layer is one of attention
        "block_count": 4,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "rope.dimension_sections": [2, 2, 2, 2],
        "rope.dimension_count": 16,
        **_STATE_SPACE,
        "ssm.group_count": 4,
    },
}
RECURRENT = ("mamba", "lfm2", "qwen35")  # wholly or in part

_HEADS = {  # as wide as a quantised KV cache needs them
    "embedding_length": 128,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "rope.dimension_count": 32,
}
_NORM = {"attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": None}
_EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
_MAMBA2 = {**_STATE_SPACE, "ssm.inner_size": 256, "ssm.group_count": 2}  # beside _HEADS

# Those that only tests of memory use: each keeps the past in its own way. Heads have 32 values or more.
MORE: dict[str, dict[str, object]] = {
    "qwen2": _HEADS,
    "qwen3": _HEADS,
    "phi3": {"attention.sliding_window": 128, **_HEADS},  # a window that llama.cpp ignores
    "starcoder2": {**_NORM, **_HEADS},
    "olmo2": {"block_count": 4, "attention.sliding_window": 128, **_HEADS},
    "gemma2": {"attention.sliding_window": 128, **_HEADS},
    "gemma4": {  # the layer with the window has smaller heads, the last two layers read the caches of the first two
        "block_count": 4,
        "attention.sliding_window": 128,
        "attention.sliding_window_pattern": [True, False, True, False],
        "attention.shared_kv_layers": 2,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.key_length_swa": 32,
        "attention.value_length_swa": 32,
        "embedding_length_per_layer_input": 16,
        "rope.dimension_count": 64,
        "rope.dimension_count_swa": 32,
    },
    "gemma3n": {  # layers behind the twentieth read the caches of the last two before it
        "block_count": 22,
        "attention.sliding_window": 128,
        "embedding_length_per_layer_input": 16,
        **_HEADS,
    },
    "cohere2": {"block_count": 4, "attention.sliding_window": 128, "logit_scale": 0.25, **_NORM, **_HEADS},
    "exaone4": _HEADS,
    "gpt-oss": {"block_count": 4, "attention.sliding_window": 128, **_EXPERTS, **_HEADS},
    "smallthinker": {"block_count": 4, "attention.sliding_window": 128, "expert_gating_func": 1, **_EXPERTS, **_HEADS},
    "llama4": {"block_count": 4, "interleave_moe_layer_step": 1, **_EXPERTS, **_HEADS},
    "deepseek2": {  # latent attention
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": 32,
        "attention.kv_lora_rank": 64,
        "attention.key_length": 96,
        "attention.value_length": 64,
        "attention.key_length_mla": 48,
        "attention.value_length_mla": 16,
        "rope.dimension_count": 32,
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.0,
        **_EXPERTS,
    },
    "mamba2": {
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "feed_forward_length": 0,
        **_MAMBA2,
        "embedding_length": 128,
    },
    "jamba": {
        "attention.head_count_kv": [0, 2, 0, 2],
        "block_count": 4,
        **_EXPERTS,
        **_HEADS,
        **_STATE_SPACE,
        "ssm.inner_size": 256,
    },
    "falcon-h1": {**_MAMBA2, **_HEADS},  # attention and a state in each layer
    "granitehybrid": {"attention.head_count_kv": [0, 2, 0, 2], "block_count": 4, **_MAMBA2, **_HEADS},
    "nemotron_h": {
        "attention.head_count_kv": [0, 2, 0, 0],
        "feed_forward_length": [0, 0, 96, 0],  # a layer has a state, attention or neither
        "block_count": 4,
        "attention.layer_norm_epsilon": 1e-5,
        **_MAMBA2,
        **_HEADS,
    },
    "rwkv6": {
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "attention.layer_norm_epsilon": 1e-5,
        "wkv.head_size": 16,
        "time_mix_extra_dim": 32,
        "time_decay_extra_dim": 32,
        "rescale_every_n_layers": 6,
    },
    "rwkv7": {
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        **_NORM,
        "wkv.head_size": 16,
        "attention.decay_lora_rank": 16,
        "attention.iclr_lora_rank": 16,
        "attention.value_residual_mix_lora_rank": 16,
        "attention.gate_lora_rank": 16,
    },
}


def make(architecture: str, path: Path, seed: int = 0, weights: str = "F32", **metadata: object) -> Path:
    """Write a model to ``path``. ``metadata`` replaces or adds entries (None leaves one out).

    Keys without ``general.`` or ``tokenizer.`` in front belong to the architecture. ``weights`` is the type of the
    matrices: F32, F16, BF16, Q8_0, Q5_0, Q5_1, Q4_0 or Q4_1.
    """
    entries = _EVERY | (ARCHITECTURES | MORE)[architecture] | _tokenizer() | metadata
    known = {key: value for key, value in entries.items() if value is not None}
    _write(path, architecture, known, {}, weights)
    _write(path, architecture, known, _tensors(path, seed), weights)
    return path


def _tokenizer() -> dict[str, object]:
    return {
        "general.name": "Tiny",
        "tokenizer.chat_template": TEMPLATE,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in TOKENS],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": TOKENS.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": TOKENS.index("<|im_end|>"),
        "tokenizer.ggml.unknown_token_id": TOKENS.index("<unk>"),
        "tokenizer.ggml.add_bos_token": False,
    }


def _write(
    path: Path, architecture: str, metadata: dict[str, object], tensors: dict[str, np.ndarray], weights: str
) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, architecture, metadata)
    for name, values in tensors.items():
        kind = gguf.GGMLQuantizationType[weights if _is_matrix(name, values) else "F32"]
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: gguf.GGUFWriter, architecture: str, metadata: dict[str, object]) -> None:
    for name, value in metadata.items():
        key = name if name.startswith(("general.", "tokenizer.")) else f"{architecture}.{name}"
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)


def _is_matrix(name: str, values: np.ndarray) -> bool:
    """True for what models are quantised in."""
    return values.ndim > 1 and values.shape[-1] % 32 == 0 and "norm" not in name and "conv" not in name


class _GgufInit(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


class _Tensor(ctypes.Structure):
    """The beginning of ``struct ggml_tensor``."""

    _fields_ = (("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4))


def _tensors(header: Path, seed: int) -> dict[str, np.ndarray]:
    """Have llama.cpp name the tensors that it wants for this metadata, and give them random values."""
    tensors = {}

    def note(name: str, shape: tuple[int, ...]) -> None:
        if not name.endswith("scale"):  # goes with types of weights that are not made here
            tensors[name] = _weights(name, shape, seed)

    lib.llama_model_free(_create(header, note))
    return tensors


def unfilled(architecture: str, path: Path, **metadata: object) -> Any:
    """A model that llama.cpp has made room for but nobody has filled: even a large one takes hardly any memory.

    Its header goes to ``path``, with all tensors as F32 and none of their data. Free it with ``llama_model_free``.
    """
    entries = _EVERY | (ARCHITECTURES | MORE)[architecture] | _tokenizer() | metadata
    known = {key: value for key, value in entries.items() if value is not None}
    _write(path, architecture, known, {}, "F32")
    shapes: dict[str, tuple[int, ...]] = {}
    model = _create(path, lambda name, shape: shapes.update({name: shape}))
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, architecture, known)
    for name, shape in shapes.items():
        writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * math.prod(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return model


def _create(header: Path, note: Callable[[str, tuple[int, ...]], None]) -> Any:
    """Have llama.cpp make a model of this metadata, and note the name and shape of each tensor."""
    libggml.gguf_init_from_file.argtypes = (ctypes.c_char_p, _GgufInit)
    libggml.gguf_init_from_file.restype = ctypes.c_void_p
    libggml.gguf_free.argtypes = (ctypes.c_void_p,)
    libggml.ggml_get_name.argtypes, libggml.ggml_get_name.restype = (ctypes.c_void_p,), ctypes.c_char_p
    libggml.ggml_n_dims.argtypes = (ctypes.c_void_p,)

    def take(pointer: int, _: object) -> None:
        dims = _Tensor.from_address(pointer).ne[: libggml.ggml_n_dims(pointer)]
        note(libggml.ggml_get_name(pointer).decode(), tuple(reversed(dims)))

    devices()  # starts llama.cpp, with its log kept from the terminal
    metadata = libggml.gguf_init_from_file(str(header).encode(), _GgufInit(True, None))
    callback = lib.llama_model_set_tensor_data_t(take)
    params = lib.llama_model_default_params()
    params.load_mtp = True  # also the layers that predict further tokens, where there are any
    model = lib.llama_model_init_from_user(metadata, callback, None, params)
    libggml.gguf_free(metadata)
    if not model:
        raise ValueError(f"llama.cpp makes no model of the metadata in {header}")
    return model


def _weights(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random, but such that activations neither vanish nor explode."""
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    values = random.standard_normal(shape, np.float32)
    if "norm" in name:
        return 1 + 0.1 * values
    if name.endswith("ssm_a"):
        return -np.exp(values)
    return 0.15 * values
