"""The table of devices, and how people and drivers write their names.

Knows each device's memory bandwidth and size with their source (data/hardware.csv), and which parts of a
name may be left out. Knows no model, and nothing of the machine it runs on. Never guesses: a name that could
mean devices of different speed is refused with the list of them, as is one that could mean different memories where
these matter.
"""

import csv
import difflib
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from localllm.errors import UsageError
from localllm.sizes import GIB

Origin = Literal["table", "given", "measured"]

TABLE = Path(__file__).parent.parent / "data" / "hardware.csv"

# What macOS lets the GPU wire by default, about; sysctl iogpu.wired_limit_mb raises it.
APPLE_USABLE_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device: read bandwidth in 10⁹ bytes per second, memory in bytes (None: not known or not fixed).

    ``origin`` says where the bandwidth comes from, ``source`` who says so. ``family`` is the architecture that it
    shares with others, ``fp16_tflops`` its dense FP16 rate in 10¹² operations per second, as its vendor counts it.
    ``variants`` are the devices, by size of memory, that its name can mean; the figures are those of the smallest.
    Empty where the name means one device.
    """

    name: str
    kind: str
    bandwidth_gb_s: float
    memory_bytes: int | None
    origin: Origin
    source: str
    vendor: str = ""
    family: str = ""
    fp16_tflops: float | None = None
    variants: tuple["Hardware", ...] = ()

    @property
    def usable_bytes(self) -> int | None:
        """The part of the memory that a model may fill."""
        if self.memory_bytes is None or self.kind != "apple":
            return self.memory_bytes
        return int(self.memory_bytes * APPLE_USABLE_SHARE)

    @property
    def label(self) -> str:
        """The name with what tells it from its namesakes; ``find`` understands it."""
        if self.variants:
            return self.variants[0].label
        memory = "" if self.memory_bytes is None else f", {self.memory_bytes / GIB:g} GiB"
        return f"{self.name} ({self.bandwidth_gb_s:g} GB/s{memory})"

    def with_memory(self, memory_bytes: int) -> "Hardware":
        """The same device with so much memory: the variant that has it, where there is one."""
        fitting = (device for device in self.variants if device.memory_bytes == memory_bytes)
        device = next(fitting, self.variants[0] if self.variants else self)
        return replace(device, memory_bytes=memory_bytes)


def find(name: str) -> Hardware:
    """The one device that ``name`` means.

    Raises UsageError where no row, or rows that differ in bandwidth or memory, could be meant.
    """
    return _only(name, candidates(name))


def find_in_any_size(name: str) -> Hardware:
    """As ``find``, but a name that is sold with several sizes of memory gives a device with ``variants``.

    Raises UsageError where no row, or rows that differ in more than their memory, could be meant.
    """
    found = candidates(name)
    return _of_any_size(found) or _only(name, found)


def ambiguous(name: str, devices: Iterable[Hardware]) -> UsageError:
    """What to tell a user whose ``name`` could mean several devices."""
    hint = "give one of these in full, brackets included"
    return UsageError(f"{name!r} could be any of: {_labels(devices)}", hint)


def candidates(name: str) -> list[Hardware]:
    """All devices of the table that ``name`` could mean. Raises UsageError where there is none."""
    query = _Query.parse(name)
    found = [
        query.applied_to(row.hardware) for row in _table() if row.is_named(query.words) and query.allows(row.hardware)
    ]
    if not found:
        raise UsageError(f"no hardware in the table is called {name!r}", _nearest_hint(query.words))
    return found


def _only(name: str, devices: list[Hardware]) -> Hardware:
    """The first, unless another one has other figures. Raises UsageError."""
    if len({(device.bandwidth_gb_s, device.memory_bytes) for device in devices}) > 1:
        raise ambiguous(name, devices)
    return devices[0]


def _of_any_size(devices: list[Hardware]) -> Hardware | None:
    """One device that stands for all; None where more than the memory tells them apart, or nothing does."""
    sizes = {device.memory_bytes: device for device in reversed(devices)}
    kinds = {(device.bandwidth_gb_s, device.kind, device.vendor, device.family) for device in devices}
    if len(kinds) > 1 or len(sizes) == 1 or None in sizes:
        return None
    variants = tuple(sorted(sizes.values(), key=lambda device: device.memory_bytes or 0))
    bare = min((" ".join(_SIZE.sub(" ", device.name).split()) for device in variants), key=len)
    *others, largest = (f"{(device.memory_bytes or 0) / GIB:g}" for device in variants)
    return replace(variants[0], name=f"{bare} ({', '.join(others)} or {largest} GiB)", variants=variants)


def accelerators() -> list[Hardware]:
    """All GPUs of the table and what is one with its memory, each kind once."""
    found = {(row.hardware.name, row.hardware.bandwidth_gb_s): row.hardware for row in _table()}
    return [device for device in found.values() if device.kind != "cpu"]


def given(bandwidth_gb_s: float, memory_bytes: int | None) -> Hardware:
    """A device that is not in the table, described by the user."""
    return Hardware("given hardware", "given", bandwidth_gb_s, memory_bytes, "given", "command line")


# A name is a set of words. A row has words that must be there (what tells products apart: 4090, ti, mobile)
# and words that may be (brand, form factor). A query means a row if it has all of the first and none beyond
# both.

_NOISE = {"bit", "card", "channel", "core", "cores", "design", "edition", "generation", "gpu", "graphics"}
_NOISE |= {"to", "up", "with", "workstation"}
# Left out by people where a model number already says it.
_FAMILY = {"arc", "cpu", "geforce", "gtx", "instinct", "jetson", "quadro", "radeon", "rtx", "rx", "tesla"}
# Devices that differ in these only are sold under one name, so the name alone may be ambiguous.
_VARIANT = {"ada", "blackwell", "ga107", "gddr6", "gddr6x", "nvl", "pcie", "refresh", "sxm", "tu116"}
# "Pro" is a family of these vendors' cards (Radeon Pro W7900, RTX PRO 6000) but another chip on a Mac.
_PRO_IS_FAMILY = {"NVIDIA", "AMD"}

_SPELLINGS: tuple[tuple[str, str], ...] = (
    (r"\((r|tm|c)\)|[®™©]", " "),
    (r"\b(laptop|notebook)\b", " mobile "),
    (r"\bmax[- ]q\b", " maxq "),
    (r"\bsxm\d\b|\bhbm3\b", " sxm "),  # the driver calls the SXM5 board "H100 80GB HBM3"
    (r"\b(rtx|gtx|rx|arc)(?=[abm]?\d)", r"\1 "),
    (r"\b(m\d)(pro|max|ultra)\b", r"\1 \2"),
    (r"\b(\d{3,4})(ti|super|xtx|xt|gre|d)\b", r"\1 \2"),
    (r"\b(\d{3,4}) ?(ti)(super)\b", r"\1 \2 \3"),
)
_BANDWIDTH = re.compile(r"\b(\d{1,6}(?:\.\d+)?) ?gb/s")
_MEMORY = re.compile(r"\b(\d{1,6}(?:\.\d+)?) ?(?:g|gb|gib)\b(?!/s)")
_SIZE = re.compile(rf"(?i:{_MEMORY.pattern})")  # as the names of the table write it
_OPTIONAL_PART = re.compile(r"\([^)]*\)|\b\w+-channel\b")


def _words(text: str) -> frozenset[str]:
    """The words of a name that mean something, in one spelling."""
    text = _MEMORY.sub(" ", _BANDWIDTH.sub(" ", text.lower()))
    for pattern, spelling in _SPELLINGS:
        text = re.sub(pattern, spelling, text)
    return frozenset(re.findall(r"[a-z0-9+]+", text)) - _NOISE


@dataclass(frozen=True, slots=True)
class _Query:
    """A name as written by a person or a driver, with the figures that it carries."""

    words: frozenset[str]
    bandwidth_gb_s: float | None
    memory_bytes: int | None

    @classmethod
    def parse(cls, name: str) -> "_Query":
        bandwidth = _BANDWIDTH.search(name.lower())
        memory = _MEMORY.search(name.lower())
        return cls(
            _words(name),
            float(bandwidth[1]) if bandwidth else None,
            round(float(memory[1]) * GIB) if memory else None,
        )

    def allows(self, device: Hardware) -> bool:
        """Whether the figures in the name agree with the device's. A Mac's memory is its buyer's choice."""
        if self.bandwidth_gb_s not in (None, device.bandwidth_gb_s):
            return False
        memory_is_fixed = device.memory_bytes is not None and device.kind != "apple"
        return not memory_is_fixed or self.memory_bytes in (None, device.memory_bytes)

    def applied_to(self, device: Hardware) -> Hardware:
        return device if self.memory_bytes is None else replace(device, memory_bytes=self.memory_bytes)


