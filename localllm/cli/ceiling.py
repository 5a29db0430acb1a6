"""``localllm ceiling``: the most tokens per second that hardware can give a model, and whether it fits.

Knows where a model's bytes come from, and how the answer looks as a table and as JSON. The arithmetic is in
ceiling/.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from localllm import sizes
from localllm.ceiling.roofline import GB, Workload, ceiling_tok_s, fits
from localllm.cli import options
from localllm.errors import ModelNotFound, UsageError
from localllm.values import KvType

if TYPE_CHECKING:
    from localllm.ceiling.hardware import Hardware
    from localllm.models.catalog import ModelSpec
    from localllm.models.gguf import ModelShape

MAX_CTX = 10**8


@dataclass(frozen=True, slots=True)
class _Subject:
    """The model in question: its bytes, and what must be said about them. ``ctx`` 0: depth 0 only."""

    name: str | None
    workload: Workload
    ctx: int
    kv: KvType
    kv_bytes_per_token: int | None = None
    streamed_is_upper_bound: bool = False
    notes: tuple[str, ...] = ()


def ceiling(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|PATH]",
            help="A name from `localllm list`, or a GGUF file; the default model if left out.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="NAME", help="Hardware from the table: 4090, 'M3 Max 40-core'. Repeatable."),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            "--bandwidth",
            metavar="GB/S",
            parser=sizes.bandwidth_gb_s,
            help="Memory bandwidth of hardware that is not in the table.",
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            "--memory", metavar="GIB", parser=sizes.memory_bytes, help="Its memory, or that of the one --gpu named."
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--model-bytes",
            metavar="BYTES",
            parser=sizes.model_bytes,
            help="Instead of a model: bytes of weights read per token (19e9, 19GB, 17.7GiB).",
        ),
    ] = None,
    ctx: Annotated[int | None, typer.Option("--ctx", metavar="N", help="Also with N tokens in the KV cache.")] = None,
    kv: options.Kv = "f16",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The most tokens per second that hardware can give a model, and whether it fits.

    Without --gpu or --bandwidth: this machine, its memory bandwidth measured now (0.3 s).

    \b
    localllm ceiling smollm2-135m
    localllm ceiling qwen3-8b --gpu 3060-12GB --gpu 4090
    localllm ceiling --gpu "RTX 3090" --model-bytes 19e9
    """
    subject = _subject(model, size, ctx, kv)
    devices = _devices(gpu or [], bandwidth, memory)
    notes = (*subject.notes, *_device_notes(devices, subject.workload))
    typer.echo(_as_json(subject, devices, notes) if json else _as_text(subject, devices, notes))


def _subject(reference: str | None, size_bytes: int | None, ctx: int | None, kv: KvType) -> _Subject:
    if ctx is not None and not 1 <= ctx <= MAX_CTX:
        raise UsageError(f"--ctx is {ctx}, which is out of range", f"choose 1 to {MAX_CTX:,} tokens")
    if size_bytes is None:
        return _named_subject(reference, ctx or 0, kv)
    if reference is not None:
        raise UsageError("both a model and --model-bytes are given", "leave one of them out")
    if ctx is not None:
        raise UsageError("--ctx needs a model: its KV cache does not follow from --model-bytes", "name a model")
    return _Subject(None, Workload(size_bytes, size_bytes), 0, kv)


def _named_subject(reference: str | None, ctx: int, kv: KvType) -> _Subject:
    from localllm.config import default_model
    from localllm.models.catalog import full_catalog
    from localllm.models.gguf import read_header
    from localllm.models.store import find, missing

    reference, catalog = default_model() if reference is None else reference, full_catalog()
    local = find(reference, catalog)
    if local is None and (spec := catalog.get(reference)):
        return _absent_subject(spec, ctx, kv)
    if local is None:
        raise missing(reference, catalog)
    shape = read_header(local.path)
    return _Subject(
        name=local.name,
        workload=Workload(
            weights_bytes=shape.tensor_bytes,
            streamed_bytes=shape.streamed_bytes,
            kv_held_bytes=shape.kv_bytes(ctx, kv),
            kv_read_bytes=shape.kv_bytes(min(ctx, shape.sliding_window or ctx), kv),
        ),
        ctx=ctx,
        kv=kv,
        kv_bytes_per_token=shape.kv_bytes_per_token(kv),
        notes=tuple(_depth_notes(shape, ctx)),
    )


