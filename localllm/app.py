"""Composition: a reference and settings -> an engine that is ready to answer.

The one place that knows catalog, store, header check, memory and runtime together. ``ask``, ``chat`` and
``/model`` all come through ``open_engine``; everything below takes plain values.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.cancel import Cancel
from localllm.config import Settings, default_model
from localllm.errors import UsageError
from localllm.models.catalog import load_catalog
from localllm.models.gguf import ModelShape, read_header
from localllm.models.store import Download, LocalModel, resolve
from localllm.values import ModelInfo, Sampling

if TYPE_CHECKING:
    from localllm.engine.engine import Engine
    from localllm.engine.llama import Device, LoadOptions

_COMPUTE_BYTES = 512 * 2**20  # kept free on a GPU for compute buffers and its own runtime
_KV_SHARE = 0.8  # of the memory that is left beside the weights, what the KV cache may take by default


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

    from localllm.engine.engine import Engine
    from localllm.engine.llama import LlamaDecoder, devices
    from localllm.engine.template import ChatTemplate

    options = _load_options(shape, settings, devices())
    decoder = LlamaDecoder(model.path, options, cancel)
    vocab = decoder.vocab
    bos, eos = (token.text if token else "" for token in (vocab.bos, vocab.eos))
    info = ModelInfo(
        name=model.name,
        path=model.path,
        n_ctx=decoder.n_ctx,
        n_ctx_train=shape.n_ctx_train,
        kv=settings.kv,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        layers=shape.n_layers + 1,
    )
    return Engine(decoder, ChatTemplate.of_model(shape.chat_template, bos, eos), info, _sampling(model))


def _load_options(shape: ModelShape, settings: Settings, gpus: "list[Device]") -> "LoadOptions":
    """Choose context size, threads and layers on the GPU, where the user did not."""
    from localllm.ceiling.measure import available_memory_bytes
    from localllm.engine import placement
    from localllm.engine.llama import LoadOptions
    from localllm.engine.threads import default_threads

    kv_bytes = shape.kv_bytes_per_token(settings.kv)
    free_bytes = sum(gpu.free_bytes for gpu in gpus) or available_memory_bytes()
    n_ctx = settings.ctx_size or placement.context_tokens(
        shape.n_ctx_train, kv_bytes, int(_KV_SHARE * (free_bytes - shape.tensor_bytes))
    )
    if n_ctx > shape.n_ctx_train:
        raise UsageError(
            f"--ctx-size is {n_ctx:,}, but this model was trained for {shape.n_ctx_train:,} tokens",
            f"choose at most {shape.n_ctx_train:,}",
        )
    layers = settings.gpu_layers
    if layers is None:
        layers = placement.gpu_layers(
            shape.layer_bytes,
            shape.output_bytes or shape.token_embd_bytes,
            kv_bytes * n_ctx // max(1, shape.n_layers),
            sum(gpu.free_bytes for gpu in gpus),
            _COMPUTE_BYTES * len(gpus),
        )
    return LoadOptions(n_ctx, settings.kv, layers if gpus else 0, settings.threads or default_threads())


def _sampling(model: LocalModel) -> Sampling:
    """The catalog's own defaults for this model, else llama.cpp's."""
    return dataclasses.replace(Sampling(), **model.spec.sampling) if model.spec else Sampling()