@dataclass(frozen=True, slots=True)
class _Row:
    """A device with the words of its name: those each of its names needs, and all that a name may have."""

    hardware: Hardware
    names: tuple[frozenset[str], ...]
    words: frozenset[str]

    def is_named(self, words: frozenset[str]) -> bool:
        return words <= self.words and any(needed <= words for needed in self.names)


@functools.cache
def _table() -> tuple[_Row, ...]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(_row(fields) for fields in csv.DictReader(file))


def _row(fields: dict[str, str]) -> _Row:
    name, vendor, memory_gb = fields["name"], fields["vendor"], fields["memory_gb"]
    tflops = fields["fp16_tflops_dense"]
    device = Hardware(
        name=name,
        kind=fields["kind"],
        bandwidth_gb_s=float(fields["bandwidth_gb_s"]),
        memory_bytes=round(float(memory_gb) * GIB) if memory_gb else None,
        origin="table",
        source=fields["source"],
        vendor=vendor,
        family=fields["family"],
        fp16_tflops=float(tflops) if tflops else None,
    )
    # "A / B (C)": the device is called A or B, and C may be said too
    names = tuple(_needed(_words(part), vendor) for part in _OPTIONAL_PART.sub(" ", name).split(" / "))
    return _Row(device, names, _words(name) | {vendor.lower()})


def _needed(words: frozenset[str], vendor: str) -> frozenset[str]:
    """The words that tell this device from others; "TITAN RTX" has no number to stand for its family."""
    words -= _VARIANT | {vendor.lower()}
    if not any(character.isdigit() for word in words for character in word):
        return words
    return words - _FAMILY - ({"pro"} if vendor in _PRO_IS_FAMILY else set())


def _nearest_hint(words: frozenset[str]) -> str:
    """The rows most like the words: those that have them all, then by spelling."""
    rows = _table()
    within = [row.hardware for row in rows if words and words <= row.words]
    spelled = {" ".join(sorted(needed)): row.hardware for row in reversed(rows) for needed in row.names}
    close = difflib.get_close_matches(" ".join(sorted(words - _FAMILY)), spelled, n=5)
    nearest = list(dict.fromkeys(within + [spelled[key] for key in close]))[:5]
    described = "or describe it with --bandwidth and --memory"
    return f"nearest: {_labels(nearest)}; {described}" if nearest else described.removeprefix("or ")


def _labels(devices: Iterable[Hardware]) -> str:
    return "; ".join(device.label for device in devices)
