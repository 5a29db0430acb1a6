"""The terminal's line settings while somebody types into it and nobody reads. Knows no keys and no prompt."""

import os
import select
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress


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
            _set(before)


@contextmanager
def keys_unseen(for_us: bool = True) -> Iterator[None]:
    """Keep what is typed meanwhile from being written between our lines; who reads next gets it, key by key.

    ``for_us``: that is our own prompt, which tells Enter from Ctrl-J; other programs want a line end.
    """
    with line_settings_kept():
        before = termios.tcgetattr(sys.stdin)
        input_flags, *others, local_flags = before[:4]
        if for_us:
            input_flags &= ~termios.ICRNL
        _set([input_flags, *others, local_flags & ~(termios.ECHO | termios.ICANON), *before[4:]])
        yield


def typed_before() -> str:
    """What was typed before ``keys_unseen`` began, as keys; to be called at its beginning.

    The terminal has shown it already, at the place where our first line is to stand, and has made a line end of Enter.
    A line that is finished stays there: where the row of its beginning is, only the terminal knows.
    """
    typed = b""
    while select.select([sys.stdin], [], [], 0)[0] and (read := os.read(sys.stdin.fileno(), 4096)):
        typed += read
    if typed:
        sys.stdout.write("\r\x1b[K")
        sys.stdout.flush()
    return typed.decode("utf-8", "surrogateescape").replace("\n", "\r")


def is_terminal() -> bool:
    """True where a person can type and read here."""
    return bool(sys.stdin and sys.stdin.isatty() and sys.stdout.isatty())


def _set(attributes: "termios._AttrReturn") -> None:
    """In the background it is another program's terminal, and whoever touches it is stopped."""
    if _in_foreground():
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, attributes)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # a terminal that does not control us
        return True
