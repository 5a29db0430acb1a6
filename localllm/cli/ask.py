"""``localllm ask``: one prompt, one answer, made for pipes and scripts."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
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
from localllm.config import Settings
from localllm.errors import PromptTooLong, UsageError
from localllm.terminal.inputs import attached_text
from localllm.terminal.safe import readable
from localllm.values import Constraint, Message, ModelInfo, Prompt, Sampling

if TYPE_CHECKING:
    from localllm.app import Located
    from localllm.engine.engine import Engine
    from localllm.session.extract import Which
    from localllm.session.overflow import Fitted, Part
    from localllm.session.templates import Filled


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
    color: options.Color = "auto",
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
    filled = filled_template(template, param or ())
    choose = options.sampling_from(
        temp, top_p, top_k, min_p, repeat_penalty, seed, max_tokens, stop, template=filled.sampling
    )
    settings = options.settings_from(ctx_size, kv, gpu_layers, threads, draft, exact, cache, log)
    options.check("timeout", timeout)
    cancel = Cancel(timeout)
    told = _nothing if quiet else tell
    waiting = told if sys.stderr.isatty() else _nothing
    constraint = structured.constraint_from(schema, choice, stop, cancel, waiting)
    which = _which(extract, extract_last, None if constraint else filled.template.extract)
    _check_together(raw, interactive, continue_ or cid is not None, json, which, constraint)
    attached = attached_text(file or (), cancel, waiting)
    request = readable(" ".join(words or ()))
    if filled.needs_input and not (attached.strip() or request.strip()):
        raise _nothing_to_ask(template)
    before = going_on.resumed(continue_, cid)
    model = going_on.model_for(before, model if options.given("model") else None) or filled.model or model
    if not options.given("system"):
        system = before.summary.system if before else filled.system or system
    question = _Question(filled, attached, request, readable(system), raw, on_overflow)
    if interactive:
        use_terminal()

    from localllm.terminal.line_settings import is_terminal, keys_unseen
    from localllm.terminal.render import View

    choose_default(model, quiet=quiet, may_ask=timeout is None)
    view = View.of_terminal(
        stream=stream, reasoning=not hide_reasoning, quiet=quiet, markdown=markdown and not json, color=color
    )
    form = Form(view, json, which, constraint)
    view.load_ahead()
    with cancelling(cancel), keys_unseen(for_us=interactive) if is_terminal() else nullcontext():
        located, engine = _opened(model, settings, quiet, cancel)
        said = engine.believed(before.messages) if before else []
        sampling = choose(engine.sampling)
        fitted = question.fitted(engine, said, sampling, cancel)
        sampling = filled.with_room_to_reason(sampling, fitted.prompt.reasoning)
        for note in question.notes(fitted, engine.info):
            told(note)
        changed = going_on.changed(before, question.system, engine.info.reference)
        form = replace(form, view=replace(view, anew=changed))
        end = write(engine.reply(fitted.prompt, sampling, cancel, form.hold_unopened, constraint=constraint), form)
    recorder = going_on.recorder(before, told) if log and not raw else None
    if end.message.text or end.message.reasoning:
        said = [*said, question.message(fitted.text), end.message]
        names = ", ".join(Path(name).name for name in file or () if name != "-")
        with suppress(KeyboardInterrupt):  # the answer is out
            if recorder:
                recorder.keep(said, question.system, engine.info.reference, request or names or fitted.text)
    if json:
        write_json(end, form, engine.info.name, fitted.dropped_tokens, recorder.id if recorder else None)
    if not quiet:
        report(end, form, engine.info, usage, which if extract or extract_last else None)
    if interactive:
        return converse(Start(located, engine, settings, choose, question.system, said, [], recorder, view))
    if recorder:
        recorder.close()
    with suppress(KeyboardInterrupt):  # the answer is out: only the cache loses something
        if end.reason not in ("timeout", "interrupted"):  # these want an end at once
            engine.keep()
    return exit_code(end, form)


def _opened(model: str | None, settings: Settings, quiet: bool, cancel: Cancel) -> "tuple[Located, Engine]":
    """Fetch the model where it is missing, and load it. Raises what ``app.locate`` and ``app.open_engine`` raise."""
    from localllm.app import locate, open_engine
    from localllm.terminal.progress import download_progress

    with download_progress(quiet) as on_download:
        located = locate(model, on_download, cancel)
        return located, open_engine(located, settings, on_download, cancel)


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked: a template with what is piped, attached and requested, behind a system prompt ("" is none).

    ``drop`` is the part of the attached text that may go where all of it is too long; ``raw`` is without chat template.
    """

    filled: "Filled"
    attached: str
    request: str
    system: str
    raw: bool
    drop: "Part | None"

    def message(self, attached: str) -> Message:
        """With as much of the attached text as there is room for."""
        return Message("user", self.filled.question(attached, self.request))

    def fitted(self, engine: "Engine", said: Sequence[Message], sampling: Sampling, cancel: Cancel) -> "Fitted":
        """The prompt, with the attached text first: it is what costs to read, and questions about it can share it.

        Raises PromptTooLong.
        """
        from localllm.session.overflow import fit

        def encode(attached: str) -> Prompt:
            asked = self.message(attached)
            if self.raw:
                return engine.encode_raw("\n\n".join(part for part in (self.system, asked.text) if part), cancel)
            system = [Message("system", self.system)] if self.system else []
            return engine.encode([*system, *said, asked], cancel)

        n_ctx = engine.info.n_ctx
        room = n_ctx // 4
        try:
            return fit(self.attached, encode, n_ctx, min(sampling.max_tokens or room, room), self.drop)
        except PromptTooLong as error:
            if not said:
                raise
            hint = f"{error.hint}; chat -c makes room in a conversation, and without -c a new one begins"
            raise PromptTooLong(error.message, hint) from None

    def notes(self, fitted: "Fitted", info: ModelInfo) -> Iterator[str]:
        """What must be known before the answer: nothing is changed silently."""
        from localllm.terminal.render import NO_TEMPLATE

        dropped, total = fitted.dropped_tokens, fitted.total_tokens
        if any("\ufffd" in text for text in (self.system, self.attached, self.request)):
            yield "the prompt holds bytes that are no UTF-8; each reads as \ufffd"
        if dropped:
            yield f"dropped the {self.drop} of the attached text: {dropped:,} of {total:,} tokens"
        if not (info.chat_template or self.raw):
            yield f"{NO_TEMPLATE} (--raw continues your text as it is)"


def _nothing_to_ask(template: str | None) -> UsageError:
    if template:
        return UsageError(f"there is no text for template {template!r}", "pipe it in, or give -f FILE or a prompt")
    return UsageError("there is nothing to ask", 'give a prompt, as in: localllm ask "Name three colours."')


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
