"""How Markdown looks in a terminal: source -> tokens -> rows of text with ANSI attributes.

Knows markdown-it, rich and pygments, which only a terminal that shows Markdown loads. Does not know what is on the
screen already. Colours are those two of the terminal's own palette that can be read on black and on white: blue is too
dark for the one, green, yellow and cyan are too light for the other.
Nothing is hidden: HTML, images and link targets are shown as text, and a link's definition is a line like any other.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import lru_cache
from io import StringIO
from typing import NamedTuple
from zlib import crc32

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.token import Token
from pygments import token as kinds
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from rich import box
from rich import markdown as rich_markdown
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.containers import Renderables
from rich.segment import Segment
from rich.style import Style
from rich.syntax import ANSISyntaxTheme
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from localllm.terminal.safe import safe

_MAX_DEPTH = 16
_MIN_COLUMNS = 10
_THEME = Theme(
    {
        "markdown.h1": "bold underline",
        **{f"markdown.h{level}": "bold" for level in (2, 3, 4, 5, 6)},
        "markdown.code": "bold magenta",
        "markdown.u": "underline",
        "markdown.link_url": "none",
        "markdown.block_quote": "none",
        "markdown.table.border": "dim",
    }
)
_CODE_THEME = ANSISyntaxTheme(
    {
        kinds.Comment: Style.parse("dim"),
        kinds.Keyword: Style.parse("magenta"),
        kinds.Operator.Word: Style.parse("magenta"),
        kinds.Name.Builtin: Style.parse("bold"),
        kinds.Name.Class: Style.parse("bold"),
        kinds.Name.Decorator: Style.parse("bold"),
        kinds.Name.Function: Style.parse("bold"),
        kinds.Name.Tag: Style.parse("bold"),
        kinds.Number: Style.parse("red"),
        kinds.String: Style.parse("red"),
        kinds.Generic.Deleted: Style.parse("red"),
        kinds.Generic.Inserted: Style.parse("bold"),
        kinds.Generic.Heading: Style.parse("bold"),
        kinds.Generic.Subheading: Style.parse("magenta"),
    }
)
_PART_LINES, _MAX_PART_LINES, _AHEAD_LINES = 8, 64, 8
# Some of pygments' 600 lexers hang on a line of hostile text, such as a model can write. These take 0.4 s at worst for
# this much at once; all else is shown without colours.
_MAX_LEXED_CHARS = 2000
_LANGUAGES = frozenset(
    [
        *(
            "bash",
            "sh",
            "shell",
            "zsh",
            "console",
            "c",
            "cpp",
            "c++",
            "csharp",
            "c#",
            "cs",
            "css",
            "scss",
            "dart",
            "diff",
        ),
        *("docker", "dockerfile", "elixir", "go", "golang", "graphql", "haskell", "hs", "html", "http", "ini", "cfg"),
        *("java", "javascript", "js", "json", "jsx", "julia", "kotlin", "latex", "tex", "lua", "make", "makefile"),
        *(
            "markdown",
            "md",
            "matlab",
            "nginx",
            "nix",
            "objective-c",
            "objc",
            "ocaml",
            "perl",
            "php",
            "powershell",
            "ps1",
        ),
        *("proto", "protobuf", "python", "py", "python3", "pycon", "r", "ruby", "rb", "rust", "rs", "scala", "sql"),
        *("swift", "terraform", "hcl", "toml", "tsx", "typescript", "ts", "vim", "xml", "yaml", "yml", "zig"),
    ]
)

_CAN_BE_OPENED = re.compile(r"(https?://|mailto:)[!-~]{1,2000}")  # VTE takes no more

Kind = tuple[str, ...]  # how pygments calls a piece of code: Name, Function


class Row(NamedTuple):
    """One row of the screen: its text with ANSI attributes, and its width in cells."""

    text: str
    cells: int


class Page:
    """Renders in one style. ``color`` False keeps bold and underlined text, but no colour (NO_COLOR).

    ``links`` True makes addresses what a terminal can open (OSC 8): never under another name, as a model can write one.
    """

    def __init__(self, color: bool = True, links: bool = False) -> None:
        self._color, self._links = color, links
        self.console = Console(
            file=StringIO(), force_terminal=True, color_system="standard", no_color=not color, theme=_THEME, width=80
        )

    def rows(self, tokens: list[Token], columns: int) -> list[Row]:
        """A finished or unfinished document, or one block of it, on rows of at most ``columns`` cells."""
        rows = self._rows(document(tokens), columns)
        # rich puts an empty line before a block of blocks even where it is what comes first
        return rows[1:] if _holds_blocks(tokens) else rows

    def dim(self, text: str, columns: int) -> list[Row]:
        """Plain text, folded between words and dim."""
        return self._rows(Text(text, "dim"), columns)

    def _rows(self, content: rich_markdown.Markdown | Text, columns: int) -> list[Row]:
        options = self.console.options.update(width=max(_MIN_COLUMNS, columns))
        return [self._row(line) for line in self.console.render_lines(content, options, pad=False)]

    def _row(self, segments: Iterable[Segment]) -> Row:
        if not self._color:
            segments = Segment.remove_color(segments)
        parts = [Segment(safe(text), style) for text, style, _ in segments]  # entities can spell what was stripped
        while parts and not (last := parts[-1].text.rstrip(" ")):
            parts.pop()
        if parts:
            parts[-1] = Segment(last, parts[-1].style)
        text = "".join(self._drawn(text, style) if style else text for text, style, _ in parts)
        return Row(text, sum(part.cell_length for part in parts))

    def _drawn(self, text: str, style: Style) -> str:
        """On each row a link is one by itself; the same number tells terminals that rows belong together."""
        address = style.link or ""
        drawn = (style.update_link(None) if address else style).render(text, color_system=ColorSystem.STANDARD)
        if not (self._links and _CAN_BE_OPENED.fullmatch(address)):
            return drawn
        return f"\x1b]8;id={crc32(address.encode())};{address}\x1b\\{drawn}\x1b]8;;\x1b\\"


def _holds_blocks(tokens: list[Token]) -> bool:
    return bool(tokens) and tokens[0].nesting == 1 and tokens[1].type != "inline" and tokens[1].nesting >= 0


def _too_deep(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """A rule of the parser: what is nested deeper than anybody writes is text; the parser itself would drop it."""
    if silent or state.level < _MAX_DEPTH:
        return False
    state.push("paragraph_open", "p", 1).map = [start_line, end_line]
    inline = state.push("inline", "", 0)
    inline.content = state.getLines(start_line, end_line, state.blkIndent, False).strip()
    inline.map, inline.children = [start_line, end_line], []
    state.push("paragraph_close", "p", -1)
    state.line = end_line
    return True


_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("reference")
_PARSER.block.ruler.before("table", "too_deep", _too_deep)


def parse(source: str) -> list[Token]:
    """The tokens of a Markdown text; line breaks are kept, images and link targets are text."""
    tokens = _PARSER.parse(source)
    for token in tokens:
        if token.children:
            token.children = list(_as_text(token.children))
    return tokens


def _as_text(children: Sequence[Token]) -> Iterator[Token]:
    link, begun = Token("link_open", "a", 1), 0
    for index, token in enumerate(children):
        match token.type:
            case "softbreak":  # verses and addresses; models do not fold their lines
                yield Token("hardbreak", "br", 0)
            case "image":
                yield _text(f"[image: {token.content}] ({token.attrs['src']})")
            case "link_open":
                link, begun = token, index
                if _shows_its_target(children[index:]):
                    yield token
            case "link_close" if _shows_its_target(children[begun:]):
                yield token
            case "link_close":
                address = _text(str(link.attrs["href"]))
                yield from (_text(" ("), link, Token("u_open", "u", 1), address, Token("u_close", "u", -1), token)
                yield _text(")")
            case _:
                yield token


def _shows_its_target(link: Sequence[Token]) -> bool:
    """Whether the link that ``link`` begins with says where it leads."""
    end = next(index for index, token in enumerate(link) if token.type == "link_close")
    return str(link[0].attrs["href"]).removeprefix("mailto:") == "".join(token.content for token in link[:end])


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


class _Heading(rich_markdown.Heading):
    """At the left like all else, and bold; the first level is underlined too."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _Paragraph(rich_markdown.Paragraph):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "default"  # no spaces up to the edge
        yield self.text


