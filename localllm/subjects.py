"""Composition: what a person calls a model -> what ``ceiling`` needs to know of it.

A file on this disk, a catalog entry that is not here, a file of the hub, a number of parameters, or bytes. Loads no
runtime, and fetches nothing but the header of a file of the hub.
"""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from localllm.ceiling.answer import Subject
from localllm.ceiling.explain import Benched
from localllm.ceiling.quantisations import bits_per_weight, precision
from localllm.ceiling.roofline import Experts, Workload
from localllm.errors import ModelNotFound, UsageError
from localllm.models.catalog import Catalog, ModelSpec, full_catalog, quantisation
from localllm.models.gguf import ModelShape, cached_bytes, read_header
from localllm.models.reference import hub_reference
from localllm.models.shapes import KnownShape, known_shape
from localllm.models.store import LocalModel, find, missing
from localllm.settings import default_model
from localllm.values import KvType

USUAL_QUANTISATION = "Q4_K_M"
LEAST_BYTES = 10**5  # of a model that can be meant
_PARAMS = re.compile(r"(\d{1,5}(?:\.\d{1,4})?) ?([bm])(?:[- ]a(\d{1,4}(?:\.\d{1,4})?)b?)?", re.IGNORECASE)
_UNIT = {"b": 1e9, "m": 1e6}


def named(reference: str | None, ctx: int, kv: KvType) -> Subject:
    """A catalog name, a path or a reference to the hub; the default model where it is None.

    ``ctx`` is the context that is asked about. Raises ModelNotFound, ModelFileError, CatalogError, DownloadError.
    """
    reference, catalog = default_model() if reference is None else reference, full_catalog()
    local = find(reference, catalog)
    if local:
        return of_local(local, ctx, kv)
    spec = catalog.get(reference)
    if spec is None:
        return _of_hub(reference, catalog, ctx, kv)
    shape = known_shape(spec.name)
    return _of_catalog(spec, shape, ctx, kv) if shape else _by_file_size(spec, ctx, kv)


def of_local(model: LocalModel, ctx: int, kv: KvType) -> Subject:
    """A model that is on this disk. Raises ModelFileError."""
    return replace(_of_file(model.name, read_header(model.path), ctx, kv), files=model.files)


def of_bench(result: Benched, kv: KvType) -> Subject:
    """The model that ``llama-bench`` names, where its file is here; else by its size, all of it read for a token."""
    path = Path(result.model_file)
    with suppress(OSError, ValueError):  # a name from elsewhere may be no path here
        if path.suffix == ".gguf" and path.is_file():
            return _of_file(path.name, read_header(path), 0, kv)
    if result.model_bytes < LEAST_BYTES:
        raise UsageError("the file does not say how large the model is (model_size)", "name the model")
    note = "the whole file is counted as read for each token; name the model for exact bytes and its KV cache"
    name = path.name or None
    workload = Workload(result.model_bytes, result.model_bytes)
    layers = _usual_layers(result.n_params or result.model_bytes * 1.6)
    return Subject(name, workload, kv, n_layers=layers, streamed_is_upper_bound=True, notes=(note,))


def of_bytes(streamed_bytes: int, kv: KvType) -> Subject:
    """Weights of a size, all of them read for each token; the rest as a dense model of that size in Q4_K_M has it."""
    params = streamed_bytes * 8 / (bits_per_weight(USUAL_QUANTISATION) or 1)
    layers = _usual_layers(params)
    note = f"expected: as a dense model of this size in {USUAL_QUANTISATION} would be, with {layers} layers"
    workload = Workload(streamed_bytes, streamed_bytes)
    return Subject(None, workload, kv, n_layers=layers, params=params, notes=(note,))


def of_parameters(text: str, quant: str, kv: KvType) -> Subject:
    """A number of parameters in a quantisation: ``32b``, or ``30b-a3b`` with those that a token passes.

    Raises UsageError.
    """
    match, bits = _PARAMS.fullmatch(text.strip()), bits_per_weight(quant)
    if match is None or not 1e6 <= float(match[1]) * _UNIT[match[2].lower()] <= 1e14:
        raise UsageError(f"{text!r} is no number of parameters", "give 32b, 135m, or 30b-a3b for a mixture of experts")
    if bits is None:
        raise UsageError(f"{quant!r} is no quantisation that is known", "give one as in: --quant q4_k_m")
    total = float(match[1]) * _UNIT[match[2].lower()]
    active = float(match[3]) * 1e9 if match[3] else total
    if active > total:
        raise UsageError(f"{text!r} uses more parameters than it has", "give all first, as in: 30b-a3b")
    layers = _usual_layers(total if active == total else 3 * active)
    size = f"{text.strip().upper()} {quant.upper()}"
    note = (
        f"by {bits:g} bits per weight, and {layers} layers as models of that size have; "
        "name the model for exact bytes and for its KV cache"
    )
    return Subject(
        name=size,
        workload=Workload(round(total * bits / 8), round(active * bits / 8)),
        kv=kv,
        n_layers=layers,
        quantisation=quant.upper(),
        precision=precision(quant),
        params=active,
        mixture=active < total,
        notes=(note,),
    )


def _usual_layers(params: float) -> int:
    """Layers of dense models: 16 of 1 B parameters, 32 of 8 B, 80 of 70 B."""
    return round(min(126.0, max(16.0, 32 * math.pow(params / 8e9, 0.42))))


