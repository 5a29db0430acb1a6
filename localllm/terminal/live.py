"""An answer in Markdown while it comes: what is finished is written once, what is open is redrawn below it.

Knows the rows of the screen and when to draw them; what they say, ``markdown`` and ``blocks`` know. Nothing but
finished rows ever scrolls off: of an open block that is higher than the screen only the end is shown, and all of it
is written when it is finished. Rows are one cell narrower than the screen, since terminals differ in what they do
when its last column is written.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import TextIO

from localllm.terminal.blocks import Block, Blocks
from localllm.terminal.line_settings import is_terminal, line_settings_kept
from localllm.terminal.markdown import Page, Row
from localllm.terminal.safe import safe
from localllm.values import Begun

_UP, _ERASE_LINE, _ERASE_BELOW = "\x1b[{}A", "\x1b[K", "\x1b[J"
_NO_FOLDING, _FOLDING = "\x1b[?7l", "\x1b[?7h"  # where a terminal takes a character to be wider than we do
_HOLD, _SHOW = "\x1b[?2026h", "\x1b[?2026l"  # all at once, in terminals that can
_INTERVAL_S = 0.05
_DRAWING_SHARE = 1 / 40  # of the time, at most
_REASONING_ROWS = 10  # what goes away again should not fill the screen
_NOTHING = Begun("")


class Screen:
    """The rows at the end of a terminal's output: finished ones, and below them open ones that can be redrawn.

    ``size`` gives columns and rows. It is asked at each drawing, so no signal is needed to notice a new one.
    """

    def __init__(self, out: TextIO, size: Callable[[], tuple[int, int]]) -> None:
        self._out, self._size = out, size
        self._columns, self._rows = size()
        self._open: list[Row] = []

    @property
    def columns(self) -> int:
        """The cells that a row may take."""
        return max(1, self._columns - 1)

    def look(self) -> None:
        """Take note of the size that the terminal has now."""
        columns, rows = self._size()
        if columns != self._columns:
            self._open = self._refolded(columns)
        self._columns, self._rows = columns, rows

    def draw(self, finished: list[Row], opened: list[Row]) -> None:
        """Put ``finished`` where the open rows are, and ``opened`` below; both may be more than the screen holds."""
        opened = opened[-max(1, self._rows - 1) :]
        kept = 0 if finished else self._kept(opened)
        if kept == len(opened) == len(self._open) and not finished:
            return
        # Erased before and not after: tmux takes what is erased behind a text for blanks, and folds them on a resize.
        parts = [_HOLD, self._to_row(kept), *(f"{_ERASE_LINE}{row.text}\r\n" for row in finished), _NO_FOLDING]
        parts += ["\r\n".join(f"{_ERASE_LINE}{row.text}" for row in opened[kept:]), _FOLDING, _ERASE_BELOW, _SHOW]
        self._out.write("".join(parts))
        self._out.flush()
        self._open = opened

    def _kept(self, opened: list[Row]) -> int:
        """How many of the open rows can stay as they are; the last one is where the cursor must come to stand."""
        same = 0
        while same < min(len(opened), len(self._open)) and opened[same] == self._open[same]:
            same += 1
        return (
            same if same == len(opened) == len(self._open) else max(0, min(same, len(opened) - 1, len(self._open) - 1))
        )

    def _to_row(self, index: int) -> str:
        """From the end of the open rows to the beginning of one of them."""
        up = min(len(self._open) - 1 - index, self._rows - 1)
        return "\r" + (_UP.format(up) if up > 0 else "")

    def _refolded(self, columns: int) -> list[Row]:
        """The open rows as the terminal shows them after its width has changed: most fold what has become too long."""
        if not _folds_again():
            return self._open
        return [Row("", 0) for row in self._open for _ in range(max(1, -(-row.cells // columns)))]


class Pages:
    """The rows of a file, or of a pipe to a pager: what is written there stays, so only finished ones are."""

    columns = 80

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def look(self) -> None:
        """Do nothing: there is no size that could change."""

    def draw(self, finished: list[Row], _opened: list[Row]) -> None:
        """Write ``finished``."""
        self._out.write("".join(f"{row.text}\n" for row in finished))
        self._out.flush()


def _folds_again() -> bool:
    """False for the terminals that cut rows when they get narrower, or leave them as they are."""
    term = os.environ.get("TERM", "")
    return (
        "XTERM_VERSION" not in os.environ
        and term != "linux"
        and (not term.startswith("screen") or "TMUX" in os.environ)
    )


class _Stops:
    """Ctrl-Z while there are rows to redraw: noted at once, heeded where nothing is half drawn.

    Only the main thread may change how a signal is handled; where it is ignored, or somebody else's, it stays so.
    """

    def __init__(self) -> None:
        self.wanted = False
        is_main = threading.current_thread() is threading.main_thread()
        self._ours = is_main and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL
        if self._ours:
            signal.signal(signal.SIGTSTP, self._note)

    def heed(self) -> None:
        """Stop this process, where that is wanted; returns when it goes on, with the terminal set as it was."""
        if self.wanted:
            self.wanted = False
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            with line_settings_kept() if is_terminal() else nullcontext():  # a shell may leave its own
                signal.raise_signal(signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, self._note)

    def close(self) -> None:
        """Leave Ctrl-Z to the system again."""
        self.heed()
        if self._ours:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            self._ours = False

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.wanted = True


def _shared(shown: list[Row], rows: list[Row]) -> int:
    """With how many rows both begin."""
    return next((at for at, (a, b) in enumerate(zip(shown, rows, strict=False)) if a != b), min(len(shown), len(rows)))


class MarkdownWriter:
    """Takes the pieces of an answer and of its reasoning as they come; ``finish`` when there are no more.

    ``draws`` False waits for the end. ``clock`` gives seconds. An answer that was ``begun`` before goes on with the
    first row that is not what was shown then: it is not drawn again, but its text says how to read what comes.
    ``color`` and ``links`` are those of ``Page``.
    """

    def __init__(
        self,
        screen: Screen | Pages,
        color: bool = True,
        draws: bool = True,
        begun: Begun = _NOTHING,
        clock: Callable[[], float] = time.monotonic,
        links: bool = False,
    ) -> None:
        self._screen, self._page, self._draws, self._clock = screen, Page(color, links), draws, clock
        self._blocks = Blocks()
        self._stops = _Stops()
        self._is_first = True  # no block was finished yet
        self._next_s = 0.0
        self._reasoning: list[str] = []
        self._reasoning_s: float | None = None  # when it began
        self._thought_line = safe(begun.reasoning).rpartition("\n")[2]  # on which thinking goes on
        self._thought_before = bool(begun.reasoning)
        self._shown = self._shown_before(safe(begun.text))

    def write(self, text: str, dim: bool = False) -> None:
        """Take a piece; ``dim`` for reasoning. Draws if that is due."""
        text = safe(text)
        if dim:
            self._reasoning_s = self._clock() if self._reasoning_s is None else self._reasoning_s
            self._reasoning.append(text)
        elif text:
            if self._reasoning:
                self._fold()
            self._blocks.feed(text)
        if self._stops.wanted:
            self._stop()
        elif self._draws and (now_s := self._clock()) >= self._next_s:
            self._draw()
            end_s = self._clock()
            self._next_s = end_s + max(_INTERVAL_S, (end_s - now_s) / _DRAWING_SHARE)

    def finish(self) -> None:
        """Write what is open, and leave the cursor on a row of its own. Does nothing a second time."""
        self._screen.look()
        if self._reasoning:  # there is no answer, so it is all there is
            self._screen.draw(self._thoughts("".join(self._reasoning)), [])
            self._reasoning = []
        finished = self._rows(self._blocks.finished(), True)
        self._screen.draw(self._unseen(finished + self._rows(self._blocks.rest(), True), [])[0], [])
        self._blocks = Blocks()
        self._stops.close()

    reset = finish  # an answer that fails in the middle loses nothing either

    def _stop(self) -> None:
        """Be stopped with no open rows on the screen: what the shell prints comes behind them, and they behind that."""
        self._screen.look()
        self._screen.draw([], [])
        self._stops.heed()
        if self._draws:
            self._draw()

    def _draw(self) -> None:
        self._screen.look()
        if self._reasoning:
            self._screen.draw([], self._thought())
            return
        finished = self._rows(self._blocks.finished(), True)
        self._screen.draw(*self._unseen(finished, self._rows(self._blocks.rest(), False)))

    def _rows(self, blocks: list[Block], are_finished: bool) -> list[Row]:
        rows: list[Row] = []
        for block in blocks:
            if not (block.joined or (self._is_first and not rows)):
                rows.append(Row("", 0))
            rows += self._page.rows(block.tokens, self._screen.columns)
        if are_finished and blocks:
            self._is_first = False
        return rows

    def _shown_before(self, text: str) -> list[Row]:
        """Take what there was of an answer; returns the rows of its open end, as all before stays as it was shown."""
        self._blocks.feed(text)
        self._is_first = not self._blocks.finished()
        return self._rows(self._blocks.rest(), False)

    def _unseen(self, finished: list[Row], opened: list[Row]) -> tuple[list[Row], list[Row]]:
        """Those that were not shown when the answer was begun; what is open may still turn out to be other than it."""
        same = _shared(self._shown, finished + opened)
        self._shown = self._shown[len(finished) :] if same >= len(finished) else []
        return finished[same:], opened[max(0, same - len(finished)) :]

    def _thoughts(self, text: str) -> list[Row]:
        """The rows of reasoning that are not as they were shown before."""
        rows, shown = (
            self._page.dim(thought.strip("\n"), self._screen.columns) if thought else []
            for thought in (self._thought_line + text, self._thought_line)
        )
        return rows[_shared(shown, rows) :]

    def _thought(self) -> list[Row]:
        """The end of the reasoning; whole lines, so that the rows stay as they are while more is added."""
        text = "".join(self._reasoning)
        room = _REASONING_ROWS * self._screen.columns
        self._reasoning = [text]
        start = max(0, len(text) // room - 1) * room
        rows = self._page.dim(text[start:].strip("\n"), self._screen.columns) if start else self._thoughts(text)
        return rows[-_REASONING_ROWS:]

    def _fold(self) -> None:
        words = len("".join(self._reasoning).split())
        duration_s = self._clock() - (self._reasoning_s or 0.0)
        self._reasoning = []
        self._screen.look()
        more = " more" if self._thought_before else ""
        told = f"thought for {duration_s:.1f} s{more}, {words:,} {'word' if words == 1 else 'words'}"
        self._screen.draw(self._page.dim(told, self._screen.columns), [])
