"""The answer to a question about a model and a machine: every number, and nothing about how it is shown.

Puts the arithmetic (``roofline``), what is measured elsewhere (``expected``) and where the bytes lie (``machine``)
together. Three kinds of numbers that are never mixed: ceilings are computed and bound everything, expected ones are
bands with a published error, measured ones come from this machine.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from localllm.ceiling import expected, roofline
from localllm.ceiling.expected import Band, Parts, Precision, Recurrent, Step
from localllm.ceiling.hardware import Hardware
from localllm.ceiling.machine import Machine, Share
from localllm.ceiling.roofline import GB, Batch, Workload
from localllm.sizes import GIB
from localllm.values import KvType

FREE_BYTES = GIB  # kept free of a card's memory, for "usable" conversations
COMPUTE_BYTES = 256 * 2**20  # of scratch memory, where a model's own is not known
CPU_SHARE = 0.43  # of the bandwidth of main memory that decoding on a processor reaches, by few measurements
CPU_SPREAD = (0.7, 1.6)  # and how far off that may be
BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Subject:
    """The model in question. ``params`` are those that a token passes, of which each costs two operations."""

    name: str | None
    workload: Workload
    kv: KvType = "f16"
    n_layers: int | None = None
    n_embd: int | None = None
    n_vocab: int | None = None
    n_ctx_train: int | None = None
    quantisation: str = ""
    precision: Precision = "k"
    params: float | None = None
    mixture: bool = False  # of experts
    recurrent: Recurrent = ""
    latent: bool = False
    kv_bytes_per_token: int | None = None
    compute_bytes: Callable[[int], int] = lambda _ctx: COMPUTE_BYTES
    streamed_is_upper_bound: bool = False
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()  # where it is on this disk

    def step(self, depth: int, part: float = 1.0, cards: int = 1) -> Step | None:
        """A decode step behind ``depth`` tokens, or the part of it that lies somewhere; None without layers."""
        if self.n_layers is None:
            return None
        return Step(
            weights_bytes=self.workload.streamed_bytes * part,
            kv_bytes=self.workload.kv_read(depth) * part,
            n_layers=round(self.n_layers * part) or 1,
            precision=self.precision,
            mixture=self.mixture,
            recurrent=self.recurrent,
            latent=self.latent,
            cards=cards,
        )


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked beside model and machine. ``ctx`` 0: depth 0 only."""

    ctx: int = 0
    users: int = 1
    prompt: int | None = None
    output: int | None = None
    draft: Subject | None = None
    acceptance: float = 0.7


@dataclass(frozen=True, slots=True)
class AtDepth:
    """Rates with so many tokens in the KV cache."""

    depth: int
    ceiling_tok_s: float
    expected: Band | None


@dataclass(frozen=True, slots=True)
class Speculation:
    """What guesses give, at the acceptance asked about. ``drafted`` 0: they do not pay."""

    draft: str
    acceptance: float
    drafted: int
    tokens_per_step: float
    speedup: float
    draft_cost: float  # a guess, in plain steps


@dataclass(frozen=True, slots=True)
class Result:
    """Everything about one machine."""

    machine: Machine
    depths: tuple[AtDepth, ...]
    fits: bool | None
    held_bytes: int  # weights, caches of all users, scratch memory, the same of a draft, and the runtime
    on_cards: float  # the part of the model that lies on the cards
    theoretical_conversations: int | None
    usable_conversations: int | None
    prefill_tok_s: float | None
    ttft_s: float | None
    answer_s: float | None  # prompt and output together
    batches: tuple[Batch, ...] = ()
    bend: int | None = None  # users from which computing is the limit
    speculation: Speculation | None = None
    measured_tok_s: float | None = None  # at depth 0 or near it
    measured_when: str = ""
    parts: Parts | None = field(default=None, compare=False)  # of an expected step at the depth asked about

    @property
    def shallow(self) -> AtDepth:
        """At depth 0."""
        return self.depths[0]

    @property
    def deepest(self) -> AtDepth:
        """At the depth that was asked about."""
        return self.depths[-1]

    @property
    def likely_tok_s(self) -> float:
        """What is expected there, or else half the ceiling, about as much as is reached."""
        return self.deepest.expected.mid if self.deepest.expected else self.deepest.ceiling_tok_s / 2


