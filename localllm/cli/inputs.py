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

    Runs before signals are redirected, so that Ctrl-C ends it at once. Raises Cancelled at the deadline.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    descriptor, size = sys.stdin.fileno(), 0
    chunks: list[bytes] = []
    while True:
        ready, _, _ = select.select([descriptor], [], [], cancel.remaining_s)
        cancel.check()
        chunk = os.read(descriptor, _CHUNK_BYTES) if ready else b""
        if ready and not chunk:
            return _text(b"".join(chunks), "stdin")
        size += len(chunk)
        if size > MAX_INPUT_BYTES:
            raise UsageError(f"stdin gives more than {MAX_INPUT_BYTES // 2**20} MiB", "pipe a smaller part of it")
        chunks.append(chunk)


def file_text(path: Path) -> str:
    """The text of a file. Raises UsageError where it is missing, unreadable, too large or not text."""
    try:
        if path.stat().st_size > MAX_INPUT_BYTES:
            raise UsageError(f"{path} is larger than {MAX_INPUT_BYTES // 2**20} MiB", "attach a part of it")
        with path.open("rb") as source:
            data = source.read(MAX_INPUT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read {path}: {reason}", "check the path and its permissions") from error
    if len(data) > MAX_INPUT_BYTES:
        raise UsageError(f"{path} is larger than {MAX_INPUT_BYTES // 2**20} MiB", "attach a part of it")
    return _text(data, str(path))


def _text(data: bytes, name: str) -> str:
    """UTF-8; a wrong byte becomes a replacement character, but what is plainly no text is refused."""
    if b"\x00" in data[:_CHUNK_BYTES]:
        raise UsageError(f"{name} holds binary data, not text", "attach text")
    return data.decode("utf-8", "replace")