class _Quote(rich_markdown.BlockQuote):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _hanging("▌ ", "▌ ", self.elements, console, options)


class _List(rich_markdown.ListElement):
    """Each number takes the room that it needs, so that an item looks the same whatever comes after it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, item in enumerate(self.items, self.list_start or 0):
            marker = "• " if self.list_type == "bullet_list_open" else f"{number}. "
            yield from _hanging(marker, " " * len(marker), item.elements, console, options)


def _hanging(
    marker: str, padding: str, content: Renderables, console: Console, options: ConsoleOptions
) -> Iterator[Segment]:
    style, width = Style(color="magenta"), options.max_width - len(marker)
    if width < _MIN_COLUMNS:  # it is not squeezed any further
        marker, padding, width = f"{marker}\n", "", options.max_width
    for index, line in enumerate(console.render_lines(content, options.update(width=width), pad=False) or [[]]):
        yield Segment(padding if index else marker, style)
        yield from line
        yield Segment.line()


class _Rule(rich_markdown.HorizontalRule):
    new_line = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("─" * min(20, options.max_width), "dim")  # not the full width, which a narrower window would fold


class _Table(rich_markdown.TableElement):
    """Cells are folded and never cut; where columns would get too narrow, a row is a line of text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = self.header.row.cells if self.header and self.header.row else []
        body = [row.cells for row in self.body.rows] if self.body else []
        if 6 * len(head) > options.max_width:
            for cells in [head, *body]:
                yield Text(" | ").join(cell.content for cell in cells)
            return
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, border_style="markdown.table.border")
        for cell in head:
            table.add_column(cell.content, justify=cell.justify, overflow="fold", header_style="bold")
        for cells in body:
            table.add_row(*(cell.content for cell in cells))
        yield table


