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
    """Set ``cancel`` on SIGINT and SIGTERM. A second Ctrl-C is no longer patient: it raises KeyboardInterrupt.

    Where SIGTERM means to leave (``leave_on_termination``), that happens after the block.
    """
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        cancel.set()
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGTERM in received and before[signal.SIGTERM] is _leave:
        _leave(signal.SIGTERM, None)
