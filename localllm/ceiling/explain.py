"""A measured rate taken apart: how much of the time memory alone would need, and what is left over.

Knows the results that ``llama-bench -o json`` writes. Knows no model and no hardware but by their numbers.
"""

import json
import math
from dataclasses import dataclass

from localllm.ceiling.roofline import GB, Workload, ceiling_tok_s
from localllm.errors import UsageError

_MOST_RESULTS = 1000


@dataclass(frozen=True, slots=True)
class Explained:
    """Shares of the time of a token, which add up to 1. ``rest`` is negative where memory alone would be slower."""

    measured_tok_s: float
    ceiling_tok_s: float
    weights: float
    kv: float

    @property
    def rest(self) -> float:
        """What is not reading at full bandwidth: kernels that start and wait, and reading that is slower."""
        return 1 - self.weights - self.kv

    @property
    def of_ceiling(self) -> float:
        """Measured, as a share of the ceiling."""
        return self.measured_tok_s / self.ceiling_tok_s


def explain(measured_tok_s: float, workload: Workload, depth: int, bandwidth_gb_s: float) -> Explained:
    """Take apart a rate that was measured with ``depth`` tokens in the KV cache, at batch 1."""
    bandwidth = bandwidth_gb_s * GB
    return Explained(
        measured_tok_s=measured_tok_s,
        ceiling_tok_s=ceiling_tok_s(bandwidth_gb_s, workload.read_bytes(depth)),
        weights=measured_tok_s * workload.streamed_bytes / bandwidth,
        kv=measured_tok_s * workload.kv_read(depth) / bandwidth,
    )


@dataclass(frozen=True, slots=True)
class Benched:
    """A decode rate from ``llama-bench``, and what it was measured with."""

    tok_s: float
    depth: int  # tokens in the KV cache, on average
    model_file: str
    model_bytes: int
    n_params: int
    devices: tuple[str, ...]  # as their drivers call them
    on_gpu: bool


def llama_bench(text: str) -> list[Benched]:
    """The decode results in what ``llama-bench -o json`` (or ``jsonl``) has written. Raises UsageError."""
    hint = "it should be what llama-bench -o json writes"
    try:
        entries = _entries(text)
    except (ValueError, RecursionError):
        raise UsageError("the file to explain is no JSON", hint) from None
    found = [_benched(entry) for entry in entries[:_MOST_RESULTS] if isinstance(entry, dict)]
    decoded = [result for result in found if result]
    if not decoded:
        raise UsageError("the file to explain holds no decode result (n_gen above 0, avg_ts)", hint)
    return decoded


def _entries(text: str) -> list[object]:
    if text.lstrip().startswith("["):
        entries = json.loads(text)
        return entries if isinstance(entries, list) else []
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _benched(entry: dict[str, object]) -> Benched | None:
    """None for a test of prefill, and for what is not a result."""
    tok_s, n_gen = _number(entry, "avg_ts"), int(_number(entry, "n_gen"))
    if n_gen <= 0 or tok_s <= 0 or _number(entry, "n_prompt") > 0:
        return None
    names = str(entry.get("gpu_info") or "")
    return Benched(
        tok_s=tok_s,
        depth=int(_number(entry, "n_depth")) + n_gen // 2,
        model_file=str(entry.get("model_filename") or ""),
        model_bytes=int(_number(entry, "model_size")),
        n_params=int(_number(entry, "model_n_params")),
        devices=tuple(name.strip() for name in names.split(",") if name.strip()),
        on_gpu=_number(entry, "n_gpu_layers") > 0 and bool(names),
    )


def _number(entry: dict[str, object], name: str) -> float:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return float(value) if 0 <= value < 1e18 else 0.0
