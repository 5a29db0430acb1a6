"""Fits what `localllm ceiling` expects to published measurements, and judges it. Started by scripts/validate_ceiling.

Writes localllm/data/expected.csv and expected_bands.csv, and the report docs/ceiling-accuracy.md. With --check nothing
is written, and the exit code says whether what is there is what would be written.

The formula is that of localllm/ceiling/expected.py. Its coefficients are fitted in logarithms by iterated, weighted
least squares: each has a prior value and a width, so what few measurements speak for stays near the prior, and a row
that is far off counts less (as in a t distribution). Every error in the report is that of a device that was left out,
with all its rows, from a fit of the others.
"""

import argparse
import csv
import io
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localllm.ceiling.expected import HOP_S, MATURE, NORM, Precision, Recurrent, Step, group, lanes, terms
from localllm.ceiling.hardware import Hardware, find
from localllm.ceiling.quantisations import bits_per_weight, precision
from localllm.ceiling.roofline import GB
from localllm.errors import UsageError

Array = NDArray[np.float64]
ROOT = Path(__file__).resolve().parent.parent
HERE, DATA, REPORT = ROOT / "scripts" / "data", ROOT / "localllm" / "data", ROOT / "docs" / "ceiling-accuracy.md"

SERVED_DEPTH = 100  # tokens of a prompt, where a server was measured and its prompt is not given
LOCALSCORE_DEPTH = 1000  # about the mean over its tests
SPREAD, TAILS = (
    0.06,
    2.0,
)  # of logarithms: what measurements of one thing differ by, and where a row begins to count less
KEPT = 0.045  # of the measurements may lie below the band, and as many above
VENDORS = ("NVIDIA", "AMD", "Apple", "Intel")


# --- measurements ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A published measurement, and what it was measured on and with."""

    number: int  # of its line in measured_decode.csv
    name: str
    device: Hardware
    stack: str
    step: Step
    tok_s: float
    model: str
    backend: str
    source: str
    served: bool

    @property
    def ceiling_tok_s(self) -> float:
        """By the weights alone: at depth 0."""
        return self.device.bandwidth_gb_s * GB / self.step.weights_bytes

    @property
    def group(self) -> str:
        """The group that the product's band is for."""
        return group(self.stack, self.device, self.step)

    @property
    def is_dense(self) -> bool:
        """Neither a mixture of experts nor recurrent."""
        return not self.step.mixture and not self.step.recurrent


class Excluded(Exception):
    """Why a measurement is not used."""


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by column."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_rows() -> tuple[list[Row], list[tuple[int, str, str]]]:
    """All measurements that can be used; and of the others the line, what it is, and why not."""
    models, names = table(HERE / "measured_models.csv"), table(HERE / "measured_hardware.csv")
    used, excluded = [], []
    for number, fields in enumerate(table(HERE / "measured_decode.csv"), start=2):
        try:
            used.append(mapped(number, fields, models, {name["measured_as"]: name for name in names}))
        except Excluded as reason:
            excluded.append((number, f"{fields['hardware']}, {fields['model']} {fields['quant']}", str(reason)))
    return used, excluded


def mapped(
    number: int, fields: Mapping[str, str], models: Sequence[Mapping[str, str]], names: Mapping[str, Mapping[str, str]]
) -> Row:
    """A line of the table as a measurement. Raises Excluded."""
    backend = fields["backend"]
    if backend == "CPU" or "=" in backend:
        raise Excluded("a processor: measured on the spot instead (--measure)")
    if backend == "IPEX-LLM":
        raise Excluded("not llama.cpp's own backend")
    device, cards = hardware(fields["hardware"], names)
    depth, served = depth_of(fields["test"])
    layers, weights_bytes, kv_values, kind = model(fields, models)
    stack = re.sub(r"[(+/].*", "", "Vulkan" if backend == "Vulkan/ROCm" else backend)
    step = Step(
        weights_bytes=weights_bytes,
        kv_bytes=2 * kv_values * depth,
        n_layers=layers,
        precision=row_precision(fields["quant"]),
        mixture="mixture" in kind,
        recurrent=next((word for word in RECURRENT if word in kind), ""),
        latent="latent" in kind,
        cards=cards,
    )
    if stack in ("Vulkan", "llamafile"):
        stack = f"{stack} {device.vendor}"
    source = fields["source"]
    return Row(
        number,
        fields["hardware"],
        device,
        stack,
        step,
        float(fields["tok_s"]),
        fields["model"],
        backend,
        source,
        served,
    )


