"""Composition: the machine that this runs on, as ``ceiling`` sees it, with what was measured on it.

Where llama.cpp is built for the GPUs that are here and the table has them, these; else the processor. Loads no runtime.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from localllm.app import built_for_gpus
from localllm.ceiling.advice import savings
from localllm.ceiling.answer import Question, Result, Subject, answer, at_depths
from localllm.ceiling.detection import Detected, detected, main_memory
from localllm.ceiling.machine import Machine
from localllm.ceiling.measure import available_memory_bytes, read_bandwidth_gb_s, this_machine
from localllm.cores import default_threads
from localllm.errors import LocalLLMError
from localllm.measured import last, learned
from localllm.models.catalog import full_catalog
from localllm.models.store import LocalModel, all_local
from localllm.subjects import of_local
from localllm.values import KvType, ModelInfo


def machine() -> tuple[Machine, list[str]]:
    """The machine, and what must be said about it. Measures the bandwidth of main memory where it is the processor."""
    cards = detected()
    known = [card.hardware for card in cards if card.hardware]
    if known and built_for_gpus():
        return Machine(tuple(known)), [_unknown(card) for card in cards if not card.hardware]
    memory = main_memory()
    notes = [f"main memory: {memory.text}"] if memory else []
    notes += [_unused(card) if card.hardware else _unknown(card) for card in cards]
    return Machine((this_machine(),)), [*notes, "this is the processor; for a GPU, name it with --gpu"]


def _unknown(card: Detected) -> str:
    return f"{card.name} is here, but not known well enough: {card.note}"


def _unused(card: Detected) -> str:
    return f"{card.name} is here, but llama.cpp is installed for the processor only (README: backends)"


def answered(subject: Subject, here: Machine, question: Question) -> Result:
    """All numbers, with what was measured here of this model and of others."""
    on_processor = here.first.kind == "cpu"
    machine = replace(here, learned=learned(subject.files)) if on_processor else here
    result = answer(subject, machine, question)
    found = last(subject.files) if subject.files else None
    if found is None or found.on_gpu == on_processor:
        return result
    return replace(result, measured_tok_s=found.tok_s, measured_when=found.told_when)


def models(here: Machine, question: Question, kv: KvType) -> Iterator[tuple[Subject, Result] | LocalLLMError]:
    """What this machine can do with each model on its disk; an error in the place of one that cannot be read."""
    for local in all_local(full_catalog()):
        try:
            subject = of_local(local, question.ctx, kv)
        except LocalLLMError as error:
            yield error
            continue
        yield subject, answered(subject, here, question)


@dataclass(frozen=True, slots=True)
class Bound:
    """What this machine's memory allows a model that is loaded."""

    subject: Subject
    machine: Machine
    question: Question

    def ceiling_tok_s(self, depth: int) -> float:
        """Tokens per second that cannot be exceeded without guesses, behind so many tokens."""
        return at_depths(self.subject, self.machine, self.question, [depth])[0].ceiling_tok_s

    def shares(self, passes_s: float, depth: int) -> tuple[float, float]:
        """Of the time of a pass, where there are so many in a second: what reading weights and KV cache must take."""
        weights_s = 1 / self.ceiling_tok_s(0)
        return passes_s * weights_s, passes_s * (1 / self.ceiling_tok_s(depth) - weights_s)

    def advice(self, passes_s: float, depth: int) -> list[str]:
        """What would make passes faster of which there are so many in a second, each with its number."""
        return list(savings(self.subject, depth, *self.shares(passes_s, depth)))


def bound(model: LocalModel, info: ModelInfo) -> Bound:
    """For a model as it is loaded. Measures main memory (0.3 s) where the model runs on the processor.

    Raises ModelFileError.
    """
    on_gpu = info.gpu_layers > 0
    here = machine()[0] if on_gpu else Machine((this_machine(),))
    return Bound(of_local(model, info.n_ctx, info.kv), here, Question(ctx=info.n_ctx))


def bandwidths() -> dict[int, float]:
    """The read bandwidth of main memory by number of threads, in 10⁹ bytes per second."""
    cores = default_threads()
    counts = sorted({1, 2, cores // 2 or 1, cores, 2 * cores})
    return {count: read_bandwidth_gb_s(count, available_memory_bytes() // 4) for count in counts}
