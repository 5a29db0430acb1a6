"""Composition: which model suits this machine, where the user has named none.

A model suits if it is made for conversations, fits into the memory and is expected to write as fast as people read.
Of those on this disk the largest is taken, whoever keeps it; where none suits, the fastest that fits. The catalog's
models are for an offer. Asks nobody and fetches nothing; what was chosen is kept by default.py. Loads no runtime.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localllm import subjects
from localllm.app import Capacity, capacity
from localllm.ceiling.answer import Question, Subject, answer
from localllm.ceiling.machine import Machine
from localllm.errors import LocalLLMError
from localllm.here import answered
from localllm.here import machine as this_machine
from localllm.models import hub
from localllm.models.catalog import Catalog
from localllm.models.gguf import read_header
from localllm.models.store import LocalModel
from localllm.sizes import size_text

# What is offered, the best first: models for conversations that answer well for their size.
RECOMMENDED = (
    *("qwen3.6-35b-a3b", "qwen3-30b-a3b-instruct-2507", "qwen3.5-27b", "gpt-oss-20b", "qwen3.5-9b"),
    *("qwen3-4b-instruct-2507", "qwen3.5-2b", "qwen2.5-1.5b", "smollm2-360m"),
)
READING_TOK_S = 5.0  # people read four words a second
REASONING_TOK_S = 20.0  # what a model thinks before its answer is waited for
_LEAST_TOK_S = 1.0
_LEAST_SHARE = 0.2  # of the ceiling; processors reach 0.3 to 0.7 of it, and less where others computed meanwhile
_CTX = 4096  # tokens of the context that a model is judged with
_SPARE_BYTES = 2 * 10**9  # of the disk, which a download leaves


@dataclass(frozen=True, slots=True)
class Suited:
    """A model, and in a phrase why it suits. ``file`` is None where it is not on this disk."""

    name: str
    why: str
    file_bytes: int
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A model that fits, with the decode rate that is expected of it (tokens per second)."""

    model: LocalModel
    file_bytes: int
    tok_s: float
    suits: bool


def best_of(models: Sequence[LocalModel]) -> Suited | None:
    """Of models on this disk the one that suits best; None where none can be used for a conversation."""
    judge = _Judge.here()
    found = [*_candidates(models, judge)]
    suited = [candidate for candidate in found if candidate.suits]
    if suited:  # code models can talk, too, but others do it better
        best = min(suited, key=lambda candidate: ("coder" in candidate.model.name.lower(), -candidate.file_bytes))
        why = "the best on this disk that is fast enough here"
    elif found:
        best = max(found, key=lambda candidate: candidate.tok_s)
        why = "the fastest on this disk that fits here"
    else:
        return None
    return Suited(best.model.name, f"{why}: {judge.reason(best.tok_s)}", best.file_bytes, best.model.path)


def _candidates(models: Sequence[LocalModel], judge: "_Judge") -> Iterator[_Candidate]:
    for model in models:
        try:
            size_bytes, shape = model.file_bytes, read_header(model.path)
            tok_s = judge.tok_s(subjects.of_local(model, _CTX, "f16"), size_bytes)
        except (LocalLLMError, OSError):  # broken, or gone since
            continue
        template = shape.chat_template
        if not template.strip() or any(word in model.name.lower() for word in ("embed", "rerank")):
            continue
        reasons = model.spec.thinking if model.spec else "<think>" in template
        if tok_s >= _LEAST_TOK_S:
            yield _Candidate(model, size_bytes, tok_s, _fast_enough(tok_s, reasons))


def recommended(catalog: Catalog) -> Suited | None:
    """The best of the catalog's models that suits this machine and has room on its disk; fetched or not."""
    judge, room_bytes = _Judge.here(), _free_disk_bytes() - _SPARE_BYTES
    for spec in filter(None, map(catalog.get, RECOMMENDED)):
        try:
            subject = subjects.named(spec.name, _CTX, "f16")
        except LocalLLMError:  # an entry of the user's own under this name, of which too little is known
            continue
        size_bytes = spec.file_bytes or subject.workload.weights_bytes
        tok_s = judge.tok_s(subject, size_bytes) if size_bytes <= min(room_bytes, judge.easy_bytes) else 0.0
        if _fast_enough(tok_s, spec.thinking):
            return Suited(spec.name, judge.reason(tok_s), size_bytes)
    return None


def _fast_enough(tok_s: float, reasons: bool) -> bool:
    return tok_s >= (REASONING_TOK_S if reasons else READING_TOK_S)


def _free_disk_bytes() -> int:
    place = hub.cache_folder()
    return shutil.disk_usage(next(path for path in (place, *place.parents) if path.exists())).free


@dataclass(frozen=True, slots=True)
class _Judge:
    """What fits into all of this machine's memory, and its bandwidth."""

    capacity: Capacity
    machine: Machine

    @classmethod
    def here(cls) -> "_Judge":
        """Measures the bandwidth of main memory where that is what counts, in 0.2 s."""
        return cls(capacity(), this_machine()[0])

    @property
    def easy_bytes(self) -> int:
        """What a model may take without being in the way of what else a person has open."""
        return self.capacity.gpu_bytes or self.capacity.ram_bytes // 2

    def tok_s(self, subject: Subject, file_bytes: int) -> float:
        """What is expected in practice; 0 for what does not fit where it would run.

        What was measured here counts, unless the bandwidth of memory lets expect far more: then the machine was busy.
        """
        if self.capacity.fit(file_bytes) not in ("gpu", "ram"):
            return 0.0
        result = answered(subject, self.machine, Question(_CTX))
        expected = result.shallow.expected
        if expected and expected.mid < _LEAST_SHARE * result.shallow.ceiling_tok_s:  # not what this machine can do
            result = answer(subject, self.machine, Question(_CTX))
        return result.likely_tok_s

    def reason(self, tok_s: float) -> str:
        """Why, in a phrase."""
        gpu_bytes = self.capacity.gpu_bytes
        memory = (
            f"{size_text(gpu_bytes)} of GPU memory" if gpu_bytes else f"{size_text(self.capacity.ram_bytes)} of memory"
        )
        return f"it fits in {memory}, about {tok_s:.0f} tokens/s expected"
