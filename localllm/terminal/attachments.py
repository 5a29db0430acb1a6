"""Files that go with a message of a chat: named by ``/file`` or as ``@path`` inside the text.

Knows the disk and how a file is put before a question; knows no model and no keys.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localllm.cancel import Cancel
from localllm.errors import UsageError
from localllm.terminal.inputs import text_of
from localllm.terminal.safe import one_line, readable

if TYPE_CHECKING:
    from localllm.session.templates import Filled

_MENTION = re.compile(r"(?<!\S)@(\"[^\"]+\"|\S+)")
_TRAILING = ",.;:!?)"  # behind a path these belong to the sentence


@dataclass(frozen=True, slots=True)
class Attachment:
    """The text of a file, and what the user calls it."""

    name: str
    text: str


def path_of(name: str) -> Path:
    """The path that a user means by ``name``; a home that is not there stays as it is written."""
    return Path(os.path.expanduser(name))  # noqa: PTH111  # Path.expanduser raises where there is no home


def unquoted(name: str) -> str:
    """A path without the quotes that it may be typed in."""
    return name[1:-1] if len(name) > 2 and name[0] == name[-1] == '"' else name


def read(name: str, cancel: Cancel) -> Attachment:
    """Read a text file. Raises UsageError where it cannot be read, is too large or holds no text; Cancelled."""
    path = path_of(name)
    if os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises for some names
        raise UsageError(f"{name or '.'} is a folder", "name a file in it")
    if os.path.lexists(path) and not _is_file(name):
        raise UsageError(f"{name} is a device, a pipe or a link that leads nowhere", "name a file with text in it")
    text = text_of(os.path.join(".", path), cancel, lambda _: None)  # noqa: PTH118  # "-" would be the terminal
    if not text.strip():
        raise UsageError(f"{name} is empty", "name a file with text in it")
    return Attachment(one_line(readable(path.name)), text)


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


def is_path(word: str) -> bool:
    """Whether a word, without what belongs to its sentence, is the path of something on this disk."""
    names = [name for name in (word, word.rstrip(_TRAILING)) if name.strip("/")]
    return any(os.path.lexists(name) for name in names)


def with_files(text: str, files: Sequence[Attachment], template: "Filled | None" = None) -> str:
    """The message: each file under its name, then the text. Files come first, as what costs to read can be shared."""
    attached = "\n\n".join(f"==> {file.name} <==\n{file.text.strip()}" for file in files)
    if template:
        return template.question(attached, text)
    return f"{attached}\n\n{text}" if files else text


def _is_file(name: str) -> bool:
    return os.path.isfile(path_of(name))  # noqa: PTH113  # Path.is_file raises for some names
