"""What decoding takes in practice, with how far off that may be.

    t = layers · c  +  weights / min(e · bandwidth, r · lanes)  +  KV cache / (k · bandwidth)

c is what a layer costs however small it is (kernels that start and wait for each other), e the share of the bandwidth
that reading weights reaches, and r what the cores can unpack: wide memory is faster than that. Each is a product of
coefficients: of the stack, of the hardware's family on it, of how the weights are stored. They come from published
measurements (data/expected.csv, written by scripts/validate_ceiling; docs/ceiling-accuracy.md says how well they
predict devices that were left out). Knows no model and no file but these.
"""

import csv
import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localllm.ceiling.hardware import Hardware
from localllm.ceiling.roofline import GB

DATA = Path(__file__).parent.parent / "data"
HOP_S = 150e-6  # from one card to the next, for each token
NORM = 5.0  # how sharply the slower of bandwidth and cores decides
MATURE = ("ampere", "ampere-hbm", "ada", "hopper", "blackwell", "blackwell-hbm")  # what llama.cpp's CUDA is written for
_HBM = ("ampere-hbm", "hopper", "blackwell-hbm", "volta", "cdna")
_LATER = {"blackwell-hbm": "hopper", "m6": "m5", "rdna1": "rdna2"}  # families without measurements, and the nearest one

Precision = Literal["16", "8", "4", "k", "low"]
Recurrent = Literal["", "state", "convolution"]


@dataclass(frozen=True, slots=True)
class Step:
    """What computing one token asks for: bytes to read, and what it is made of."""

    weights_bytes: float
    kv_bytes: float
    n_layers: int
    precision: Precision = "k"
    mixture: bool = False  # of experts
    recurrent: Recurrent = ""
    latent: bool = False  # attention on a compressed cache (MLA)
    cards: int = 1  # that share the layers