RECURRENT: tuple[Recurrent, ...] = ("state", "convolution")


def hardware(written: str, names: Mapping[str, Mapping[str, str]]) -> tuple[Hardware, int]:
    """The device and how many of it."""
    single, _, cards = written.partition(" * ")
    name = names.get(single)
    if name and not name["hardware"]:
        raise Excluded(name["reason"])
    chip = re.match(r"Apple (M\d(?: \w+)?) \d+P\+\d+E\+(\d+)GPU", single)  # as LocalScore writes them
    wanted = name["hardware"] if name else f"{chip[1]} {chip[2]}-core" if chip else single
    try:
        return find(wanted), int(cards or 1)
    except UsageError as error:
        raise Excluded(error.message) from None


def depth_of(test: str) -> tuple[float, bool]:
    """Tokens in the KV cache on average while a test decodes; and whether a server was measured."""
    if match := re.fullmatch(r"tg(\d+)(?:@d(\d+))?", test):
        return int(match[2] or 0) + int(match[1]) / 2, False
    if match := re.fullmatch(r"server_gen~(\d+)", test):
        return SERVED_DEPTH + int(match[1]) / 2, True
    if test == "localscore_tg":
        return LOCALSCORE_DEPTH, False
    raise Excluded(f"an unknown test: {test}")


def model(fields: Mapping[str, str], models: Sequence[Mapping[str, str]]) -> tuple[int, float, float, str]:
    """Layers, bytes streamed per token, values that a token leaves in the KV cache, kind."""
    facts = next((facts for facts in models if facts["model"] in fields["model"].lower()), None)
    if not facts:
        raise Excluded("a model whose shape is not known")
    quant = fields["quant"].upper()
    stated = dict(pair.split("=") for pair in facts["streamed_gb_of"].split(";") if pair)
    bits = bits_per_weight(quant)
    if not stated and bits is None:
        raise Excluded(f"a quantisation of unknown size: {quant}")
    given = stated.get(quant) or next(iter(stated.values()), None)
    size = float(given) * GB if given else float(facts["streamed_params_b"]) * 1e9 * (bits or 0) / 8
    return int(facts["layers"]), size, float(facts["kv_values_per_token"]), facts["kind"]


def row_precision(quant: str) -> Precision:
    """How the weights are stored; a mixture of experts goes by its experts."""
    return "4" if "MXFP4" in quant.upper() else precision(quant)


# --- the fit -----------------------------------------------------------------------------------------------------

LAYER_S = {"Metal": 1e-4, "ROCm": 1e-4}  # and 40 µs elsewhere
EFFICIENCY = {"Metal": 0.92, "Vulkan Intel": 0.65, "Vulkan Apple": 0.6}
LANES = {"NVIDIA": 1.1e10, "AMD": 2e10, "Apple": 4e10, "Intel": 2e10}
PRIORS: tuple[tuple[str, float, float], ...] = (  # name, prior value, width in logarithms; the first that matches
    (r"layer mixture .*", 1.5, 0.3),
    (r"layer state", 1.3, 0.3),
    (r"layer convolution", 0.8, 0.3),
    (r"layer Ultra", 1.2, 0.2),
    (r"layer (build|served).*", 1.15, 0.3),
    (r"efficiency mixture .*", 0.75, 0.3),
    (r"efficiency (Ultra|HBM)", 0.9, 0.1),
    (rf"efficiency ({'|'.join(VENDORS)}) \S+", 1.0, 0.1),
    (rf"lanes ({'|'.join(VENDORS)}) \S+", 1.0, 0.1),
    (r"cache latent", 0.15, 1.0),
    (r"cache build.*", 0.7, 0.5),
    (r"cache .*", 0.4, 0.5),
)


