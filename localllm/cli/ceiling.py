"""``localllm ceiling``: the most tokens per second that hardware can give a model, what to expect, and what fits.

Makes a question of the options. Where a model's bytes come from is known to subjects.py, the arithmetic to ceiling/,
what the answer looks like to terminal/ceiling_view.py.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from localllm import sizes
from localllm.cli import options, plots
from localllm.cli.models import window
from localllm.errors import UsageError
from localllm.terminal.safe import one_line
from localllm.values import KvType

if TYPE_CHECKING:
    from localllm.ceiling.answer import Question, Result, Subject
    from localllm.ceiling.machine import Machine
    from localllm.terminal.plot import Chart

MAX_CTX = 10**8
MAX_USERS = 10**5
USERS_CTX = 4096  # tokens for each of several users, where none is said
MOST_OTHER_TOKENS = 128  # by which the vocabularies of draft and target may differ, as llama.cpp has it


app = typer.Typer(rich_markup_mode=None)


@app.command(cls=plots.PlotCommand)
def ceiling(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|PATH]",
            help="A name from `localllm list`, user/repo[:QUANT], or a GGUF file; of the hub only the header is read.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            metavar="NAME",
            help="Hardware from the table: 4090, '2 x RTX 3090', 'M3 Max 40-core'. Repeatable: side by side.",
        ),
    ] = None,
    all_gpus: Annotated[bool, typer.Option("--all-gpus", help="All of the table, the fastest first.")] = False,
    only_fitting: Annotated[bool, typer.Option("--fits", help="Only hardware that holds it.")] = False,
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
    ram: Annotated[
        str | None,
        typer.Option("--ram", metavar="TYPE", help="Main memory for what no card holds: ddr5-5600x2 (two channels)."),
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
    params: Annotated[
        str | None,
        typer.Option("--params", metavar="N", help="Instead of a model: its parameters (32b; 30b-a3b for experts)."),
    ] = None,
    quant: Annotated[
        str | None, typer.Option("--quant", metavar="Q", help="Quantisation of --params (default: q4_k_m).")
    ] = None,
    ctx: Annotated[int | None, typer.Option("--ctx", metavar="N", help="Also with N tokens in the KV cache.")] = None,
    kv: options.Kv = "f16",
    users: Annotated[int, typer.Option("--users", metavar="N", help="Answered at once, in one batch.")] = 1,
    draft: Annotated[str | None, typer.Option("--draft", metavar="NAME|PATH", help="A draft model beside it.")] = None,
    acceptance: Annotated[
        float, typer.Option("--acceptance", metavar="SHARE", help="How many of its guesses are right, 0 to 1.")
    ] = 0.7,
    prompt: Annotated[int | None, typer.Option("--prompt", metavar="N", help="Tokens of the prompt.")] = None,
    output: Annotated[int | None, typer.Option("--output", metavar="N", help="Tokens of the answer.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure this machine: memory, and a model's decode rate.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="FILE", help="Take apart what llama-bench -o json measured; - is stdin."),
    ] = None,
    why: Annotated[bool, typer.Option("--why", help="Each figure's formula, with its numbers and sources.")] = False,
    plot: Annotated[
        list[str] | None,
        typer.Option(
            "--plot",
            metavar="[FILE]",
            help="Draw tok/s against context (with --users: against users); into FILE.svg or FILE.png if one is named.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The most tokens per second that hardware can give a model, what to expect, and what fits.

    Without --gpu or --bandwidth: this machine, its memory bandwidth measured now (0.3 s).

    \b
    localllm ceiling
    localllm ceiling smollm2-135m --measure
    localllm ceiling qwen3-8b --gpu 3060-12GB --gpu 4090 --ctx 8192
    localllm ceiling --gpu "RTX 3090" --model-bytes 19e9
    localllm ceiling --params 70b --quant q4_k_m --all-gpus --fits
    localllm ceiling qwen3-8b --gpu 4090 --gpu 3090 --plot chart.svg
    """
    question = _question(ctx, users, prompt, output, acceptance)
    places = plots.places(plot, json) if plot else []
    if explain is not None:
        typer.echo(_explained(explain, model, gpu or [], bandwidth, kv, json))
        return
    is_here = not (gpu or all_gpus) and bandwidth is None and memory is None and ram is None
    is_unnamed = model is None and size is None and params is None
    if measure and not is_here:
        raise UsageError("--measure measures this machine, not other hardware", "leave out --gpu and --bandwidth")
    if is_here and is_unnamed and not (places or why):
        typer.echo(_overview(question, measure, kv, json))
        return
    if measure:
        _measure(model, kv)
    subject = _subject(model, size, params, quant, question.ctx, kv)
    question, told = _completed(question, subject)
    if is_unnamed and subject.name:
        told.append(f"{subject.name} is the default model; name another one to ask about it")
    if draft is not None:
        question = replace(question, draft=_draft(draft, subject, question, kv))
    if is_here:
        results, about = _answered_here(subject, question)
        told += about
    else:
        results = _answered(subject, question, _machines(gpu or [], bandwidth, memory, ram, all_gpus))
    results = _to_show(results, only_fitting, fastest_first=all_gpus)
    notes = (*subject.notes, *told, *_machine_notes(results, subject), *_missing(results, question))
    chart = plots.chart(subject, [result.machine for result in results], question) if places else None
    if chart:
        plots.save(chart, [place for place in places if place])
    if json:
        from localllm.terminal import ceiling_view

        typer.echo(ceiling_view.as_json(subject, question, results, notes))
    else:
        _print(subject, question, results, notes, chart if None in places else None, why)


