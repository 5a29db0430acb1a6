"""What fits where: context size, layers on a GPU, threads; and the options that a model is loaded with."""

import dataclasses

import pytest
from gguf_files import tiny
from hypothesis import given
from hypothesis import strategies as st

from localllm import Settings
from localllm.app import load_options
from localllm.cores import default_threads
from localllm.engine.placement import DEFAULT_CTX, MIN_CTX, context_tokens, fit, gpu_layers
from localllm.errors import UsageError

GIB = 2**30
sizes = st.integers(0, 64 * GIB)


@pytest.mark.parametrize(
    ("trained", "kv_bytes_per_token", "free_bytes", "expected"),
    [
        (131_072, 131_072, 64 * GIB, (DEFAULT_CTX, "default")),  # there is room for more, 8,192 is the default
        (2048, 131_072, 64 * GIB, (2048, "trained")),  # never beyond what the model was trained for
        (131_072, 131_072, GIB // 2, (4096, "memory")),  # half a GiB holds 4,096 tokens of this cache
        (131_072, 131_072, GIB // 2 + 131_071, (4096, "memory")),  # in steps of 256
        (131_072, 131_072, -GIB, (MIN_CTX, "memory")),  # hopeless, but creating the context will say so
        (256, 131_072, -GIB, (256, "trained")),
        (8192, 1, 0, (MIN_CTX, "memory")),  # no room at all
        (8192, 0, 0, (8192, "trained")),  # a recurrent model: its state is as large in any context
    ],
)
def test_the_default_context(trained, kv_bytes_per_token, free_bytes, expected):
    """The smallest of what the model was trained for, 8,192 and what fits; and which of them it is."""
    assert context_tokens(trained, lambda n_ctx: n_ctx * kv_bytes_per_token, free_bytes) == expected


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


@pytest.mark.parametrize(
    ("file_gib", "gpu_gib", "ram_gib", "expected"),
    [
        (4.9, 24, 64, "gpu"),
        (4.9, 6, 16, "gpu"),  # 8B at 4 bits on a card of 6 GB
        (4.9, 5, 16, "gpu+ram"),
        (18.5, 24, 64, "gpu"),  # 32B at 4 bits on a card of 24 GB
        (23, 24, 64, "gpu"),  # exactly, with half a GiB of cache and half a GiB of buffers
        (23.01, 24, 64, "gpu+ram"),
        (40, 24, 32, "gpu+ram"),
        (40, 24, 16, "no"),
        (4.9, 0, 8, "ram"),
        (4.9, 0.5, 8, "ram"),  # what an integrated GPU calls its own holds nothing
        (4.9, 0, 4, "no"),
        (5.4, 0, 8, "ram"),  # a fifth of 8 GiB is left to the system
        (5.5, 0, 8, "no"),
        (0.1, 0, 1, "no"),
        (0.1, 0, 2, "ram"),
        (0, 0, 0, "no"),
    ],
)
def test_where_a_model_fits(file_gib, gpu_gib, ram_gib, expected):
    """On the GPU alone, on both, in the machine's memory, or nowhere; each keeps room for what is not weights."""
    assert fit(int(file_gib * GIB), int(gpu_gib * GIB), int(ram_gib * GIB)) == expected


@given(sizes, sizes, sizes, sizes, sizes)
def test_more_memory_never_makes_a_model_fit_worse(file, gpu, ram, more_gpu, more_ram):
    """Nor does a smaller file: there is one order, from nowhere over the machine's memory to the GPU alone."""
    order = ["no", "ram", "gpu+ram", "gpu"]
    rank = order.index(fit(file, gpu, ram))
    assert rank <= order.index(fit(file, gpu + more_gpu, ram))
    assert rank <= order.index(fit(file, gpu, ram + more_ram))
    assert rank <= order.index(fit(file // 2, gpu, ram))


@given(sizes, sizes, sizes)
def test_what_fits_is_smaller_than_what_holds_it(file, gpu, ram):
    """No answer promises memory that is not there; "gpu+ram" means that neither GPU alone nor no GPU is the answer."""
    match fit(file, gpu, ram):
        case "gpu":
            assert file < gpu
        case "gpu+ram":
            assert fit(file, gpu, 0) == "no" and file < gpu + ram
        case "ram":
            assert fit(file, 0, ram) == "ram" and file < ram
        case "no":
            assert fit(file, gpu, 0) == fit(file, 0, ram) == "no"


class Gpu:
    def __init__(self, free_gib):
        self.free_bytes = int(free_gib * GIB)


@pytest.fixture
def shape():
    """A model of 32 layers of 1/8 GiB, an output of 1/2 and a KV cache of 128 KiB a token; trained for 131,072."""
    return dataclasses.replace(
        tiny().shape(),
        n_layers=32,
        n_ctx_train=131_072,
        layer_bytes=(GIB // 8,) * 32,
        output_bytes=GIB // 2,
        tensor_bytes=5 * GIB,
        kv_values=(2048,) * 32,
        kv_read_values=(2048,) * 32,
        window_layers=(False,) * 32,
        state_bytes=(0,) * 32,
    )


@pytest.mark.parametrize(
    ("gpus", "ram_gib", "settings", "n_ctx", "reason", "layers"),
    [
        ((), 64, Settings(), 8192, "default", 0),
        ((), 6, Settings(), 6400, "memory", 0),  # 0.8 GiB beside the weights
        ((), 64, Settings(gpu_layers=99), 8192, "default", 0),  # there is no GPU to put them on
        ((24,), 64, Settings(), 8192, "default", 33),
        ((24,), 64, Settings(ctx_size=1024), 1024, "chosen", 33),
        ((4, 4), 64, Settings(), 8192, "default", 33),
        (
            (4,),
            64,
            Settings(),
            8192,
            "default",
            20,
        ),  # the output and 19 layers; the rest of model and cache is in the machine's memory
        ((4,), 64, Settings(gpu_layers=0), 8192, "default", 0),
        ((4,), 64, Settings(gpu_layers=99), 8192, "default", 33),  # the user insists
        ((4,), 64, Settings(gpu_layers=7), 8192, "default", 7),
    ],
)
def test_what_a_model_is_loaded_with(shape, gpus, ram_gib, settings, n_ctx, reason, layers):
    """All layers that fit go to the GPU, and a model that does not fit there still gets a whole context."""
    options, why = load_options(shape, settings, [Gpu(size) for size in gpus], int(ram_gib * GIB))
    assert (options.n_ctx, why, options.gpu_layers) == (n_ctx, reason, layers)
    assert options.threads == default_threads()


def test_a_sliding_window_leaves_room_for_a_longer_context(shape):
    """Layers that keep a window only take no more for a longer context, and the default context counts on that."""
    windowed = dataclasses.replace(shape, window_layers=(True,) * 31 + (False,), sliding_window=512)
    chosen = [load_options(model, Settings(), [], int(5.6 * GIB))[0].n_ctx for model in (shape, windowed)]
    assert chosen == [3840, 8192]
    assert windowed.kv_bytes(8192, "f16") < int(0.8 * 0.6 * GIB) < shape.kv_bytes(4096, "f16")


def test_a_context_beyond_the_models_training_is_refused(shape):
    """With the number that is allowed."""
    with pytest.raises(UsageError, match="trained for 131,072"):
        load_options(shape, Settings(ctx_size=131_073), [], 64 * GIB)
