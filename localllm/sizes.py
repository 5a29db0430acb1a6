"""Sizes and rates as people write them. Refuses NaN, infinity, zero and the absurd."""

import re
from collections.abc import Mapping

from localllm.errors import UsageError

GIB = 2**30
_QUANTITY = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:e\+?\d+)?) ?([a-z/]*)", re.ASCII)
_BYTE_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def model_bytes(text: str) -> int:
    """Bytes: 19e9, 19GB (10⁹), 17.7GiB (2³⁰). Raises UsageError outside 100 kB to 1 PB."""
    hint = "give 100 kB to 1 PB: 19e9, 19GB (10⁹ bytes) or 17.7GiB (2³⁰ bytes)"
    return round(_quantity(text, "a size of a model", _BYTE_UNITS, 1e5, 1e15, hint))


def cache_bytes(text: str) -> int:
    """Bytes on a disk: 8GB (10⁹), 500MiB (2²⁰), or 0. Raises UsageError beyond 1 PB."""
    hint = "give 0 to 1 PB: 8GB (10⁹ bytes), 500MB or 0"
    return round(_quantity(text, "a size of a cache", _BYTE_UNITS, 0, 1e15, hint))


def bandwidth_gb_s(text: str) -> float:
    """GB/s (10⁹ bytes per second): 936 or 936GB/s. Raises UsageError outside 0.1 to 1,000,000."""
    hint = "give 0.1 to 1,000,000 GB/s (10⁹ bytes per second): 936"
    return _quantity(text, "a memory bandwidth", {"": 1, "gb/s": 1}, 0.1, 1e6, hint)


def memory_bytes(text: str) -> int:
    """Memory in GiB (2³⁰ bytes), which is what is sold as "24 GB". Raises UsageError outside 0.1 to 100,000."""
    hint = "give 0.1 to 100,000 GiB, which are sold as GB: 24"
    return round(_quantity(text, "a memory size", {"": GIB, "gb": GIB, "gib": GIB}, 0.1 * GIB, 1e5 * GIB, hint))


def size_text(size_bytes: int) -> str:
    """A size as people say it, in units of 1000: "98 MB", "4.7 GB"."""
    if size_bytes < 1000:
        return counted(size_bytes, "byte")
    if size_bytes < 999.5e3:
        return f"{size_bytes / 1e3:.0f} kB"
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes < 999.5e6 else f"{size_bytes / 1e9:.1f} GB"


def counted(count: int, one: str, many: str = "") -> str:
    """A number of things as people say it: "1 token", "1,024 tokens"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def turns_text(count: int) -> str:
    """A number of turns of a conversation, as the user sees them."""
    return counted(count, "question with its answer", "questions with their answers")


def _quantity(text: str, what: str, units: Mapping[str, int], low: float, high: float, hint: str) -> float:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        raise UsageError(f"{text!r} is not {what}", hint)
    value = float(match[1]) * units[match[2]]
    if not low <= value <= high:
        raise UsageError(f"{text!r} is out of range for {what}", hint)
    return value
