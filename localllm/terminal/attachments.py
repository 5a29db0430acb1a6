"""Files that go with a message of a chat: named by ``/file`` or as ``@path`` inside the text.

Knows the disk and how a file is put before a question; knows no model and no keys.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localllm.cancel import Cancel
from localllm.errors import UsageError
from localllm.terminal.inputs import text_of

_MENTION = re.compile(r"(?<!\S)@(\"[^\"]+\"|\S+)")
_TRAILING = ",.;:!?)"  # behind a path these belong to the sentence
_WAIT_S = 10.0  # for a file that does not end, such as a pipe


@dataclass(frozen=True, slots=True)
class Attachment:
    """The text of a file, and what the user calls it."""

    name: str
    text: str


def read(name: str) -> Attachment:
    """Read a text file. Raises UsageError where it cannot be read, is too large or holds no text."""
    path = Path(name).expanduser()
    if path.is_dir():
        raise UsageError(f"{name} is a folder", "name a file in it")
    text = text_of(str(path), Cancel(_WAIT_S), lambda _: None)
    if not text.strip():
        raise UsageError(f"{name} is empty", "name a file with text in it")
    return Attachment(path.name, text)


def mentioned(text: str) -> tuple[list[str], list[str]]:
    """The files that ``text`` names as @path, and what looks like a path there but is no file."""
    files, others = [], []
    for found in _MENTION.finditer(text):
        word = found[1].strip('"')
        name = next((n for n in (word, word.rstrip(_TRAILING)) if n and _is_file(n)), None)
        if name:
            files.append(name)
        elif "/" in word or "." in word.rstrip(_TRAILING):
            others.append(word.rstrip(_TRAILING))
    return list(dict.fromkeys(files)), others


def with_files(text: str, files: Sequence[Attachment]) -> str:
    """The message: each file under its name, then the text. Files come first, as what costs to read can be shared."""
    return "\n\n".join([*(f"==> {file.name} <==\n{file.text.strip()}" for file in files), text])


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):
        return False
