"""The input line: what the keys do and when a text is complete. Handlers are thin, the rules pure functions."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, get_app, run_in_terminal
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    PathCompleter,
    get_common_complete_suffix,
)
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.styles import Style

from localllm.errors import UsageError
from localllm.settings import SETTINGS
from localllm.terminal.chat_settings import SETTABLE
from localllm.terminal.commands import COMMANDS
from localllm.terminal.editor import edited

Leaving = Callable[[Callable[[], None]], AbstractContextManager[Sequence[int]]]
"""A block that signals end by calling what it is given; what came of them meanwhile."""

_QUOTES = '"""'
_MENU_ROWS = 8
_MENTION_BEGUN = re.compile(r'(?<!\S)(@"(?=[^"\n]*\Z)|@(?=\S*\Z))(.*)\Z')


def is_complete(text: str) -> bool:
    """True where Enter sends: no block is open and the line does not end in a backslash."""
    if text.lstrip().startswith(_QUOTES):
        return text.count(_QUOTES) >= 2
    return not text.endswith("\\")


def unquoted(text: str) -> str:
    """What is meant by what was typed: without the quotes of a block and the backslashes at line ends."""
    stripped = text.strip()
    if stripped.startswith(_QUOTES) and stripped.endswith(_QUOTES) and len(stripped) >= 2 * len(_QUOTES):
        return stripped[len(_QUOTES) : -len(_QUOTES)].strip("\n")
    return text.replace("\\\n", "\n")


def completions(text: str, models: Callable[[], Sequence[str]]) -> list[tuple[str, str]]:
    """What the word at the end of ``text`` may become, each with its help: names of commands, or of models.

    Files are not among them: the disk is asked for these.
    """
    if not text.startswith("/"):
        return []
    if " " not in text:
        return [(f"/{command.name}", command.help) for command in COMMANDS if command.name.startswith(text[1:])]
    name, _, argument = text[1:].partition(" ")
    match _completed_with(name):
        case "model":
            return [(model, "") for model in models() if model.startswith(argument)]
        case "setting":
            setting, space, value = argument.partition(" ")
            if space:
                words = (*SETTINGS[setting].words, "default") if setting in SETTABLE else ()
                return [(word, "") for word in words if word.startswith(value)]
            return [(name, SETTINGS[name].help) for name in SETTABLE if name.startswith(setting)]
        case "command":
            return [(command.name, command.help) for command in COMMANDS if command.name.startswith(argument)]
    return []


def path_begun(text: str) -> tuple[str, str] | None:
    """The beginning of a path at the end of ``text``, and what stands before it: ``@``, a quote, both, or nothing.

    It is the argument of a command that takes one, or behind an @.
    """
    name, space, argument = text.removeprefix("/").partition(" ")
    if text.startswith("/") and space and _completed_with(name) in ("file", "model"):
        return ('"', argument[1:]) if argument.startswith('"') else ("", argument)
    found = _MENTION_BEGUN.search(text)
    return (found[1], found[2]) if found else None


def path_written(opening: str, path: str) -> str:
    """A path as it is read again behind that ``opening``: in quotes where it must be, closed behind a file."""
    if opening == "@" and any(char.isspace() for char in path):
        opening = '@"'
    return opening + path + ('"' if opening.endswith('"') and not path.endswith("/") else "")


def _completed_with(name: str) -> str:
    return next((c.completes for c in COMMANDS if name in (c.name, *c.aliases)), "")


