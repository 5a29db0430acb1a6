"""``localllm ask``: one prompt, one answer, made for pipes and scripts."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from localllm.cancel import Cancel
from localllm.cli import options, structured
from localllm.cli.inputs import attached_text
from localllm.cli.signals import cancelling
from localllm.errors import EXIT_CODES, UsageError
from localllm.terminal.safe import one_line, readable
from localllm.values import Constraint, Message, ModelInfo, Prompt, Sampling, TurnEnd

if TYPE_CHECKING:
    from localllm.engine.engine import Engine
    from localllm.session.overflow import Fitted, Part
    from localllm.terminal.render import View


def ask(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]...", help="What to ask. Piped text and files go before it.", show_default=False
        ),
    ] = None,
    model: options.Model = None,
    system: options.System = "",
    file: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", metavar="PATH", help="Put this file before the prompt; - is stdin. Repeatable."),
    ] = None,
    temp: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    repeat_penalty: options.RepeatPenalty = None,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = None,
    stop: options.Stop = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="Stop after this time, loading included."),
    ] = None,
    on_overflow: Annotated[
        Literal["head", "tail", "middle"] | None,
        typer.Option("--on-overflow", help="Part of the piped text and files to drop if the prompt is too long."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without chat template.")] = False,
    schema: structured.Schema = None,
    choice: structured.Choice = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object: answer, stats, how it ended.")] = False,
    usage: options.Usage = False,
    hide_reasoning: options.HideReasoning = False,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print the answer in one piece, at its end.")] = False,
    quiet: options.Quiet = False,
    ctx_size: options.CtxSize = None,
    kv: options.Kv = "f16",
    gpu_layers: options.GpuLayers = None,
    threads: options.Threads = None,
    draft: options.Draft = "auto",
    exact: options.Exact = False,
    no_cache: options.NoCache = False,
) -> int:
    """Answer one prompt and leave.

    \b
    localllm ask "Name three colours."
    git diff | localllm ask "write a commit message"
    localllm ask -f report.txt "what is missing?"
    """
    choose = partial(
        options.sampling_from,
        temperature=temp,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop,
    )
    choose(Sampling())  # wrong values are told before anything is loaded
    settings = options.settings_from(ctx_size, kv, gpu_layers, threads, draft, exact, no_cache)
    cancel = Cancel(_checked_timeout(timeout))
    waiting = _tell if sys.stderr.isatty() and not quiet else lambda _: None
    constraint = structured.constraint_from(schema, choice, stop, cancel, waiting)
    attached = attached_text(file or (), cancel, waiting)
    request, system = readable(" ".join(words or ())), readable(system)
    if not (attached.strip() or request.strip()):
        raise UsageError("there is nothing to ask", 'give a prompt, as in: localllm ask "Name three colours."')

    from localllm.app import open_engine
    from localllm.terminal.progress import download_progress
    from localllm.terminal.render import View

    view = View.of_terminal(stream=not no_stream, reasoning=not hide_reasoning, quiet=quiet)
    with cancelling(cancel):
        with download_progress(quiet) as on_download:
            engine = open_engine(model, settings, on_download, cancel)
        sampling = choose(engine.sampling)
        fitted = _fit(engine, system, attached, request, raw, sampling, on_overflow, cancel)
        has_wrong_bytes = any("\ufffd" in text for text in (system, attached, request))
        for note in _notes(fitted, on_overflow, engine.info, raw, has_wrong_bytes) if not quiet else ():
            _tell(note)
        end = _answer(engine, fitted, sampling, cancel, view, json, constraint)
    if not quiet:
        _report(end, engine.info, usage, constraint)
    if end.reason not in ("timeout", "interrupted"):  # these want an end at once
        with suppress(KeyboardInterrupt):  # the answer is out: only the cache loses something
            engine.keep()
    return structured.exit_code(end) if constraint else EXIT_CODES[end.reason]


def _fit(
    engine: "Engine",
    system: str,
    attached: str,
    request: str,
    raw: bool,
    sampling: Sampling,
    drop: "Part | None",
    cancel: Cancel,
) -> "Fitted":
    """The prompt, with the attached text first: it is what costs to read, and questions about it can share it."""
    from localllm.session.overflow import fit

    def encode(text: str) -> Prompt:
        question = "\n\n".join(part for part in (text, request) if part)
        if raw:
            return engine.encode_raw("\n\n".join(part for part in (system, question) if part), cancel)
        messages = [Message("system", system)] if system else []
        return engine.encode([*messages, Message("user", question)], cancel)

    n_ctx = engine.info.n_ctx
    room = n_ctx // 4
    return fit(attached, encode, n_ctx, min(sampling.max_tokens or room, room), drop)


def _answer(
    engine: "Engine",
    fitted: "Fitted",
    sampling: Sampling,
    cancel: Cancel,
    view: "View",
    as_json: bool,
    constraint: Constraint | None,
) -> TurnEnd:
    from localllm.terminal import render

    # Reasoning that its model forgot to mark must not reach a pipe.
    hold = not (as_json or view.reasoning)
    events = engine.reply(fitted.prompt, sampling, cancel, hold_unopened=hold, constraint=constraint)
    if not as_json:
        return structured.write(events, view) if constraint else render.show(events, view)
    end = render.collect(events, view)
    view.out.write(render.dumps(render.as_json(end, engine.info.name, fitted.dropped_tokens)) + "\n")
    view.out.flush()
    return end


def _notes(fitted: "Fitted", part: str | None, info: ModelInfo, raw: bool, has_wrong_bytes: bool) -> Iterator[str]:
    """What must be known before the answer: nothing is changed silently."""
    from localllm.terminal.render import NO_TEMPLATE

    if has_wrong_bytes:
        yield "the prompt holds bytes that are no UTF-8; each reads as \ufffd"
    if fitted.dropped_tokens:
        yield f"dropped the {part} of the attached text: {fitted.dropped_tokens:,} of {fitted.total_tokens:,} tokens"
    if not (info.chat_template or raw):
        yield f"{NO_TEMPLATE} (--raw continues your text as it is)"


def _report(end: TurnEnd, info: ModelInfo, usage: bool, constraint: Constraint | None) -> None:
    """What must be said, and with ``-u`` what can be said, on stderr."""
    from localllm.terminal import render

    if cut := render.ending(end):
        _tell(cut)
    elif constraint and end.reason == "length":
        _tell("--max-tokens came before the end: the answer is cut")
    if usage:
        _tell(render.stats_line(end, info.n_ctx))
        _tell(render.model_line(info, end.stats))


def _tell(line: str) -> None:
    print(f"localllm: {one_line(line)}", file=sys.stderr)


def _checked_timeout(timeout: float | None) -> float | None:
    if timeout is not None and not 0 < timeout <= 10**7:
        raise UsageError(f"--timeout is {timeout}, which is out of range", "choose a number of seconds above 0")
    return timeout
