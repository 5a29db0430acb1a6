"""Composition: a reference and settings -> an engine that is ready to answer.

The one place that knows catalog, store, header check, memory and runtime together. ``ask``, ``chat`` and
``/model`` all come through ``open_engine``; everything below takes plain values.
"""

import dataclasses
import functools
import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localllm import config
from localllm.cancel import Cancel
from localllm.config import Settings
from localllm.default import default_model
from localllm.errors import LocalLLMError, ModelNotFound, UsageError
from localllm.models.catalog import full_catalog
from localllm.models.gguf import ModelShape, read_header
from localllm.models.store import FILE, Download, LocalModel, all_local, resolve
from localllm.settings import prefix_budget_bytes
from localllm.values import ContextReason, ModelInfo, Sampling

if TYPE_CHECKING:
    from localllm.drafting import Loadable
    from localllm.engine.engine import Engine
    from localllm.engine.llama import Device, LlamaDecoder, LoadOptions
    from localllm.engine.placement import Fit
    from localllm.engine.prefix import PrefixCache
    from localllm.engine.template import ChatTemplate

_GPU_BACKENDS = ("cuda", "hip", "metal", "sycl", "vulkan")


@dataclass(frozen=True, slots=True)
class Capacity:
    """The memory of this machine, in bytes, whatever else uses it at the moment."""

    gpu_bytes: int
    ram_bytes: int

    def fit(self, file_bytes: int) -> "Fit":
        """Where a model of this size can run here."""
        from localllm.engine import placement

        return placement.fit(file_bytes, self.gpu_bytes, self.ram_bytes)


def capacity() -> Capacity:
    """What this machine has. GPUs count where llama.cpp is built for them. Loads no library that runs models."""
    from localllm.ceiling.gpus import gpus
    from localllm.ceiling.measure import total_memory_bytes

    found = gpus() if built_for_gpus() else []
    shared_bytes = sum(gpu.memory_bytes for gpu in found if gpu.shared)  # on a Mac they are part of the machine's
    return Capacity(sum(gpu.memory_bytes for gpu in found), total_memory_bytes() - shared_bytes)


def built_for_gpus() -> bool:
    """Whether the installed llama.cpp has a backend for GPUs; told by its files, as loading it takes 0.1 s."""
    spec = importlib.util.find_spec("llama_cpp")
    folders = spec.submodule_search_locations if spec else None
    names = [path.name for folder in folders or () for path in Path(folder).glob("lib/*ggml-*")]
    return any(backend in name for name in names for backend in _GPU_BACKENDS)


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
    wanted = default_model() if reference is None else reference
    model = resolve(wanted, full_catalog(), on_download, cancel)
    cancel.check()
    return Located(model, read_header(model.path))  # refuses what would take llama.cpp down


@functools.cache
def model_names() -> tuple[str, ...]:
    """What a user may name: the models of this disk, then those of the catalog. None where the catalog is broken."""
    try:
        catalog = full_catalog()
        return tuple(dict.fromkeys((*(model.name for model in all_local(catalog)), *catalog)))
    except LocalLLMError:
        return ()


def open_engine(
    reference: str | Located | None = None,
    settings: Settings | None = None,
    on_download: Callable[[Download], None] = lambda _: None,
    cancel: Cancel | None = None,
) -> "Engine":
    """Load a model, by catalog name or path or as it was located. A name that is None means the default.

    A file that no checksum of the catalog vouches for is tried in a child process before its first use.
    Raises what ``locate`` raises, and OutOfMemory.
    """
    settings, cancel = settings or Settings(), cancel or Cancel()
    located = reference if isinstance(reference, Located) else locate(reference, on_download, cancel)
    model, shape = located.model, located.shape

    from localllm import drafting
    from localllm.ceiling.measure import available_memory_bytes
    from localllm.engine.cost_memory import place
    from localllm.engine.engine import Engine
    from localllm.engine.llama import LlamaDecoder, devices
    from localllm.engine.pace import Pace

    gpus, ram_bytes = devices(), available_memory_bytes()
    options, reason = load_options(shape, settings, gpus, ram_bytes)
    target = drafting.Loadable(model, shape, options)
    try_first = functools.partial(_try_first, cancel)
    try_first(target, on_download)
    draft = _draft(target, settings.draft, on_download, cancel)
    decoder = LlamaDecoder(model.path, options, cancel)
    try:
        free_bytes = ram_bytes + sum(gpu.free_bytes for gpu in gpus)
        stepper = drafting.stepper(decoder, target, draft, settings, free_bytes, try_first)
    except BaseException:
        decoder.close()
        raise
    prefix = _prefix_cache(decoder, target, settings.cache_writes) if settings.cache else None
    info = _info(target, decoder, reason)
    pace = Pace(place(config.cache_dir() / "pace", model.files, options))
    return Engine(decoder, _template(shape, decoder), info, _sampling(model), stepper, prefix, pace)


