"""Curves as text: a chart with axes, units and a legend, as wide as the terminal.

Drawn in braille (two by four dots in a character), or in plain characters where the encoding or the terminal has no
others. Each machine has a letter on its lines, so nothing depends on colours. Knows words, scales and marks;
computes no rate. ``picture`` draws the same chart into files.
"""

import math
import os
import textwrap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localllm.ceiling.answer import Question, Subject
from localllm.ceiling.curves import MOST_CURVES, Axis, Curve, Kind, Line, axis, deepest
from localllm.ceiling.machine import Machine
from localllm.terminal.ceiling_view import gb, rate
from localllm.terminal.safe import one_line, readable

LEAST_COLUMNS, MOST_COLUMNS = 40, 120
ROWS = 16
NAME_CHARS = 60
LOWER = ("expected", "each")  # lines that have the small letter
SOLID = ("expected", "together")
BEND = "bend: from there on, computing is the limit"
UNIT = "tok/s"

Ticks = dict[float, str]


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn, and the words beside it, in no particular medium."""

    title: str
    axis: Axis
    x_label: str
    curves: tuple[Curve, ...]
    notes: tuple[str, ...] = ()

    @property
    def most_x(self) -> int:
        """Where the axis ends."""
        return max(point.x for curve in self.curves for point in curve.points)


def chart(subject: Subject, machines: Sequence[Machine], question: Question, curves: Sequence[Curve]) -> Chart:
    """The curves with title and labels, and a note on each machine that has none."""
    name = _shortened(one_line(readable(subject.name or f"{gb(subject.workload.streamed_bytes)} of weights")))
    x_axis = axis(subject, question)
    if x_axis == "context":
        title = f"{name}: decode rate, context of {deepest(subject, question):,} tokens, {subject.kv} KV cache"
        return Chart(title, x_axis, "tokens in the KV cache", (*curves,), (*_left_out(machines, curves),))
    behind = f" behind {question.ctx:,} tokens each" if question.ctx else ""
    return Chart(
        f"{name}: decode rate in one batch{behind}", x_axis, "users", (*curves,), (*_left_out(machines, curves),)
    )


def _shortened(name: str) -> str:
    half = NAME_CHARS // 2
    return name if len(name) <= NAME_CHARS else f"{name[: half - 1]}…{name[-half:]}"


def _left_out(machines: Sequence[Machine], curves: Sequence[Curve]) -> Iterator[str]:
    if len(machines) > MOST_CURVES:
        yield f"drawn: the first {MOST_CURVES} of {len(machines)} machines"
    names = {curve.machine for curve in curves}
    missing = [machine.name for machine in machines[:MOST_CURVES] if machine.name not in names]
    if missing:
        yield f"not drawn, since it is not known how fast they compute: {', '.join(missing)}"


# --- scales ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from ``low`` to ``high`` as 0 to 1."""

    low: float
    high: float
    logarithmic: bool

    def part(self, value: float) -> float:
        """Where ``value`` lies."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def scales(drawn: Chart) -> tuple[Scale, Scale]:
    """Of both axes: even against context and from zero on, logarithmic against users."""
    rates = [rate for curve in drawn.curves for point in curve.points for rate in (point.low, point.high)]
    if drawn.axis == "context":
        high = max(rates)
        step = _nice(high / 5)
        return Scale(0, max(1, drawn.most_x), False), Scale(0, step * math.ceil(high / step * 1.001), False)
    low, high = _nice_below(min(rates)), _nice(max(rates))
    return Scale(1, drawn.most_x, True), Scale(low, high if high > low else 10 * low, True)


def _nice(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 …"""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999999)


def _nice_below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (5, 2, 1) if step * power <= value * 1.000001)


def x_ticks(drawn: Chart) -> Ticks:
    """Quarters of the context, or users doubled again and again."""
    most = drawn.most_x
    if drawn.axis == "context":
        return {tick: f"{tick:,}" for tick in sorted({round(most * quarter / 4) for quarter in range(5)})}
    return {2**power: f"{2**power:,}" for power in range(most.bit_length())}


def y_ticks(scale: Scale) -> Ticks:
    """Round rates between both ends, the roundest first."""
    if scale.logarithmic:
        powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
        values = [step * 10.0**power for step in (1, 2, 5) for power in powers]
        values = [value for value in values if 0.999 * scale.low <= value <= 1.001 * scale.high]
    else:
        step = _nice(scale.high / 5.001)
        values = [step * number for number in range(round(scale.high / step) + 1)]
    return {value: f"{value:,.0f}" if value >= 10 else f"{value:.4g}" for value in values}


