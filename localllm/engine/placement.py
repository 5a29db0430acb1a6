"""What fits where: context size and layers on a GPU. Pure arithmetic on plain numbers, in bytes and tokens."""

from collections.abc import Callable, Sequence
from typing import Literal

from localllm.values import ContextReason

Fit = Literal["gpu", "gpu+ram", "ram", "no"]

DEFAULT_CTX = 8192
MIN_CTX = 512
CTX_STEP = 256  # llama.cpp pads a context to this
COMPUTE_BYTES = 512 * 2**20  # kept free on a GPU, or in the machine, for compute buffers and the runtime itself
_KV_SHARE = 0.8  # the rest is for compute buffers, and for whatever else runs on the machine
_RAM_SHARE = 0.8  # of all memory; the rest is for the system and what else a person has open
_KV_BYTES = 512 * 2**20  # a cache of 4,096 tokens at 128 KiB each, as Llama 3.1 8B has it


def fit(file_bytes: int, gpu_bytes: int, ram_bytes: int) -> Fit:
    """Where a model of this size runs at all, with a context of a few thousand tokens, when nothing else is loaded.

    ``gpu_bytes`` is the memory of all GPUs together, ``ram_bytes`` that of the machine beside it, both free or not.
    An estimate by the size of the file alone: small models have a smaller cache, and a shorter context needs less.
    """
    needed = file_bytes + _KV_BYTES
    gpu_room = max(0, gpu_bytes - COMPUTE_BYTES)
    ram_room = max(0, int(_RAM_SHARE * ram_bytes) - COMPUTE_BYTES)
    if needed <= gpu_room:
        return "gpu"
    if needed > gpu_room + ram_room:
        return "no"
    return "gpu+ram" if gpu_room else "ram"


def context_tokens(trained: int, kv_bytes: Callable[[int], int], free_bytes: int) -> tuple[int, ContextReason]:
    """The default context: the smallest of what the model was trained for, 8,192 and what fits in memory.

    Also says which of them it is. ``kv_bytes`` tells what the cache of a context takes, ``free_bytes`` is what it may
    take. Never below 512 (or what the model was trained for, if less): where not even that fits, creating the context
    says so.
    """
    steps = range(MIN_CTX, DEFAULT_CTX + 1, CTX_STEP)
    affordable = max((n_ctx for n_ctx in steps if kv_bytes(n_ctx) <= free_bytes), default=MIN_CTX)
    bounds: list[tuple[int, ContextReason]] = [(trained, "trained"), (DEFAULT_CTX, "default"), (affordable, "memory")]
    return min(bounds, key=lambda bound: bound[0])


def kv_budget_bytes(weights_bytes: int, gpu_bytes: int, ram_bytes: int) -> int:
    """What the KV cache may take: most of what is free beside the weights.

    On the GPU alone where it holds all the weights, else on both: each layer's cache lies beside its weights.
    """
    free_bytes = gpu_bytes if weights_bytes < gpu_bytes else gpu_bytes + ram_bytes
    return int(_KV_SHARE * (free_bytes - weights_bytes))


def gpu_layers(
    layer_bytes: Sequence[int],
    output_bytes: int,
    kv_bytes_per_layer: int,
    free_bytes: int,
    reserve_bytes: int,
) -> int:
    """How many layers fit on a GPU, as llama.cpp counts them: from the last layer down, the output layer first.

    Each layer takes its weights and its part of the KV cache; ``reserve_bytes`` is kept for compute buffers.
    """
    left = free_bytes - reserve_bytes
    count = 0
    for size in (output_bytes, *(weights + kv_bytes_per_layer for weights in reversed(layer_bytes))):
        if size > left:
            break
        left -= size
        count += 1
    return count
