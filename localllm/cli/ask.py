"""``localllm ask``: one prompt, one answer, made for pipes and scripts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from localllm.cancel import Cancel
from localllm.cli import options
from localllm.cli.first_run import choose_default
from localllm.cli.signals import cancelling
from localllm.cli.template import Param, Template, filled_template
from localllm.errors import EXIT_CODES, UsageError
from localllm.settings import SETTINGS
from localllm.terminal.inputs import attached_text
from localllm.terminal.safe import one_line, readable
from localllm.values import Message, ModelInfo, Prompt, Sampling, TurnEnd

if TYPE_CHECKING:
    from localllm.engine.engine import Engine
    from localllm.session.extract import Which
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
    template: Template = None,
    param: Param = None,
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
        typer.Option("--timeout", metavar="SECONDS", help=options.help_of("timeout")),
    ] = None,
    on_overflow: Annotated[
        Literal["head", "tail", "middle"] | None,
        typer.Option("--on-overflow", help=options.help_of("on_overflow")),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without chat template.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object: answer, stats, how it ended.")] = False,
    extract: Annotated[
        bool | None,
        typer.Option("--extract/--no-extract", "-x", help="Print only the first fenced code block of the answer."),
    ] = None,
    extract_last: Annotated[bool, typer.Option("--xl", help="Print only the last fenced code block.")] = False,
    usage: options.Usage = False,
    hide_reasoning: options.HideReasoning = False,
    markdown: options.Markdown = True,
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help=options.help_of("stream"), show_default=False)
    ] = True,
    quiet: options.Quiet = False,
    ctx_size: options.CtxSize = None,
    kv: options.Kv = "f16",
    gpu_layers: options.GpuLayers = None,
    threads: options.Threads = None,
    draft: options.Draft = "auto",
    exact: options.Exact = False,
    cache: options.Cache = True,
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
    filled = filled_template(template, param or ())
    choose = partial(choose, **filled.sampling)
    choose(Sampling())  # wrong values are told before anything is loaded
    which = _which(extract, extract_last, filled.template.extract)
    settings = options.settings_from(ctx_size, kv, gpu_layers, threads, draft, exact, cache)
    SETTINGS["timeout"].check(timeout)
    cancel = Cancel(timeout)
    attached = attached_text(file or (), cancel, _tell if sys.stderr.isatty() and not quiet else lambda _: None)
    request, system = readable(" ".join(words or ())), filled.system or readable(system)
    if filled.needs_input and not (attached.strip() or request.strip()):
        if template:
            raise UsageError(f"there is no text for template {template!r}", "pipe it in, or give -f FILE or a prompt")
        raise UsageError("there is nothing to ask", 'give a prompt, as in: localllm ask "Name three colours."')

    from localllm.app import open_engine
    from localllm.terminal.progress import download_progress
    from localllm.terminal.render import View

    choose_default(model, quiet=quiet, may_ask=timeout is None)
    view = View.of_terminal(stream=stream, reasoning=not hide_reasoning, quiet=quiet, markdown=markdown and not json)
    view.load_ahead()
    with cancelling(cancel):
        with download_progress(quiet) as on_download:
            engine = open_engine(filled.model or model, settings, on_download, cancel)
        sampling = choose(engine.sampling)
        fitted = _fit(
            engine, system, attached, partial(filled.question, request=request), raw, sampling, on_overflow, cancel
        )
        has_wrong_bytes = any("\ufffd" in text for text in (system, attached, request))
        for note in _notes(fitted, on_overflow, engine.info, raw, has_wrong_bytes) if not quiet else ():
            _tell(note)
        end = _answer(engine, fitted, sampling, cancel, view, json, which)
    if not quiet:
        _report(end, engine.info, usage, which if extract or extract_last else None)
    if end.reason not in ("timeout", "interrupted"):  # these want an end at once
        with suppress(KeyboardInterrupt):  # the answer is out: only the cache loses something
            engine.keep()
    return EXIT_CODES[end.reason]


def _fit(
    engine: "Engine",
    system: str,
    attached: str,
    question: Callable[[str], str],
    raw: bool,
    sampling: Sampling,
    drop: "Part | None",
    cancel: Cancel,
) -> "Fitted":
    """The prompt, with as much of the attached text as there is room for."""
    from localllm.session.overflow import fit

    def encode(text: str) -> Prompt:
        asked = question(text)
        if raw:
            return engine.encode_raw("\n\n".join(part for part in (system, asked) if part), cancel)
        messages = [Message("system", system)] if system else []
        return engine.encode([*messages, Message("user", asked)], cancel)

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
    extract: "Which | None",
) -> TurnEnd:
    from localllm.session.extract import code_block
    from localllm.terminal import render

    if not (as_json or extract):  # reasoning that its model forgot to mark must not reach a pipe
        return render.show(engine.reply(fitted.prompt, sampling, cancel, hold_unopened=not view.reasoning), view)
    end = render.collect(engine.reply(fitted.prompt, sampling, cancel), view)
    block = code_block(end.message.text, extract) if extract else None
    code = block.code if block else None
    if as_json:
        found = render.as_json(end, engine.info.name, fitted.dropped_tokens)
        text = render.dumps(found | {"extracted": code} if extract else found)
    else:
        text = end.message.text if code is None else code
    render.put(text, view)
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


def _report(end: TurnEnd, info: ModelInfo, usage: bool, extract: "Which | None") -> None:
    """What must be said, and with ``-u`` what can be said, on stderr."""
    from localllm.session.extract import code_block
    from localllm.terminal import render

    if cut := render.ending(end):
        _tell(cut)
    block = code_block(end.message.text, extract) if extract else None
    if extract and end.message.text and not block:
        _tell("the answer has no code block, so all of it is given")
    if block and not block.closed:
        _tell("the code block has no end: the answer may be cut")
    if usage:
        _tell(render.stats_line(end, info.n_ctx))
        _tell(render.model_line(info, end.stats))


def _tell(line: str) -> None:
    print(f"localllm: {one_line(line)}", file=sys.stderr)


def _which(first: bool | None, last: bool, by_template: "Which | None") -> "Which | None":
    """The code block to print, if not the whole answer. Raises UsageError where both are asked for."""
    if first and last:
        raise UsageError("-x prints the first code block, --xl the last", "give one of them")
    if first is None and not last:
        return by_template
    return "last" if last else "first" if first else None