def prior(name: str, stacks: Iterable[str]) -> tuple[float, float]:
    """The value of a coefficient when nothing is known, and how far it may be from that, in logarithms."""
    what, _, of = name.partition(" ")
    if of in stacks:
        match what:
            case "layer":
                return next((s for stack, s in LAYER_S.items() if stack in of), 1e-4 if "Apple" in of else 4e-5), 1.0
            case "efficiency":
                return EFFICIENCY.get(of, 0.8), 0.3
    if what == "lanes" and of in LANES:
        return LANES[of], 0.5
    for pattern, value, width in PRIORS:
        if re.fullmatch(pattern, name):
            return value, width
    return 1.0, {"layer": 0.35, "efficiency": 0.06, "lanes": 0.2}[what]  # a family's own


class Problem:
    """All rows as arrays: which coefficients are in which factor of which row."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        named = [row_terms(row) for row in rows]
        self.names = sorted({name for factors in named for factor in factors for name in factor})
        stacks = {row.stack for row in rows}
        priors = [prior(name, stacks) for name in self.names]
        self.start = np.log([value for value, _ in priors])
        self.width = np.array([width for _, width in priors])
        index = {name: at for at, name in enumerate(self.names)}
        self.factors = [np.zeros((len(rows), len(self.names))) for _ in range(4)]
        for at, factors in enumerate(named):
            for matrix, factor in zip(self.factors, factors, strict=True):
                matrix[at, [index[name] for name in factor]] = 1
        self.bandwidth = np.array([row.device.bandwidth_gb_s * GB for row in rows])
        self.weights = np.array([row.step.weights_bytes for row in rows])
        self.kv = np.array([row.step.kv_bytes for row in rows])
        self.layers = np.array([float(row.step.n_layers) for row in rows])
        self.lanes = np.array([lanes(row.device) or math.inf for row in rows])
        self.hops = np.array([(row.step.cards - 1) * HOP_S for row in rows])
        self.measured = np.log([1 / row.tok_s for row in rows])

    @cached_property
    def counts(self) -> Array:
        """How much each row counts: repetitions of one thing, and devices with many rows, less."""
        same = Counter((row.name, row.model, row.step.precision) for row in self.rows)
        device = Counter(row.name for row in self.rows)
        return np.array(
            [
                same[row.name, row.model, row.step.precision] ** -0.5 * max(1, device[row.name] / 8) ** -0.25
                for row in self.rows
            ]
        )

    def predicted(self, values: Array) -> tuple[Array, Array]:
        """Logarithms of the seconds of each row, and their derivatives by the logarithms of the coefficients."""
        layer, efficiency, lane, cache = self.factors
        reading = self.weights / (self.bandwidth * np.exp(efficiency @ values))
        unpacking = self.weights / (self.lanes * np.exp(lane @ values))
        both = reading**NORM + unpacking**NORM
        weights_s = both ** (1 / NORM)
        fixed_s, kv_s = self.layers * np.exp(layer @ values), self.kv / (self.bandwidth * np.exp(cache @ values))
        total_s = fixed_s + weights_s + kv_s + self.hops
        by_reading, by_unpacking = (weights_s * part**NORM / both / total_s for part in (reading, unpacking))
        slope = (
            (fixed_s / total_s)[:, None] * layer
            - by_reading[:, None] * efficiency
            - by_unpacking[:, None] * lane
            - (kv_s / total_s)[:, None] * cache
        )
        return np.log(total_s), slope

    def solve(self, used: NDArray[np.bool_]) -> Array:
        """The logarithms of the coefficients that fit the ``used`` rows best."""
        values = self.start.copy()
        for _ in range(40):
            seconds, slope = self.predicted(values)
            off = (seconds - self.measured)[used] / SPREAD
            weight = self.counts[used] / np.sqrt(1 + (off / TAILS) ** 2)
            jacobian = slope[used] / SPREAD * weight[:, None]
            gradient = jacobian.T @ (off * weight) + (values - self.start) / self.width**2
            step = np.linalg.solve(jacobian.T @ jacobian + np.diag(self.width**-2), -gradient)
            values = values + np.clip(step, -0.4, 0.4)
            if np.abs(step).max() < 1e-3:
                break
        return values

    def left_out(self) -> Array:
        """For each row the prediction over the measurement, less 1, with all rows of its device left out of the fit."""
        keys = np.array([row.device.name for row in self.rows])
        errors = np.zeros(len(self.rows))
        for key in sorted(set(keys)):
            rest = keys != key
            seconds, _ = self.predicted(self.solve(rest))
            errors[~rest] = np.exp((self.measured - seconds)[~rest]) - 1
        return errors


def row_terms(row: Row) -> tuple[tuple[str, ...], ...]:
    """The product's coefficients for a row, and those for how it was measured, which the product does not use."""
    named = terms(row.device, row.stack, row.step)
    early = f"build of 2024, {row.device.vendor}" if "XiongjieDai" in row.source else ""
    layer = [*named.layer, *([f"layer {early}"] if early else []), *(["layer served"] if row.served else [])]
    cache = [*named.cache, *([f"cache {early}"] if early else [])]
    return tuple(layer), named.efficiency, named.lanes, tuple(cache)


