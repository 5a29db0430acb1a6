"""What steps of several tokens cost, and how many guesses are worth it: the arithmetic of docs/speculation.md."""

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

MAX_DRAFT = 31  # with the token before it a step of 32: beyond, no curve that was measured pays
# What a step of n tokens costs beside one of 1 token before anything was measured here: between the curves of two
# quantised models on two cores. The knots of the curve.
_PRIOR_COST = {1: 1.0, 2: 1.8, 3: 2.1, 4: 2.4, 5: 2.9, 6: 3.3, 8: 4.0, 12: 5.5, 16: 7.0, 24: 10.0, 32: 13.0}
_LEARNING_RATE, _FIRST_STEPS = 0.2, 6
_REMEMBERED = 6.0  # steps that a remembered cost counts as
_FIRST_CREDIT = 3.0  # plain steps that may be spent on probes at once where no costs are known


class CostModel:
    """Seconds that one step takes, by the number of its tokens; learned from the steps themselves.

    A step's cost is ``unit × shape(n)``: the unit follows the machine's load and the depth of the context, the shape
    belongs to model, machine and settings, and can be remembered (by n, relative to n = 1). It is that of the prior
    curve, bent at each of its knots that was measured.

    ``credit`` is how many plain steps may be spent on trying what is not expected to pay.
    """

    def __init__(self, shape: Mapping[int, float] = {}, credit: float | None = None) -> None:
        known = {n: cost / _PRIOR_COST[n] for n, cost in shape.items() if n > 1 and n in _PRIOR_COST}
        self._bends = {1: 0.0} | {n: math.log(ratio) for n, ratio in known.items() if 0.01 < ratio < 100}
        self._seen = dict.fromkeys(self._bends, _REMEMBERED)
        self._unit_s = 0.0
        self._observed = 0
        self._costs: list[float] = []
        self.credit = credit if credit is not None else 0.0 if len(self._bends) > 1 else _FIRST_CREDIT

    @property
    def shape(self) -> Mapping[int, float]:
        """Relative costs at the knots that were measured."""
        return {n: self.relative(n) for n in sorted(self._bends)}

    def observe(self, n: int, seconds: float) -> None:
        """Learn from a step of ``n`` tokens."""
        if seconds <= 0:  # below what the clock can tell
            return
        if not self._unit_s:
            self._unit_s = seconds / self.relative(n)
        ratio = min(2.0, max(0.5, seconds / self.step_s(n)))  # a preempted step says nothing about the next
        self._unit_s *= ratio if self._observed < _FIRST_STEPS else ratio**_LEARNING_RATE  # the first one warms up
        self._observed += 1
        if n > 1:
            self._bend(n, math.log(ratio))
            self._costs.clear()

    def _bend(self, n: int, error: float) -> None:
        """Move the knots beside ``n``, the nearer one more; a knot that was never measured at once."""
        low = max(knot for knot in _PRIOR_COST if knot <= n)
        high = min(knot for knot in _PRIOR_COST if knot >= n)
        share = (n - low) / (high - low) if high > low else 1.0
        before = {knot: self._bent(knot) for knot in (low, high)}
        for knot, weight in ((low, 1 - share), (high, share)):
            if knot > 1 and weight:
                seen = self._seen[knot] = self._seen.get(knot, 0.0) + weight
                self._bends[knot] = before[knot] + error * weight * max(_LEARNING_RATE, 1 / (seen + 1))

    def _bent(self, n: int) -> float:
        known = sorted(self._bends)
        return _between(n, known, [self._bends[knot] for knot in known])

    def step_s(self, n: int) -> float:
        """What a step of ``n`` tokens takes, in seconds; 0 before anything was observed."""
        return self._unit_s * self.relative(n)

    def relative(self, n: int) -> float:
        """Cost of a step of ``n`` tokens in units of one of 1 token."""
        if not self._costs:
            self._costs = [_prior(n) * math.exp(self._bent(n)) for n in range(MAX_DRAFT + 2)]
        return self._costs[n]


def _prior(n: int) -> float:
    return _between(n, [*_PRIOR_COST], [*_PRIOR_COST.values()])


def _between(x: int, xs: Sequence[int], ys: Sequence[float]) -> float:
    """Linear interpolation; beyond the ends the last value holds."""
    at = bisect.bisect_left(xs, x)
    if at == 0 or at == len(xs):
        return ys[min(at, len(xs) - 1)]
    low, high = xs[at - 1], xs[at]
    share = (x - low) / (high - low)
    return ys[at - 1] * (1 - share) + ys[at] * share


def expected_tokens(chances: Iterable[float]) -> Iterator[float]:
    """Tokens that a step yields with drafts of 0, 1, 2 … of these guesses: 1 + a₁ + a₁a₂ + …"""
    yield from itertools.accumulate(itertools.accumulate(chances, lambda a, b: a * b), initial=1.0)


def rates(chances: Iterable[float], cost: CostModel, guess: float = 0.0) -> list[float]:
    """Tokens per plain step, by how many of these guesses are checked, where making one costs ``guess``."""
    return [tokens / (cost.relative(n + 1) + n * guess) for n, tokens in enumerate(expected_tokens(chances))]


def best_length(chances: Sequence[float], cost: CostModel) -> tuple[int, float]:
    """How many of the guesses to check, and the tokens per plain step that this gives. Guessing is paid already."""
    found = rates(chances, cost)
    best = max(range(len(found)), key=found.__getitem__)
    return best, found[best]