# --- words -------------------------------------------------------------------------------------------------------


def legend(curve: Curve, drawn: Chart) -> str:
    """A machine's name and what there is to know of it."""
    fits = " (does not fit)" if curve.fits is False else ""
    return f"{one_line(curve.machine)}{fits}: {_words(curve, drawn)}"


def kinds(drawn: Chart) -> dict[Kind, str]:
    """The kinds of lines that are drawn, and what each means."""
    known: dict[Kind, str] = {
        "ceiling": "ceiling: computed, a bound",
        "expected": "expected: nine of ten published measurements lie around it",
        "together": "all users together: expected",
        "each": "each user: expected",
    }
    drawn_kinds = {line.kind for curve in drawn.curves for line in curve.lines}
    return {kind: meaning for kind, meaning in known.items() if kind in drawn_kinds}


def _words(curve: Curve, drawn: Chart) -> str:
    ends = {line.kind: (line.points[0], line.points[-1]) for line in curve.lines}
    if drawn.axis == "context":
        told = [f"{kind} {_number(first.tok_s)} to {rate(last.tok_s)}" for kind, (first, last) in ends.items()]
        return ", ".join(told)
    alone, most = ends["each"][0], ends["together"][1]
    bend = f"bend at {curve.bend:,} users" if curve.bend else "no bend: memory is the limit"
    return f"{rate(alone.tok_s)} alone, {rate(most.tok_s)} together at {most.x:,} users, {bend}"


def _number(value: float) -> str:
    return rate(value).removesuffix(f" {UNIT}")


# --- characters --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marks:
    """The characters that a chart is made of. ``braille``: lines are dots within characters."""

    braille: bool
    side: str
    tick: str
    corner: str
    floor: str
    floor_tick: str
    bend: str
    solid: str
    dotted: str


FINE = Marks(True, "│", "┤", "└", "─", "┬", "◆", "⠤⠤", "⠄⠄")
PLAIN = Marks(False, "|", "+", "+", "-", "+", "#", "***", "...")


def marks(encoding: str | None) -> Marks:
    """The finest that an output of this encoding, and this terminal, can show."""
    try:
        "⣿│┤└─┬◆…×–".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return PLAIN if os.environ.get("TERM") in ("dumb", "linux") else FINE


