"""Composition: how an engine takes its steps, and which draft model guesses for it.

The part of ``app`` that speculation needs: settings, catalog, memory and runtime on one side, the plain values of
``engine`` on the other.
"""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from localllm import config
from localllm.config import Settings
from localllm.engine.bindings import library
from localllm.engine.cost_memory import CostMemory
from localllm.engine.drafters import ModelDrafter
from localllm.engine.llama import LlamaDecoder, LoadOptions, glimpse
from localllm.engine.placement import COMPUTE_BYTES
from localllm.engine.speculate import unlike
from localllm.engine.stepper import Stepper
from localllm.engine.threads import ThreadGovernor
from localllm.errors import LocalLLMError, UsageError
from localllm.models.catalog import full_catalog
from localllm.models.gguf import ModelShape, read_header
from localllm.models.store import LocalModel, find

NO_MODEL = ("off", "ngram")  # values of --draft without a draft model


@dataclass(frozen=True, slots=True)
class Loadable:
    """A model, what its header says, and how it is to be loaded."""

    model: LocalModel
    shape: ModelShape
    options: LoadOptions

    @property
    def memory_bytes(self) -> int:
        """Weights, and what is kept of past tokens."""
        return self.shape.loaded_bytes + self.shape.kv_bytes(self.options.n_ctx, self.options.kv)


def catalog_draft(target: LocalModel) -> tuple[LocalModel, ModelShape] | None:
    """The draft that the catalog names for ``target``, where it is on this disk and whole."""
    name = target.spec.draft if target.spec else None
    with suppress(LocalLLMError):
        if name and (model := find(name, full_catalog())):
            return model, read_header(model.path)
    return None


def draft_options(target: Loadable, draft: ModelShape) -> LoadOptions:
    """Beside the target on the GPU where that is there as a whole, else on the CPU; with as much context, if it can."""
    on_gpu = target.options.gpu_layers > target.shape.n_layers
    return dataclasses.replace(
        target.options,
        n_ctx=min(target.options.n_ctx, draft.n_ctx_train),
        gpu_layers=draft.n_layers + 1 if on_gpu else 0,
    )


def stepper(
    decoder: LlamaDecoder,
    target: Loadable,
    draft: Loadable | None,
    settings: Settings,
    free_bytes: int,
    try_first: Callable[[Loadable], None],
) -> Stepper:
    """What takes the steps of ``target``, which ``decoder`` runs, with or without a draft model.

    ``free_bytes`` is the memory that was there before the target was loaded; ``try_first`` tries a file that nobody
    vouches for. Raises UsageError with the reason where a draft that was asked for by name cannot serve; one that
    the catalog names is looked at when it is first wanted, and the reason shows in what the stepper says of itself.
    """
    governor = ThreadGovernor(target.options.threads) if settings.threads is None and not settings.exact else None
    if settings.draft == "off":
        return Stepper(decoder, governor=governor, exact=settings.exact)

    def check(draft: Loadable) -> None:
        if reason := _refusal(decoder, target, draft, free_bytes, try_first):
            raise UsageError(f"{draft.model.name} cannot draft for {target.model.name}: {reason}", "try --draft auto")

    files = (*target.model.files, *(draft.model.files if draft else ()))
    costs = CostMemory(config.cache_dir() / "speculation", files, (library(), target.options, settings.exact))
    drafter = None
    if draft and decoder.can_undo:
        if settings.draft != "auto":
            check(draft)

        def load() -> LlamaDecoder:
            if settings.draft == "auto":
                check(draft)
            return LlamaDecoder(draft.model.path, draft.options)

        drafter = ModelDrafter(draft.model.name, load, costs.draft)
    return Stepper(decoder, costs.cost_model(), drafter, governor, settings.exact, costs.keep)


def _refusal(
    decoder: LlamaDecoder, target: Loadable, draft: Loadable, free_bytes: int, try_first: Callable[[Loadable], None]
) -> str | None:
    """Why this draft cannot serve. Looks at its header and vocabulary; none of its weights are loaded."""
    left_bytes = free_bytes - target.memory_bytes - COMPUTE_BYTES
    if draft.memory_bytes > left_bytes:
        return f"it needs {draft.memory_bytes / 1e9:.1f} GB, and {max(0, left_bytes) / 1e9:.1f} GB are left beside it"
    try_first(draft)
    with glimpse(draft.model.path) as (vocabulary, can_undo):
        if not can_undo:
            return "its memory cannot take a wrong guess back"
        return unlike(decoder.vocab, vocabulary)
