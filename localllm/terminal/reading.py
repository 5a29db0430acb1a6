"""The line that tells how much of a long prompt is read. It goes on while a slice is read, by the rate so far.

Knows what the engine tells before each slice, and the clock; does not know what is read.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import TextIO

from localllm.values import Progress

AFTER_S = 0.5  # what takes less needs no line
NOTE_AFTER_S = 1.0  # what takes less needs no reason
_LONG_TOKENS = 512  # to read: a slice; such a prompt has its line at once
_TICK_S = 0.25
_STEADY = 0.7  # of a slice, that goes by the rate; the rest ever slower, as it may take longer than expected


class ReadingLine:
    """One line that is rewritten in place, and then taken away. ``width`` tells the columns there are for it.

    ``anew`` is why all of a conversation has to be read anew, if it has: a line that stays, where that takes long.
    """

    def __init__(self, status: TextIO, enabled: bool, width: Callable[[], int], anew: str = "") -> None:
        self._status, self._enabled, self._width = status, enabled, width
        self._anew = anew
        self._lock = threading.Lock()
        self._begin_s = time.monotonic()
        self._event: Progress | None = None
        self._since_s = 0.0
        self._done = 0.0  # told so far
        self._shown = False
        self._over: threading.Event | None = None  # set for the thread that draws

    def show(self, event: Progress) -> None:
        """From now on ``event`` is how far it is."""
        if not self._enabled:
            return
        with self._lock:
            self._event, self._since_s = event, time.monotonic()
            self._draw()
        if self._over is None:
            self._over = threading.Event()
            threading.Thread(target=self._tick, args=(self._over,), daemon=True).start()

    def clear(self) -> None:
        """Take it away. Costs nothing where there is none: this is called for each token."""
        if self._over is None:
            return
        with self._lock:
            self._over.set()
            self._over = self._event = None
            if self._shown:
                self._write("")
                self._shown = False

    def _tick(self, over: threading.Event) -> None:
        while not over.wait(_TICK_S):
            with self._lock:
                if over.is_set():
                    return
                try:
                    self._draw()
                except (OSError, ValueError):  # the terminal is gone: whoever writes the answer will tell
                    return

    def _draw(self) -> None:
        event, now_s = self._event, time.monotonic()
        if event is None:
            return
        if event.total - event.cached < _LONG_TOKENS and now_s - self._begin_s < AFTER_S:
            return
        mostly_anew = 2 * event.cached < event.total and event.done < event.total
        if self._anew and mostly_anew and now_s - self._begin_s > NOTE_AFTER_S:
            self._write(f"{self._anew}: all of it is read anew\n")
            self._anew = ""
        self._done = max(self._done, done_by(event, now_s - self._since_s))
        self._write(told(event, self._done, now_s - self._begin_s)[: self._width() - 1])  # in one row alone it can go
        self._shown = True

    def _write(self, line: str) -> None:
        self._status.write("\r\x1b[K" + line)
        self._status.flush()


def done_by(event: Progress, elapsed_s: float) -> float:
    """How many tokens have been read so long after ``event``, as far as can be told; fewer than the slice ends with."""
    slice_tokens = event.until - event.done
    if not event.tok_s or slice_tokens <= 0:
        return event.done
    part = elapsed_s * event.tok_s / slice_tokens
    if part > _STEADY:
        part = 1 - (1 - _STEADY) * math.exp(-(part - _STEADY) / (1 - _STEADY))
    return event.done + slice_tokens * part


def told(event: Progress, done: float, elapsed_s: float) -> str:
    """The line. Where no rate is known yet it tells the time so far."""
    percent = 100 * done / max(1, event.total)
    line = f"reading the prompt: {int(done):,} of {event.total:,} tokens ({int(percent)} %)"
    if not event.tok_s:
        return f"{line}, {elapsed_s:.0f} s so far" if elapsed_s >= 1 else line
    left_s = (event.total - done) / event.tok_s
    if left_s <= 0:
        return line
    return f"{line}, {max(1, left_s):.0f} s left" if left_s < 90 else f"{line}, {left_s / 60:.0f} min left"