def _answered(subject: "Subject", question: "Question", machines: "Sequence[Machine]") -> "list[Result]":
    from localllm.ceiling.answer import answer

    return [answer(subject, machine, question) for machine in machines]


def _answered_here(subject: "Subject", question: "Question") -> "tuple[list[Result], list[str]]":
    """For this machine; and what to say of it."""
    from localllm import here

    machine, about = here.machine()
    return [here.answered(subject, machine, question)], about


def _to_show(results: "list[Result]", only_fitting: bool, fastest_first: bool) -> "list[Result]":
    """Raises UsageError where the sizes of a machine leave open how fast it is."""
    for result in results:
        result.machine.check_sizes(result.held_bytes - result.machine.runtime_bytes)
    shown = [result for result in results if result.fits or not only_fitting]
    return sorted(shown, key=lambda result: result.likely_tok_s, reverse=True) if fastest_first else shown


def _print(
    subject: "Subject",
    question: "Question",
    results: "Sequence[Result]",
    notes: Sequence[str],
    chart: "Chart | None",
    why: bool,
) -> None:
    """The answer for a person: the table, then what else was asked for."""
    from localllm.terminal import ceiling_view

    columns = window()
    typer.echo(ceiling_view.as_text(subject, question, results, _advice(subject, results, question), notes, columns))
    if chart:
        typer.echo("\n" + plots.as_text(chart))
    for result in results if why else ():
        typer.echo("\n" + ceiling_view.in_window(ceiling_view.why(subject, question, result), columns))


def _question(ctx: int | None, users: int, prompt: int | None, output: int | None, acceptance: float) -> "Question":
    from localllm.ceiling.answer import Question

    for name, value in (("--ctx", ctx), ("--prompt", prompt), ("--output", output)):
        if value is not None and not 1 <= value <= MAX_CTX:
            raise UsageError(f"{name} is {value}, which is out of range", f"choose 1 to {MAX_CTX:,} tokens")
    if not 1 <= users <= MAX_USERS:
        raise UsageError(f"--users is {users}, which is out of range", f"choose 1 to {MAX_USERS:,}")
    if not 0 <= acceptance <= 1:
        raise UsageError(f"--acceptance is {acceptance}, which is out of range", "choose 0 to 1")
    return Question(ctx or 0, users, prompt, output, acceptance=acceptance)


