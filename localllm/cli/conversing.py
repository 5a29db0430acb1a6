"""A conversation in the terminal, however it begins: loading models for it, keeping it, leaving it."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from localllm.cancel import Cancel
from localllm.cli.signals import cancelling, leave_on_signals, leaving
from localllm.config import Settings, data_dir
from localllm.errors import UsageError
from localllm.values import Message, Sampling, WhenFull

if TYPE_CHECKING:
    from localllm.app import Located
    from localllm.engine.engine import Engine
    from localllm.here import Bound
    from localllm.session.chat import Chat
    from localllm.session.recording import Recorder
    from localllm.session.templates import Filled
    from localllm.terminal.attachments import Attachment
    from localllm.terminal.commands import Context
    from localllm.terminal.render import View


@dataclass(frozen=True, slots=True)
class Start:
    """What a conversation begins with. ``choose`` puts what the user chose over a model's own sampling.

    ``recorder`` keeps what is said, if anything does; ``notices`` are told to the user; ``changed`` is why what was
    ``said`` has to be read anew. ``typed`` are keys for the first input line, ``files`` and ``template`` are for the
    first message.
    """

    located: "Located"
    engine: "Engine"
    settings: Settings
    choose: Callable[[Sampling], Sampling]
    system: str
    said: Sequence[Message]
    notices: list[str]
    recorder: "Recorder | None"
    view: "View"
    when_full: WhenFull = "ask"
    changed: str = ""
    typed: str = ""
    files: Sequence["Attachment"] = ()
    template: "Filled | None" = None


def find(reference: str | None) -> "Located":
    """Locate a model, fetching it where it is missing. Raises what ``app.locate`` raises."""
    from localllm.app import locate
    from localllm.terminal.line_settings import keys_unseen
    from localllm.terminal.progress import download_progress

    cancel = Cancel()
    with cancelling(cancel), keys_unseen(), download_progress() as on_download:
        located = locate(reference, on_download, cancel)
    cancel.check()
    return located


def load(located: "Located", settings: Settings) -> "Engine":
    """Load a model. Raises what ``app.open_engine`` raises."""
    from localllm.app import open_engine
    from localllm.terminal.line_settings import keys_unseen

    cancel = Cancel()
    with cancelling(cancel), keys_unseen():
        engine = open_engine(located, settings, cancel=cancel)
    if cancel():  # it came when all was loaded
        engine.close()
    cancel.check()
    return engine


class _Loaded:
    """The model of a chat, in whose place another one can be loaded, or the same with other runtime settings."""

    def __init__(self, chat: "Chat", located: "Located", settings: Settings) -> None:
        self._chat, self._located, self._settings = chat, located, settings

    def switch(self, reference: str) -> None:
        """Load another model. Raises what loading raises; a wrong name or a bad file changes nothing."""
        wanted = find(reference)
        self._chat.switch(lambda: load(wanted, self._settings), self._load)
        self._located = wanted

    def reload(self, changes: dict[str, object]) -> Settings:
        """Load it with other settings, if any are; returns all. Raises what loading raises, and changes nothing."""
        wanted = replace(self._settings, **changes)  # type: ignore[arg-type]
        if changes:
            self._chat.switch(lambda: load(self._located, wanted), self._load, same_model=True)
        self._settings = wanted
        return wanted

    def bound(self) -> "Bound":
        """What memory allows it. Raises what ``here.bound`` raises."""
        from localllm.here import bound

        return bound(self._located.model, self._chat.engine.info)

    def _load(self) -> "Engine":
        return load(self._located, self._settings)


def converse(start: Start) -> int:
    """Talk until the user leaves; returns the exit code. Frees the model."""
    from localllm.app import model_names
    from localllm.session.chat import Chat
    from localllm.terminal.commands import Context
    from localllm.terminal.line_settings import keys_unseen
    from localllm.terminal.repl import Repl, history_path

    chat = Chat(
        start.engine,
        lambda engine: start.choose(engine.sampling),
        start.system,
        start.said,
        start.recorder or (lambda _: None),
    )
    chat.anew = start.changed
    loaded = _Loaded(chat, start.located, start.settings)
    try:
        leave_on_signals()
        with keys_unseen():
            history = history_path(data_dir()) if start.recorder else None
            context = Context(
                *(chat, start.view, loaded.switch, loaded.reload, loaded.bound, start.when_full),
                files=[*start.files],
                template=start.template,
            )
            start.notices.extend(_prepared(context))
            return Repl(context, cancelling, leaving, history, model_names, start.notices).run(start.typed)
    finally:
        if start.recorder:
            start.recorder.close()
        chat.engine.close()


def _prepared(context: "Context") -> Iterator[str]:
    """What the first message is about to have beside what will be typed."""
    from localllm.terminal.commands import described

    with context.stoppable() as cancel:
        yield from (f"{described(context.chat, file, cancel)}; goes with your first message" for file in context.files)
    if context.template:
        enter = "; Enter alone sends it" if context.asks_by_itself else ""
        yield f"template {context.template.template.name} goes around your first message{enter}"


def use_terminal() -> None:
    """Read keys from the terminal from now on, whatever stdin is, or was. Raises UsageError without one."""
    try:
        if sys.stdin is None or not sys.stdin.isatty():
            terminal = os.open("/dev/tty", os.O_RDWR)
            if terminal != 0:  # as it is where stdin was closed
                os.dup2(terminal, 0)
                os.close(terminal)
            sys.stdin = open(0, encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115  (never closed)
        if sys.stdout.isatty():
            return
    except OSError:
        pass
    raise UsageError("-i needs a terminal to go on in", "leave it out in scripts")