# --- prefill -----------------------------------------------------------------------------------------------------

OWN_ROWS = 1.0  # rows of a family that count as much as all of its vendor's


@dataclass(frozen=True)
class Read:
    """A published rate of reading a prompt of 512 tokens."""

    device: Hardware
    share: float  # of the dense FP16 rate


def read_prefill() -> list[Read]:
    """All of them on devices whose FP16 rate is known; with flash attention, where it was measured so too."""
    names = {name["measured_as"]: name for name in table(HERE / "measured_hardware.csv")}
    models = table(HERE / "measured_models.csv")
    found: dict[str, Read] = {}
    for fields in table(HERE / "measured_prefill.csv"):
        device, _ = hardware(fields["hardware"], names)
        params = next(
            float(facts["streamed_params_b"]) for facts in models if facts["model"] in fields["model"].lower()
        )
        if width := lanes(device):
            flops = 2 * params * 1e9 * float(fields["tok_s"])
            if device.name not in found or "FA" in fields["backend"]:
                found[device.name] = Read(device, flops / (width * 1e12))
    return list(found.values())


def prefill_coefficients(rows: Sequence[Read]) -> dict[str, float]:
    """A share for each vendor, and for each family a factor that few rows pull little from 1."""
    found = {}
    for vendor in sorted({row.device.vendor for row in rows}):
        mine = [row for row in rows if row.device.vendor == vendor]
        share = float(np.exp(np.median([math.log(row.share) for row in mine])))
        found[f"prefill {vendor}"] = share
        for family in sorted({row.device.family for row in mine}):
            logs = [math.log(row.share / share) for row in mine if row.device.family == family]
            found[f"prefill {vendor} {family}"] = math.exp(float(np.median(logs)) * len(logs) / (len(logs) + OWN_ROWS))
    return found


def prefill_errors(rows: Sequence[Read]) -> Array:
    """Prediction over measurement, less 1, of each row from the others of its vendor, where there are any."""
    errors = []
    for row in rows:
        known = prefill_coefficients([other for other in rows if other is not row])
        vendor, family = row.device.vendor, row.device.family
        if share := known.get(f"prefill {vendor}"):
            errors.append(share * known.get(f"prefill {vendor} {family}", 1.0) / row.share - 1)
    return np.array(errors)


# --- what comes of it --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """Rows, their errors when left out, and the coefficients of the fit of all rows."""

    rows: Sequence[Row]
    errors: Array
    coefficients: Mapping[str, float]
    prefill: Array  # errors

    def chosen(self, wanted: Callable[[Row], bool]) -> Array:
        """The errors of some rows."""
        return self.errors[[wanted(row) for row in self.rows]]

    def bands(self) -> dict[str, tuple[float, float, float, float, int]]:
        """For each group: measured over predicted at the band's ends, median and 90th percentile of the error, rows."""
        found = {}
        for name in sorted({row.group for row in self.rows if not row.stack.startswith("llamafile")}):
            errors = self.chosen(lambda row, name=name: row.group == name)  # type: ignore[misc]
            ratios = np.sort(1 / (1 + errors))
            low, high = np.quantile(ratios, KEPT), np.quantile(ratios, 1 - KEPT)
            few = 1 + 1 / len(errors)  # what few rows do not show yet
            low, high = min(low, 0.9) ** few, max(high, 1.1) ** few
            off = np.abs(errors)
            found[name] = (low, high, float(np.median(off)), float(np.quantile(off, 0.9)), len(errors))
        off = np.abs(self.prefill)
        low, high = np.quantile(1 / (1 + self.prefill), [KEPT, 1 - KEPT])
        found["prefill"] = (low, high, float(np.median(off)), float(np.quantile(off, 0.9)), len(off))
        return found


