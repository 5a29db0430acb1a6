"""A terminal's screen in memory that answers as a terminal does, and its picture as SVG. Knows no program."""

from collections.abc import Callable, Iterator
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

import pyte
from pyte.screens import Char

CELL_WIDTH, CELL_HEIGHT = 8.4, 18  # pixels of a character in most monospaced fonts of 14 pixels
_FONT_PX, _MARGIN_PX = 14, 14
_BACKGROUND, _FOREGROUND = "#1e2127", "#d7dae0"
# pyte calls yellow brown, and misspells a bright background.
_COLOURS = {
    "black": "#3b4048",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#d7dae0",
    "brightblack": "#8a919e",
    "brightred": "#f0838c",
    "brightgreen": "#b1d995",
    "brightbrown": "#f2d197",
    "brightblue": "#7fc1ff",
    "brightmagenta": "#d992ec",
    "bfightmagenta": "#d992ec",
    "brightcyan": "#74ccd7",
    "brightwhite": "#ffffff",
}
_OTHER_FONT = "\u1100"  # the first of the wide characters; lines and Braille come behind it too
_DIM, _EXTENDED, _BRIGHT_BLACK = 2, (38, 48), 90


class Screen(pyte.Screen):
    """What a person sees. ``answer`` gets what the terminal says where a program asks it, as for the cursor."""

    def __init__(self, columns: int, rows: int, answer: Callable[[str], object] = lambda _: None) -> None:
        self._answer = answer
        super().__init__(columns, rows)
        self._stream = pyte.Stream(self)

    def feed(self, text: str) -> None:
        """Take what a program wrote."""
        self._stream.feed(text)

    def write_process_input(self, data: str) -> None:
        """Called by pyte."""
        self._answer(data)

    def select_graphic_rendition(self, *attrs: int) -> None:
        """As pyte's, which knows no dim text: here it is grey."""
        colours = next((at for at, value in enumerate(attrs) if value in _EXTENDED), len(attrs))
        dimmed = (_BRIGHT_BLACK if value == _DIM else value for value in attrs[:colours])
        super().select_graphic_rendition(*dimmed, *attrs[colours:])

    @property
    def text(self) -> str:
        """All rows, without the blanks at their ends."""
        return "\n".join(row.rstrip(" ") for row in self.display)

    @property
    def cursor_row(self) -> str:
        """The text of the row that the cursor is in."""
        return self.display[self.cursor.y].rstrip()


def svg(screen: pyte.Screen, title: str) -> str:
    """The screen as a picture with a background of its own, down to the last row that holds something.

    Each piece of text is stretched to the cells that it has, so any monospaced font will do.
    """
    rows = [list(_pieces(screen, row)) for row in range(screen.lines)]
    while rows and not rows[-1]:
        rows.pop()
    width, height = screen.columns * CELL_WIDTH + 2 * _MARGIN_PX, len(rows) * CELL_HEIGHT + 2 * _MARGIN_PX
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" role="img">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{_BACKGROUND}"/>\n'
        f'<g transform="translate({_MARGIN_PX} {_MARGIN_PX})" fill="{_FOREGROUND}" xml:space="preserve" '
        f'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="{_FONT_PX}">\n'
    )
    drawn = (_drawn(row, *piece) for row, pieces in enumerate(rows) for piece in pieces)
    return f"{head}{''.join(drawn)}</g>\n</svg>\n"


def _pieces(screen: pyte.Screen, row: int) -> Iterator[tuple[int, int, str, Char]]:
    """Column, cells, text and look of what stands in a row: cells that look alike, without the blanks around them."""
    line = screen.buffer[row]
    for (look, _), group in groupby(range(screen.columns), lambda column: _look(line[column])):
        columns = list(group)
        if not _has_background(look):
            columns = _without_blanks(columns, lambda column: line[column].data == " ")
        if columns:
            yield columns[0], len(columns), "".join(line[column].data for column in columns), look


def _look(cell: Char) -> tuple[Char, bool]:
    """All but the character; and whether that may come from another font, with another width."""
    is_second_half = not cell.data  # of a wide one
    return cell._replace(data=""), is_second_half or cell.data >= _OTHER_FONT


def _without_blanks(columns: list[int], is_blank: Callable[[int], bool]) -> list[int]:
    while columns and is_blank(columns[-1]):
        columns.pop()
    begin = next((at for at, column in enumerate(columns) if not is_blank(column)), 0)
    return columns[begin:]


def _has_background(look: Char) -> bool:
    return look.reverse or look.bg != "default"


def _drawn(row: int, column: int, cells: int, text: str, look: Char) -> str:
    x, y, width = column * CELL_WIDTH, row * CELL_HEIGHT, cells * CELL_WIDTH
    front, back = _colour(look.fg, _FOREGROUND), _colour(look.bg, _BACKGROUND)
    if look.reverse:
        front, back = back, front
    styles = {
        "fill": front if front != _FOREGROUND else "",
        "font-weight": "bold" if look.bold else "",
        "font-style": "italic" if look.italics else "",
        "text-decoration": "underline" if look.underscore else "line-through" if look.strikethrough else "",
    }
    styled = "".join(f" {name}={quoteattr(value)}" for name, value in styles.items() if value)
    behind = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{CELL_HEIGHT}" fill="{back}"/>\n'
    return (behind if _has_background(look) else "") + (
        f'<text x="{x:.1f}" y="{y + _FONT_PX}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"{styled}>'
        f"{escape(text)}</text>\n"
    )


def _colour(name: str, default: str) -> str:
    return default if name == "default" else _COLOURS.get(name, f"#{name}")
