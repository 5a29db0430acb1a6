"""What was measured on this machine, kept from one process to the next.

A file for each model in $XDG_CACHE_HOME/localllm/measured, with numbers and the model's name in it. One that cannot be
read or believed counts as not measured. Loads no runtime.
"""

import hashlib
import json
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from localllm import config
from localllm.ceiling.expected import Precision
from localllm.ceiling.learned import Learned, Point, Rates, rates

_MOST_FILES = 200
_PRECISIONS: tuple[Precision, ...] = ("16", "8", "4", "k", "low")


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of a model: ``points`` are pairs of depth in tokens and tokens per second."""

    model: str
    precision: Precision
    threads: int
    on_gpu: bool
    when: str  # UTC, to the minute
    weights_bytes: int
    points: tuple[tuple[int, float], ...]
    kv_bytes: tuple[int, ...]  # read at each depth
    prefill_flops: float | None = None  # operations per second that reading a prompt reached
    disturbed: bool = False  # other programs computed all the while: the machine can do better

    @property
    def tok_s(self) -> float:
        """At the shallowest depth."""
        return self.points[0][1]

    @property
    def told_when(self) -> str:
        """When, for a person, and what to think of it."""
        return f"{self.when} UTC" + (", while other programs computed" if self.disturbed else "")

    @property
    def rates(self) -> Rates:
        """What it tells about other models and depths."""
        pairs = zip(self.points, self.kv_bytes, strict=True)
        return rates(self.precision, [Point(tok_s, self.weights_bytes, kv) for (_, tok_s), kv in pairs])


def last(files: Sequence[Path]) -> Measurement | None:
    """What was measured last of the model in these files."""
    return _read(_path(files))


def learned(files: Sequence[Path] = ()) -> Learned | None:
    """What all models that were measured on the processor tell of the model in these files; None where none was.

    What was measured while other programs computed tells nothing about the machine.
    """
    measurements = [measurement for measurement in _all() if not (measurement.on_gpu or measurement.disturbed)]
    found = [measurement.rates for measurement in measurements]
    own = last(files) if files else None
    if not found:
        return None
    mine = own if own and not (own.on_gpu or own.disturbed) else None
    flops = [mine.prefill_flops] if mine else [measurement.prefill_flops for measurement in measurements]
    known = [each for each in flops if each]
    return Learned(tuple(found), mine.rates if mine else None, statistics.geometric_mean(known) if known else None)


def _folder() -> Path:
    return config.cache_dir() / "measured"


def _path(files: Sequence[Path]) -> Path | None:
    try:
        found = [(status.st_dev, status.st_ino, status.st_mtime_ns) for status in map(os.stat, files)]
    except OSError:
        return None
    return _folder() / f"{hashlib.sha256(repr(found).encode()).hexdigest()[:32]}.json"


def _all() -> Iterator[Measurement]:
    with suppress(OSError):
        for path in sorted(_folder().glob("*.json"))[:_MOST_FILES]:
            if found := _read(path):
                yield found


def _read(path: Path | None) -> Measurement | None:
    if path is None:
        return None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        points = tuple((int(depth), float(tok_s)) for depth, tok_s in said["points"])
        found = Measurement(
            model=str(said["model"]),
            precision=next(name for name in _PRECISIONS if name == said["precision"]),
            threads=int(said["threads"]),
            on_gpu=bool(said["on_gpu"]),
            when=str(said["when"])[:20],
            weights_bytes=int(said["weights_bytes"]),
            points=points,
            kv_bytes=tuple(int(size) for size in said["kv_bytes"]),
            prefill_flops=float(said["prefill_flops"]) if said.get("prefill_flops") else None,
            disturbed=bool(said.get("disturbed")),
        )
    except (KeyError, OSError, OverflowError, RecursionError, StopIteration, TypeError, ValueError):
        return None
    sound = all(0 < tok_s < 1e6 and math.isfinite(tok_s) for _, tok_s in points) and found.weights_bytes > 0
    sound = sound and (found.prefill_flops is None or 0 < found.prefill_flops < 1e18)
    return found if points and sound and len(points) == len(found.kv_bytes) else None


def keep(files: Sequence[Path], found: Measurement) -> None:
    """Remember what was measured of the model in these files: the last time that nobody disturbed, else the best.

    A folder that cannot be written remembers nothing.
    """
    path, before = _path(files), last(files)
    if path is None:
        return
    if found.disturbed and before and not (before.disturbed and before.tok_s < found.tok_s):
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f"{path.name}.{os.getpid()}")
        written.write_text(json.dumps(asdict(found)), encoding="utf-8")
        written.replace(path)
