"""What a header says about memory, against what llama.cpp allocates: it is asked itself, in bytes."""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from hypothesis import given
from hypothesis import strategies as st
from llama_memory import Allocated, allocated, breakdown

from localllm.engine.bindings import lib
from localllm.engine.llama import LlamaDecoder, LoadOptions, _new_context
from localllm.models.container import read_container
from localllm.models.gguf import ModelShape, parse_header, read_header
from localllm.values import KvType

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads a std::map of libstdc++")

KV: tuple[KvType, ...] = ("f16", "q8_0", "q4_0")
CONTEXTS = (300, 512, 2048, 5000)  # less than is computed at once; the same; a multiple of 256; none
TOLERANCE = 0.25  # of what is reserved for computing

# Heads of 32 values, which a quantised cache needs, for architectures that have smaller ones in other tests.
WIDE: dict[str, object] = {
    "embedding_length": 128,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "rope.dimension_count": 32,
}
MAKINGS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, WIDE) for name in ("llama", "gemma3", "qwen3moe", "lfm2", "qwen35")},
    **{name: (name, {}) for name in ("mamba", *tiny_models.MORE)},
    "exaone4 of 64 layers": ("exaone4", {"block_count": 64, "attention.sliding_window": 128}),
    "gemma2 with its own pattern": ("gemma2", {"block_count": 6, "attention.sliding_window_pattern": 3}),
    "gemma2 without a word about windows": ("gemma2", {"attention.sliding_window": None}),
    "gemma3 without windows": ("gemma3", {**WIDE, "attention.sliding_window": None}),
    "lfm2 with windows": ("lfm2", {**WIDE, "attention.sliding_window": 128}),
    "llama4 without chunks": ("llama4", {"attention.sliding_window": 0}),
    "odd state": ("mamba", {"embedding_length": 36, "ssm.inner_size": 72, "ssm.state_size": 5, "ssm.conv_kernel": 2}),
}
UNTIED = ("llama", "qwen3moe", "gpt-oss")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[[str], Path]:
    """Makes each model once."""
    folder, paths = tmp_path_factory.mktemp("models"), {}

    def path_of(name: str) -> Path:
        if name not in paths:
            architecture, metadata = MAKINGS[name]
            paths[name] = tiny_models.make(architecture, folder / f"{name}.gguf", **metadata)
        return paths[name]

    return path_of


def taken(path: Path, n_ctx: int, kv: KvType) -> Allocated:
    """What llama.cpp allocates when the program itself loads this model."""
    decoder = LlamaDecoder(path, LoadOptions(n_ctx, kv))
    try:
        assert decoder.flash_attention
        return allocated(decoder._ctx)
    finally:
        decoder.close()


def taken_without_flash_attention(model: Any, n_ctx: int) -> Allocated:
    """The same for a context as the program would make it on a build without flash attention."""
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_outputs_max = n_ctx, 512, 512, 32
    params.n_seq_max = 1 if lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model) else 2
    params.kv_unified, params.swa_full, params.flash_attn_type = True, False, 0
    ctx = lib.llama_init_from_model(model, params)
    try:
        return allocated(ctx)
    finally:
        lib.llama_free(ctx)


# --- what is kept of past tokens ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kv"), [*itertools.product(MAKINGS, KV)])
def test_caches_are_as_large_as_llama_cpp_makes_them(made, name, kv):
    """To the byte: keys and values, windows, latent keys, shared caches and states, for each type and length."""
    shape = read_header(made(name))
    predicted = {n_ctx: shape.kv_bytes(n_ctx, kv) for n_ctx in CONTEXTS}
    assert predicted == {n_ctx: taken(made(name), n_ctx, kv).cache for n_ctx in CONTEXTS}
    assert shape.caches_known


@pytest.mark.model
@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("real", ["smollm2", "gemma"])
def test_memory_of_real_models(request, real, kv):
    """Weights and caches to the byte, what is reserved for computing within a quarter."""
    path = request.getfixturevalue(real)
    shape = read_header(path)
    assert shape.tensor_bytes == read_into_memory(path, rearranged=False)
    for n_ctx in (512, 2048, 5000):
        found = taken(path, n_ctx, kv)
        assert shape.kv_bytes(n_ctx, kv) == found.cache
        assert shape.compute_bytes(n_ctx) == pytest.approx(found.compute, rel=TOLERANCE)


