"""How well what `localllm ceiling --measure` learns predicts, on this machine. Started by scripts/validate_measure.

Measures the default model, its Q8_0 and Q4_0 forms, and the tests' Gemma, as the command does, and in the same
rounds at a depth of 2,000 tokens; compares. Prints Markdown tables. Run it while nothing else runs.
"""

import math
import os
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from bench_peers import GEMMA, machine
from made_models import requantised

from localllm.app import Located, locate
from localllm.ceiling.answer import Subject
from localllm.ceiling.expected import Band
from localllm.ceiling.learned import OTHER, SAME, Learned
from localllm.config import cache_dir
from localllm.measured import Measurement
from localllm.measuring import DEPTHS, TOKENS, measure
from localllm.subjects import of_local

DEEP = 2000
MOST_OFF = 0.1  # of the prediction for DEEP


@dataclass(frozen=True)
class Tried:
    """A model: what was learned of it, and how fast it was with DEEP tokens."""

    subject: Subject
    measurement: Measurement
    deep_tok_s: float


def main() -> None:
    """Measure, and print how far off each prediction is."""
    folder = cache_dir() / "tests"
    source = locate("smollm2-135m").model.path
    paths = [source, requantised(source, "Q8_0", folder), requantised(source, "Q4_0", folder), GEMMA]
    with tempfile.TemporaryDirectory() as fresh:
        os.environ["XDG_CACHE_HOME"] = fresh
        tried = [try_out(locate(str(path))) for path in paths if path.exists()]
    print(f"{machine()}\n\n{depth_table(tried)}\n\n{others_table(tried)}")


def try_out(located: Located) -> Tried:
    """Measure a model at the command's depths and at DEEP, in turn; what is learned knows nothing of DEEP."""
    found = measure(located, depths=(*DEPTHS, DEEP))
    learned = replace(found, points=found.points[:-1], kv_bytes=found.kv_bytes[:-1])
    return Tried(of_local(located.model, DEEP, "f16"), learned, found.points[-1][1])


def predicted(of: Tried, by: Tried, depth: int) -> Band:
    """What to expect of one model, from what was learned on another, or on itself."""
    step = of.subject.step(depth)
    assert step
    own = by.measurement.rates if of is by else None
    return Learned((by.measurement.rates,), own).band(step)


def depth_table(tried: list[Tried]) -> str:
    """What a model's own rates at small depths say of DEEP."""
    lines = [
        f"| model | at depth 48 | at 560 | at 1,072 | predicted at {DEEP:,} | measured | off | at most | met |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for one in tried:
        guess = predicted(one, one, DEEP + TOKENS // 2).mid
        off = guess / one.deep_tok_s - 1
        rates = [f"{tok_s:.1f}" for _, tok_s in one.measurement.points]
        met = "yes" if abs(off) <= MOST_OFF else "**no**"
        cells = [
            one.measurement.model,
            *rates,
            f"{guess:.1f}",
            f"{one.deep_tok_s:.1f}",
            f"{off:+.1%}",
            f"{MOST_OFF:.0%}",
            met,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def others_table(tried: list[Tried]) -> str:
    """What each model says of each other one at depth 48."""
    names = [Path(one.measurement.model).name for one in tried]
    lines = [f"| learned on \\ predicts | {' | '.join(names)} |", "|---|" + "---:|" * len(tried)]
    errors, within = [], []
    for by in tried:
        cells = []
        for of in tried:
            band, measured = predicted(of, by, 48), of.measurement.tok_s
            cells.append("–" if of is by else f"{band.mid / measured - 1:+.0%}")
            if of is not by:
                errors.append(abs(band.mid / measured - 1))
                within.append(band.low <= measured <= band.high)
        lines.append(f"| {Path(by.measurement.model).name} | {' | '.join(cells)} |")
    bands = f"-{1 - math.exp(-SAME):.0%} to +{math.exp(SAME) - 1:.0%} for weights of the same kind, "
    bands += f"-{1 - math.exp(-OTHER):.0%} to +{math.exp(OTHER) - 1:.0%} for others"
    found = f"{sum(within)} of {len(within)} lie within the stated band ({bands})"
    return "\n".join(
        [*lines, "", f"Off by {statistics.median(errors):.0%} in the median, {max(errors):.0%} at most; {found}."]
    )


if __name__ == "__main__":
    main()
