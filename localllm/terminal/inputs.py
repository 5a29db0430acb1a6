"""What comes in through stdin and ``-f``: bounded in size and in time, any bytes, never in the way of Ctrl-C."""

import os
import select
import sys
import time
from collections.abc import Callable, Sequence

from localllm.cancel import Cancel
from localllm.errors import UsageError
from localllm.terminal.safe import one_line, readable

MAX_INPUT_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**16
_STDIN = ("-", "/dev/stdin")  # opening the latter would read a file twice
_PATIENCE_S = 2.0
_KINDS = (  # how files of well-known formats begin, what they are, and what gives their text
    (b"%PDF-", "a PDF", "convert it: pdftotext FILE -"),
    (
        b"PK\x03\x04",
        "a ZIP archive, as .docx, .xlsx and .odt are",
        "convert it: pandoc -t plain FILE, or unzip -p FILE",
    ),
    (b"\x1f\x8b", "compressed by gzip", "unpack it: gzip -dc FILE"),
    (b"BZh", "compressed by bzip2", "unpack it: bzip2 -dc FILE"),
    (b"\xfd7zXZ\x00", "compressed by xz", "unpack it: xz -dc FILE"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it: zstd -dc FILE"),
    (b"\xff\xfe", "UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    (b"\xfe\xff", "UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    (b"\xd0\xcf\x11\xe0", "an old Office document", "convert it: soffice --headless --convert-to txt FILE"),
    (b"\x89PNG", "a PNG image", "for a text in it: tesseract FILE -"),
    (b"\xff\xd8\xff", "a JPEG image", "for a text in it: tesseract FILE -"),
    (b"GIF8", "a GIF image", "for a text in it: tesseract FILE -"),
    (b"SQLite format 3\x00", "an SQLite database", "give what it holds: sqlite3 FILE .dump"),
    (b"GGUF", "a model", "name it with -m"),
    (b"\x7fELF", "a compiled program", "give its source, or what it prints"),
)

Tell = Callable[[str], None]


def attached_text(names: Sequence[str], cancel: Cancel, tell: Tell) -> str:
    """The text of stdin, where it is a pipe or a file, and of the files in their order.

    One text alone is given as it is. Of several each gets its name above it, as ``head`` shows files; a blank stdin,
    which many a script has, does not count. "-" among ``names`` puts stdin there, even a terminal. ``tell`` gets a line
    where the end of one is long in coming.
    Raises UsageError where one is missing, unreadable, too large or not text; Cancelled.
    """
    piped = sys.stdin is not None and not sys.stdin.isatty() and not any(name in _STDIN for name in names)
    texts = [(name, text_of(name, cancel, tell)) for name in (*(["-"] if piped else []), *names)]
    texts = [(name, text) for name, text in texts if name not in _STDIN or text.strip()]
    if len(texts) == 1 or not any(text.strip() for _, text in texts):
        return "\n\n".join(text for _, text in texts if text.strip())
    return "\n\n".join(f"==> {_shown(name)} <==\n{text}" for name, text in texts)


def text_of(name: str, cancel: Cancel, tell: Tell) -> str:
    """The text of one file, or of stdin ("-"). Raises as ``attached_text`` does."""
    if name in _STDIN:
        if sys.stdin is None:
            raise UsageError("stdin is closed", "give text, from a pipe or a file")
        return _all_of(sys.stdin.fileno(), "stdin", cancel, tell)
    if not name:
        raise UsageError("the name of a file is empty", "give -f a path, or - for stdin")
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK)  # opening a named pipe must not wait for a writer
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read {name}: {reason}", "check the path and its permissions") from error
    try:
        return _all_of(descriptor, name, cancel, tell)
    finally:
        os.close(descriptor)


def _shown(name: str) -> str:
    return "stdin" if name in _STDIN else one_line(readable(name))


def _all_of(descriptor: int, name: str, cancel: Cancel, tell: Tell) -> str:
    chunks: list[bytes] = []
    size = 0
    begin_s, told = time.monotonic(), False
    while True:
        left_s = cancel.remaining_s
        wait_s = _PATIENCE_S if left_s is None else min(left_s, _PATIENCE_S)
        try:
            ready, _, _ = select.select([descriptor], [], [], wait_s)
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
        if not told and time.monotonic() - begin_s >= _PATIENCE_S:
            told = True
            tell(f"waiting for the end of {name}" + (" (Ctrl-D)" if os.isatty(descriptor) else ""))


def _text(data: bytes, name: str) -> str:
    """UTF-8; a wrong byte becomes a replacement character, but what is plainly no text is refused."""
    if b"\x00" in data[:_CHUNK_BYTES] or data.startswith(b"%PDF-"):  # some PDFs have no such byte, but are no text
        kind, hint = next(
            ((f" ({kind})", hint) for start, kind, hint in _KINDS if data.startswith(start)),
            ("", "give it as text; another program may convert it"),
        )
        raise UsageError(f"{name} holds binary data{kind}, not text", hint)
    return data.decode("utf-8", "replace")