def test_some_layers_have_windows_and_it_matters(made):
    """In the file of a Gemma 2 nothing tells which; in one of Llama a window is not used, and we do not know it."""
    gemma, without = read_header(made("gemma2 with its own pattern")), read_header(made("gemma3 without windows"))
    assert gemma.window_layers == (True, True, False, True, True, False)
    assert gemma.window_layers_known and without.window_layers_known
    assert gemma.kv_bytes(5000, "f16") == gemma.kv_bytes_per_token("f16") * (5120 // 3 + 768 * 2 // 3 + 1) - 512
    assert without.kv_bytes(5000, "f16") == 5120 * without.kv_bytes_per_token("f16")


def test_a_window_of_an_unknown_architecture_is_an_upper_bound(tmp_path):
    """Nobody says which layers have it: all are counted in full, and the shape says so."""
    path = tiny_models.make("llama", tmp_path / "model.gguf", **{"attention.sliding_window": 64})
    shape = read_header(path)
    assert not shape.window_layers_known
    assert shape.kv_bytes(1024, "f16") == 1024 * shape.kv_bytes_per_token("f16")


# --- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rearranged", [False, True])
@pytest.mark.parametrize(
    ("name", "weights"), [*((name, "F32") for name in MAKINGS), *itertools.product(UNTIED, ("Q4_0", "Q8_0"))]
)
def test_weights_take_what_the_header_says(made, tmp_path, name, weights, rearranged):
    """Each tensor its bytes, up to the next multiple of 32; also where kernels want them in another order."""
    path = made(name)
    if weights != "F32":
        path = tiny_models.make(MAKINGS[name][0], tmp_path / "model.gguf", weights=weights, **MAKINGS[name][1])
    sizes = tensor_sizes(path)
    assert read_header(path).tensor_bytes == sum(sizes)
    assert read_into_memory(path, rearranged) == padded(sizes)


@pytest.mark.parametrize("name", MAKINGS)
def test_mapped_weights_are_the_data_of_the_file(made, name):
    """As the program loads a model, whose tensors follow each other in its file."""
    sizes = tensor_sizes(made(name))
    assert padded(sizes) - 32 < taken(made(name), 512, "f16").weights <= padded(sizes)


def test_layers_for_multi_token_prediction_are_not_loaded(tmp_path):
    """They are in the file and take no memory: neither weights nor caches."""
    path = tiny_models.make("qwen35", tmp_path / "model.gguf", block_count=5, nextn_predict_layers=1)
    shape = read_header(path)
    assert shape.nextn_bytes > 0
    assert shape.loaded_bytes == shape.tensor_bytes - shape.nextn_bytes == read_into_memory(path, rearranged=False)
    assert shape.kv_bytes(512, "f16") == taken(path, 512, "f16").cache


def tensor_sizes(path: Path) -> list[int]:
    with path.open("rb") as file:
        return [tensor.n_bytes for tensor in read_container(file).tensors]


def padded(sizes: list[int]) -> int:
    return sum(-(-size // 32) * 32 for size in sizes)


def read_into_memory(path: Path, rearranged: bool) -> int:
    """Bytes of all weights in a model that is not mapped."""
    params = lib.llama_model_default_params()
    params.load_mode, params.use_extra_bufts = lib.LLAMA_LOAD_MODE_NONE, rearranged
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    ctx, _ = _new_context(model, LoadOptions(512))
    try:
        return sum(sizes.weights for sizes in breakdown(ctx).values())
    finally:
        lib.llama_free(ctx)
        lib.llama_model_free(model)


# --- what is reserved for computing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKINGS)
def test_scratch_memory_of_tiny_models(made, name):
    """Within a quarter, for each type and length."""
    shape = read_header(made(name))
    for n_ctx, kv in itertools.product(CONTEXTS, KV):
        assert shape.compute_bytes(n_ctx) == pytest.approx(taken(made(name), n_ctx, kv).compute, rel=TOLERANCE)


@pytest.mark.parametrize("n_vocab", [2_000, 20_000, 50_000, 150_000])
@pytest.mark.parametrize("architecture", ["llama", "qwen3moe", "gemma3", "mamba"])
def test_scratch_memory_of_large_vocabularies(tmp_path, architecture, n_vocab):
    """Where logits take most of it, and where they just do not."""
    tokens = [*tiny_models.TOKENS, *(f"<{number}>" for number in range(n_vocab - len(tiny_models.TOKENS)))]
    vocabulary = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * n_vocab}
    found = measured(tmp_path / "header.gguf", architecture, vocabulary, (512, 4096), ("f16",))
    for shape, n_ctx, _, flash_attention, sizes in found:
        assert shape.n_vocab == n_vocab
        assert shape.compute_bytes(n_ctx, flash_attention) == pytest.approx(sizes.compute, rel=TOLERANCE)


def measured(
    path: Path, architecture: str, metadata: dict[str, object], contexts: Iterable[int], kv_types: Iterable[KvType]
) -> Iterator[tuple[ModelShape, int, KvType, bool, Allocated]]:
    """What a model without weights takes, with flash attention and without."""
    model = tiny_models.unfilled(architecture, path, **metadata)
    try:
        with path.open("rb") as file:
            shape = parse_header(file, 2**60)
        for n_ctx in contexts:
            for kv in kv_types:
                ctx, flash_attention = _new_context(model, LoadOptions(n_ctx, kv))
                sizes = allocated(ctx)
                lib.llama_free(ctx)
                assert flash_attention
                yield shape, n_ctx, kv, True, sizes
            yield shape, n_ctx, "f16", False, taken_without_flash_attention(model, n_ctx)
    finally:
        lib.llama_model_free(model)


def heads(count: int, kv: object, size: int, n_embd: int, **more: object) -> dict[str, object]:
    """The metadata of attention, and of two layers."""
    return {
        "block_count": 2,
        "embedding_length": n_embd,
        "attention.head_count": count,
        "attention.head_count_kv": kv,
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": size,
        **more,
    }


def experts(used: int, hidden: int) -> dict[str, object]:
    return {"expert_count": 8, "expert_used_count": used, "expert_feed_forward_length": hidden}


def states(inner: int, size: int, rank: int, groups: int) -> dict[str, object]:
    return {
        "ssm.inner_size": inner,
        "ssm.state_size": size,
        "ssm.time_step_rank": rank,
        "ssm.group_count": groups,
    }


LATENT = {
    "attention.kv_lora_rank": 512,
    "attention.q_lora_rank": 1536,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "rope.dimension_count": 64,
}

# Two layers, or one group of layers, with the dimensions of models that people use.
FULL_SIZE: dict[str, tuple[str, dict[str, object]]] = {
    "Llama 3.1 8B": ("llama", heads(32, 8, 128, 4096, feed_forward_length=14336)),
    "Qwen2.5 0.5B": ("qwen2", heads(14, 2, 64, 896, feed_forward_length=4864)),
    "Qwen3 0.6B": ("qwen3", heads(16, 8, 128, 1024, feed_forward_length=3072)),
    "Qwen3 4B": ("qwen3", heads(32, 8, 128, 2560, feed_forward_length=9728)),
    "Qwen3 30B-A3B": ("qwen3moe", heads(32, 4, 128, 2048) | experts(8, 768)),
    "gpt-oss 20B": ("gpt-oss", heads(64, 8, 64, 2880) | experts(4, 2880)),
    "DeepSeek V2 Lite": (
        "deepseek2",
        heads(16, 1, 576, 2048, feed_forward_length=10944) | LATENT | experts(6, 1408),
    ),
    "Gemma 2 2B": ("gemma2", heads(8, 4, 256, 2304, feed_forward_length=9216)),
    "Gemma 3 4B": ("gemma3", heads(8, 4, 256, 2560, feed_forward_length=10240) | {"attention.sliding_window": 1024}),
    "Gemma 4 E2B": (
        "gemma4",
        heads(8, 1, 512, 1536, feed_forward_length=6144, embedding_length_per_layer_input=256)
        | {"block_count": 4, "rope.dimension_count_swa": 256}
        | {"attention.key_length_swa": 256, "attention.value_length_swa": 256},
    ),
    "Gemma 3n E2B": (
        "gemma3n",
        heads(8, 2, 256, 2048, feed_forward_length=8192, embedding_length_per_layer_input=256) | {"block_count": 30},
    ),
    "Phi 3 mini": ("phi3", heads(32, 32, 96, 3072, feed_forward_length=8192)),
    "StarCoder 2 3B": ("starcoder2", heads(24, 2, 128, 3072, feed_forward_length=12288)),
    "OLMo 2 7B": ("olmo2", heads(32, 32, 128, 4096, feed_forward_length=11008)),
    "Command R7B": ("cohere2", heads(32, 8, 128, 4096, feed_forward_length=14336)),
    "EXAONE 4 1.2B": ("exaone4", heads(32, 8, 64, 2048, feed_forward_length=4096)),
    "SmallThinker 4B": ("smallthinker", heads(12, 2, 128, 1536) | experts(4, 768)),
    "Llama 4 Scout": (
        "llama4",
        heads(40, 8, 128, 5120, feed_forward_length=8192) | experts(1, 8192) | {"expert_count": 2},
    ),
    "LFM2 1.2B": ("lfm2", heads(32, [0, 8], 64, 2048, feed_forward_length=8192)),
    "Qwen3.5 4B": (
        "qwen35",
        heads(16, 4, 256, 2560, feed_forward_length=9216)
        | states(4096, 128, 32, 16)
        | {"block_count": 4, "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0]},
    ),
    "Mamba 2.8B": ("mamba", {"embedding_length": 2560, "ssm.inner_size": 5120, "ssm.time_step_rank": 160}),
    "Mamba 2 2.7B": ("mamba2", {"embedding_length": 2560} | states(5120, 128, 80, 1)),
    "Falcon H1 1.5B": ("falcon-h1", heads(8, 2, 128, 2048, feed_forward_length=4096) | states(3072, 256, 48, 1)),
    "Granite 4 tiny": (
        "granitehybrid",
        heads(12, [0, 4], 128, 1536, feed_forward_length=512) | states(3072, 128, 48, 1),
    ),
    "RWKV 6 1.6B": (
        "rwkv6",
        {"embedding_length": 2048, "feed_forward_length": 7168, "wkv.head_size": 64, "time_decay_extra_dim": 64},
    ),
    "RWKV 7 1.5B": (
        "rwkv7",
        {"embedding_length": 2048, "feed_forward_length": 8192, "wkv.head_size": 64, "attention.decay_lora_rank": 96},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL_SIZE)
def test_memory_of_large_models(tmp_path, name):
    """Their dimensions make other parts of a layer the widest one than those of tiny models do."""
    architecture, metadata = FULL_SIZE[name]
    found = measured(tmp_path / "header.gguf", architecture, metadata, (512, 4096), KV)
    for shape, n_ctx, kv, flash_attention, sizes in found:
        assert shape.compute_bytes(n_ctx, flash_attention) == pytest.approx(sizes.compute, rel=TOLERANCE)
        if flash_attention or architecture != "gemma4":  # its heads differ: values then take as much in all layers
            assert shape.kv_bytes(n_ctx, kv) == sizes.cache


# --- what is read ---------------------------------------------------------------------------------------------------


@given(st.sampled_from([*MAKINGS]), st.integers(0, 10_000), st.integers(0, 10_000), st.sampled_from(KV))
def test_what_is_read_grows_with_depth_and_stops_at_the_window(made, name, depth, more, kv):
    """Never less at a greater depth; without windows in proportion to it; nothing but states at depth 0."""
    shape: ModelShape = read_header(made(name))
    states_bytes = 2 * sum(shape.state_bytes)
    assert shape.kv_read_bytes(0, kv) == states_bytes
    assert shape.kv_read_bytes(depth, kv) <= shape.kv_read_bytes(depth + more, kv)
    if not any(shape.window_layers) and shape.kv_read_values == shape.kv_values:
        assert shape.kv_read_bytes(depth, kv) == depth * shape.kv_bytes_per_token(kv) + states_bytes
    if all(shape.window_layers):
        assert shape.kv_read_bytes(shape.sliding_window, kv) == shape.kv_read_bytes(shape.sliding_window + depth, kv)


def test_layers_that_share_a_cache_read_it_all_the_same(made):
    """Gemma 4: two caches are kept and four are read, those with a window up to its length."""
    shape = read_header(made("gemma4"))
    windowed, full = 2 * 2 * 32 * 2, 2 * 2 * 64 * 2
    assert shape.kv_bytes_per_token("f16") == windowed + full
    assert shape.kv_read_bytes(1000, "f16") == 2 * (128 * windowed + 1000 * full)
