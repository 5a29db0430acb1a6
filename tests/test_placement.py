"""What fits where: context size, layers on a GPU, threads; and which options a model is loaded with."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.engine.placement import DEFAULT_CTX, MIN_CTX, context_tokens, gpu_layers
from localllm.engine.threads import default_threads

GIB = 2**30
sizes = st.integers(0, 64 * GIB)


@pytest.mark.parametrize(
    ("trained", "kv_bytes_per_token", "free_bytes", "expected"),
    [
        (131_072, 131_072, 64 * GIB, DEFAULT_CTX),  # there is room for more, 8,192 is the default
        (2048, 131_072, 64 * GIB, 2048),  # never beyond what the model was trained for
        (131_072, 131_072, GIB // 2, 4096),  # half a GiB holds 4,096 tokens of this cache
        (131_072, 131_072, GIB // 2 + 131_071, 4096),  # in steps of 256
        (131_072, 131_072, -GIB, MIN_CTX),  # hopeless, but creating the context will say so
        (256, 131_072, -GIB, 256),
        (8192, 0, 0, MIN_CTX),  # no room at all
    ],
)
def test_the_default_context(trained, kv_bytes_per_token, free_bytes, expected):
    """The smallest of what the model was trained for, 8,192 and what fits."""
    assert context_tokens(trained, kv_bytes_per_token, free_bytes) == expected


@pytest.mark.parametrize(
    ("free_gib", "expected"),
    [
        (24, 33),  # 32 layers of 1/8 GiB and 1/16 of cache, the output of 1/2, and 1/2 kept free: all
        (7, 33),  # exactly all
        (6.9, 32),
        (1.2, 2),  # the output and one layer
        (1.0, 1),  # the output alone
        (0.9, 0),
        (0, 0),
    ],
)
def test_layers_on_a_gpu(free_gib, expected):
    """As many as fit beside their part of the KV cache, the output layer first; counted as llama.cpp counts."""
    assert gpu_layers([GIB // 8] * 32, GIB // 2, GIB // 16, int(free_gib * GIB), GIB // 2) == expected


@given(st.lists(st.integers(0, GIB), min_size=1, max_size=80), sizes, st.integers(0, GIB), sizes, sizes)
def test_what_is_placed_fits_and_nothing_more_would(layers, output, kv, free, reserve):
    """The chosen layers fit beside the reserve; with one more they would not."""
    count = gpu_layers(layers, output, kv, free, reserve)
    order = [output, *(weights + kv for weights in reversed(layers))]
    assert count == 0 or sum(order[:count]) + reserve <= free
    assert count == len(order) or sum(order[: count + 1]) + reserve > free


def test_threads_are_the_cores_that_may_be_used():
    """At least one, and no more than there are logical processors."""
    import os

    assert 1 <= default_threads() <= (os.cpu_count() or 1)
    if Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").exists():
        siblings = {
            Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
            for cpu in os.sched_getaffinity(0)
        }
        assert default_threads() == len(siblings)
