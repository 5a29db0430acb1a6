"""Ctrl-C and SIGTERM -> a Cancel flag, for as long as a block runs."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from localllm.cancel import Cancel
from localllm.errors import EXIT_CODES


def leave_on_termination() -> None:
    """Turn SIGTERM and SIGHUP into SystemExit, so that whatever has changed the terminal puts it back first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_CODES["interrupted"])


@contextmanager
def cancelling(cancel: Cancel) -> Iterator[None]:
    """Set ``cancel`` on SIGINT, SIGTERM and SIGHUP, except where they are ignored (nohup).

    Handlers must not raise here: an exception inside one of llama.cpp's callbacks would be swallowed. Where SIGTERM
    or SIGHUP means to leave (``leave_on_termination``), that happens after the block.
    """
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        cancel.set()
        received.append(number)

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: handler for number in wanted if (handler := signal.getsignal(number)) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if any(before[signal.Signals(number)] is _leave for number in received):
        _leave(received[0], None)
