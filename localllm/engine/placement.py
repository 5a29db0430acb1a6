"""What fits where: context size and layers on a GPU. Pure arithmetic on plain numbers, in bytes and tokens."""

from collections.abc import Sequence

DEFAULT_CTX = 8192
MIN_CTX = 512
CTX_STEP = 256  # llama.cpp pads a context to this


def context_tokens(trained: int, kv_bytes_per_token: int, free_bytes: int) -> int:
    """The default context: the smallest of what the model was trained for, 8,192 and what fits in memory.

    ``free_bytes`` is what the KV cache may take. Never below 512 (or what the model was trained for, if less):
    where not even that fits, creating the context says so.
    """
    affordable = free_bytes // max(1, kv_bytes_per_token) // CTX_STEP * CTX_STEP
    return min(trained, DEFAULT_CTX, max(MIN_CTX, affordable))


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