def new_prompt(
    history_file: Path | None,
    say: Callable[[str], None],
    models: Callable[[], Sequence[str]] = tuple,
    toolbar: Callable[[], str] | None = None,
) -> "PromptSession[str]":
    """The input line with history, completion and keys. ``history_file`` None keeps history in memory.

    ``say`` shows a line above it, where a key could not do its work; ``models`` are names to complete; ``toolbar``
    gives the line under it.
    """
    logging.getLogger("asyncio").disabled = True  # it would complain, at length, of a terminal that is gone
    session: PromptSession[str] = PromptSession(
        history=_History(str(history_file)) if history_file else InMemoryHistory(),
        completer=_Completer(models),
        complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
        key_bindings=_bindings(say),
        multiline=True,
        enable_open_in_editor=False,
        enable_suspend=True,
        prompt_continuation="  ",
        bottom_toolbar=toolbar,
        style=Style.from_dict({"bottom-toolbar": "noreverse dim"}),
    )

    def leave_room(app: Application[str]) -> None:
        """For the menu, while there is or soon will be one; a small window would have room for nothing else."""
        session.reserve_space_for_menu = 1 + min(_MENU_ROWS, app.output.get_size().rows // 3)

    session.app.before_render += leave_room
    return session


def type_ahead(prompt: "PromptSession[str]", typed: str) -> None:
    """Have the next input lines begin with these keys, as the terminal would send them."""
    pressed: list[KeyPress] = []
    parser = Vt100Parser(pressed.append)
    parser.feed_and_flush(typed)
    store_typeahead(prompt.app.input, pressed)


def read(prompt: "PromptSession[str]", mark: AnyFormattedText, leaving: Leaving, default: str = "") -> str:
    """What is typed into the input line. Raises KeyboardInterrupt on Ctrl-C, which is a key, and EOFError on Ctrl-D.

    A SIGINT is somebody else's: the user's, in their editor.
    """
    app = prompt.app

    def end() -> None:
        if app.loop:
            app.loop.call_soon_threadsafe(leave)

    def leave() -> None:
        if app.future and not app.future.done():
            app.exit(exception=EOFError)

    with leaving(end) as received:
        return prompt.prompt(mark, default=default, handle_sigint=False, pre_run=lambda: leave() if received else None)


class _Completer(Completer):
    def __init__(self, models: Callable[[], Sequence[str]]) -> None:
        self._models = models
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        word = text.rpartition(" ")[2]
        for name, help_text in completions(text, self._models):
            yield Completion(name, start_position=-len(word), display_meta=help_text)
        if (begun := path_begun(text)) is None:
            return
        opening, path = begun
        for found in self._paths.get_completions(Document(path), complete_event):
            whole = path + found.text + "/" * found.display_text.endswith("/")
            yield Completion(path_written(opening, whole), -len(opening + path), found.display)


class _History(FileHistory):
    """Goes on in memory where its file can no longer be read or written."""

    def load_history_strings(self) -> Iterable[str]:
        try:
            return super().load_history_strings()
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _bindings(say: Callable[[str], None]) -> KeyBindings:
    bindings = KeyBindings()
    typing = ~is_searching  # in Ctrl-R's search, Enter accepts and Ctrl-G aborts, as everywhere

    @bindings.add("enter", filter=typing)
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @bindings.add("c-j", filter=typing)
    @bindings.add("escape", "enter", filter=typing)
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("tab", filter=typing)
    def _complete(event: KeyPressEvent) -> None:
        """The only candidate at once, though typing fast leaves the menu still to come; else what all have, or it."""
        buffer, state = event.current_buffer, event.current_buffer.complete_state
        if state and state.complete_index is not None:
            buffer.complete_next()
            return
        candidates = [*buffer.completer.get_completions(buffer.document, CompleteEvent(completion_requested=True))]
        if len(candidates) == 1:
            buffer.apply_completion(candidates[0])
        elif common := get_common_complete_suffix(buffer.document, candidates):
            buffer.insert_text(common)
        elif state:
            buffer.complete_next()
        else:
            buffer.start_completion()

    @bindings.add("c-g", filter=typing)
    async def _editor(event: KeyPressEvent) -> None:
        buffer = event.current_buffer

        def edit() -> None:
            try:
                buffer.document = Document(edited(buffer.text))
            except UsageError as error:
                say(f"{error.message}; {error.hint}")

        await run_in_terminal(edit)

    return bindings
