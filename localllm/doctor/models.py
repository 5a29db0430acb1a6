"""Checks of the models: which fit, whether the default one is there, can be read and has a draft, and how fast it is.

A file is never loaded in this process: it might end it.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from localllm.cancel import Cancel
from localllm.cores import overload
from localllm.default import default_model
from localllm.doctor.finding import Finding, ok, problem, warning
from localllm.errors import LocalLLMError, ModelFileError
from localllm.models.catalog import full_catalog
from localllm.models.store import LocalModel, all_local, find, missing
from localllm.settings import choices
from localllm.sizes import size_text

if TYPE_CHECKING:
    from localllm.ceiling.machine import Machine
    from localllm.measured import Measurement

_SHOWN = 3
_CHILD_S = 20.0  # a vocabulary takes less than a second to load
_LEAST_SHARE = 0.2  # of the ceiling; processors reach 0.3 to 0.7 of it


def memory() -> Iterator[Finding]:
    """Which of the models on this disk fit into the memory of this machine, and whether it is free."""
    from localllm.app import capacity
    from localllm.ceiling.measure import available_memory_bytes

    machine, free_bytes = capacity(), available_memory_bytes()
    text = f"{size_text(free_bytes)} of {size_text(machine.ram_bytes)} are free"
    if machine.gpu_bytes:
        text += f", and there are {size_text(machine.gpu_bytes)} on GPUs"
    models = all_local(full_catalog())
    too_large = [model.name for model in models if machine.fit(model.file_bytes) == "no"]
    if models:
        text += f"; models on this disk that fit: {len(models) - len(too_large)} of {len(models)}"
    if too_large:
        yield warning("memory", f"{text}; too large: {_some(too_large)}", "they free the disk: localllm rm NAME")
        return
    default = find(default_model(), full_catalog())
    if default and default.file_bytes > free_bytes + machine.gpu_bytes:
        needed = f"{default.name} takes {size_text(default.file_bytes)}"
        yield warning("memory", f"{text}; {needed}", "close other programs, or use a smaller model (-m)")
        return
    yield ok("memory", text)


def default() -> Iterator[Finding]:
    """Whether the model that is used where none is named is on this disk and can be read."""
    from localllm.models.gguf import read_header

    name, catalog = default_model(), full_catalog()
    chosen = choices().get("model")
    origin = f"in {chosen.place}" if chosen else "at the first run"
    model = find(name, catalog)
    if model is None:
        if name not in catalog:
            error = missing(name, catalog)
            yield problem("default model", f"{error.message} (set {origin})", error.hint)
            return
        size_bytes = catalog[name].file_bytes
        size = f" ({size_text(size_bytes)})" if size_bytes else ""
        yield warning("default model", f"{name} is not on this disk; its first use fetches it{size}", _pull(name))
        return
    try:
        shape = read_header(model.path)
    except ModelFileError as error:
        yield problem("default model", f"{error.message} (set {origin})", error.hint or "name another one: -m")
        return
    text = f"{name} ({size_text(model.file_bytes)}, {shape.quantisation}), kept by {model.place}"
    if shape.chat_template.strip():
        yield ok("default model", text)
    else:
        yield warning(
            "default model", f"{text}; it has no chat template", "for a conversation choose an instruct model"
        )


def draft() -> Iterator[Finding]:
    """Whether the catalog's draft of the default model is here, and whether its vocabulary is that of its target."""
    catalog = full_catalog()
    model = find(default_model(), catalog)
    name = model.spec.draft if model and model.spec else None
    if model is None or name is None:
        yield ok("draft", "the default model has none; guesses come from the text alone")
        return
    smaller = find(name, catalog)
    if smaller is None:
        size_bytes = catalog[name].file_bytes
        size = f" ({size_text(size_bytes)})" if size_bytes else ""
        yield ok("draft", f"{name}{size} is not on this disk; it could make {model.name} faster", _pull(name))
    elif reason := _unlike(model.path, smaller.path):
        advice = f"use it without: --draft ngram; or fetch both anew: {_pull(f'{model.name} {name}')}"
        yield problem("draft", f"{name} cannot draft for {model.name}: {reason}", advice)
    else:
        yield ok("draft", f"{name} guesses for {model.name}; their vocabularies match")


