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

from localllm.ceiling.expected import Band, Parts, Precision, Step
from localllm.ceiling.roofline import GB

SAME, OTHER = 0.15, 0.4  # how far off the rate of the same kind of weights may be, and that of another kind


@dataclass(frozen=True, slots=True)
class Point:
    """A rate that was measured: tokens per second, and what is read for a token."""

    tok_s: float
    weights_bytes: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What one model taught: 10⁹ bytes per second of weights, and of KV cache (None: not measured)."""

    precision: Precision
    weights_gb_s: float
    kv_gb_s: float | None


def rates(precision: Precision, points: Sequence[Point]) -> Rates:
    """From rates of one model at one or more depths, the shallowest first."""
    first, deepest = points[0], points[-1]
    slower_s, more_bytes = 1 / deepest.tok_s - 1 / first.tok_s, deepest.kv_bytes - first.kv_bytes
    kv_gb_s = more_bytes / slower_s / GB if more_bytes > 0 and slower_s > 0 else None
    weights_s = 1 / first.tok_s - (first.kv_bytes / (kv_gb_s * GB) if kv_gb_s else 0.0)
    return Rates(precision, first.weights_bytes / max(weights_s, 1e-9) / GB, kv_gb_s)


@dataclass(frozen=True, slots=True)
class Learned:
    """What all models together taught about this machine."""

    models: tuple[Rates, ...]

    def parts(self, step: Step) -> Parts:
        """The seconds that a step is expected to take."""
        cache = [rates.kv_gb_s for rates in self.models if rates.kv_gb_s]
        kv_s = step.kv_bytes / (statistics.geometric_mean(cache) * GB) if cache else 0.0
        alike = [rates.weights_gb_s for rates in self._alike(step)]
        return Parts(step.weights_bytes / (statistics.geometric_mean(alike) * GB), kv_s, 0.0)

    def band(self, step: Step) -> Band:
        """Tokens per second to expect. The error is a statement, not a statistic: few models were measured."""
        same = any(rates.precision == step.precision for rates in self.models)
        off, mid = SAME if same else OTHER, 1 / self.parts(step).total_s
        count = len(self.models)
        kind = "of its kind of weights" if same else "with other kinds of weights"
        group = f"measured on this machine: {count} model{'s' if count > 1 else ''}, {kind}"
        return Band(mid * math.exp(-off), mid, mid * math.exp(off), off / 2, off, count, group, here=True)

    def _alike(self, step: Step) -> Sequence[Rates]:
        same = [rates for rates in self.models if rates.precision == step.precision]
        return same or self.models
