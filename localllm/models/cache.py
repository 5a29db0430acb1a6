"""What each layer of a model keeps of the tokens that it has seen: keys and values, a window of them, or a state.

Knows how llama.cpp lays out its caches, as far as a header tells: attention, latent attention, sliding windows, layers
that read another's cache, and recurrent states. Knows no size of a context. Messages complete the sentence "FILE …".
Source: llama.cpp as in llama-cpp-python 0.3.36, src/llama-hparams.cpp, src/llama-kv-cache.cpp and
src/llama-memory-recurrent.cpp.
"""

import re
from dataclasses import dataclass
from typing import Final

from localllm.errors import ModelFileError
from localllm.models.container import Tensor
from localllm.models.facts import Facts
from localllm.models.windows import Windows, windows

BLOCK: Final = re.compile(r"blk\.(\d{1,9})\.(.+)")
ALIGNMENT: Final = 32  # bytes; each tensor of a cache begins at a multiple

_RECURRENT = ("ssm_", "time_mix_", "shortconv.")
_GEMMA3N_OWN_CACHES = 20
_MORE_CACHES = {  # with caches for indexers or compressed tokens, layers passed twice, or linear attention
    *("deepseek32", "deepseek4", "dots3note", "glm-dsa", "glm5-next", "graniteswitch", "hrm_text", "hy_v4"),
    *("minimax-01", "minimax-m3", "nanbeige", "qwen4exp"),
}

Blocks = tuple[list[Tensor], ...]


@dataclass(frozen=True, slots=True)
class Caches:
    """The caches of a model; tuples have one entry for each layer that a token passes.

    ``values`` is how many numbers a token leaves in the layer's own cache, ``read_values`` how many of each earlier
    token the layer reads: more where it reads another layer's cache. ``state_bytes`` is the recurrent state of one
    sequence. ``complete`` is False for architectures that keep more than is counted here.
    """

    kv_heads: tuple[int, ...]
    values: tuple[int, ...]
    read_values: tuple[int, ...]
    state_bytes: tuple[int, ...]
    windows: Windows
    complete: bool
    dim_k: int
    dim_v: int

    @classmethod
    def read(cls, facts: Facts, blocks: Blocks, n_layers: int, n_embd: int) -> "Caches":
        """Raises ModelFileError where the metadata cannot be right."""
        n_blocks = len(blocks)
        heads = facts.per_layer("attention.head_count", n_blocks, (0,) * n_blocks)
        declared = facts.per_layer("attention.head_count_kv", n_blocks, heads)
        _check_heads(heads, declared, blocks)
        dim_k, dim_v = _head_dims(facts, max(heads), n_embd)
        seen = windows(facts, n_layers, n_blocks)
        kv_heads = tuple(
            0 if _is_recurrent(block) and not _has(block, "attn_k.weight") else n_kv
            for block, n_kv in zip(blocks[:n_layers], declared[:n_layers], strict=True)
        )
        widths = _widths(facts, seen, dim_k, dim_v)
        read = tuple(n_kv * width for n_kv, width in zip(kv_heads, widths, strict=True))
        own = _own_caches(facts, n_layers, n_blocks)
        return cls(
            kv_heads=tuple(n_kv if index < own else 0 for index, n_kv in enumerate(kv_heads)),
            values=tuple(values if index < own else 0 for index, values in enumerate(read)),
            read_values=_read_values(read, own, seen),
            state_bytes=_state_bytes(facts, blocks[:n_layers], heads[0], n_embd),
            windows=seen,
            complete=facts.architecture not in _MORE_CACHES,
            dim_k=dim_k,
            dim_v=dim_v,
        )


def _check_heads(heads: tuple[int, ...], declared: tuple[int, ...], blocks: Blocks) -> None:
    for n_head, n_kv in zip(heads, declared, strict=True):
        if n_kv and (n_head == 0 or n_head % n_kv):
            raise ModelFileError(f"shares {n_kv} KV heads between {n_head} attention heads")
    if max(heads) == 0 and any(".attn_k." in tensor.name for block in blocks for tensor in block):
        raise ModelFileError("claims 0 attention heads but holds attention tensors")