def answer(subject: Subject, machine: Machine, question: Question) -> Result:
    """All numbers for one machine."""
    workload, ctx = subject.workload, question.ctx
    cache_bytes = workload.kv_held(ctx) if ctx else 0
    held_bytes = _held_bytes(subject, question)
    shares = machine.shares(held_bytes)
    prefill = _prefill_s(subject, machine, question.prompt or 0) if question.prompt else None
    first_s = _step_s(subject, machine, held_bytes, question.prompt or 0)
    ttft_s = prefill + first_s if prefill is not None and first_s is not None else None
    usable = None if _in_main_memory(machine, shares) else machine.usable_bytes
    reserve = FREE_BYTES + machine.runtime_bytes + subject.compute_bytes(ctx or 512)
    batches, bend = _batches(subject, machine, held_bytes, question) if question.users > 1 else ((), None)
    return Result(
        machine=machine,
        depths=at_depths(subject, machine, question, dict.fromkeys((0, ctx // 2, ctx))),
        fits=machine.fits(held_bytes),
        held_bytes=held_bytes + machine.runtime_bytes,
        on_cards=sum(share.part for share in shares if share.device is not machine.ram),
        theoretical_conversations=roofline.conversations(usable, workload.weights_bytes, cache_bytes),
        usable_conversations=roofline.conversations(usable, workload.weights_bytes, cache_bytes, reserve),
        prefill_tok_s=question.prompt / prefill if prefill and question.prompt else _prefill_rate(subject, machine),
        ttft_s=ttft_s,
        answer_s=_answer_s(subject, machine, held_bytes, question, ttft_s),
        batches=batches,
        bend=bend,
        speculation=_speculation(subject, machine, held_bytes, question),
        parts=_parts(subject, machine, held_bytes, ctx),
    )


def at_depths(subject: Subject, machine: Machine, question: Question, depths: Iterable[int]) -> tuple[AtDepth, ...]:
    """The rates behind so many tokens each, with room kept for the context that is asked about."""
    held_bytes = _held_bytes(subject, question)
    return tuple(_at_depth(subject, machine, held_bytes, depth) for depth in depths)


def _held_bytes(subject: Subject, question: Question) -> int:
    """What memory must hold: weights, the caches of all users, scratch memory, and the same of a draft."""
    ctx = question.ctx
    cache_bytes = subject.workload.kv_held(ctx) if ctx else 0
    held_bytes = subject.workload.weights_bytes + question.users * cache_bytes + subject.compute_bytes(ctx or 512)
    if question.draft:
        held_bytes += question.draft.workload.held_bytes(ctx) + question.draft.compute_bytes(ctx or 512)
    return held_bytes


def _at_depth(subject: Subject, machine: Machine, held_bytes: int, depth: int) -> AtDepth:
    ceiling = _ceiling(subject, machine, held_bytes, depth)
    return AtDepth(depth, ceiling, _band(subject, machine, held_bytes, depth))


def _band(subject: Subject, machine: Machine, held_bytes: int, depth: int) -> Band | None:
    """What to expect: the times of all places added up, with the error of the group of the first card."""
    whole = subject.step(depth, cards=len(machine.cards))
    parts = _parts(subject, machine, held_bytes, depth)
    if whole is None or parts is None or subject.streamed_is_upper_bound:
        return None
    alone = machine.learned.band(whole) if machine.learned else expected.expected(machine.first, whole)
    if alone is None:
        return None
    mid = 1 / parts.total_s
    low, high = alone.low / alone.mid, alone.high / alone.mid
    if machine.learned:  # what stays in the processor's cache may well be faster than memory
        return replace(alone, mid=mid, low=low * mid, high=high * mid)
    if any(share.device is machine.ram for share in machine.shares(held_bytes)):
        low, high = min(low, CPU_SPREAD[0]), max(high, CPU_SPREAD[1])
    ceiling = _ceiling(subject, machine, held_bytes, depth)
    return replace(alone, low=low * mid, mid=min(mid, ceiling), high=min(high * mid, ceiling))


def _ceiling(subject: Subject, machine: Machine, held_bytes: int, depth: int) -> float:
    n_bytes = subject.workload.read_bytes(depth)
    return roofline.split_ceiling_tok_s(
        [(share.device.bandwidth_gb_s, share.part * n_bytes) for share in machine.shares(held_bytes)]
    )


def _parts(subject: Subject, machine: Machine, held_bytes: int, depth: int) -> Parts | None:
    """The seconds of a step, by what they are spent on, over all places."""
    total, shares = Parts(0.0, 0.0, 0.0), machine.shares(held_bytes)
    for share in shares:
        step = subject.step(depth, share.part)
        parts = _parts_of(machine, share.device, step) if step else None
        if parts is None:
            return None
        total = Parts(total.weights_s + parts.weights_s, total.kv_s + parts.kv_s, total.fixed_s + parts.fixed_s)
    return replace(total, fixed_s=total.fixed_s + expected.HOP_S * (len(shares) - 1))


def _parts_of(machine: Machine, device: Hardware, step: Step) -> Parts | None:
    if machine.learned and device is machine.first:
        return machine.learned.parts(step)
    stack = expected.default_stack(device)
    if stack:
        return expected.parts(device, stack, step)
    if device.origin == "given" and device.kind == "cpu":
        rate = CPU_SHARE * device.bandwidth_gb_s * GB
        return Parts(step.weights_bytes / rate, step.kv_bytes / rate, 0.0)
    return None


def _step_s(subject: Subject, machine: Machine, held_bytes: int, depth: int) -> float | None:
    parts = _parts(subject, machine, held_bytes, depth)
    return parts.total_s if parts else None


def _flops(machine: Machine) -> float | None:
    return machine.learned.prefill_flops if machine.learned else expected.prefill_flops(machine.first)


def _prefill_s(subject: Subject, machine: Machine, tokens: int) -> float | None:
    flops = _flops(machine)
    if flops is None or subject.params is None:
        return None
    width = (subject.n_layers or 0) * (subject.n_embd or 0)
    return roofline.prefill_s(tokens, subject.params, width, flops)


def _prefill_rate(subject: Subject, machine: Machine) -> float | None:
    """Of a prompt of 512 tokens."""
    seconds = _prefill_s(subject, machine, 512)
    return 512 / seconds if seconds else None


def _answer_s(
    subject: Subject, machine: Machine, held_bytes: int, question: Question, ttft_s: float | None
) -> float | None:
    """Seconds for the prompt and all of the output, each token behind one more."""
    if not question.output:
        return None
    start = question.prompt or 0
    middle = _step_s(subject, machine, held_bytes, start + question.output // 2)
    return None if middle is None or (question.prompt and ttft_s is None) else (ttft_s or 0) + question.output * middle


def _in_main_memory(machine: Machine, shares: Iterable[Share]) -> bool:
    return any(share.device is machine.ram for share in shares)


def _batches(
    subject: Subject, machine: Machine, held_bytes: int, question: Question
) -> tuple[tuple[Batch, ...], int | None]:
    """Rates by users in one batch, up to those asked about and a little beyond, and where compute becomes the limit.

    None where it is not known how fast a part of the machine computes.
    """
    shares, flops, params = machine.shares(held_bytes), _flops(machine), subject.params
    if flops is None or params is None or subject.n_layers is None or _in_main_memory(machine, shares):
        return (), None

    def memory_s(users: int) -> float:
        seconds = expected.HOP_S * (len(shares) - 1)
        for share in shares:
            if step := subject.step(question.ctx, share.part):
                weights_bytes = subject.workload.step_weights_bytes(users) * share.part
                load = replace(step, weights_bytes=weights_bytes, kv_bytes=users * step.kv_bytes)
                parts = _parts_of(machine, share.device, load)
                seconds += parts.total_s if parts else 0.0
        return seconds

    def compute_s(users: int) -> float:
        return 2 * params * users / flops

    counts = sorted({*(count for count in BATCHES if count <= 4 * question.users), question.users})
    return tuple(roofline.batch(memory_s(n), compute_s(n), n) for n in counts), roofline.bend(memory_s, compute_s)


def _speculation(subject: Subject, machine: Machine, held_bytes: int, question: Question) -> Speculation | None:
    draft = question.draft
    plain_s = _step_s(subject, machine, held_bytes, question.ctx)
    if draft is None or plain_s is None:
        return None
    draft_s = _step_s(draft, machine, held_bytes, question.ctx)
    step, flops = subject.step(question.ctx), _flops(machine)
    plain = _parts_of(machine, machine.first, step) if step else None
    if draft_s is None or step is None or plain is None:
        return None

    def verify(tokens: int) -> float:
        load = replace(step, weights_bytes=subject.workload.step_weights_bytes(tokens))
        read = _parts_of(machine, machine.first, load) or plain
        compute_s = 2 * (subject.params or 0) * tokens / flops if flops else 0.0
        return max(read.total_s, compute_s) / plain.total_s

    cost = draft_s / plain_s
    drafted, speedup = roofline.best_draft(question.acceptance, cost, verify)
    tokens = roofline.tokens_per_step(question.acceptance, drafted)
    return Speculation(draft.name or "the draft", question.acceptance, drafted, tokens, speedup, cost)
