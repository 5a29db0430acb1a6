"""The arithmetic of decoding: how fast memory can feed a model, what it holds, and what several users get.

Pure functions of numbers. Knows no file, no device name and no clock. Rates are in 10⁹ bytes per second, as
spec sheets count; memory is sold in units of 2³⁰ bytes. Mixing the two is an error of 7.4 %.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

GB = 10**9


def nothing(_tokens: int) -> int:
    """Of a cache that is not known, or not asked for."""
    return 0


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: their bytes (part of what a model streams), how many there are, how many a token uses."""

    all_bytes: int
    count: int
    used: int

    def touched(self, tokens: int) -> float:
        """The share of the experts that a step of so many tokens reads, if each token chooses at random."""
        return 1 - (1 - self.used / self.count) ** tokens


@dataclass(frozen=True, slots=True)
class Workload:
    """What one model asks of memory while it answers.

    All ``weights_bytes`` stay in memory, and ``streamed_bytes`` of them are read for each token. ``kv_held`` tells
    what the cache of a context of so many tokens takes, ``kv_read`` what is read of it for a token behind so many.
    """

    weights_bytes: int
    streamed_bytes: int
    kv_held: Callable[[int], int] = nothing
    kv_read: Callable[[int], int] = nothing
    experts: Experts | None = None

    def held_bytes(self, ctx: int) -> int:
        """What memory must hold. Compute buffers are not counted."""
        return self.weights_bytes + self.kv_held(ctx)

    def read_bytes(self, depth: int) -> int:
        """What is read for a token behind ``depth`` others."""
        return self.streamed_bytes + self.kv_read(depth)

    def step_weights_bytes(self, tokens: int) -> float:
        """Bytes of weights that a step of several tokens reads: once each, but of more experts."""
        if not self.experts:
            return self.streamed_bytes
        one, many = self.experts.touched(1), self.experts.touched(tokens)
        return self.streamed_bytes + self.experts.all_bytes * (many - one)


def ceiling_tok_s(bandwidth_gb_s: float, bytes_per_token: float) -> float:
    """Tokens per second that no decoder can exceed at batch 1: bandwidth ÷ bytes read per token.

    The memory side of the roofline model (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009).
    With one sequence each weight that is read serves one multiply-add (Pope et al., "Efficiently Scaling
    Transformer Inference", 2022), so memory binds; where compute does, the rate is lower and the bound holds.
    """
    return bandwidth_gb_s * GB / bytes_per_token


def split_ceiling_tok_s(parts: Sequence[tuple[float, float]]) -> float:
    """The same where the bytes lie in several places, one read after the other: times add up.

    ``parts`` are pairs of bandwidth (10⁹ bytes per second) and bytes. So two equal cards that share the layers
    hold more, and are no faster than one.
    """
    return 1 / sum(n_bytes / (bandwidth_gb_s * GB) for bandwidth_gb_s, n_bytes in parts)


def conversations(usable_bytes: int | None, weights_bytes: int, kv_bytes: int, reserve_bytes: int = 0) -> int | None:
    """How many caches of ``kv_bytes`` each fit beside the weights and a reserve; None where a size is not known."""
    if usable_bytes is None or kv_bytes <= 0:
        return None
    return max(0, usable_bytes - weights_bytes - reserve_bytes) // kv_bytes


def tokens_per_step(acceptance: float, drafted: int) -> float:
    """Tokens that a speculative step gives on average, if each of its guesses is right with the same chance.

    (1 − αᵏ⁺¹) / (1 − α): Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
    Decoding", 2023.
    """
    if acceptance >= 1:
        return drafted + 1
    return (1 - acceptance ** (drafted + 1)) / (1 - acceptance)


def speculative_speedup(acceptance: float, drafted: int, draft_cost: float, verify_cost: float = 1.0) -> float:
    """Times as fast as plain decoding: tokens per step over what a step costs, in plain steps.

    ``draft_cost`` is what one guess costs, ``verify_cost`` what checking them does.
    """
    return tokens_per_step(acceptance, drafted) / (verify_cost + drafted * draft_cost)


def best_draft(
    acceptance: float, draft_cost: float, verify_cost: Callable[[int], float], most: int = 16
) -> tuple[int, float]:
    """The number of guesses that pays most, and the speed-up: (0, 1.0) where none does.

    ``verify_cost`` tells what a step of so many tokens costs, in plain steps.
    """
    rates = ((k, speculative_speedup(acceptance, k, draft_cost, verify_cost(k + 1))) for k in range(1, most + 1))
    return max([(0, 1.0), *rates], key=lambda pair: pair[1])


@dataclass(frozen=True, slots=True)
class Batch:
    """What ``users`` get that are answered in one batch."""

    users: int
    per_user_tok_s: float
    aggregate_tok_s: float
    compute_bound: bool


def batch(step_memory_s: float, step_compute_s: float, users: int) -> Batch:
    """The rates of a step that reads memory for ``step_memory_s`` and computes for ``step_compute_s`` at once."""
    step_s = max(step_memory_s, step_compute_s)
    return Batch(users, 1 / step_s, users / step_s, step_compute_s > step_memory_s)


def bend(memory_s: Callable[[int], float], compute_s: Callable[[int], float], most: int = 4096) -> int | None:
    """The fewest users for which computing takes longer than reading; None where that never comes.

    Up to there another user costs little but his own cache; from there on all share what the cores can do.
    """
    if compute_s(most) <= memory_s(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if compute_s(middle) > memory_s(middle) else (middle, high)
    return high


def prefill_s(tokens: int, params: float, attention_width: float, flops: float) -> float:
    """Seconds to read a prompt: two operations per weight and token, and attention, which grows with the square.

    ``attention_width`` is layers times embedding; scores and their use take two multiply-adds each for half of all
    pairs of tokens.
    """
    return (2 * params * tokens + 2 * attention_width * tokens**2) / flops
