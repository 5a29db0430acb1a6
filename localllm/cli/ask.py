"""``localllm ask``: one prompt, one answer, made for pipes and scripts."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from localllm.cancel import Cancel
from localllm.cli import going_on, options, structured
from localllm.cli.answers import Form, exit_code, report, tell, write, write_json
from localllm.cli.conversing import Start, converse, use_terminal
from localllm.cli.first_run import choose_default
from localllm.cli.signals import cancelling
from localllm.cli.template import Param, Template, filled_template
from localllm.errors import PromptTooLong, UsageError
from localllm.settings import SETTINGS
from localllm.terminal.inputs import attached_text
from localllm.terminal.safe import readable
from localllm.values import Constraint, Message, ModelInfo, Prompt, Sampling

if TYPE_CHECKING:
    from localllm.engine.engine import Engine
    from localllm.session.extract import Which
    from localllm.session.overflow import Fitted, Part


app = typer.Typer(rich_markup_mode=None)


@app.command(cls=options.SettingsCommand)
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
    continue_: options.Continue = False,
    cid: options.Cid = None,
    log: options.Log = True,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Go on as a chat afterwards, in the terminal.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without chat template.")] = False,
    schema: structured.Schema = None,
    choice: structured.Choice = None,
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
    settings = options.settings_from(ctx_size, kv, gpu_layers, threads, draft, exact, cache)
    SETTINGS["timeout"].check(timeout)
    cancel = Cancel(timeout)
    waiting = tell if sys.stderr.isatty() and not quiet else _nothing
    constraint = structured.constraint_from(schema, choice, stop, cancel, waiting)
    which = _which(extract, extract_last, None if constraint else filled.template.extract)
    _check_together(raw, interactive, continue_ or cid is not None, json, which, constraint)
    attached = attached_text(file or (), cancel, waiting)
    request = readable(" ".join(words or ()))
    if filled.needs_input and not (attached.strip() or request.strip()):
        if template:
            raise UsageError(f"there is no text for template {template!r}", "pipe it in, or give -f FILE or a prompt")
        raise UsageError("there is nothing to ask", 'give a prompt, as in: localllm ask "Name three colours."')
    before = going_on.resumed(continue_, cid)
    model = going_on.model_for(before, model if options.given("model") else None) or filled.model or model
    if not options.given("system"):
        system = before.summary.system if before else filled.system or system
    system = readable(system)
    if interactive:
        use_terminal()

    from localllm.app import locate, open_engine
    from localllm.terminal.line_settings import is_terminal, keys_unseen
    from localllm.terminal.progress import download_progress
    from localllm.terminal.render import View

    choose_default(model, quiet=quiet, may_ask=timeout is None)
    view = View.of_terminal(stream=stream, reasoning=not hide_reasoning, quiet=quiet, markdown=markdown and not json)
    form = Form(view, json, which, constraint)
    view.load_ahead()
    with cancelling(cancel), keys_unseen(for_us=interactive) if is_terminal() else nullcontext():
        with download_progress(quiet) as on_download:
            located = locate(model, on_download, cancel)
            engine = open_engine(located, settings, on_download, cancel)
        said = engine.believed(before.messages) if before else []
        question = partial(filled.question, request=request)
        fitted = _fit(engine, system, said, attached, question, raw, choose(engine.sampling), on_overflow, cancel)
        has_wrong_bytes = any("\ufffd" in text for text in (system, attached, request))
        for note in _notes(fitted, on_overflow, engine.info, raw, has_wrong_bytes) if not quiet else ():
            tell(note)
        events = engine.reply(fitted.prompt, choose(engine.sampling), cancel, form.hold_unopened, constraint=constraint)
        end = write(events, form)
    recorder = going_on.recorder(before, _nothing if quiet else tell)
    if end.message.text or end.message.reasoning:
        said = [*said, Message("user", question(fitted.text)), end.message]
        if log and not raw:
            with suppress(KeyboardInterrupt):  # the answer is out
                names = ", ".join(Path(name).name for name in file or () if name != "-")
                recorder.keep(said, system, engine.info.reference, request or names or fitted.text)
    if json:
        write_json(end, form, engine.info.name, fitted.dropped_tokens, recorder.id if log and not raw else None)
    if not quiet:
        report(end, form, engine.info, usage, which if extract or extract_last else None)
    if interactive:
        return converse(Start(located, engine, settings, choose, system, said, [], recorder if log else None, view))
    recorder.close()
    if end.reason not in ("timeout", "interrupted"):  # these want an end at once
        with suppress(KeyboardInterrupt):  # the answer is out: only the cache loses something
            engine.keep()
    return exit_code(end, form)


def _fit(
    engine: "Engine",
    system: str,
    said: Sequence[Message],
    attached: str,
    question: Callable[[str], str],
    raw: bool,
    sampling: Sampling,
    drop: "Part | None",
    cancel: Cancel,
) -> "Fitted":
    """The prompt, with the attached text first: it is what costs to read, and questions about it can share it."""
    from localllm.session.overflow import fit

    def encode(text: str) -> Prompt:
        asked = question(text)
        if raw:
            return engine.encode_raw("\n\n".join(part for part in (system, asked) if part), cancel)
        messages = [Message("system", system)] if system else []
        return engine.encode([*messages, *said, Message("user", asked)], cancel)

    n_ctx = engine.info.n_ctx
    room = n_ctx // 4
    try:
        return fit(attached, encode, n_ctx, min(sampling.max_tokens or room, room), drop)
    except PromptTooLong as error:
        if not said:
            raise
        hint = f"{error.hint}; chat -c makes room in a conversation, and without -c a new one begins"
        raise PromptTooLong(error.message, hint) from None


def _notes(fitted: "Fitted", part: str | None, info: ModelInfo, raw: bool, has_wrong_bytes: bool) -> Iterator[str]:
    """What must be known before the answer: nothing is changed silently."""
    from localllm.terminal.render import NO_TEMPLATE

    if has_wrong_bytes:
        yield "the prompt holds bytes that are no UTF-8; each reads as \ufffd"
    if fitted.dropped_tokens:
        yield f"dropped the {part} of the attached text: {fitted.dropped_tokens:,} of {fitted.total_tokens:,} tokens"
    if not (info.chat_template or raw):
        yield f"{NO_TEMPLATE} (--raw continues your text as it is)"


def _check_together(
    raw: bool, interactive: bool, goes_on: bool, json: bool, which: "Which | None", constraint: Constraint | None
) -> None:
    """Raise UsageError for options that make no sense together."""
    if raw and goes_on:
        raise UsageError("--raw knows no conversation to go on with", "leave out --raw, or -c and --cid")
    if interactive and (raw or json or which or constraint):
        raise UsageError("-i shows answers to a person", "leave out --raw, --json, -x, --xl, --schema and --choice")
    if constraint and which:
        raise UsageError("-x and --xl look for code, --schema and --choice have none", "leave one of them out")


def _which(first: bool | None, last: bool, by_template: "Which | None") -> "Which | None":
    """The code block to print, if not the whole answer. Raises UsageError where both are asked for."""
    if first and last:
        raise UsageError("-x prints the first code block, --xl the last", "give one of them")
    if first is None and not last:
        return by_template
    return "last" if last else "first" if first else None


def _nothing(_: str) -> None:
    pass