def _unlike(target: Path, smaller: Path) -> str:
    """Why the vocabularies do not match; "" where they do."""
    from localllm import child

    command, environment = child.python(vocabularies_child, str(target), str(smaller))
    finished = child.run(command, environment, lambda *_: None, Cancel(_CHILD_S))
    last_line = finished.output.rstrip("\n").rpartition("\n")[2]
    return last_line if finished.ok else f"reading them failed ({last_line or f'signal {-finished.code}'})"


def vocabularies_child() -> None:
    """Print why two models differ in their vocabularies, or nothing."""
    from localllm.engine.llama import glimpse
    from localllm.engine.speculate import unlike

    target, smaller = map(Path, sys.argv[1:])
    try:
        with glimpse(target) as (ours, _), glimpse(smaller) as (its, can_undo):
            print((unlike(ours, its) if can_undo else "its memory cannot take a wrong guess back") or "")  # noqa: T201
    except LocalLLMError as error:
        print(error.message)  # noqa: T201


# --- speed -------------------------------------------------------------------------------------------------------


def speed() -> Iterator[Finding]:
    """Memory's bandwidth, measured now (0.3 s), and the share of the ceiling that the default model reached last."""
    from localllm import here
    from localllm.measured import last

    model, (machine, _) = find(default_model(), full_catalog()), here.machine()
    found = last(model.files) if model else None
    if model is None or found is None or found.on_gpu != (machine.first.kind != "cpu"):
        how = f"localllm doctor --measure, or: localllm ceiling {model.name if model else 'NAME'} --measure"
        name, bandwidth_gb_s = machine.first.name, machine.first.bandwidth_gb_s
        text = f"{name}: {bandwidth_gb_s:.1f} GB/s of memory bandwidth, {machine.first.origin}{_busy()}"
        yield ok("speed", f"{text}; the default model is not measured yet", how)
        return
    yield _reached(model, found, machine, f", measured {found.told_when}")


def measured_speed(cancel: Cancel, tell: Callable[[str], None]) -> Iterator[Finding]:
    """Measure memory and the default model now, and hold its decode rate against the ceiling. Takes half a minute.

    ``tell`` is told what is being done. Raises Cancelled.
    """
    from localllm import here
    from localllm.app import locate
    from localllm.measuring import measure

    model = find(default_model(), full_catalog())
    if model is None:
        yield ok("speed", "not measured: the default model is not on this disk", _pull(default_model()))
        return
    found = measure(locate(default_model()), cancel=cancel, tell=tell)
    yield _reached(model, found, here.machine()[0], ", while other programs computed" if found.disturbed else "")


def _reached(model: LocalModel, found: "Measurement", machine: "Machine", when: str) -> Finding:
    """A decode rate against the ceiling."""
    from localllm.ceiling.answer import Question, answer
    from localllm.subjects import of_local

    ceiling_tok_s = answer(of_local(model, 0, "f16"), machine, Question()).shallow.ceiling_tok_s
    share, busy = found.tok_s / ceiling_tok_s, _busy()
    at = f"at {machine.first.bandwidth_gb_s:.1f} GB/s, {machine.first.origin}{busy}"
    of_ceiling = f"{100 * share:.0f} % of the ceiling ({ceiling_tok_s:.1f} {at})"
    if busy and share > 1:  # as nothing but a bandwidth that is too low makes it
        of_ceiling = f"a share of the ceiling that cannot be told now ({at})"
    text = f"{model.name}: {found.tok_s:.1f} tokens/s when decoding, {of_ceiling}{when}"
    if found.disturbed:
        return warning("speed", text, "when nothing else runs, measure again: localllm doctor --measure")
    if share < _LEAST_SHARE:
        return warning("speed", text, f"what takes the time: localllm ceiling {model.name} --why")
    return ok("speed", text)


def _busy() -> str:
    """What to know of a bandwidth that is measured now."""
    load = overload()
    return f" while other programs compute (load {load:.1f})" if load else ""


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _pull(names: str) -> str:
    return f"localllm pull {names}"