def judged(rows: Sequence[Row]) -> Judged:
    """Fit all rows, and each device from the others."""
    problem = Problem(rows)
    values = problem.solve(np.ones(len(rows), bool))
    prompts = read_prefill()
    coefficients = dict(zip(problem.names, np.exp(values), strict=True)) | prefill_coefficients(prompts)
    return Judged(rows, problem.left_out(), coefficients, prefill_errors(prompts))


def coefficient_table(result: Judged) -> str:
    """expected.csv: what the product uses."""
    shipped = {
        name: value for name, value in result.coefficients.items() if not re.search(r"llamafile|build of|served", name)
    }
    return as_csv([("coefficient", "value"), *((name, f"{value:.4g}") for name, value in sorted(shipped.items()))])


def band_table(result: Judged) -> str:
    """expected_bands.csv: how far off each group was."""
    head = ("group", "low", "high", "median_error", "p90_error", "rows")
    rows = ((name, *(f"{value:.3f}" for value in band[:4]), str(band[4])) for name, band in result.bands().items())
    return as_csv([head, *rows])


def as_csv(rows: Iterable[Sequence[str]]) -> str:
    """Text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def goals(result: Judged) -> Iterator[tuple[str, float, float, int]]:
    """What is asked of the prediction: what, reached, at most, rows. Errors of devices that were left out."""

    def is_dense(row: Row, *stacks: str) -> bool:
        return row.is_dense and row.stack in stacks

    def median(what: str, limit: float, wanted: Callable[[Row], bool]) -> tuple[str, float, float, int]:
        off = np.abs(result.chosen(wanted))
        return f"median error, {what}", float(np.median(off)), limit, len(off)

    own = [not row.stack.startswith("llamafile") for row in result.rows]
    bands = result.bands()
    ends = [bands[row.group][:2] if mine else (0.0, math.inf) for row, mine in zip(result.rows, own, strict=True)]
    outside = [
        not low <= 1 / (1 + error) <= high
        for (low, high), error, mine in zip(ends, result.errors, own, strict=True)
        if mine
    ]
    widths = [high - low for (low, high), mine in zip(ends, own, strict=True) if mine]
    yield median(
        "dense, CUDA on Ampere and newer", 0.06, lambda row: is_dense(row, "CUDA") and row.device.family in MATURE
    )
    yield median("dense, Metal", 0.06, lambda row: is_dense(row, "Metal"))
    dense = np.abs(result.chosen(lambda row: is_dense(row, "CUDA", "Metal")))
    yield "90th percentile, dense, CUDA and Metal", float(np.quantile(dense, 0.9)), 0.2, len(dense)
    yield median("all of CUDA, Metal, ROCm and Vulkan", 0.1, lambda row: not row.stack.startswith("llamafile"))
    yield "measurements outside the band, of all of these", float(np.mean(outside)), 0.1, len(outside)
    yield "median width of the band, (high − low) / mid", float(np.median(widths)), 0.4, len(widths)


REPORT_TEXT = """\
# How accurate `localllm ceiling` is

Written by `scripts/validate_ceiling`; `scripts/check` checks that it is up to date.

{total:,} published measurements of llama.cpp's decode rate (`scripts/data/measured_decode.csv`, each with its source)
are compared with what `localllm ceiling` computes; {used} of them are used. Each error is that of a device whose
measurements were all left out of the fit.

| what | reached | at most | met | rows |
|---|---:|---:|---|---:|
{goals}

## The formula

    t = layers · c  +  weights / min(e · bandwidth, r · lanes)  +  KV cache / (k · bandwidth)

(the minimum is a smooth one, of norm {norm:g}). c is what a layer costs however small it is, e the share of the
bandwidth that reading weights reaches, r · lanes what the cores can unpack (lanes: cores times clock, from the dense
FP16 rate), k the same as e for the KV cache; each card after the first adds 0.15 ms. Each is a product of
coefficients, which stand in `localllm/data/expected.csv`: one of the stack, one of the hardware's family on it, one
of how the weights are stored, and some for mixtures of experts, recurrent layers, memory of type HBM, and two chips
in one (Ultra). What few measurements speak for stays near a prior.

## Expected bands