def _of_file(name: str, shape: ModelShape, ctx: int, kv: KvType) -> Subject:
    known = shape.window_layers_known
    return Subject(
        name=name,
        workload=Workload(
            weights_bytes=shape.loaded_bytes,
            streamed_bytes=shape.streamed_bytes,
            kv_held=partial(shape.kv_bytes, kv=kv),
            kv_read=partial(shape.kv_read_bytes, kv=kv) if known else partial(_least_read, shape, kv),
            experts=Experts(shape.expert_bytes, shape.n_experts, shape.n_experts_used) if shape.n_experts else None,
        ),
        kv=kv,
        n_layers=shape.n_layers,
        n_embd=shape.n_embd,
        n_vocab=shape.n_vocab,
        n_ctx_train=shape.n_ctx_train,
        quantisation=shape.quantisation,
        precision=precision(shape.quantisation),
        params=_params(shape.streamed_bytes, shape.quantisation),
        mixture=bool(shape.n_experts),
        recurrent="" if not shape.recurrent else "convolution" if shape.architecture.startswith("lfm") else "state",
        latent=shape.latent,
        kv_bytes_per_token=shape.kv_bytes_per_token(kv),
        compute_bytes=shape.compute_bytes,
        notes=tuple(_notes_of_file(shape, ctx)),
    )


def _of_hub(reference: str, catalog: Catalog, ctx: int, kv: KvType) -> Subject:
    """A file of the hub that is not on this disk."""
    wanted = hub_reference(reference)
    if wanted is None:
        raise missing(reference, catalog)
    from localllm.models.remote import read_shape

    name, shape = read_shape(wanted)
    subject = _of_file(name, shape, ctx, kv)
    return replace(subject, notes=("read from the hub: only its header", *subject.notes))


def _least_read(shape: ModelShape, kv: KvType, depth: int) -> int:
    """Bytes of the cache that are read at least, where it is not known which layers have the window."""
    return shape.kv_read_bytes(min(depth, shape.sliding_window), kv)


def _params(streamed_bytes: int, quant: str) -> float | None:
    bits = bits_per_weight(quant)
    return streamed_bytes * 8 / bits if bits else None


def _notes_of_file(shape: ModelShape, ctx: int) -> Iterator[str]:
    yield from beyond_training(shape.n_ctx_train, ctx)
    if 0 < shape.sliding_window < ctx and not shape.window_layers_known:
        yield (
            f"only the sliding window ({shape.sliding_window:,} tokens) of the KV cache is counted as read: "
            "layers that look at all of it bring the speed further below the ceiling"
        )
    if not shape.caches_known:
        yield f"models of type {shape.architecture} keep more of past tokens than is counted here"


def beyond_training(trained: int, ctx: int) -> Iterator[str]:
    """What must be said of a context that is longer than the model was trained for."""
    if ctx > trained > 0:
        yield f"the model was trained for {trained:,} tokens, not {ctx:,}"


def _of_catalog(spec: ModelSpec, shape: KnownShape, ctx: int, kv: KvType) -> Subject:
    """A catalog model that is not here, by what is known of its shape; its first file may be another quantisation."""
    quant = quantisation(spec.file_name) or shape.quantisation
    scale = (spec.file_bytes or shape.weights_bytes) / shape.weights_bytes if quant != shape.quantisation else 1.0
    if ctx and shape.kv_values is None:
        raise ModelNotFound(
            f"{spec.name} is not on this disk, so its KV cache is not known", f"localllm pull {spec.name}"
        )
    streamed_bytes = round(shape.streamed_bytes * scale)
    values, windowed = shape.kv_values or 0, shape.window_values
    experts = Experts(round(shape.expert_bytes * scale), shape.n_experts, shape.n_experts_used)

    def held(tokens: int) -> int:
        return cached_bytes(values, kv) * tokens + cached_bytes(windowed, kv) * min(tokens, 2 * shape.window + 512)

    def read(depth: int) -> int:
        return cached_bytes(values, kv) * depth + cached_bytes(windowed, kv) * min(depth, shape.window)

    origin = "estimated from its number of parameters" if shape.estimated else "as its shape gives them"
    note = f"{spec.name} is not on this disk; its bytes are those of its {quant}, {origin}"
    return Subject(
        name=spec.name,
        workload=Workload(
            weights_bytes=round(shape.weights_bytes * scale),
            streamed_bytes=streamed_bytes,
            kv_held=held,
            kv_read=read,
            experts=experts if shape.n_experts and shape.expert_bytes else None,
        ),
        kv=kv,
        n_layers=shape.n_layers,
        n_embd=shape.n_embd,
        n_vocab=shape.n_vocab,
        n_ctx_train=shape.n_ctx_train,
        quantisation=quant,
        precision=precision(quant),
        params=_params(streamed_bytes, quant),
        mixture=bool(shape.n_experts),
        recurrent="state" if shape.recurrent else "",
        latent=shape.latent,
        kv_bytes_per_token=None if shape.kv_values is None else cached_bytes(values + windowed, kv),
        notes=(note, *beyond_training(shape.n_ctx_train, ctx)),
    )


def _by_file_size(spec: ModelSpec, ctx: int, kv: KvType) -> Subject:
    """An entry of the user's own catalog that is not here."""
    if ctx or spec.file_bytes is None:
        needed = "its KV cache" if ctx else "its size"
        raise ModelNotFound(f"{spec.name} is not on this disk, so {needed} is not known", f"localllm pull {spec.name}")
    note = (
        f"{spec.name} is not on this disk: its whole file is counted as streamed, an upper estimate (far too high for "
        "a mixture of experts), so the ceilings are lower estimates"
    )
    workload = Workload(spec.file_bytes, spec.file_bytes)
    return Subject(spec.name, workload, kv, streamed_is_upper_bound=True, notes=(note,))