def _try_first(cancel: Cancel, loadable: "Loadable", tell: Callable[[Download], None] = lambda _: None) -> None:
    """Load a file that nothing vouches for in a child process, if that was not done before."""
    model = loadable.model
    if model.verified:
        return
    from localllm.engine.probe import try_out

    first_use = Download(model.name, model.place, "try", 0, None)
    try_out(model.files, loadable.options, config.cache_dir() / "tried", cancel, lambda: tell(first_use))


def _info(target: "Loadable", decoder: "LlamaDecoder", reason: ContextReason) -> ModelInfo:
    model, options = target.model, target.options
    return ModelInfo(
        name=model.name,
        n_ctx=decoder.n_ctx,
        n_ctx_reason=reason,
        kv=options.kv,
        flash_attention=decoder.flash_attention,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        layers=target.shape.n_layers + 1,
        chat_template=bool(target.shape.chat_template.strip()),
        reference=str(model.path.absolute()) if model.place == FILE and not model.spec else model.name,
    )


def _template(shape: ModelShape, decoder: "LlamaDecoder") -> "ChatTemplate":
    from localllm.engine.template import ChatTemplate

    bos, eos = (token.text if token else "" for token in (decoder.vocab.bos, decoder.vocab.eos))
    return ChatTemplate.of_model(shape.chat_template, bos, eos)


def _prefix_cache(decoder: "LlamaDecoder", target: "Loadable", writes: bool) -> "PrefixCache | None":
    """The stored prefixes of this model, as it is loaded now; None where there are to be none."""
    from localllm.engine.bindings import build
    from localllm.engine.prefix import PrefixCache
    from localllm.engine.prefix_store import PrefixStore

    budget_bytes = prefix_budget_bytes()
    try:
        found = [file.stat() for file in target.model.files]
    except OSError:  # gone since it was loaded
        return None
    if not budget_bytes:
        return None
    content = [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in found]
    layout = (target.options.kv, target.options.gpu_layers, decoder.flash_attention)
    fingerprint = hashlib.sha256(repr((content, layout, build())).encode()).hexdigest()[:32]
    about = {"model": target.model.name}
    return PrefixCache(decoder, PrefixStore(config.prefix_dir(), fingerprint, budget_bytes, about), writes)


def _draft(
    target: "Loadable", wanted: str, on_download: Callable[[Download], None], cancel: Cancel
) -> "Loadable | None":
    """The draft model that was asked for, or else the catalog's where it is here. Raises what ``locate`` raises."""
    from localllm import drafting

    if wanted in drafting.NO_MODEL:
        return None
    if wanted == "auto":
        found = drafting.catalog_draft(target.model)
    else:
        try:
            located = locate(wanted, on_download, cancel)
        except ModelNotFound as error:
            raise ModelNotFound(f"--draft: {error.message}", error.hint) from None
        found = located.model, located.shape
    return drafting.Loadable(*found, drafting.draft_options(target, found[1])) if found else None


def load_options(
    shape: ModelShape, settings: Settings, gpus: "Sequence[Device]", ram_bytes: int
) -> "tuple[LoadOptions, ContextReason]":
    """Choose context size, threads and layers on the GPU where the user did not; and say what bounds the context.

    ``ram_bytes`` is the memory that is free beside the GPUs'. Raises UsageError for a context that is too large.
    """
    from localllm.cores import default_threads
    from localllm.engine import placement
    from localllm.engine.llama import LoadOptions

    gpu_bytes = sum(gpu.free_bytes for gpu in gpus) if settings.gpu_layers != 0 else 0

    def kv_bytes(n_ctx: int) -> int:
        return shape.kv_bytes(n_ctx, settings.kv)

    budget_bytes = placement.kv_budget_bytes(shape.loaded_bytes, gpu_bytes, ram_bytes)
    n_ctx, reason = placement.context_tokens(shape.n_ctx_train, kv_bytes, budget_bytes)
    if settings.ctx_size is not None:
        n_ctx, reason = settings.ctx_size, "chosen"
    if n_ctx > shape.n_ctx_train:
        raise UsageError(
            f"a context of {n_ctx:,} tokens is too large: this model was trained for {shape.n_ctx_train:,}",
            f"choose at most {shape.n_ctx_train:,}",
        )
    layers = placement.gpu_layers(
        shape.layer_bytes,
        shape.output_bytes or shape.token_embd_bytes,
        kv_bytes(n_ctx) // shape.n_layers,
        gpu_bytes,
        placement.COMPUTE_BYTES * len(gpus),
    )
    if settings.gpu_layers is not None:
        layers = min(settings.gpu_layers, shape.n_layers + 1) if gpus else 0
    return LoadOptions(n_ctx, settings.kv, layers, settings.threads or default_threads()), reason


def _sampling(model: LocalModel) -> Sampling:
    """The catalog's own defaults for this model, else llama.cpp's."""
    return dataclasses.replace(Sampling(), **model.spec.sampling) if model.spec else Sampling()
