"""Our own lines on the rows of a window: folded between words; two columns stay two columns. Pure."""

import re
import textwrap

_LEAST_ROOM = 20  # characters of a second column
_INDENT = "    "  # instead, where there is less room
_FIRST_COLUMN = re.compile(r"\S.*?\s{2,}(?=\S)")


def folded(line: str, columns: int) -> str:
    """A line on rows of at most ``columns`` characters, unless a word is longer.

    Two spaces or more end a first column: then what follows hangs at its own.
    """
    if len(line) <= columns:
        return line
    first = _FIRST_COLUMN.match(line)
    if first and columns - first.end() >= _LEAST_ROOM:
        return first[0] + hanging(line[first.end() :], columns, first.end())
    return textwrap.fill(line, columns, subsequent_indent=_INDENT if first else "", break_long_words=False)


def hanging(text: str, columns: int, indent: int) -> str:
    """Rows for the room right of ``indent`` characters, of which the first row finds its own there."""
    return f"\n{' ' * indent}".join(textwrap.wrap(text, max(columns - indent, _LEAST_ROOM)))
