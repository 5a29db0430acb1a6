"""Our own lines and tables in the width of a window: two columns stay two columns, and no row breaks. Pure."""

import re
import textwrap
from collections.abc import Sequence

_LEAST_ROOM = 20  # characters of a second column
_LEAST_CELL = 8  # characters of a last column, if it is to tell anything
_INDENT = "    "  # instead, where there is less room
_FIRST_COLUMN = re.compile(r"(\s*- |\s*\S.*?\s{2,}|\s+)(?=\S)")


def folded(line: str, columns: int) -> str:
    """A line on rows of at most ``columns`` characters, unless a word is longer.

    Two spaces or more end a first column, and so does the dash of a list: then what follows hangs at its own.
    """
    if len(line) <= columns:
        return line
    first = _FIRST_COLUMN.match(line.rstrip())
    if first and columns - first.end() >= _LEAST_ROOM:
        return first[0] + hanging(line[first.end() :], columns, first.end())
    return _wrapped(line, columns, subsequent_indent=_INDENT if first else "")


def hanging(text: str, columns: int, indent: int) -> str:
    """Rows for the room right of ``indent`` characters, of which the first row finds its own there."""
    return _wrapped(text, max(columns - indent, _LEAST_ROOM)).replace("\n", f"\n{' ' * indent}")


def _wrapped(text: str, columns: int, subsequent_indent: str = "") -> str:
    """Paths and addresses are left whole, so that they can be copied."""
    return textwrap.fill(
        text, columns, subsequent_indent=subsequent_indent, break_long_words=False, break_on_hyphens=False
    )


def table(rows: Sequence[Sequence[str]], columns: int | None, spare: Sequence[str] = ()) -> list[str]:
    """Rows as lines, each column as wide as its widest cell.

    Where ``columns`` characters are too few, the columns that the first row calls by a name in ``spare`` are left out,
    the first name first; then the last one is cut, or left out where next to nothing of it would be seen. None is a
    pipe, which gets all.
    """
    kept = [list(row) for row in rows]
    names = [name for name in spare if name in kept[0]]
    while columns is not None and names and _width(kept) > columns:
        index = kept[0].index(names.pop(0))
        kept = [row[:index] + row[index + 1 :] for row in kept]
    if (
        columns is not None
        and _width(kept) > columns
        and columns - _width([row[:-1] for row in kept]) < _LEAST_CELL + 2
    ):
        kept = [row[:-1] for row in kept]
    widths = _widths(kept)
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in kept)
    return [line if columns is None or len(line) <= columns else f"{line[: columns - 1]}…" for line in lines]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _width(rows: Sequence[Sequence[str]]) -> int:
    widths = _widths(rows)
    return sum(widths) + 2 * (len(widths) - 1)
