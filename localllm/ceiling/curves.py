"""How the rates of an answer run: against the tokens in the KV cache, or against the users in one batch.

Knows which of the two a question is about, and at how many places to ask ``answer``. Computes no rate itself; knows
nothing of how a curve is drawn.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import Literal

from localllm.ceiling.answer import Question, Result, Subject, answer, at_depths
from localllm.ceiling.machine import Machine
from localllm.ceiling.roofline import Batch

Axis = Literal["context", "users"]
Kind = Literal["ceiling", "expected", "together", "each"]

MOST_CURVES = 6  # more cannot be told apart
USUAL_CTX = 32_768  # where none is asked about and the model allows it
STEPS = 128
LEAST_USERS = 64  # that an axis of users reaches


@dataclass(frozen=True, slots=True)
class Point:
    """A rate. ``low`` and ``high`` are those of the band, and the rate itself where there is none."""

    x: int
    tok_s: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """Points from left to right. A ceiling is computed; all other kinds are expected."""

    kind: Kind
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """One machine's lines. ``bend``: the users from which computing is the limit."""

    machine: str
    fits: bool | None
    lines: tuple[Line, ...]
    bend: int | None = None

    @property
    def points(self) -> Iterator[Point]:
        """Of all its lines."""
        return (point for line in self.lines for point in line.points)


def axis(subject: Subject, question: Question) -> Axis:
    """What the rates are drawn against: users, where several are asked about or the KV cache is not known."""
    return "users" if question.users > 1 or subject.kv_bytes_per_token is None else "context"


def deepest(subject: Subject, question: Question) -> int:
    """The context that is drawn: the one asked about, or what is usual and the model was trained for."""
    return question.ctx or min(subject.n_ctx_train or USUAL_CTX, USUAL_CTX)


def curves(subject: Subject, machines: Sequence[Machine], question: Question) -> list[Curve]:
    """The curves of the machines of which there is one to draw, in their order, and of no more than can be drawn."""
    drawn = machines[:MOST_CURVES]
    if axis(subject, question) == "users":
        return _against_users(subject, drawn, question)
    question = replace(question, ctx=deepest(subject, question))
    return [_against_context(subject, machine, question) for machine in drawn]


def _against_context(subject: Subject, machine: Machine, question: Question) -> Curve:
    """Rates behind more and more tokens, with room kept for all of the context, as a runtime does."""
    depths = sorted({round(question.ctx * step / STEPS) for step in range(STEPS + 1)})
    rates = at_depths(subject, machine, question, depths)
    ceiling = Line("ceiling", tuple(_exactly(at.depth, at.ceiling_tok_s) for at in rates))
    expected = Line(
        "expected",
        tuple(Point(at.depth, at.expected.mid, at.expected.low, at.expected.high) for at in rates if at.expected),
    )
    lines = (ceiling, expected) if expected.points else (ceiling,)
    return Curve(machine.name, answer(subject, machine, question).fits, lines)


def _against_users(subject: Subject, machines: Sequence[Machine], question: Question) -> list[Curve]:
    """Rates in batches of more and more users, to beyond all bends. Not every machine has them."""
    asked = replace(question, users=max(2, question.users))
    results = [result for machine in machines if (result := answer(subject, machine, asked)).batches]
    bends = [result.bend for result in results if result.bend]
    most = max(LEAST_USERS, question.users, *(2 * bend for bend in bends))
    powers = takewhile(lambda users: users < most, (2**power for power in count()))
    users = sorted({*powers, *bends, most})
    return [_batches(subject, result, question, users) for result in results]


def _batches(subject: Subject, result: Result, question: Question, users: Iterable[int]) -> Curve:
    batches = [_batch(subject, result.machine, question, number) for number in users]
    together = Line("together", tuple(_exactly(batch.users, batch.aggregate_tok_s) for batch in batches))
    each = Line("each", tuple(_exactly(batch.users, batch.per_user_tok_s) for batch in batches))
    return Curve(result.machine.name, result.fits, (together, each), result.bend)


def _batch(subject: Subject, machine: Machine, question: Question, users: int) -> Batch:
    batches = answer(subject, machine, replace(question, users=max(2, users))).batches
    return next(batch for batch in batches if batch.users == users)


def _exactly(x: int, tok_s: float) -> Point:
    return Point(x, tok_s, tok_s, tok_s)
