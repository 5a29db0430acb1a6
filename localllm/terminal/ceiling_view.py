"""How an answer of ``localllm ceiling`` looks: a table for people, its arithmetic step by step, JSON for programs.

Knows units and widths. Computes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence

from localllm.ceiling.answer import FREE_BYTES, AtDepth, Question, Result, Subject
from localllm.ceiling.expected import Band, prefill_error
from localllm.ceiling.explain import Benched, Explained, explain
from localllm.ceiling.hardware import Hardware
from localllm.ceiling.machine import Machine
from localllm.ceiling.roofline import GB
from localllm.sizes import GIB
from localllm.terminal.folding import folded, table
from localllm.terminal.render import dumps
from localllm.terminal.safe import one_line

Object = dict[str, object]
_SPARE = ("computed", "usable memory", "streamed")  # columns that a narrow window can do without; --why tells them
_FITS = {True: "yes", False: "no", None: "unknown"}


# --- JSON --------------------------------------------------------------------------------------------------------


def as_json(subject: Subject, question: Question, results: Sequence[Result], notes: Sequence[str]) -> str:
    """The documented object (docs/ceiling.md). What is not known is null."""
    return dumps(
        {
            "model": subject.name,
            "weights_bytes": subject.workload.weights_bytes,
            "streamed_bytes": subject.workload.streamed_bytes,
            "streamed_is_upper_bound": subject.streamed_is_upper_bound,
            "kv": subject.kv,
            "kv_bytes_per_token": subject.kv_bytes_per_token,
            "kv_bytes": subject.workload.kv_held(question.ctx) if question.ctx else None,
            "ctx": question.ctx or None,
            "results": [_result(question, result) for result in results],
            "notes": list(notes),
        }
    )


def _result(question: Question, result: Result) -> Object:
    return _hardware(result.machine) | {
        "held_bytes": result.held_bytes,
        "on_cards": round(result.on_cards, 4),
        "ceiling_tok_s": result.shallow.ceiling_tok_s,
        "ceiling_at_ctx_tok_s": result.deepest.ceiling_tok_s if question.ctx else None,
        "expected_tok_s": _band(result.shallow.expected),
        "measured_tok_s": result.measured_tok_s,
        "fits": result.fits,
        "conversations": _conversations(result),
        "prefill_tok_s": result.prefill_tok_s,
        "ttft_s": result.ttft_s,
        "answer_s": result.answer_s,
        "depths": [_depth(at) for at in result.depths],
        "batches": [
            {
                "users": batch.users,
                "per_user_tok_s": batch.per_user_tok_s,
                "aggregate_tok_s": batch.aggregate_tok_s,
                "compute_bound": batch.compute_bound,
            }
            for batch in result.batches
        ],
        "bend_users": result.bend,
        "speculation": _speculation(result),
    }


def _band(band: Band | None) -> Object | None:
    return None if band is None else {"low": band.low, "mid": band.mid, "high": band.high}


def _depth(at: AtDepth) -> Object:
    return {"depth": at.depth, "ceiling_tok_s": at.ceiling_tok_s, "expected_tok_s": _band(at.expected)}


def _conversations(result: Result) -> Object | None:
    if result.theoretical_conversations is None:
        return None
    return {"theoretical": result.theoretical_conversations, "usable": result.usable_conversations}


def _speculation(result: Result) -> Object | None:
    found = result.speculation
    if found is None:
        return None
    return {
        "draft": found.draft,
        "acceptance": found.acceptance,
        "drafted": found.drafted,
        "tokens_per_step": found.tokens_per_step,
        "speedup": found.speedup,
    }


# --- a table -----------------------------------------------------------------------------------------------------


def as_text(
    subject: Subject,
    question: Question,
    results: Sequence[Result],
    advice: Sequence[str],
    notes: Sequence[str],
    columns: int | None = None,
) -> str:
    """A table with a line for each device and depth, then what else was asked, advice and notes.

    ``columns`` are those of a window, in which the least of the table is left out and all else folded.
    """
    head = ("hardware", "usable memory", "fits", "depth", "ceiling", "expected", "computed")
    rows = [head, *(row for result in results for row in _rows(subject, result))]
    if not question.ctx:
        rows = [row[:3] + row[4:] for row in rows]
    if not any(at.expected for result in results for at in result.depths):
        rows = [row[:-2] + row[-1:] for row in rows]
    lines = [
        one_line(_title(subject, question)),
        "",
        *(table(rows, columns, _SPARE) if results else ["none of this hardware holds it"]),
    ]
    for result in results:
        told = [*_more(subject, question, result)]
        if told:
            lines += ["", *([f"{result.machine.name}:"] if len(results) > 1 else []), *told]
    if advice:
        lines += ["", "what would help:", *(f"- {line}" for line in advice)]
    left_out = [name for name in _SPARE if results and name in rows[0] and name not in lines[2]]
    if left_out:
        notes = [*notes, f"a wider window shows more: {' and '.join(left_out)}; so does --why"]
    return in_window("\n".join([*lines, "", *notes]), columns)


def in_window(text: str, columns: int | None) -> str:
    """Its lines folded; None is a pipe, which gets them as they are."""
    return text if columns is None else "\n".join(folded(line, columns) for line in text.split("\n"))


def _title(subject: Subject, question: Question) -> str:
    workload = subject.workload
    name = f"{subject.name}: " if subject.name else ""
    weights, streamed = gb(workload.weights_bytes), gb(workload.streamed_bytes)
    title = f"{name}{weights} ({_gib(workload.weights_bytes)}) of weights, {streamed} streamed per token"
    if subject.kv_bytes_per_token is not None:
        title += f"; KV cache {subject.kv_bytes_per_token:,} bytes per token ({subject.kv})"
        if question.ctx:
            title += f", {gb(workload.kv_held(question.ctx))} for {question.ctx:,} tokens"
    return title


def _rows(subject: Subject, result: Result) -> Iterator[tuple[str, ...]]:
    """A line for each depth."""
    workload, usable = subject.workload, result.machine.usable_bytes
    memory = "not known" if usable is None else f"{gb(usable)} ({_gib(usable)})"
    bound = "≥ " if subject.streamed_is_upper_bound else "at most "
    streamed = gb(workload.streamed_bytes)
    for at in result.depths:
        divisor = f"({streamed} + {gb(workload.kv_read(at.depth))} of KV cache)" if at.depth else _per_token(streamed)
        yield (
            result.machine.name,
            memory,
            _FITS[result.fits],
            f"{at.depth:,} tokens",
            bound + rate(at.ceiling_tok_s),
            _expected(at.expected),
            f"{_bandwidth(result)} ÷ {divisor}",
        )


def _per_token(streamed: str) -> str:
    return f"{streamed} streamed per token"


def _bandwidth(result: Result) -> str:
    first = result.machine.first
    origin = {"table": "", "given": " as given", "measured": " measured read bandwidth"}[first.origin]
    if result.machine.ram and result.on_cards < 1:
        return f"{result.on_cards:.0%} at {figure(first.bandwidth_gb_s)}, the rest at " + (
            f"{figure(result.machine.ram.bandwidth_gb_s)} GB/s"
        )
    return f"{figure(first.bandwidth_gb_s)} GB/s{origin}"


def _expected(band: Band | None) -> str:
    return "–" if band is None else f"{rate(band.mid)} ({_number(band.low)}–{_number(band.high)})"


def _more(subject: Subject, question: Question, result: Result) -> Iterator[str]:
    """What was asked beside the rates."""
    if result.measured_tok_s:
        shares = explain(result.measured_tok_s, subject.workload, 0, result.machine.first.bandwidth_gb_s)
        yield f"measured {result.measured_when}: {sentence(shares, result.machine.first)}"
    if question.ctx and result.theoretical_conversations is not None:
        yield (
            f"conversations of {question.ctx:,} tokens: {result.theoretical_conversations:,} if nothing else needs "
            f"memory, {result.usable_conversations or 0:,} with {_gib(FREE_BYTES)} kept free and scratch memory"
        )
    if question.prompt and result.prefill_tok_s:
        first = f", first token after {seconds(result.ttft_s)}" if result.ttft_s else ""
        origin = (
            "from what was measured here" if result.machine.learned else f"half of all within {prefill_error():.0%}"
        )
        prefill = f"prefill {result.prefill_tok_s:,.0f} tok/s{first} (expected, {origin})"
        yield f"prompt of {question.prompt:,} tokens: {prefill}"
    if question.output and result.answer_s:
        yield f"answer of {question.output:,} tokens: {seconds(result.answer_s)} in all (expected)"
    for batch in result.batches:
        limit = "computing" if batch.compute_bound else "memory"
        together = f"{rate(batch.aggregate_tok_s)} together ({limit})"
        yield f"{batch.users:5,} user{'s' if batch.users > 1 else ' '}: {rate(batch.per_user_tok_s)} each, {together}"
    if result.batches:
        yield (
            f"the curve bends at {result.bend:,} users: from there on, computing is the limit"
            if result.bend
            else "memory is the limit for any number of users: each has a cache of his own to read"
        )


# --- this machine, and what was measured elsewhere ---------------------------------------------------------------


def sentence(shares: Explained, device: Hardware) -> str:
    """A measured rate, taken apart."""
    of_ceiling = f"{rate(shares.measured_tok_s)} is {shares.of_ceiling:.0%} of the {rate(shares.ceiling_tok_s)} ceiling"
    if shares.rest < 0:
        cached = (
            "part of the weights stays in the processor's cache" if device.kind == "cpu" else "is that its bandwidth?"
        )
        return f"{of_ceiling}: {cached}"
    kv = f", KV cache {shares.kv:.0%}" if shares.kv else ""
    return f"{of_ceiling}; reading weights {shares.weights:.0%}{kv}, all else {shares.rest:.0%}"


def overview(
    machine: Machine,
    rows: Sequence[tuple[Subject, Result]],
    question: Question,
    by_threads: Mapping[int, float],
    notes: Sequence[str],
    as_json: bool,
    columns: int | None = None,
) -> str:
    """A machine, and each model on its disk: ceiling, expected, measured."""
    if as_json:
        models = [{"model": subject.name} | _result(question, result) for subject, result in rows]
        threads = {str(count): value for count, value in by_threads.items()}
        return dumps(_hardware(machine) | {"bandwidth_by_threads_gb_s": threads, "models": models, "notes": [*notes]})
    first = machine.first
    lines = [f"{first.name}: {figure(first.bandwidth_gb_s)} GB/s read bandwidth, measured now; {_memory(machine)}"]
    lines += [
        f"  {count} thread{'s' if count > 1 else ''}: {figure(value)} GB/s" for count, value in by_threads.items()
    ]
    cells = [("model", "streamed", "fits", "ceiling", "expected", "measured")]
    cells += [
        (
            one_line(subject.name or ""),
            gb(subject.workload.streamed_bytes),
            _FITS[result.fits],
            rate(result.shallow.ceiling_tok_s),
            _expected(result.shallow.expected),
            f"{rate(result.measured_tok_s)} ({result.measured_when})" if result.measured_tok_s else "–",
        )
        for subject, result in rows
    ]
    if not rows:
        lines += ["", *map(one_line, notes), "no model is on this disk yet: localllm pull NAME"]
        return in_window("\n".join(lines), columns)
    hint = "localllm ceiling NAME --measure measures a model, and teaches what to expect of the others"
    shown = [*lines, "", *table(cells, columns, _SPARE), "", *(one_line(note) for note in notes), hint]
    return in_window("\n".join(shown), columns)


def _memory(machine: Machine) -> str:
    usable = machine.usable_bytes
    return "memory not known" if usable is None else f"{gb(usable)} ({_gib(usable)}) of memory available"


def _hardware(machine: Machine) -> Object:
    first = machine.first
    return {
        "hardware": machine.name,
        "bandwidth_gb_s": first.bandwidth_gb_s,
        "bandwidth_origin": first.origin,
        "source": first.source,
        "memory_bytes": machine.memory_bytes,
        "usable_bytes": machine.usable_bytes,
    }


def explained(told: Sequence[tuple[Hardware, Subject, Benched, Explained]], as_json: bool) -> str:
    """Each decode rate of a ``llama-bench`` file, taken apart."""
    if as_json:
        return dumps(
            {
                "results": [
                    {
                        "model": subject.name,
                        "hardware": device.name,
                        "bandwidth_gb_s": device.bandwidth_gb_s,
                        "depth": bench.depth,
                        "measured_tok_s": shares.measured_tok_s,
                        "ceiling_tok_s": shares.ceiling_tok_s,
                        "of_ceiling": shares.of_ceiling,
                        "weights": shares.weights,
                        "kv": shares.kv,
                        "rest": shares.rest,
                        "streamed_is_upper_bound": subject.streamed_is_upper_bound,
                    }
                    for device, subject, bench, shares in told
                ]
            }
        )
    lines = [
        one_line(f"{subject.name or 'model'} on {device.name}, depth {bench.depth:,}: {sentence(shares, device)}")
        for device, subject, bench, shares in told
    ]
    notes = dict.fromkeys(note for _, subject, *_ in told for note in subject.notes)
    return "\n".join([*lines, *(["", *notes] if notes else [])])


# --- why ---------------------------------------------------------------------------------------------------------


def why(subject: Subject, question: Question, result: Result) -> str:
    """The formulas with their numbers put in, step by step, and where each comes from."""
    return "\n".join([f"{result.machine.name}:", *(f"  {line}" for line in _why(subject, question, result))])


def _why(subject: Subject, question: Question, result: Result) -> Iterator[str]:
    workload, first, ctx = subject.workload, result.machine.first, question.ctx
    yield f"bandwidth {first.bandwidth_gb_s:g} GB/s ({first.origin}: {one_line(first.source)})"
    if first.memory_bytes is not None:
        yield f"memory {first.memory_bytes:,} bytes = {_gib(first.memory_bytes)}; usable {first.usable_bytes or 0:,}"
    yield f"streamed per token: {workload.streamed_bytes:,} of {workload.weights_bytes:,} bytes of weights"
    if experts := workload.experts:
        read = round(experts.all_bytes * experts.used / experts.count)
        yield f"  experts: {experts.used} of {experts.count} are read, {read:,} of {experts.all_bytes:,} bytes"
    kept = workload.kv_held(ctx) if ctx else 0
    if ctx:
        yield f"KV cache: {kept:,} bytes kept, {workload.kv_read(ctx):,} read per token"
    yield from _why_ceiling(subject, result)
    yield from _why_expected(result)
    own = workload.weights_bytes + question.users * kept + subject.compute_bytes(ctx or 512)
    draft = result.held_bytes - own - result.machine.runtime_bytes
    yield (
        f"memory needed: weights {workload.weights_bytes:,} + {question.users} × {kept:,} of KV cache + scratch "
        f"{subject.compute_bytes(ctx or 512):,}{f' + draft {draft:,}' if draft else ''} + runtime "
        f"{result.machine.runtime_bytes:,} = {result.held_bytes:,} bytes"
    )


def _why_ceiling(subject: Subject, result: Result) -> Iterator[str]:
    first, deepest, ram = result.machine.first, result.deepest, result.machine.ram
    n_bytes = subject.workload.read_bytes(deepest.depth)
    rate_gb_s = f"{first.bandwidth_gb_s:g}·10⁹"
    if ram and result.on_cards < 1:
        yield f"{result.on_cards:.1%} lies on the cards; times add up:"
        seconds_there = f"{1 - result.on_cards:.3f} × {n_bytes:,} ÷ {ram.bandwidth_gb_s:g}·10⁹"
        yield f"  {result.on_cards:.3f} × {n_bytes:,} ÷ {rate_gb_s} + {seconds_there} s"
        yield f"ceiling (computed, a bound): {deepest.ceiling_tok_s:.2f} tok/s"
        return
    yield f"ceiling (computed, a bound): {rate_gb_s} ÷ {n_bytes:,} = {deepest.ceiling_tok_s:.2f} tok/s"


def _why_expected(result: Result) -> Iterator[str]:
    band, parts, deepest = result.deepest.expected, result.parts, result.deepest
    if band is None or parts is None:
        return
    weights, kv, fixed, total = (
        f"{1e3 * value:.2f} ms" for value in (parts.weights_s, parts.kv_s, parts.fixed_s, parts.total_s)
    )
    of_group = f"group “{band.group}”, {band.rows} measurements; docs/ceiling-accuracy.md"
    yield f"expected ({band.group if band.here else of_group}):"
    yield f"  weights {weights} + KV cache {kv} + fixed {fixed} = {total}"
    share = band.mid / deepest.ceiling_tok_s
    yield f"  1 ÷ {total} = {1 / parts.total_s:.2f} tok/s, {share:.0%} of the ceiling"
    if band.here:
        yield f"  that may be off by {band.p90_error:.0%}: {band.low:.2f} to {band.high:.2f} tok/s"
        return
    yield f"  nine of ten measurements of that group: {band.low:.2f} to {band.high:.2f} tok/s"
    yield f"  off by {band.median_error:.1%} (median) and {band.p90_error:.1%} (90th percentile) on devices left out"


# --- numbers -----------------------------------------------------------------------------------------------------


def gb(n_bytes: float) -> str:
    """In 10⁹ bytes."""
    return f"{figure(n_bytes / GB)} GB"


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / GIB:.3g} GiB"


def figure(value: float) -> str:
    """Three significant digits, at most three decimals: 936, 19.0, 1.07, 0.094."""
    decimals = next((decimals for decimals, low in enumerate((100, 10, 1)) if value >= low), 3)
    return f"{value:.{decimals}f}"


def rate(tok_s: float) -> str:
    """Tokens per second with unit."""
    return f"{_number(tok_s)} tok/s"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def seconds(value: float) -> str:
    """A duration that a person can read."""
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 7200:
        return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"
    return f"{value / 3600:,.1f} h"