def _completed(question: "Question", subject: "Subject") -> "tuple[Question, list[str]]":
    """With the context that prompt and answer need, or that several users get; and what to say of it."""
    from localllm.subjects import beyond_training

    asked = (question.prompt or 0) + (question.output or 0)
    if question.ctx >= asked and (question.ctx or question.users == 1):
        return question, []
    if subject.kv_bytes_per_token is None:
        return question, ["the KV cache of this model is not known, and not counted"]
    ctx = max(question.ctx, asked) or USERS_CTX
    notes = [f"a context of {ctx:,} tokens each, {'for prompt and answer' if asked else 'since none is said (--ctx)'}"]
    return replace(question, ctx=ctx), [*notes, *beyond_training(subject.n_ctx_train or 0, ctx)]


def _draft(reference: str, subject: "Subject", question: "Question", kv: KvType) -> "Subject":
    """The draft model. Raises UsageError where it has another vocabulary than its target."""
    from localllm import subjects

    draft = subjects.named(reference, question.ctx if subject.kv_bytes_per_token else 0, kv)
    if subject.n_vocab and draft.n_vocab and abs(subject.n_vocab - draft.n_vocab) > MOST_OTHER_TOKENS:
        sizes_differ = f"{draft.n_vocab:,} tokens, not {subject.n_vocab:,}"
        raise UsageError(f"{draft.name} cannot draft for {subject.name}: it has another vocabulary ({sizes_differ})")
    return draft


def _missing(results: "Sequence[Result]", question: "Question") -> Iterator[str]:
    """What was asked and cannot be answered, and what it takes."""
    from localllm.terminal.ceiling_view import gb

    if question.users > 1 and any(not result.batches for result in results):
        yield "users in a batch: not known for what lies in main memory, nor for a processor before --measure"
    if question.prompt and any(result.prefill_tok_s is None for result in results):
        yield "prefill: not known for this hardware (of this machine's processor, --measure tells)"
    if any(result.on_cards < 1 for result in results):
        parts = ", ".join(gb((1 - result.on_cards) * result.held_bytes) for result in results if result.on_cards < 1)
        yield f"in main memory: {parts}, which it must have free"


def _subject(
    reference: str | None, size_bytes: int | None, params: str | None, quant: str | None, ctx: int, kv: KvType
) -> "Subject":
    from localllm import subjects

    given = [name for name, value in (("--model-bytes", size_bytes), ("--params", params)) if value is not None]
    if quant is not None and params is None:
        raise UsageError("--quant belongs to --params", "name both, or neither")
    if not given:
        return subjects.named(reference, ctx, kv)
    if reference is not None or len(given) > 1:
        both = f"a model and {given[0]}" if reference is not None else " and ".join(given)
        raise UsageError(f"both {both} are given", "leave one of them out")
    if ctx:
        raise UsageError(f"--ctx needs a model: its KV cache does not follow from {given[0]}", "name a model")
    if size_bytes is not None:
        return subjects.of_bytes(size_bytes, kv)
    return subjects.of_parameters(params or "", quant or subjects.USUAL_QUANTISATION, kv)


def _machines(
    names: Sequence[str], bandwidth: float | None, memory: int | None, ram: str | None, all_gpus: bool
) -> "list[Machine]":
    """The hardware asked for, in order. Raises UsageError."""
    from localllm.ceiling import hardware, machine

    if all_gpus and (names or bandwidth is not None):
        raise UsageError("--all-gpus is given beside hardware", "leave one of them out")
    cards = [machine.parse(name) for name in names]
    if all_gpus:
        cards = [(device,) for device in hardware.accelerators()]
    elif bandwidth is not None:
        cards.append((hardware.given(bandwidth, memory),))
    elif memory is not None:
        if len(cards) != 1:
            raise UsageError("--memory needs one --gpu or a --bandwidth", "say whose memory it is")
        cards = [tuple(card.with_memory(memory) for card in cards[0])]
    if not cards:
        raise UsageError("--ram needs a --gpu: it takes what no card holds", "name the card")
    main_memory = machine.parse_ram(ram) if ram is not None else None
    return [machine.Machine(each, main_memory) for each in cards]


# --- this machine ------------------------------------------------------------------------------------------------


