"""Events -> what stands on the terminal, in the pipe or in the JSON object.

The answer goes to stdout and nothing else does; progress goes to stderr. A renderer never computes and never
asks the engine anything.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, TextIO, assert_never

from localllm.terminal.hyperlinks import opens_links
from localllm.terminal.reading import ReadingLine
from localllm.terminal.safe import one_line, safe
from localllm.values import (
    Begun,
    Color,
    Event,
    Progress,
    Reasoning,
    Text,
    TurnEnd,
)

_DIM, _RESET = "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class View:
    """How to show an answer. ``stream`` False writes it in one piece at its end.

    ``pager``: what is written goes through a pipe, where nothing can be redrawn. ``anew`` is why all of a conversation
    has to be read anew, if it has; told where that takes long.
    """

    out: TextIO
    status: TextIO
    stream: bool = True
    reasoning: bool = False
    color: bool = False
    progress: bool = False
    markdown: bool = False
    pager: bool = False
    anew: str = ""

    @classmethod
    def of_terminal(
        cls,
        *,
        stream: bool = True,
        reasoning: bool = True,
        quiet: bool = False,
        markdown: bool = True,
        color: Color = "auto",
    ) -> "View":
        """What suits the standard streams: reasoning, colour and Markdown only where a person reads them.

        Whoever wants colours in a pipe has a pager behind it, and gets Markdown too.
        """
        interactive = sys.stdout.isatty()
        return cls(
            out=sys.stdout,
            status=sys.stderr,
            stream=stream,
            reasoning=reasoning and interactive,
            color=wants_color(color),
            progress=sys.stderr.isatty() and not quiet,
            markdown=markdown and (color == "always" or (interactive and os.environ.get("TERM") != "dumb")),
            pager=not interactive,
        )

    def load_ahead(self) -> None:
        """Load what showing Markdown takes (0.1 s) while there is something else to wait for."""
        if self.markdown:
            threading.Thread(target=import_module, args=("localllm.terminal.live",), daemon=True).start()


def wants_color(color: Color = "auto") -> bool:
    """Whether stdout gets colours: as said, or else where it is a terminal with colours, but for $NO_COLOR."""
    if color != "auto":
        return color == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of the terminal behind ``stream``; 80 and 24 where there is none, or it does not tell."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except OSError:
        columns = rows = 0
    return columns or 80, rows or 24


def columns(stream: TextIO) -> int:
    """The width in characters of the terminal behind ``stream``; 80 where there is none, or it does not tell."""
    return size(stream)[0]


def show(events: Iterator[Event], view: View) -> TurnEnd:
    """Write an answer as it comes; returns the event that ended it."""
    writer: _Writer | None = None  # until there is something to write: what it takes may still be loading
    begun = Begun("")
    progress = _reading_line(view)
    try:
        for event in events:
            match event:
                case Begun():
                    begun = event
                case Progress():
                    progress.show(event)
                case Reasoning(text):
                    if view.reasoning:
                        progress.clear()
                        writer = writer or _new_writer(view, begun)
                        writer.write(text, dim=True)
                case Text(text):
                    progress.clear()
                    writer = writer or _new_writer(view, begun)
                    writer.write(text)
                case TurnEnd():
                    progress.clear()
                    if writer:
                        writer.finish()
                    return event
                case _:
                    assert_never(event)
    finally:
        progress.clear()
        if writer:
            writer.reset()
    raise RuntimeError("a turn must end with TurnEnd")


def collect(events: Iterator[Event], view: View) -> TurnEnd:
    """Show progress only; returns the event that ended the turn, which holds the whole answer."""
    progress = _reading_line(view)
    try:
        for event in events:
            if isinstance(event, Progress):
                progress.show(event)
            else:
                progress.clear()
            if isinstance(event, TurnEnd):
                return event
    finally:
        progress.clear()
    raise RuntimeError("a turn must end with TurnEnd")


def _reading_line(view: View) -> ReadingLine:
    return ReadingLine(view.status, view.progress, lambda: columns(view.status), view.anew)


def put(text: str, view: View) -> None:
    """Write a finished text as it is, with one line break at its end."""
    writer = _PlainWriter(view)
    writer.write(text)
    writer.finish()


class _Writer(Protocol):
    def write(self, text: str, dim: bool = False) -> None:
        """Take a piece of the answer, or of the reasoning (``dim``)."""

    def finish(self) -> None:
        """Write what is held back, and end the line."""

    def reset(self) -> None:
        """Leave the terminal as it was, whatever happened."""


def _new_writer(view: View, begun: Begun) -> _Writer:
    if not view.markdown:
        return _PlainWriter(view)
    from localllm.terminal.live import MarkdownWriter, Pages, Screen

    if view.pager:
        return MarkdownWriter(Pages(view.out), view.color, view.stream, begun)
    screen = Screen(view.out, lambda: size(view.out))
    return MarkdownWriter(screen, view.color, view.stream, begun, links=opens_links(os.environ))


class _PlainWriter:
    """Writes pieces as they come, or keeps them to the end; ends with exactly one line break."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._held: list[str] = []
        self._dim = False
        self._last = "\n"

    def write(self, text: str, dim: bool = False) -> None:
        text = safe(text)
        if dim != self._dim:
            self._switch(dim)
        if text:
            self._last = text[-1]
            self._put(text)

    def finish(self) -> None:
        self.reset()
        if self._last != "\n":
            self._put("\n")
        if self._held:
            self._view.out.write("".join(self._held))
        self._view.out.flush()

    def reset(self) -> None:
        """Leave the terminal as it was, whatever happened."""
        if self._dim and self._view.color:
            self._put(_RESET)
        self._dim = False

    def _switch(self, dim: bool) -> None:
        if not dim and self._last != "\n":  # the answer begins on its own line
            self._put("\n")
        if self._view.color:
            self._put(_DIM if dim else _RESET)
        self._dim = dim

    def _put(self, text: str) -> None:
        if self._view.stream:
            self._view.out.write(text)
            self._view.out.flush()
        else:
            self._held.append(text)


def shortened(text: str, width: int = 60) -> str:
    """The beginning of a text, in one line."""
    line = one_line(text[: 4 * width])
    return line if len(line) <= width else line[: width - 1] + "…"


NO_TEMPLATE = "this model has no chat template, so it is given a plain transcript; it may be a base model"


def dumps(value: object) -> str:
    """JSON in one line, every control character escaped (C1 too, which ``ensure_ascii=False`` lets through)."""
    return json.dumps(value, ensure_ascii=True)