class _Canvas:
    """Cells of characters; lines are drawn in dots, of which a cell has eight in braille and one otherwise."""

    _BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))

    def __init__(self, columns: int, rows: int, style: Marks) -> None:
        self.columns, self.rows, self._style = columns, rows, style
        self._wide, self._high = (2, 4) if style.braille else (1, 1)
        self._dots: dict[tuple[int, int], int] = {}
        self._letters: dict[tuple[int, int], str] = {}

    def draw(self, line: Line, x: Scale, y: Scale) -> None:
        """Draw it by its height at each column of dots, with all dots of its way or every few."""
        width, every = self.columns * self._wide, 1 if line.kind in SOLID else 2 * self._wide
        before, gone = None, 0
        for column in range(width):
            row = self._dot_row(_height(line, x, y, column / (width - 1)))
            if row is None:
                continue
            start = row if before is None else before
            for each in range(min(row, start), max(row, start) + 1):
                if gone % every == 0:
                    self._dot(column, each, every == 1)
                gone += 1
            before = row

    def write(self, letter: str, line: Line, x: Scale, y: Scale, part: float) -> None:
        """Put a letter on the line."""
        column = round(part * (self.columns - 1))
        row = self._dot_row(_height(line, x, y, column / (self.columns - 1)))
        if row is not None:
            self._letters[column, row // self._high] = letter

    def lines(self) -> Iterator[str]:
        """The rows as text, the highest first."""
        for row in range(self.rows):
            yield "".join(self._cell(column, row) for column in range(self.columns)).rstrip()

    def _cell(self, column: int, row: int) -> str:
        dots = self._dots.get((column, row), 0)
        if letter := self._letters.get((column, row)):
            return letter
        if self._style.braille:
            return chr(0x2800 + dots) if dots else " "
        return (" ", self._style.dotted[0], self._style.solid[0])[dots]

    def _dot(self, column: int, row: int, solid: bool) -> None:
        cell = (column // self._wide, row // self._high)
        known = self._dots.get(cell, 0)
        if self._style.braille:
            self._dots[cell] = known | self._BITS[column % 2][row % 4]
        else:
            self._dots[cell] = max(known, 2 if solid else 1)

    def _dot_row(self, height: float | None) -> int | None:
        """Rows of dots are counted from the top."""
        last = self.rows * self._high - 1
        return None if height is None else round((1 - height) * last)


def _height(line: Line, x: Scale, y: Scale, part: float) -> float | None:
    """How high the line is at a part of the width, straight between its points; None beyond its ends."""
    places = [x.part(point.x) for point in line.points]
    if not places[0] <= part <= places[-1] + 1e-9:
        return None
    right = min(bisect_right(places, part), len(places) - 1)
    left = max(0, right - 1)
    low, high = y.part(line.points[left].tok_s), y.part(line.points[right].tok_s)
    run = places[right] - places[left]
    return low + (high - low) * min(1.0, (part - places[left]) / run) if run else low


# --- the whole ---------------------------------------------------------------------------------------------------


def as_text(drawn: Chart, columns: int, style: Marks = FINE) -> str:
    """The chart in lines of at most so many characters."""
    columns = min(max(columns, LEAST_COLUMNS), MOST_COLUMNS)
    x, y = scales(drawn)
    labels = y_ticks(y)
    margin = max(len(UNIT), *map(len, labels.values()))
    canvas = _Canvas(columns - margin - 2, ROWS, style)
    _draw_all(canvas, drawn, x, y, style)
    lines = [*textwrap.wrap(drawn.title, columns), "", f"{UNIT:>{margin}}"]
    lines += _rows(canvas, _labelled_rows(labels, y), margin, style)
    lines += _floor(x_ticks(drawn), x, margin, canvas.columns, style)
    lines += [f"{drawn.x_label:>{columns}}", *_legend(drawn, columns, style)]
    text = "\n".join(line.rstrip() for line in lines)
    return text if style.braille else _ascii(text)


def _draw_all(canvas: _Canvas, drawn: Chart, x: Scale, y: Scale, style: Marks) -> None:
    for curve in drawn.curves:
        for line in curve.lines:
            canvas.draw(line, x, y)
    for number, curve in enumerate(drawn.curves):
        for line in curve.lines:
            part = (number + (0.65 if line.kind in LOWER else 0.3)) / len(drawn.curves)
            canvas.write(_letter(number, line), line, x, y, part)
        if curve.bend:
            canvas.write(style.bend, curve.lines[0], x, y, x.part(curve.bend))


def _letter(number: int, line: Line) -> str:
    return chr(ord("a" if line.kind in LOWER else "A") + number)


def _labelled_rows(labels: Ticks, y: Scale) -> dict[int, str]:
    """Labels by row; one that would touch an earlier one is left out."""
    rows: dict[int, str] = {}
    for value, label in labels.items():
        row = round((1 - y.part(value)) * (ROWS - 1))
        if not {row - 1, row, row + 1} & rows.keys():
            rows[row] = label
    return rows


def _rows(canvas: _Canvas, labels: dict[int, str], margin: int, style: Marks) -> Iterator[str]:
    for row, line in enumerate(canvas.lines()):
        yield f"{labels.get(row, ''):>{margin}} {style.tick if row in labels else style.side}{line}"


def _floor(ticks: Ticks, x: Scale, margin: int, columns: int, style: Marks) -> tuple[str, str]:
    """The lower axis and its labels: those of both ends, and of the rest those for which there is room."""
    floor, labels = [style.floor] * columns, " " * (margin + 2 + columns)
    for value, label in sorted(ticks.items(), key=lambda tick: tick[0] not in (min(ticks), max(ticks))):
        column = round(x.part(value) * (columns - 1))
        floor[column] = style.floor_tick
        begin = min(max(margin + 2 + column - len(label) // 2, 0), len(labels) - len(label))
        end = begin + len(label)
        if not labels[max(0, begin - 1) : end + 1].strip():
            labels = labels[:begin] + label + labels[end:]
    return " " * (margin + 1) + style.corner + "".join(floor), labels


def _legend(drawn: Chart, columns: int, style: Marks) -> Iterator[str]:
    words = []
    for number, curve in enumerate(drawn.curves):
        letters = " ".join(_letter(number, line) for line in curve.lines)
        words.append(f"{letters:3} {legend(curve, drawn)}")
    for kind, meaning in kinds(drawn).items():
        letter, line = ("a" if kind in LOWER else "A"), (style.solid if kind in SOLID else style.dotted)
        words.append(f"{letter} {line} {meaning}")
    if any(curve.bend for curve in drawn.curves):
        words.append(f"{style.bend} {BEND}")
    for line in (*words, *drawn.notes):
        yield from textwrap.wrap(one_line(line), columns, subsequent_indent="    ")


def _ascii(text: str) -> str:
    """Signs that plain terminals lack, written in those they have."""
    return text.translate(str.maketrans("×–…", "x-~"))
