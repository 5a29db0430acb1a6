"""What comes in through stdin and ``-f``: bounded in size and in time, any bytes, never in the way of Ctrl-C."""

import os
import select
import sys
from pathlib import Path

from localllm.cancel import Cancel
from localllm.errors import UsageError

MAX_INPUT_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**16


def piped_text(cancel: Cancel) -> str:
    """All of stdin where it is a pipe or a file; "" where it is a terminal or closed.

    Raises Cancelled at the deadline, UsageError where it cannot be read or is too large.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    return _all_of(sys.stdin.fileno(), "stdin", cancel)


def file_text(path: Path, cancel: Cancel) -> str:
    """The text of a file. Raises UsageError where it is missing, unreadable, too large or not text; Cancelled."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a named pipe must not wait for a writer
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read {path}: {reason}", "check the path and its permissions") from error
    try:
        return _all_of(descriptor, str(path), cancel)
    finally:
        os.close(descriptor)


def _all_of(descriptor: int, name: str, cancel: Cancel) -> str:
    chunks: list[bytes] = []
    size = 0
    while True:
        try:
            ready, _, _ = select.select([descriptor], [], [], cancel.remaining_s)
            cancel.check()
            chunk = os.read(descriptor, _CHUNK_BYTES) if ready else b""
        except OSError as error:
            raise UsageError(f"cannot read {name}: {error.strerror}", "give text, from a pipe or a file") from error
        if ready and not chunk:
            return _text(b"".join(chunks), name)
        size += len(chunk)
        if size > MAX_INPUT_BYTES:
            raise UsageError(f"{name} gives more than {MAX_INPUT_BYTES // 2**20} MiB", "give a smaller part of it")
        chunks.append(chunk)


def _text(data: bytes, name: str) -> str:
    """UTF-8; a wrong byte becomes a replacement character, but what is plainly no text is refused."""
    if b"\x00" in data[:_CHUNK_BYTES]:
        raise UsageError(f"{name} holds binary data, not text", "attach text")
    return data.decode("utf-8", "replace")