def _measure(reference: str | None, kv: KvType) -> None:
    """Measure a model's decode rate, and remember it."""
    from localllm.app import locate
    from localllm.cancel import Cancel
    from localllm.cli.signals import cancelling
    from localllm.measuring import measure
    from localllm.terminal.progress import download_progress

    cancel = Cancel()
    with cancelling(cancel):
        with download_progress() as on_download:
            located = locate(reference, on_download, cancel)
        measure(located, kv, cancel, tell_progress)
    cancel.check()


def tell_progress(line: str) -> None:
    """Progress, for a person who waits."""
    if sys.stderr.isatty():
        print(f"localllm: {one_line(line)} …", file=sys.stderr)


def _overview(question: "Question", measure: bool, kv: KvType, as_json: bool) -> str:
    """What this machine can do with each model on its disk."""
    from localllm import here
    from localllm.errors import LocalLLMError
    from localllm.terminal import ceiling_view

    machine, notes = here.machine()
    found = [*here.models(machine, question, kv)]
    notes += [row.message for row in found if isinstance(row, LocalLLMError)]
    rows = [row for row in found if not isinstance(row, LocalLLMError)]
    by_threads = here.bandwidths() if measure else {}
    return ceiling_view.overview(machine, rows, question, by_threads, notes, as_json, window())


def _explained(
    path: str, reference: str | None, names: Sequence[str], bandwidth: float | None, kv: KvType, as_json: bool
) -> str:
    """What ``llama-bench`` measured, taken apart."""
    from localllm import subjects
    from localllm.cancel import Cancel
    from localllm.ceiling import explain, hardware
    from localllm.terminal import ceiling_view
    from localllm.terminal.inputs import text_of

    if len(names) > 1:
        raise UsageError("--explain needs one --gpu", "say what the file was measured on")
    told = []
    for result in explain.llama_bench(text_of(path, Cancel(), tell_progress)):
        if bandwidth is not None:
            device = hardware.given(bandwidth, None)
        elif names or (result.on_gpu and result.devices):
            device = hardware.find(names[0] if names else result.devices[0])
        else:
            raise UsageError("the file does not say what it was measured on", "add --gpu NAME or --bandwidth GB/S")
        subject = subjects.named(reference, 0, kv) if reference else subjects.of_bench(result, kv)
        shares = explain.explain(result.tok_s, subject.workload, result.depth, device.bandwidth_gb_s)
        told.append((device, subject, result, shares))
    explained = ceiling_view.explained(told, as_json)
    return explained if as_json else ceiling_view.in_window(explained, window())


def _advice(subject: "Subject", results: "Sequence[Result]", question: "Question") -> list[str]:
    """For one machine; a list of many is for choosing among them."""
    if len(results) != 1:
        return []
    from localllm.ceiling.advice import advice

    return advice(subject, results[0], question)


def _machine_notes(results: "Sequence[Result]", subject: "Subject") -> Iterator[str]:
    from localllm.terminal.ceiling_view import gb

    cards = [card for result in results for card in result.machine.cards]
    if any(card.origin == "measured" for card in cards):
        from localllm.ceiling.measure import last_level_cache_bytes

        cache_bytes = last_level_cache_bytes()
        if subject.workload.streamed_bytes < 2 * cache_bytes:
            yield (
                f"much of {gb(subject.workload.streamed_bytes)} stays in this processor's cache ({gb(cache_bytes)}), "
                "so decoding may be faster than memory allows"
            )
    if any(card.kind == "apple" for card in cards):
        yield (
            "Macs: about 75 % of the memory is usable by the GPU; the table has the largest memory sold, "
            "yours goes into the name: 'M3 Max 40-core 64GB'"
        )
    if any(result.fits is False for result in results):
        yield "where it does not fit, the rates are what the same memory would give if it were larger"
    if bands := [at.expected for result in results for at in result.depths if at.expected]:
        from_here = "from what was " + bands[0].group if bands[0].here else ""
        published = "nine of ten published measurements (docs/ceiling-accuracy.md)"
        yield f"ceiling: computed, a bound; expected: {from_here or published}"
    yield "fits: weights, KV cache, scratch memory (an estimate), and what the runtime takes"