Of the prediction; nine of ten measurements of the group lie within. A group of few rows has a wider band than they
show.

| group | from | to | median error | 90th percentile | rows |
|---|---:|---:|---:|---:|---:|
{bands}

Prefill: compute is the limit. Expected is a share of the dense FP16 rate, by vendor and family, from
`scripts/data/measured_prefill.csv` (prompts of 512 tokens); row “prefill” above.

## Above the ceiling

{above}

## By device

| device | stack | rows | median of predicted / measured | median error | measured of the ceiling, median |
|---|---|---:|---:|---:|---:|
{devices}

## Not used

| rows | which | why |
|---:|---|---|
{excluded}

Names that were mapped by hand, with the reason: `scripts/data/measured_hardware.csv`. Shapes of the models:
`scripts/data/measured_models.csv`. llamafile (LocalScore) is an older build of llama.cpp; its rows have coefficients of
their own and count in nothing above but the number of rows used.
"""


def report(result: Judged, excluded: Sequence[tuple[int, str, str]]) -> str:
    """docs/ceiling-accuracy.md."""
    goal_rows = (
        f"| {what} | {100 * value:.1f} % | {100 * limit:.0f} % | {'yes' if value <= limit else '**no**'} | {count} |"
        for what, value, limit, count in goals(result)
    )
    band_rows = (
        f"| {name} | {low:.2f} | {high:.2f} | {100 * median:.1f} % | {100 * p90:.1f} % | {count} |"
        for name, (low, high, median, p90, count) in result.bands().items()
    )
    return REPORT_TEXT.format(
        total=len(result.rows) + len(excluded),
        used=len(result.rows),
        goals="\n".join(goal_rows),
        norm=NORM,
        bands="\n".join(band_rows),
        above="\n".join(above(result.rows)),
        devices="\n".join(by_device(result)),
        excluded="\n".join(not_used(excluded)),
    )


def above(rows: Sequence[Row]) -> Iterator[str]:
    """The measurements above the ceiling of the weights alone, or that there are none."""
    highest = max(rows, key=lambda row: row.tok_s / row.ceiling_tok_s)
    beyond = [row for row in rows if row.tok_s > row.ceiling_tok_s]
    for row in beyond:
        yield f"- line {row.number}: {row.name}, {row.model}: {row.tok_s:g} of {row.ceiling_tok_s:.1f} tok/s"
    if not beyond:
        share, what = highest.tok_s / highest.ceiling_tok_s, f"{highest.name}, {highest.model}, line {highest.number}"
        yield f"No measurement is. The highest is {share:.3f} of it ({what})."


def by_device(result: Judged) -> Iterator[str]:
    """A table row for each device and stack."""
    keys = sorted({(row.stack, row.device.name) for row in result.rows})
    for stack, name in keys:
        at = [row.stack == stack and row.device.name == name for row in result.rows]
        errors = result.errors[at]
        share = [row.tok_s / row.ceiling_tok_s for row, mine in zip(result.rows, at, strict=True) if mine]
        yield (
            f"| {name} | {stack} | {sum(at)} | {1 + np.median(errors):.2f} | {100 * np.median(np.abs(errors)):.1f} % "
            f"| {np.median(share):.2f} |"
        )


def not_used(excluded: Sequence[tuple[int, str, str]]) -> Iterator[str]:
    """A table row for each reason, with what it applies to."""
    for reason, count in Counter(reason for *_, reason in excluded).most_common():
        which = sorted({what for _, what, why in excluded if why == reason})
        shown = "; ".join(which[:4]) + (f"; and {len(which) - 4} more" if len(which) > 4 else "")
        yield f"| {count} | {shown} | {reason} |"


def main() -> int:
    """Fit, and write or compare."""
    parser = argparse.ArgumentParser(prog="scripts/validate_ceiling", description="Fit and judge what is expected.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where something would change")
    options = parser.parse_args()
    rows, excluded = read_rows()
    result = judged(rows)
    files = {
        DATA / "expected.csv": coefficient_table(result),
        DATA / "expected_bands.csv": band_table(result),
        REPORT: report(result, excluded),
    }
    for what, value, limit, count in goals(result):
        print(f"{what}: {100 * value:.1f} % (at most {100 * limit:.0f} %), {count} rows")
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what scripts/validate_ceiling writes", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(files[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