def _head_dims(facts: Facts, n_head: int, n_embd: int) -> tuple[int, int]:
    """Values in a head's key and value vectors; by default the embedding is divided among the heads."""
    if n_head == 0:
        return 0, 0
    given = all(facts.key(f"attention.{name}_length") in facts.metadata for name in ("key", "value"))
    if n_embd % n_head and not given:
        raise ModelFileError(f"divides embeddings of {n_embd:,} values among {n_head} heads")
    dim_k = facts.integer("attention.key_length", n_embd // n_head, low=1)
    dim_v = facts.integer("attention.value_length", n_embd // n_head, low=1)
    for kind in ("", "_swa"):
        length = facts.integer(f"attention.key_length{kind}", dim_k)
        rotated = facts.integer(f"rope.dimension_count{kind}", 2)
        if not 0 < rotated <= length or rotated % 2:  # 0 keeps llama.cpp busy for ever
            raise ModelFileError(f"rotates {rotated:,} of {length:,} values of each key")
    return dim_k, dim_v


def _is_recurrent(block: list[Tensor]) -> bool:
    return any(_part(tensor).startswith(_RECURRENT) for tensor in block)


def _has(block: list[Tensor], part: str) -> bool:
    return any(_part(tensor) == part for tensor in block)


def _part(tensor: Tensor) -> str:
    match = BLOCK.fullmatch(tensor.name)
    return match[2] if match else ""


def _widths(facts: Facts, seen: Windows, dim_k: int, dim_v: int) -> tuple[int, ...]:
    """Numbers that one KV head of each layer caches for a token, keys and values together."""
    latent = all(facts.integer(f"attention.{name}_length_mla", 0) for name in ("key", "value"))
    windowed_k = facts.integer("attention.key_length_swa", dim_k)
    windowed_v = facts.integer("attention.value_length_swa", dim_v)
    if latent:  # keeps the compressed keys only
        dim_v = windowed_v = 0
    return tuple(windowed_k + windowed_v if windowed else dim_k + dim_v for windowed in seen.layers)


def _own_caches(facts: Facts, n_layers: int, n_blocks: int) -> int:
    """How many of the first layers have a cache of their own; those behind them read one of these."""
    if facts.architecture == "gemma3n":
        return min(_GEMMA3N_OWN_CACHES, n_layers)
    return min(n_blocks - facts.integer("attention.shared_kv_layers", 0, high=n_blocks), n_layers)


def _read_values(read: tuple[int, ...], own: int, seen: Windows) -> tuple[int, ...]:
    """A layer without a cache reads that of the last layer which has one; with a window, of the last but one."""
    if own < 2:
        return read
    return tuple(
        values if index < own else read[own - 2 if windowed else own - 1]
        for index, (values, windowed) in enumerate(zip(read, seen.layers, strict=True))
    )


def _state_bytes(facts: Facts, blocks: Blocks, n_head: int, n_embd: int) -> tuple[int, ...]:
    """Bytes of the recurrent state of each layer, for one sequence, as F32."""
    if not any(_is_recurrent(block) for block in blocks):
        return (0,) * len(blocks)
    state = sum(-(-values * 4 // ALIGNMENT) * ALIGNMENT for values in _state_values(facts, n_head, n_embd))
    return tuple(state if _is_recurrent(block) else 0 for block in blocks)


def _state_values(facts: Facts, n_head: int, n_embd: int) -> tuple[int, int]:
    """Numbers in the two parts of a state: the last inputs of a convolution or shift, and the state proper."""
    kernel = facts.integer("ssm.conv_kernel", 0)
    if head := facts.integer("wkv.head_size", 0):  # RWKV
        return facts.integer("token_shift_count", 2) * n_embd, n_embd * head
    if cached := facts.integer("shortconv.l_cache", 0):  # LFM2
        return n_embd * (cached - 1), 0
    if head := facts.integer("kda.head_dim", 0):  # Kimi's delta attention
        return 3 * ((kernel or 4) - 1) * n_head * head, head * head * n_head
    inner, state = facts.integer("ssm.inner_size", 0), facts.integer("ssm.state_size", 0)
    convolved = inner + 2 * facts.integer("ssm.group_count", 0) * state
    return max(kernel - 1, 0) * convolved, state * inner
