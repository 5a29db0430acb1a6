"""Names of models that are split over several files: ``name-00001-of-00003.gguf`` and its siblings.

Knows how llama.cpp names the parts, and that it wants the first of them. Never looks at the disk.
"""

import re
from pathlib import Path

MAX_PARTS = 1000  # the largest models come in about 100; more is no honest name

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.DOTALL)


def parts(path: Path) -> tuple[Path, ...]:
    """All files of the model that ``path`` is a part of, in order; a file that is not split is the only one.

    llama.cpp's own format (``llama_split_path``): five digits, counted from 1.
    """
    split = _split(path.name)
    if split is None:
        return (path,)
    prefix, _, count = split
    return tuple(path.with_name(_part(prefix, number, count)) for number in range(1, count + 1))


def is_part(name: str) -> bool:
    """True for the name (or path) of one part of a split model, be it the first or a later one."""
    return _split(name) is not None


def first_part(name: str) -> str:
    """The name of the part that llama.cpp is given; a name that is not split is its own."""
    split = _split(name)
    return name if split is None else _part(split[0], 1, split[2])


def unsplit(name: str) -> str:
    """What the file would be called if it were one: ``name.gguf``."""
    split = _split(name)
    return name if split is None else f"{split[0]}.gguf"


def _split(name: str) -> tuple[str, int, int] | None:
    """What stands before the numbers, and the numbers: which part, of how many."""
    match = _PART.fullmatch(name)
    if match is None:
        return None
    prefix, number, count = match[1], int(match[2]), int(match[3])
    return (prefix, number, count) if 1 <= number <= count <= MAX_PARTS else None


def _part(prefix: str, number: int, count: int) -> str:
    return f"{prefix}-{number:05d}-of-{count:05d}.gguf"
