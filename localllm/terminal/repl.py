"""The conversation in a terminal: read a line, answer it or do what it says, until the user leaves.

Knows keys, commands and rendering; what a turn is, only the chat knows.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import HTML

from localllm.cancel import Cancel
from localllm.errors import Cancelled, LocalLLMError, PromptTooLong
from localllm.session.room import Coming, can_have_room, make_room, needed_tokens, summarise
from localllm.sizes import turns_text
from localllm.terminal import attachments, commands, keys, render, stats_view
from localllm.terminal.chat_ceiling import ChatCeiling
from localllm.terminal.folding import folded
from localllm.terminal.line_settings import keys_unseen
from localllm.terminal.safe import readable, safe
from localllm.terminal.toolbar import toolbar
from localllm.values import Event, TurnEnd, TurnStats, WhenFull

_MIN_COLUMNS = 20  # in a narrower window our lines are folded by the terminal
_FULL_SHARE = 0.8  # of the context, from which it is told
_LEAST_ROOM = 1 / 8  # of the context, for an answer
_THEN: dict[WhenFull, str] = {
    "ask": "you are asked what to do",
    "drop": "the oldest questions are dropped (/set when_full)",
    "summarise": "the model summarises the oldest questions (/set when_full)",
    "stop": "nothing more fits (/set when_full)",
}
_CHOICES: dict[str, WhenFull] = {"drop": "drop", "summarise": "summarise", "neither": "stop"}
_ROOM_HINT = "/clear begins anew, a shorter message may fit, and /set ctx_size N gives more room"
_FILES_HINT = "/file none leaves out what is attached, and /set ctx_size N gives more room"
_CUT_HINT = "/continue makes room and goes on with the answer"
_LIMIT = "cut at max_tokens; /continue goes on"
_ALONE_HINT = "/set ctx_size N gives more room, and /continue then goes on with the answer"
_NOT_KEPT = "the question is not part of the conversation; ↑ brings it back"
_UNCHANGED = "the conversation is as it was"
_TRAINED_HINT = "the model was trained for no larger context; /edit makes the question shorter"
_STOP_HINT = "after /set when_full drop, /continue makes room by dropping the oldest questions"

Cancelling = Callable[[Cancel], AbstractContextManager[None]]


class Repl:
    """One conversation in this terminal.

    ``context`` is what commands may use and change; ``cancelling`` makes a Cancel react to signals, ``leaving`` an
    input line; ``models`` are names to complete; ``notices`` are what others have to tell the user: each is said once,
    and taken away.
    """

    def __init__(
        self,
        context: commands.Context,
        cancelling: Cancelling,
        leaving: keys.Leaving,
        history_file: Path | None,
        models: Callable[[], Sequence[str]] = tuple,
        notices: list[str] | None = None,
    ) -> None:
        self._context = context
        self._chat = context.chat
        self._ceiling = ChatCeiling(context.chat, context.measure)
        self._context.measure = self._ceiling.bound
        self._context.stoppable = self._stoppable
        self._cancelling, self._leaving = cancelling, leaving
        self._told_full = False
        self._editing: str | None = None  # the text of a question that is being changed
        self._notices = [] if notices is None else notices
        self._prompt = keys.new_prompt(history_file, self._say, models, self._toolbar)

    def run(self, typed: str = "") -> int:
        """Talk until the user leaves; returns the exit code. ``typed`` are keys that come before those to be read."""
        keys.type_ahead(self._prompt, typed)
        info = self._chat.engine.info
        self._say(f"{info.name}, context {info.n_ctx:,}. /help shows the commands, Ctrl-D leaves.")
        if not info.chat_template:
            self._say(render.NO_TEMPLATE)
        while True:
            while self._notices:
                self._say(self._notices.pop(0))
            try:
                line = self._read()
            except KeyboardInterrupt:  # takes back what was typed; where nothing was, somebody wants to leave
                if self._editing is not None:
                    self._say("the question stays as it was")
                elif not self._prompt.default_buffer.text:
                    self._say("Ctrl-D or /exit leaves")
                self._editing = None
                continue
            except EOFError:
                return 0
            try:
                self._handle(readable(line))
            except commands.Leave:
                return 0
            except LocalLLMError as error:
                self._say(f"{error.message}; {error.hint}" if error.hint else error.message)

    def _read(self) -> str:
        """A line or a block."""
        mark = HTML("<b>&gt; </b>") if self._context.view.color else "> "
        with self._ceiling.measured_when_quiet(self._prompt.app.invalidate):
            return keys.read(self._prompt, mark, self._leaving, self._editing or "")

    def _handle(self, line: str) -> None:
        editing, self._editing = self._editing is not None, None
        if commands.is_command(line):
            match commands.run(keys.unquoted(line), self._context):
                case commands.Answer(begin, coming):
                    self._answer(begin, coming)
                case commands.Edit(text):
                    self._editing = text
                case said:
                    self._say(said)
        elif (text := keys.unquoted(line).strip()) or self._context.asks_by_itself:
            self._ask(text, instead=editing)

    def _ask(self, text: str, instead: bool) -> None:
        """Send a message with the files that go with it."""
        names, others = attachments.mentioned(text)
        with self._stoppable() as cancel:
            read = [attachments.read(name, cancel) for name in names]
            for file in read:
                self._say(commands.described(self._chat, file, cancel))
        for other in others:
            self._say(f"@{other} is no file here, so it stays text")
        files = list(dict.fromkeys([*self._context.files, *read]))
        template = self._context.template
        question = attachments.with_files(text, files, template)
        coming = Coming(question, replaces_last=instead)
        if self._leaves_little_room(coming):
            self._make_room(coming)
        send = self._chat.instead if instead else self._chat.turn
        if not template:
            self._context.typed[question] = (text, list(self._context.files))
        self._answer(partial(send, question), coming, _NOT_KEPT)
        self._context.files.clear()
        self._context.template = None

    def _answer(
        self, begin: Callable[[Cancel, bool], Iterator[Event]], coming: Coming, without: str = _UNCHANGED
    ) -> None:
        """Answer, and say what is to be said of it; ``without`` of a turn that has no answer."""
        try:
            end = self._show(begin)
        except PromptTooLong as error:
            if not self._make_room(coming):
                if coming.begun_tokens:
                    raise PromptTooLong("the context is full, so the answer cannot go on", self._hint()) from error
                raise PromptTooLong(error.message, _FILES_HINT if self._context.files else _ROOM_HINT) from error
            end = self._show(begin)
        notes = [cut] if (cut := stats_view.ending(end)) else []
        if not (end.message.text or end.message.reasoning):
            notes = ["; ".join([*notes, without])]
        elif end.reason == "stop" and not end.stats.output_tokens:  # of /continue
            notes.append("the model has nothing to add: its answer is finished")
        elif end.reason == "context":
            notes.append(self._hint())
            self._told_full = True
        for note in notes:
            self._say(note)
        self._say(stats_view.stats_line(end, _LIMIT))
        self._tell_when_full(end.stats)
        self._chat.engine.keep(background=True)

    def _show(self, begin: Callable[[Cancel, bool], Iterator[Event]]) -> TurnEnd:
        with self._stoppable() as cancel:
            view = replace(self._context.view, anew=self._chat.anew)
            return render.show(begin(cancel, not view.reasoning), view)

    @contextmanager
    def _stoppable(self) -> Iterator[Cancel]:
        """A block that may take long: a Cancel that Ctrl-C sets, and no keys between our lines."""
        cancel = Cancel()
        with self._cancelling(cancel), keys_unseen():
            yield cancel

    # --- a full context ------------------------------------------------------------------------------------------

    def _hint(self) -> str:
        """How an answer can go on for which the context was too small."""
        if len(self._chat.remembered) > 2:
            return _STOP_HINT if self._context.when_full == "stop" else _CUT_HINT
        return _TRAINED_HINT if self._chat.engine.info.n_ctx_reason == "trained" else _ALONE_HINT

    def _tell_when_full(self, stats: TurnStats) -> None:
        share = stats.context_tokens / self._chat.engine.info.n_ctx
        if share >= _FULL_SHARE and not self._told_full:
            then = _THEN[self._context.when_full]
            self._say(f"the context is {100 * share:.0f} % full (/context shows with what); when it is full, {then}")
        self._told_full = share >= _FULL_SHARE

    def _leaves_little_room(self, coming: Coming) -> bool:
        """Whether an answer would soon be cut: the prompt is put together for it only where a guess says so."""
        engine = self._chat.engine
        most = (1 - _LEAST_ROOM) * engine.info.n_ctx
        with self._stoppable() as cancel:
            guess = len(engine.encode_raw(coming.question, cancel).ids) + self._chat.context_tokens
            return guess > most and needed_tokens(self._chat, coming, cancel) > most

    def _make_room(self, coming: Coming) -> bool:
        """Do what the user wants where the context is full; False where nothing was or could be done."""
        with self._stoppable() as cancel:
            if not (self._chat.remembered and can_have_room(self._chat, coming, cancel)):
                return False
        if self._context.when_full == "ask":
            self._context.when_full = self._asked_what_to_do()
            self._say(
                f"{self._context.when_full} from now on in this chat (/set when_full changes it; "
                "for good: localllm config set when_full)"
            )
        if self._context.when_full == "stop":
            return False
        beginnings = self._chat.beginnings
        summarised = self._context.when_full == "summarise" and self._summarise(coming)
        with self._stoppable() as cancel:
            dropped = make_room(self._chat, coming, cancel)
        if dropped:
            self._say(f"the model is no longer given the oldest {turns_text(dropped)} (/context)")
        if self._chat.beginnings > beginnings:
            self._say("nothing of what was said before is left to it, so a new conversation begins")
        return summarised or dropped > 0

    def _summarise(self, coming: Coming) -> bool:
        """Have the model summarise; False where there is no summary. Raises Cancelled on Ctrl-C."""
        self._say("the context is full; the model summarises the older half of the conversation:")
        before = len(self._chat.remembered)
        with suppress(PromptTooLong):
            if self._show(partial(summarise, self._chat, coming)).reason == "interrupted":
                raise Cancelled("interrupted")
        if gone := (before - len(self._chat.remembered)) // 2:
            self._say(f"this stands for the oldest {turns_text(gone)} now")
            return True
        self._say("there is no whole summary, so the oldest are dropped instead")
        return False

    def _asked_what_to_do(self) -> WhenFull:
        self._say("the context is full. [d]rop the oldest questions, [s]ummarise them, or [n]either?")
        while True:
            try:
                typed = keys.read(self._choice, "d/s/n> ", self._leaving).strip().lower()
            except (KeyboardInterrupt, EOFError):
                raise Cancelled("interrupted") from None
            for word, choice in _CHOICES.items():
                if typed and word.startswith(typed):
                    return choice

    @cached_property
    def _choice(self) -> "PromptSession[str]":
        return PromptSession()

    # --- our own lines -------------------------------------------------------------------------------------------

    def _toolbar(self) -> str:
        chat = self._chat
        ceiling = self._ceiling.tok_s(chat.last.decode_depth) if chat.last else None
        used, width = 0, render.columns(self._context.view.out) - 1
        with suppress(LocalLLMError):  # a template that fails is told with the next question
            used = chat.context_tokens
        return toolbar(chat.engine.info, used, chat.last, ceiling, width)

    def _say(self, text: str) -> None:
        """Lines of our own, told apart from the model's by being dim; folded between words."""
        width = max(_MIN_COLUMNS, render.columns(self._context.view.out))
        shown = "\n".join(folded(line, width) for line in safe(text).split("\n"))
        shown = f"\x1b[2m{shown}\x1b[0m" if self._context.view.color else shown
        print(shown, file=self._context.view.out, flush=True)


def history_path(directory: Path) -> Path | None:
    """A private file for the input history, or None where it cannot be written."""
    path = directory / "chat_history"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NONBLOCK, 0o600))  # a pipe would wait
        return path if path.is_file() else None
    except OSError:
        return None