@dataclass(frozen=True, slots=True)
class Terms:
    """The names of the coefficients whose product is each factor of the formula."""

    layer: tuple[str, ...]
    efficiency: tuple[str, ...]
    lanes: tuple[str, ...]
    cache: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Band:
    """Tokens per second to expect: nine of ten published measurements of this group lie between low and high.

    ``median_error`` and ``p90_error`` are those of devices that were left out of the fit; ``rows`` how many
    measurements the group has. ``here``: from measurements on this machine instead, as ``group`` says.
    """

    low: float
    mid: float
    high: float
    median_error: float
    p90_error: float
    rows: int
    group: str
    here: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a step, by what they are spent on."""

    weights_s: float
    kv_s: float
    fixed_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.weights_s + self.kv_s + self.fixed_s


def default_stack(device: Hardware) -> str | None:
    """What llama.cpp runs on by default there; None where nothing was measured (processors: measure them)."""
    match device.vendor, device.kind:
        case "NVIDIA", _:
            return "CUDA"
        case "Apple", _:
            return "Metal"
        case "AMD", "gpu" | "apu":
            return "ROCm" if device.family == "cdna" else "Vulkan AMD"
        case "Intel", _:
            return "Vulkan Intel"
    return None


def terms(device: Hardware, stack: str, step: Step) -> Terms:
    """The coefficients that apply; those that are not in the table count as 1."""
    vendor, family = device.vendor, _LATER.get(device.family, device.family)
    layer = [f"layer {stack}", f"layer {stack} {family}"]
    efficiency = [f"efficiency {stack}", f"efficiency {stack} {family}", f"efficiency {vendor} {step.precision}"]
    lanes = [f"lanes {vendor}", f"lanes {stack} {family}", f"lanes {vendor} {step.precision}"]
    cache = [f"cache {stack}"]
    if step.mixture:
        layer.append(f"layer mixture {vendor}")
        efficiency.append(f"efficiency mixture {vendor}")
    if step.recurrent:
        layer.append(f"layer {step.recurrent}")
    if "Ultra" in device.name:  # two chips
        layer.append("layer Ultra")
        efficiency.append("efficiency Ultra")
    if family in _HBM:
        efficiency.append("efficiency HBM")
    if step.latent:
        cache.append("cache latent")
    return Terms(tuple(layer), tuple(efficiency), tuple(lanes), tuple(cache))


def lanes(device: Hardware) -> float | None:
    """A measure of cores times clock: the dense FP16 rate in TFLOP/s, as if every core had the same matrix units."""
    if device.fp16_tflops is None:
        return None
    if device.family == "turing-gtx":
        return device.fp16_tflops * 4
    if device.name.startswith("GeForce RTX"):  # the table has half rate for them
        return device.fp16_tflops * 2
    return device.fp16_tflops / {"hopper": 4, "blackwell-hbm": 4, "ampere-hbm": 2}.get(device.family, 1)


def parts(device: Hardware, stack: str, step: Step) -> Parts:
    """The seconds that a step is expected to take, by what it does."""
    named = terms(device, stack, step)
    bandwidth, known = device.bandwidth_gb_s * GB, coefficients()
    weights_s = step.weights_bytes / (bandwidth * _product(known, named.efficiency))
    if width := lanes(device):
        unpacking_s = step.weights_bytes / (width * _product(known, named.lanes))
        weights_s = (weights_s**NORM + unpacking_s**NORM) ** (1 / NORM)
    return Parts(
        weights_s=weights_s,
        kv_s=step.kv_bytes / (bandwidth * _product(known, named.cache)),
        fixed_s=step.n_layers * _product(known, named.layer) + (step.cards - 1) * HOP_S,
    )


def expected(device: Hardware, step: Step, stack: str | None = None) -> Band | None:
    """Tokens per second to expect of ``device`` at batch 1; None where nothing like it was measured."""
    stack = stack or default_stack(device)
    known = _bands().get(group(stack, device, step)) if stack else None
    if stack is None or known is None:
        return None
    return known.around(1 / parts(device, stack, step).total_s)


def prefill_flops(device: Hardware) -> float | None:
    """Operations per second that reading a prompt reaches; None where nothing is known of such a device.

    A share of the dense FP16 rate, measured on prompts of 512 tokens. That rate is no bound: kernels of whole numbers
    beat it on some cards.
    """
    width, known = lanes(device), coefficients()
    share = known.get(f"prefill {device.vendor}")
    if width is None or share is None:
        return None
    family = _LATER.get(device.family, device.family)
    return width * 1e12 * share * known.get(f"prefill {device.vendor} {family}", 1.0)


def prefill_error() -> float:
    """The median error of ``prefill_flops`` for devices that were left out of its fit."""
    return _bands()["prefill"].median_error


def group(stack: str, device: Hardware, step: Step) -> str:
    """Measurements that are about as easy to predict as each other."""
    kind = "mixture or recurrent" if step.mixture or step.recurrent else "dense"
    if stack == "CUDA":
        stack = "CUDA, Ampere and newer" if device.family in MATURE else "CUDA, older"
    return f"{stack}, {kind}"


def _product(known: dict[str, float], names: Iterable[str]) -> float:
    return math.prod(known.get(name, 1.0) for name in names)


@functools.cache
def coefficients() -> dict[str, float]:
    """All of them by name, as they were fitted."""
    return {name: float(value) for name, value in _rows("expected.csv")}


@dataclass(frozen=True, slots=True)
class _Errors:
    """A group's row: what share of the prediction was measured (low, high), and the errors."""

    low: float
    high: float
    median_error: float
    p90_error: float
    rows: int
    group: str

    def around(self, mid: float) -> Band:
        errors = (self.median_error, self.p90_error, self.rows, self.group)
        return Band(self.low * mid, mid, self.high * mid, *errors)


@functools.cache
def _bands() -> dict[str, _Errors]:
    return {
        name: _Errors(float(low), float(high), float(median), float(p90), int(rows), name)
        for name, low, high, median, p90, rows in _rows("expected_bands.csv")
    }


def _rows(file_name: str) -> Iterator[list[str]]:
    with (DATA / file_name).open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        yield from rows
