"""The conversation in a terminal: read a line, answer it or do what it says, until the user leaves.

Knows keys, commands and rendering; what a turn is, only the chat knows.
"""

import os
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from prompt_toolkit.formatted_text import HTML

from localllm.cancel import Cancel
from localllm.errors import LocalLLMError, PromptTooLong
from localllm.session.chat import Chat
from localllm.terminal import commands, keys, render
from localllm.terminal.safe import safe

_ROOM_HINT = "/clear begins anew, a shorter message may fit, and localllm chat --ctx-size N gives more room"

Cancelling = Callable[[Cancel], AbstractContextManager[None]]


class Repl:
    """One conversation in this terminal.

    ``switch_model`` loads another model into the chat; ``cancelling`` makes a Cancel react to signals.
    """

    def __init__(
        self,
        chat: Chat,
        view: render.View,
        switch_model: Callable[[str], None],
        cancelling: Cancelling,
        history_file: Path | None,
    ) -> None:
        self._chat = chat
        self._view = view
        self._context = commands.Context(chat, switch_model)
        self._cancelling = cancelling
        self._prompt = keys.new_prompt(history_file)

    def run(self) -> int:
        """Talk until the user leaves; returns the exit code."""
        info = self._chat.engine.info
        self._say(f"{info.name}, context {info.n_ctx:,}. /help shows the commands, Ctrl-D leaves.")
        if not info.chat_template:
            self._say(render.NO_TEMPLATE)
        while True:
            try:
                line = self._prompt.prompt(HTML("<b>&gt; </b>") if self._view.color else "> ")
            except KeyboardInterrupt:  # takes back what was typed; where nothing was, somebody wants to leave
                if not self._prompt.default_buffer.text:
                    self._say("Ctrl-D or /exit leaves")
                continue
            except EOFError:
                return 0
            try:
                self._handle(line)
            except commands.Leave:
                return 0
            except LocalLLMError as error:
                self._say(f"{error.message}; {error.hint}" if error.hint else error.message)

    def _handle(self, line: str) -> None:
        if commands.is_command(line):
            self._say(commands.run(line, self._context))
        elif text := keys.unquoted(line).strip():
            self._answer(text)

    def _answer(self, text: str) -> None:
        cancel = Cancel()
        with self._cancelling(cancel), _keys_unseen():
            try:
                end = render.show(self._chat.turn(text, cancel, not self._view.reasoning), self._view)
            except PromptTooLong as error:
                raise PromptTooLong(error.message, _ROOM_HINT) from error
        notes = [cut] if (cut := render.ending(end)) else []
        if not (end.message.text or end.message.reasoning):
            notes.append("the question is not kept")
        elif end.reason == "context":
            notes.append(_ROOM_HINT)
        for note in notes:
            self._say(note)
        self._say(render.stats_line(end, self._chat.engine.info.n_ctx))

    def _say(self, text: str) -> None:
        """A line of our own, told apart from the model's by being dim."""
        shown = safe(text)
        shown = f"\x1b[2m{shown}\x1b[0m" if self._view.color else shown
        print(shown, file=self._view.out, flush=True)


@contextmanager
def _keys_unseen() -> Iterator[None]:
    """Keep what is typed meanwhile from being written into the answer; the next prompt still gets it."""
    before = termios.tcgetattr(sys.stdin)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def history_path(directory: Path) -> Path | None:
    """A private file for the input history, or None where it cannot be written."""
    path = directory / "chat_history"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return None
    return path


def is_terminal() -> bool:
    """True where a person can type and read here."""
    return bool(sys.stdin and sys.stdin.isatty() and sys.stdout.isatty())
