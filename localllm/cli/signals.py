"""Signals that ask a process to end -> a Cancel flag for as long as a block runs, an exception elsewhere.

Whatever they are, the terminal is put back first. Those that report a crash (SIGSEGV, SIGABRT, …) cannot be
handled here: the shell puts the terminal back after them, as after SIGKILL.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from localllm.cancel import Cancel
from localllm.errors import EXIT_CODES

_ENDING = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU),
)


def interrupt_on_signals() -> None:
    """Let each signal that asks to end raise KeyboardInterrupt, as Ctrl-C does; those that are ignored stay so."""
    for number in _heeded():
        signal.signal(number, signal.default_int_handler)


def leave_on_signals() -> None:
    """For a conversation: they raise SystemExit, which no turn holds up; but Ctrl-C is for the block that runs.

    Between blocks it means nothing: it may be the second one, for an answer that the first has stopped already.
    """
    for number in _heeded():
        signal.signal(number, _nothing if number == signal.SIGINT else _leave)


@contextmanager
def cancelling(cancel: Cancel) -> Iterator[None]:
    """Set ``cancel`` on a signal that asks to end.

    Handlers must not raise here: an exception inside one of llama.cpp's callbacks would be swallowed. Where the
    signal means to leave (``leave_on_signals``), that happens after the block.
    """
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        cancel.set()
        received.append(number)

    before = {number: signal.signal(number, stop) for number in _heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if any(before[signal.Signals(number)] is _leave for number in received):
            _leave(received[0], None)


@contextmanager
def leaving(end: Callable[[], None]) -> Iterator[Sequence[int]]:
    """Call ``end`` on a signal that means to leave (``leave_on_signals``), which happens after the block.

    For input lines: an exception in the midst of an event loop can get lost, or leave warnings behind. Yields the
    signals that came.
    """
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        end()

    held = [number for number in _heeded() if signal.getsignal(number) is _leave]
    for number in held:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number in held:
            signal.signal(number, _leave)
        if received:
            _leave(received[0], None)


def _heeded() -> list[signal.Signals]:
    return [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_CODES["interrupted"])


def _nothing(_signal: int, _frame: FrameType | None) -> None:
    pass
