"""``--plot``: an option whose value may be left out, and where what it asks for is drawn.

``--plot`` alone draws in the terminal, ``--plot FILE.svg`` into a file. The word behind it is its value only if it
looks like the name of a picture, so that ``--plot qwen3-8b`` asks about a model.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import click
from typer.core import TyperCommand

from localllm.errors import UsageError
from localllm.terminal.safe import one_line, readable

if TYPE_CHECKING:
    from localllm.ceiling.answer import Question, Subject
    from localllm.ceiling.machine import Machine
    from localllm.terminal.plot import Chart

TERMINAL = "-"
# .svg and .png, and what people may try: they are told that it cannot be drawn, not that there is no such model
_PICTURES = {".svg", ".png", ".pdf", ".jpg", ".jpeg", ".gif", ".webp", ".eps", ".ps", ".bmp", ".tif", ".tiff", ".svgz"}


class PlotCommand(TyperCommand):
    """A command with ``--plot [FILE]``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, after each ``--plot`` has got its value."""
        return super().parse_args(ctx, [*_with_values(args)])


def _with_values(arguments: Sequence[str]) -> Iterator[str]:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, taken = arguments[:end], False
    for word, following in zip_longest(options, options[1:], fillvalue=""):
        if taken or word != "--plot":
            yield from () if taken else (word,)
            taken = False
        else:
            taken = following == TERMINAL or Path(following).suffix.lower() in _PICTURES
            yield f"--plot={following if taken else TERMINAL}"
    yield from arguments[end:]


def places(wanted: Sequence[str], as_json: bool) -> list[Path | None]:
    """Where to draw: files that can be pictures, None for the terminal. Raises UsageError."""
    from localllm.terminal import picture

    if as_json and TERMINAL in wanted:
        raise UsageError("--plot draws where --json prints its object", "draw into a file: --plot FILE.svg")
    return [None if name == TERMINAL else picture.checked(name) for name in dict.fromkeys(wanted)]


def chart(subject: "Subject", machines: "Sequence[Machine]", question: "Question") -> "Chart":
    """What there is to draw. Raises UsageError where that is nothing."""
    from localllm.ceiling.curves import curves
    from localllm.terminal import plot

    drawn = curves(subject, machines, question)
    if not machines:
        raise UsageError("there is nothing to plot: none of this hardware holds the model", "leave --fits out")
    if not drawn:
        unknown = "how fast this hardware computes" + ("" if question.users > 1 else " and what the KV cache takes")
        raise UsageError(f"there is nothing to plot: it is not known {unknown}", "name a model, or a --gpu")
    return plot.chart(subject, machines, question, drawn)


def save(drawn: "Chart", files: Sequence[Path]) -> None:
    """Draw into all files, and say so."""
    from localllm.terminal import picture

    for path in files:
        picture.save(drawn, path)
        print(f"localllm: drawn into {one_line(readable(str(path)))}", file=sys.stderr)


def as_text(drawn: "Chart") -> str:
    """The chart for the terminal, as wide as it is."""
    from localllm.terminal import plot

    return plot.as_text(drawn, shutil.get_terminal_size().columns, plot.marks(sys.stdout.encoding))
