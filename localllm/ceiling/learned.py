"""What measuring models on this machine tells about others: rates at which weights and KV cache are read.

Pure arithmetic on times. A step takes

    t(depth) = weights / w  +  KV cache(depth) / k

On a processor both are far below the bandwidth of memory, since unpacking and multiplying take their time, so they are
measured and not computed. w depends on how weights are stored.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from localllm.ceiling.expected import Band, Parts, Precision, Step
from localllm.ceiling.roofline import GB

# How far off a rate may be, in logarithms: of a model that was measured, one with the same kind of weights, others
OWN, SAME, OTHER = 0.1, 0.35, 0.5
_MUCH = 0.3  # of the deepest cache


@dataclass(frozen=True, slots=True)
class Point:
    """A rate that was measured: tokens per second, and what is read for a token."""

    tok_s: float
    weights_bytes: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What one model taught: 10⁹ bytes per second of weights, and of KV cache (None: not measured).

    ``points`` are the pairs of bytes of KV cache and seconds that it was measured at, the shallowest first.
    """

    precision: Precision
    weights_gb_s: float
    kv_gb_s: float | None
    points: tuple[tuple[float, float], ...] = ()

    def kv_s(self, kv_bytes: float) -> float:
        """Seconds for the KV cache of this very model: straight lines through what was measured."""
        for (low, low_s), (high, high_s) in pairwise(self.points):
            if kv_bytes <= high:
                return max(0.0, low_s + (kv_bytes - low) * (high_s - low_s) / (high - low))
        low, low_s = self.points[-1] if self.points else (0.0, 0.0)
        return low_s + (kv_bytes - low) / (self.kv_gb_s * GB) if self.kv_gb_s else low_s


def rates(precision: Precision, points: Sequence[Point]) -> Rates:
    """From rates of one model at one or more depths, the shallowest first.

    What the cache takes is told by the two deepest, since between shallow ones llama.cpp changes its way of attention;
    or by the first and the last, where those two differ in little (sliding windows).
    """
    first, deepest = points[0], points[-1]
    before = points[-2] if len(points) > 2 else first
    if deepest.kv_bytes - before.kv_bytes < _MUCH * deepest.kv_bytes:
        before = first
    kv_gb_s = _kv_gb_s(before, deepest)
    shallow_s = first.kv_bytes / (kv_gb_s * GB) if kv_gb_s else 0.0
    weights_s = max(1 / first.tok_s - shallow_s, 1e-9)
    measured = tuple((float(point.kv_bytes), max(0.0, 1 / point.tok_s - weights_s)) for point in points)
    return Rates(precision, first.weights_bytes / weights_s / GB, kv_gb_s, measured)


def _kv_gb_s(shallow: Point, deep: Point) -> float | None:
    slower_s, more_bytes = 1 / deep.tok_s - 1 / shallow.tok_s, deep.kv_bytes - shallow.kv_bytes
    return more_bytes / slower_s / GB if more_bytes > 0 and slower_s > 0 else None


@dataclass(frozen=True, slots=True)
class Learned:
    """What all models together taught about this machine, and the one that is asked about, if it was measured.

    ``prefill_flops``: operations per second that reading prompts reached.
    """

    models: tuple[Rates, ...]
    own: Rates | None = None
    prefill_flops: float | None = None

    def parts(self, step: Step) -> Parts:
        """The seconds that a step is expected to take."""
        if self.own:
            return Parts(step.weights_bytes / (self.own.weights_gb_s * GB), self.own.kv_s(step.kv_bytes), 0.0)
        cache = [rates.kv_gb_s for rates in self.models if rates.kv_gb_s]
        kv_s = step.kv_bytes / (statistics.geometric_mean(cache) * GB) if cache else 0.0
        alike = [rates.weights_gb_s for rates in self._alike(step)]
        return Parts(step.weights_bytes / (statistics.geometric_mean(alike) * GB), kv_s, 0.0)

    def band(self, step: Step) -> Band:
        """Tokens per second to expect. The error is a statement, not a statistic: few models were measured."""
        same = any(rates.precision == step.precision for rates in self.models)
        off, mid = OWN if self.own else SAME if same else OTHER, 1 / self.parts(step).total_s
        count = len(self.models)
        kind = "this one" if self.own else "of its kind of weights" if same else "with other kinds of weights"
        group = f"measured on this machine: {count} model{'s' if count > 1 else ''}, {kind}"
        return Band(mid * math.exp(-off), mid, mid * math.exp(off), off / 2, off, count, group, here=True)

    def _alike(self, step: Step) -> Sequence[Rates]:
        same = [rates for rates in self.models if rates.precision == step.precision]
        return same or self.models
