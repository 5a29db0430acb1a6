"""Curves as a picture: the chart of ``plot`` in an SVG or PNG file, whole or not at all.

Alone in importing matplotlib, which need not be installed. Knows files and colours; words and scales are those of
``plot``. The same chart gives the same bytes with the same matplotlib.
"""

import errno
import io
import logging
import os
import secrets
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from localllm.ceiling.curves import Curve, Line
from localllm.errors import LocalLLMError, Unavailable, UsageError
from localllm.terminal import plot
from localllm.terminal.plot import Chart
from localllm.terminal.safe import readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito: for all kinds of eyes
INCHES = (8.0, 5.5)
DOTS_PER_INCH = 150
DASHED = ("ceiling", "each")
_NOT_IN_XML = {0xFFFE: "\ufffd", 0xFFFF: "\ufffd"}


def checked(name: str) -> Path:
    """The file of this name, if a picture can be put there as far as can be told now. Raises UsageError."""
    path = Path(name)
    if path.suffix.lower() not in SUFFIXES:
        hint = "give a name that ends in .svg or .png, or --plot alone to draw in the terminal"
        raise UsageError(f"{readable(name)!r} is not a picture that can be drawn", hint)
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113  (Path's raise where none may look)
        kind = "a directory" if os.path.isdir(path) else "not a regular file"  # noqa: PTH112
        raise UsageError(f"{readable(name)} is {kind}", "give the name of a file that ends in .svg or .png")
    return path


def save(drawn: Chart, path: Path) -> None:
    """Draw the chart into the file; its suffix says how. Raises Unavailable without matplotlib, LocalLLMError."""
    data = render(drawn, path.suffix.lower().removeprefix("."))
    try:
        _write(data, Path(os.path.realpath(path)))  # what a link points to is replaced, not the link
    except OSError as error:
        raise LocalLLMError(f"{readable(str(path))} cannot be written: {error.strerror}") from None


def _write(data: bytes, path: Path) -> None:
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    part = path.with_name(f".localllm-{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def render(drawn: Chart, suffix: str) -> bytes:
    """The picture as the bytes of a file: ``svg`` or ``png``. Raises Unavailable without matplotlib."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of its caches
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise Unavailable("drawing into a file needs matplotlib", "pip install 'localllm[plot]'") from None
    except (ImportError, ValueError) as error:  # one that is broken, or set to what it does not know
        raise Unavailable(f"matplotlib cannot be used: {error}") from None
    buffer = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of signs in a model's name that its fonts do not have
        matplotlib.rcdefaults()  # whatever the user has set
        matplotlib.rc("font", size=9)
        matplotlib.rc("text", parse_math=False)  # a model's name may have dollar signs
        matplotlib.rc("svg", fonttype="none", hashsalt="localllm")  # text stays text
        figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
        _draw(figure, drawn)
        figure.savefig(buffer, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
    return buffer.getvalue()


def _draw(figure: "Figure", drawn: Chart) -> None:
    axes = figure.add_subplot()
    for number, curve in enumerate(drawn.curves):
        for line in curve.lines:
            _draw_line(axes, line, COLOURS[number])
        _draw_bend(axes, curve, COLOURS[number])
    _draw_axes(axes, drawn)
    _draw_legend(figure, drawn)


def _draw_line(axes: "Axes", line: Line, colour: str) -> None:
    x = [point.x for point in line.points]
    style = "--" if line.kind in DASHED else "-"
    axes.plot(x, [point.tok_s for point in line.points], linestyle=style, color=colour, linewidth=1.6)
    if line.kind == "expected":
        low, high = [point.low for point in line.points], [point.high for point in line.points]
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _draw_bend(axes: "Axes", curve: Curve, colour: str) -> None:
    at_bend = [point for line in curve.lines for point in line.points if point.x == curve.bend]
    axes.plot([point.x for point in at_bend], [point.tok_s for point in at_bend], "D", color=colour, markersize=6)


def _draw_axes(axes: "Axes", drawn: Chart) -> None:
    x, y = plot.scales(drawn)
    if drawn.axis == "users":
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    labelled, rates = plot.x_ticks(drawn), plot.y_ticks(y)
    axes.set_xticks([*labelled], [*labelled.values()])
    axes.set_yticks([*rates], [*rates.values()])
    axes.minorticks_off()
    axes.set_xlim(x.low, x.high)
    axes.set_ylim(y.low, y.high)
    axes.set_xlabel(drawn.x_label)
    axes.set_ylabel(plot.UNIT)
    axes.set_title(drawn.title.translate(_NOT_IN_XML), wrap=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_legend(figure: "Figure", drawn: Chart) -> None:
    """The machines by colour, what kinds of lines mean, and the notes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[tuple[Line2D | Patch, str]] = [
        (Patch(color=COLOURS[number]), plot.legend(curve, drawn)) for number, curve in enumerate(drawn.curves)
    ]
    for kind, words in plot.kinds(drawn).items():
        entries.append((Line2D([], [], color="grey", linestyle="--" if kind in DASHED else "-"), words))
    if "expected" in plot.kinds(drawn):
        entries.append((Patch(color="grey", alpha=0.25), "shaded: where those nine of ten lie"))
    if any(curve.bend for curve in drawn.curves):
        entries.append((Line2D([], [], color="grey", marker="D", linestyle=""), plot.BEND))
    entries += [(Patch(alpha=0), note) for note in drawn.notes]
    handles, meanings = zip(*entries, strict=True)
    figure.legend(handles, meanings, loc="outside lower left", frameon=False)
