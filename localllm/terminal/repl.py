"""The conversation in a terminal: read a line, answer it or do what it says, until the user leaves.

Knows keys, commands and rendering; what a turn is, only the chat knows.
"""

import os
import sys
import termios
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from prompt_toolkit.formatted_text import HTML

from localllm.cancel import Cancel
from localllm.errors import LocalLLMError, PromptTooLong
from localllm.session.chat import Chat
from localllm.terminal import commands, keys, render
from localllm.terminal.safe import readable, safe

_MIN_COLUMNS = 20  # in a narrower window our lines are folded by the terminal
_ROOM_HINT = "/clear begins anew, a shorter message may fit, and localllm chat --ctx-size N gives more room"

Cancelling = Callable[[Cancel], AbstractContextManager[None]]


class Repl:
    """One conversation in this terminal.

    ``switch_model`` loads another model into the chat; ``cancelling`` makes a Cancel react to signals. ``notices`` are
    what others have to tell the user: each is said once, and taken away.
    """

    def __init__(
        self,
        chat: Chat,
        view: render.View,
        switch_model: Callable[[str], None],
        cancelling: Cancelling,
        history_file: Path | None,
        notices: list[str] | None = None,
    ) -> None:
        self._chat = chat
        self._view = view
        self._context = commands.Context(chat, switch_model)
        self._cancelling = cancelling
        self._notices = [] if notices is None else notices
        self._prompt = keys.new_prompt(history_file, self._say)

    def run(self) -> int:
        """Talk until the user leaves; returns the exit code."""
        info = self._chat.engine.info
        self._say(f"{info.name}, context {info.n_ctx:,}. /help shows the commands, Ctrl-D leaves.")
        if not info.chat_template:
            self._say(render.NO_TEMPLATE)
        while True:
            while self._notices:
                self._say(self._notices.pop(0))
            try:
                # Here Ctrl-C is a key. A SIGINT is somebody else's: the user's, in the editor that Ctrl-G opened.
                line = self._prompt.prompt(HTML("<b>&gt; </b>") if self._view.color else "> ", handle_sigint=False)
            except KeyboardInterrupt:  # takes back what was typed; where nothing was, somebody wants to leave
                if not self._prompt.default_buffer.text:
                    self._say("Ctrl-D or /exit leaves")
                continue
            except EOFError:
                return 0
            try:
                self._handle(readable(line))
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
        with self._cancelling(cancel), keys_unseen():
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
        self._chat.engine.keep(background=True)

    def _say(self, text: str) -> None:
        """Lines of our own, told apart from the model's by being dim; folded between words."""
        width = max(_MIN_COLUMNS, render.columns(self._view.out))
        folded = (textwrap.fill(line, width, break_long_words=False) for line in safe(text).split("\n"))
        shown = "\n".join(folded)
        shown = f"\x1b[2m{shown}\x1b[0m" if self._view.color else shown
        print(shown, file=self._view.out, flush=True)


@contextmanager
def line_settings_kept() -> Iterator[None]:
    """Put the terminal's line settings back as they were, whatever changed them.

    An exception of a signal can come while the input line is changing them, where nothing else would.
    """
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def keys_unseen() -> Iterator[None]:
    """Keep what is typed meanwhile from being written between our lines; the next prompt gets it, key by key."""
    with line_settings_kept():
        before = termios.tcgetattr(sys.stdin)
        input_flags, *others, local_flags = before[:4]
        unseen = [input_flags & ~termios.ICRNL, *others, local_flags & ~(termios.ECHO | termios.ICANON), *before[4:]]
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, unseen)
        yield


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