class _Code(rich_markdown.CodeBlock):
    """Highlighted between two short rules; a token's ``meta`` says where it is only a part, without one of them."""

    begins = ends = True

    @classmethod
    def create(cls, markdown: rich_markdown.Markdown, token: Token) -> "_Code":  # noqa: ARG003
        element = cls(language(token), "")
        element.begins, element.ends = token.meta.get("begins", True), token.meta.get("ends", True)
        return element

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.begins:
            yield Text(f"─── {self.lexer_name}".rstrip(), "dim")
        for part in code_parts(code_lines(str(self.text)), self.lexer_name):
            for line in _highlighted(part, self.lexer_name).split("\n", allow_blank=True) if part else ():
                yield from line.wrap(console, options.max_width)
        if self.ends:
            yield Text("───", "dim")


class _Document(rich_markdown.Markdown):
    elements = rich_markdown.Markdown.elements | {
        "paragraph_open": _Paragraph,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "blockquote_open": _Quote,
        "hr": _Rule,
        "bullet_list_open": _List,
        "ordered_list_open": _List,
        "table_open": _Table,
    }
    inlines = rich_markdown.Markdown.inlines | {"u"}


_EMPTY = _Document("")


def document(tokens: list[Token]) -> rich_markdown.Markdown:
    """What rich shows for these tokens, in our style."""
    made = copy(_EMPTY)  # its constructor would make another parser each time, which takes 0.4 ms
    made.parsed = tokens
    return made


def language(token: Token) -> str:
    """What a code block calls its language, in at most 20 characters."""
    return safe(token.info.strip()).partition(" ")[0][:20]


def code_lines(code: str) -> list[str]:
    """The lines of a code block's content, tabs expanded."""
    return [line.expandtabs(4) for line in code.removesuffix("\n").split("\n")] if code else []


def code_parts(lines: list[str], name: str) -> Iterator[list[str]]:
    """The parts in which code is highlighted, each by itself; what comes after a part does not change it."""
    while end := part_end(lines, name):
        yield lines[:end]
        lines = lines[end:]
    yield lines


def part_end(lines: list[str], name: str) -> int:
    """How many of ``lines`` make a part, or 0 where more lines must be known to tell.

    A lexer can begin anew after a line if it gives what follows the same kinds with and without what is before: not in
    the middle of a string or a comment. Where there is no such line for long, the part ends all the same.
    """
    for end in range(_PART_LINES, len(lines) - _AHEAD_LINES + 1):
        before, ahead = lines[:end], lines[end : end + _AHEAD_LINES]
        if end == _MAX_PART_LINES or _kinds(before + ahead, name) == _kinds(before, name) + _kinds(ahead, name):
            return end
    return 0


def _kinds(lines: list[str], name: str) -> list[Kind]:
    """What each character is that can be seen."""
    return [kind for kind, value in _lexed("\n".join(lines), name) for char in value if not char.isspace()]


def _highlighted(lines: list[str], name: str) -> Text:
    text = Text.assemble(
        *((value, _CODE_THEME.get_style_for_token(kind)) for kind, value in _lexed("\n".join(lines), name))
    )
    text.right_crop(1)  # the line break that lexers add
    return text


@lru_cache(maxsize=256)  # looking for the end of a part asks the same again and again
def _lexed(code: str, name: str) -> list[tuple[Kind, str]]:
    lexer = _lexer(name)
    if lexer is None or len(code) > _MAX_LEXED_CHARS:
        return [(kinds.Text, code + "\n")]
    tokens = list(lexer.get_tokens(code))
    is_whole = "".join(value for _, value in tokens) == code + "\n"  # which no lexer promises
    return tokens if is_whole else [(kinds.Text, code + "\n")]


@lru_cache(maxsize=32)
def _lexer(name: str) -> Lexer | None:
    return get_lexer_by_name(name, stripnl=False) if name.lower() in _LANGUAGES else None
