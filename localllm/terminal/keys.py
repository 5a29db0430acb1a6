"""The input line: what the keys do and when a text is complete. Handlers are thin, the rules pure functions."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import is_searching
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from localllm.errors import UsageError
from localllm.terminal.commands import COMMANDS
from localllm.terminal.editor import edited

_QUOTES = '"""'


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


def completions(text: str) -> list[tuple[str, str]]:
    """Names of commands that go on from ``text``, with their help."""
    if not text.startswith("/") or " " in text:
        return []
    return [(f"/{command.name}", command.help) for command in COMMANDS if command.name.startswith(text[1:])]


def new_prompt(history_file: Path | None, say: Callable[[str], None]) -> "PromptSession[str]":
    """The input line with history, completion and keys. ``history_file`` None keeps history in memory.

    ``say`` shows a line above it, where a key could not do its work.
    """
    return PromptSession(
        history=_History(str(history_file)) if history_file else InMemoryHistory(),
        completer=_CommandCompleter(),
        complete_while_typing=True,
        key_bindings=_bindings(say),
        multiline=True,
        enable_open_in_editor=False,
        enable_suspend=True,
        prompt_continuation="  ",
        reserve_space_for_menu=4,
    )


class _CommandCompleter(Completer):
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        text = document.text_before_cursor
        for name, help_text in completions(text):
            yield Completion(name, start_position=-len(text), display_meta=help_text)


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
