"""Composition: a reference and settings -> an engine that is ready to answer.

The one place that knows catalog, store, header check, memory and runtime together. ``ask``, ``chat`` and
``/model`` all come through ``open_engine``; everything below takes plain values.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.cancel import Cancel
from localllm.config import Settings, default_model
from localllm.errors import UsageError
from localllm.models.catalog import load_catalog
from localllm.models.gguf import ModelShape, read_header
from localllm.models.store import Download, LocalModel, resolve
from localllm.values import ContextReason, ModelInfo, Sampling

if TYPE_CHECKING:
    from localllm.engine.engine import Engine
    from localllm.engine.llama import Device, LoadOptions

_COMPUTE_BYTES = 512 * 2**20  # kept free on a GPU for compute buffers and its own runtime


@dataclass(frozen=True, slots=True)
class Located:
    """A model that is on this disk and whose header has been checked; nothing is loaded yet."""

    model: LocalModel
    shape: ModelShape


def locate(
    reference: str | None = None,
    on_download: Callable[[Download], None] = lambda _: None,
    cancel: Cancel | None = None,
) -> Located:
    """Find a model by catalog name or path, fetching it where it is missing.

    Raises ModelNotFound, ModelFileError, CatalogError, DownloadError, Cancelled.
    """
    cancel = cancel or Cancel()
    model = resolve(reference or default_model(), load_catalog(), on_download, cancel)
    cancel.check()
    return Located(model, read_header(model.path))  # refuses what would take llama.cpp down


def open_engine(
    reference: str | Located | None = None,
    settings: Settings | None = None,
    on_download: Callable[[Download], None] = lambda _: None,
    cancel: Cancel | None = None,
) -> "Engine":
    """Load a model, by catalog name or path or as it was located. A name that is None means the default.

    Raises what ``locate`` raises, and OutOfMemory.
    """
    settings, cancel = settings or Settings(), cancel or Cancel()
    located = reference if isinstance(reference, Located) else locate(reference, on_download, cancel)
    model, shape = located.model, located.shape

    from localllm.ceiling.measure import available_memory_bytes
    from localllm.engine.engine import Engine
    from localllm.engine.llama import LlamaDecoder, devices
    from localllm.engine.template import ChatTemplate

    options, reason = load_options(shape, settings, devices(), available_memory_bytes())
    decoder = LlamaDecoder(model.path, options, cancel)
    vocab = decoder.vocab
    bos, eos = (token.text if token else "" for token in (vocab.bos, vocab.eos))
    info = ModelInfo(
        name=model.name,
        n_ctx=decoder.n_ctx,
        n_ctx_reason=reason,
        kv=options.kv,
        flash_attention=decoder.flash_attention,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        layers=shape.n_layers + 1,
        chat_template=bool(shape.chat_template.strip()),
    )
    return Engine(decoder, ChatTemplate.of_model(shape.chat_template, bos, eos), info, _sampling(model))


def load_options(
    shape: ModelShape, settings: Settings, gpus: "Sequence[Device]", ram_bytes: int
) -> "tuple[LoadOptions, ContextReason]":
    """Choose context size, threads and layers on the GPU where the user did not; and say what bounds the context.

    ``ram_bytes`` is the memory that is free beside the GPUs'. Raises UsageError for a context that is too large.
    """
    from localllm.engine import placement
    from localllm.engine.llama import LoadOptions
    from localllm.engine.threads import default_threads

    gpu_bytes = sum(gpu.free_bytes for gpu in gpus) if settings.gpu_layers != 0 else 0
    kv_bytes = shape.kv_bytes_per_token(settings.kv)
    budget_bytes = placement.kv_budget_bytes(shape.tensor_bytes, gpu_bytes, ram_bytes)
    n_ctx, reason = placement.context_tokens(shape.n_ctx_train, kv_bytes, budget_bytes)
    if settings.ctx_size is not None:
        n_ctx, reason = settings.ctx_size, "chosen"
    if n_ctx > shape.n_ctx_train:
        raise UsageError(
            f"--ctx-size is {n_ctx:,}, but this model was trained for {shape.n_ctx_train:,} tokens",
            f"choose at most {shape.n_ctx_train:,}",
        )
    layers = placement.gpu_layers(
        shape.layer_bytes,
        shape.output_bytes or shape.token_embd_bytes,
        kv_bytes * n_ctx // shape.n_layers,
        gpu_bytes,
        _COMPUTE_BYTES * len(gpus),
    )
    if settings.gpu_layers is not None:
        layers = min(settings.gpu_layers, shape.n_layers + 1) if gpus else 0
    return LoadOptions(n_ctx, settings.kv, layers, settings.threads or default_threads()), reason


def _sampling(model: LocalModel) -> Sampling:
    """The catalog's own defaults for this model, else llama.cpp's."""
    return dataclasses.replace(Sampling(), **model.spec.sampling) if model.spec else Sampling()