def _absent_subject(spec: "ModelSpec", ctx: int, kv: KvType) -> _Subject:
    """A catalog model that is not on this disk, judged by the size of its file."""
    if ctx or spec.file_bytes is None:
        needed = "its KV cache" if ctx else "its size"
        raise ModelNotFound(f"{spec.name} is not on this disk, so {needed} is not known", f"localllm pull {spec.name}")
    note = (
        f"{spec.name} is not on this disk: its whole file ({_gb(spec.file_bytes)}) is counted as streamed, an upper "
        "estimate (far too high for a mixture of experts), so the ceilings are lower estimates"
    )
    workload = Workload(spec.file_bytes, spec.file_bytes)
    return _Subject(spec.name, workload, 0, kv, streamed_is_upper_bound=True, notes=(note,))


def _depth_notes(shape: "ModelShape", ctx: int) -> Iterator[str]:
    if ctx > shape.n_ctx_train:
        yield f"the model was trained for {shape.n_ctx_train:,} tokens, not {ctx:,}"
    if 0 < shape.sliding_window < ctx:
        yield (
            f"only the sliding window ({shape.sliding_window:,} tokens) of the KV cache is counted as read: "
            "layers that look at all of it bring the speed further below the ceiling"
        )


def _devices(names: Sequence[str], bandwidth: float | None, memory: int | None) -> list["Hardware"]:
    """The hardware asked for, in order; where none is, this machine, measured now."""
    from localllm.ceiling import hardware

    devices = [hardware.find(name) for name in names]
    if bandwidth is not None:
        devices.append(hardware.given(bandwidth, memory))
    elif memory is not None:
        if len(devices) != 1:
            raise UsageError("--memory needs one --gpu or a --bandwidth", "say whose memory it is")
        devices = [replace(devices[0], memory_bytes=memory)]
    if not devices:
        from localllm.ceiling.measure import this_machine

        devices = [this_machine()]
    return devices


def _device_notes(devices: Sequence["Hardware"], workload: Workload) -> Iterator[str]:
    if any(device.origin == "measured" for device in devices):
        from localllm.ceiling.measure import last_level_cache_bytes

        cache_bytes = last_level_cache_bytes()
        if workload.streamed_bytes < 2 * cache_bytes:
            yield (
                f"much of {_gb(workload.streamed_bytes)} stays in this processor's cache ({_gb(cache_bytes)}), so "
                "decoding may be faster than memory allows"
            )
        yield "this is the processor; for a GPU, name it with --gpu"
    if any(device.kind == "apple" for device in devices):
        yield (
            "Macs: about 75 % of the memory is usable by the GPU; the table has the largest memory sold, "
            "yours goes into the name: 'M3 Max 40-core 64GB'"
        )
    if any(fits(workload.held_bytes, device.usable_bytes) is False for device in devices):
        yield "where it does not fit, the ceiling is what the same memory would give if it were larger"
    yield "fits: weights and KV cache; compute buffers are not counted"


# -- output -------------------------------------------------------------------------------------------------------


def _as_json(subject: _Subject, devices: Sequence["Hardware"], notes: Sequence[str]) -> str:
    """The documented object. What this version does not compute is null."""
    from localllm.terminal.render import dumps

    return dumps(
        {
            "model": subject.name,
            "weights_bytes": subject.workload.weights_bytes,
            "streamed_bytes": subject.workload.streamed_bytes,
            "streamed_is_upper_bound": subject.streamed_is_upper_bound,
            "kv": subject.kv,
            "kv_bytes_per_token": subject.kv_bytes_per_token,
            "ctx": subject.ctx or None,
            "results": [_result(subject, device) for device in devices],
            "notes": list(notes),
        }
    )


def _result(subject: _Subject, device: "Hardware") -> dict[str, str | float | bool | None]:
    workload, bandwidth_gb_s = subject.workload, device.bandwidth_gb_s
    return {
        "hardware": device.name,
        "bandwidth_gb_s": bandwidth_gb_s,
        "bandwidth_origin": device.origin,
        "source": device.source,
        "memory_bytes": device.memory_bytes,
        "usable_bytes": device.usable_bytes,
        "ceiling_tok_s": ceiling_tok_s(bandwidth_gb_s, workload.streamed_bytes),
        "ceiling_at_ctx_tok_s": ceiling_tok_s(bandwidth_gb_s, workload.read_bytes) if subject.ctx else None,
        "expected_tok_s": None,
        "measured_tok_s": None,
        "fits": fits(workload.held_bytes, device.usable_bytes),
        "conversations": None,
        "prefill_tok_s": None,
        "ttft_s": None,
    }


def _as_text(subject: _Subject, devices: Sequence["Hardware"], notes: Sequence[str]) -> str:
    from localllm.terminal.safe import one_line

    head = ("hardware", "usable memory", "fits", "depth", "ceiling", "computed")
    rows = [head, *(row for device in devices for row in _rows(subject, device))]
    if not subject.ctx:
        rows = [row[:3] + row[4:] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([one_line(_title(subject)), "", *table, "", *notes])


def _title(subject: _Subject) -> str:
    workload = subject.workload
    name = f"{subject.name}: " if subject.name else ""
    weights, streamed = _gb(workload.weights_bytes), _gb(workload.streamed_bytes)
    title = f"{name}{weights} ({_gib(workload.weights_bytes)}) of weights, {streamed} streamed per token"
    if subject.kv_bytes_per_token is not None:
        title += f"; KV cache {subject.kv_bytes_per_token:,} bytes per token ({subject.kv})"
    return title


def _rows(subject: _Subject, device: "Hardware") -> Iterator[tuple[str, ...]]:
    """One line at depth 0, one at the depth asked for."""
    workload, usable = subject.workload, device.usable_bytes
    memory = "not known" if usable is None else f"{_gb(usable)} ({_gib(usable)})"
    origin = {"table": "", "given": " as given", "measured": " measured read bandwidth"}[device.origin]
    bandwidth = f"{_figure(device.bandwidth_gb_s)} GB/s{origin}"
    bound = "≥ " if subject.streamed_is_upper_bound else "at most "
    streamed = _gb(workload.streamed_bytes)
    depths = [(0, replace(workload, kv_held_bytes=0, kv_read_bytes=0), f"{streamed} streamed per token")]
    if subject.ctx:
        depths.append((subject.ctx, workload, f"({streamed} + {_gb(workload.kv_read_bytes)} of KV cache)"))
    for depth, load, divisor in depths:
        yield (
            device.name,
            memory,
            {True: "yes", False: "no", None: "unknown"}[fits(load.held_bytes, usable)],
            f"{depth:,} tokens",
            bound + _rate(ceiling_tok_s(device.bandwidth_gb_s, load.read_bytes)),
            f"{bandwidth} ÷ {divisor}",
        )


def _gb(n_bytes: float) -> str:
    return f"{_figure(n_bytes / GB)} GB"


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / sizes.GIB:.3g} GiB"


def _figure(value: float) -> str:
    """Three significant digits, at most three decimals: 936, 19.0, 1.07, 0.094."""
    decimals = next((decimals for decimals, low in enumerate((100, 10, 1)) if value >= low), 3)
    return f"{value:.{decimals}f}"


def _rate(tok_s: float) -> str:
    return f"{tok_s:,.0f} tok/s" if tok_s >= 10 else f"{tok_s:.2g} tok/s"
