"""Markdown while it streams: what stands on the screen at each moment, and what has scrolled off.

The oracle is rich, which renders the whole document at once; pyte is the terminal.
"""

import contextlib
import io
import itertools
import re
import subprocess
import sys

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.terminal.blocks import MAX_BLOCK_CHARS, Blocks
from localllm.terminal.hyperlinks import opens_links
from localllm.terminal.live import MarkdownWriter, Screen
from localllm.terminal.markdown import Page, document, parse
from localllm.terminal.render import View, show
from localllm.terminal.safe import safe
from localllm.values import Text

SGR = r"(\x1b\[[\d;]*m)"
LINK = re.compile(r"\x1b]8;[^\x1b]*\x1b\\")

LINES = [
    *("# h", "=====", "---", "- a", "- ", "-", "* b", "+ c", "  - n", "   - n", "    - n", "1. x", "2) y", "10. z"),
    *("00. k", "- - a", "  cont", "   cont", "```", "```python", "~~~", "  ```", "   ```js", "- ```", "def f():"),
    *("x = '''", "'''", "/*", "*/", "    code", "> q", ">", "> - a", "> ```", "***", "* * *", "***b**", "*em*"),
    *("**bold", "end**", "`` ", "[a]: http://x", "[a]", "[text](http://x.org/p)", "<http://x.org>", "![i](u)"),
    *(
        "<div>",
        "&#27;[2J",
        "&#8238;",
        "\\",
        "a  ",
        "word ",
        "日本語",
        "e\u0301\u0301",
        "👩\u200d👧 x",
        "|a|b|",
        "|-|-|",
    ),
    *("|-|-|", "--|--", "a|b", "\tt", "long " * 30, "x" * 90, "\u202e\x1b[31m", "> " * 20 + "d", "- " * 20, "", ""),
]
DOCUMENTS = st.lists(
    st.tuples(st.sampled_from(LINES), st.sampled_from(["\n", "\n", "\n", "\n\n", ""])), max_size=40
).map(lambda lines: "".join(line + end for line, end in lines))
CODE = st.lists(
    st.sampled_from(["def f():", "    x = 1", "", "'''", "/* a", "b */", "x = '''a", "# c", "`", "}", "\\", "\tt"]),
    max_size=60,
).map(lambda lines: "\n".join(lines))


@st.composite
def streams(draw, texts=DOCUMENTS):
    """A text, and every way of cutting it."""
    text = draw(texts)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=60))) if text else []
    if draw(st.booleans()):
        cuts = list(range(len(text)))  # character by character, as the worst tokenizer
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


class Watched(pyte.HistoryScreen):
    """A terminal of ``rows`` rows that keeps all that has scrolled off."""

    def __init__(self, columns, rows):
        super().__init__(columns, rows, history=10**6, ratio=0.5)
        self._stream = pyte.Stream(self)
        self._read = 0

    def feed(self, out):
        text = out.getvalue()
        self._stream.feed(text[self._read :])
        self._read = len(text)

    def gone(self):
        """What nobody can rewrite any more."""
        return [self._cells(line) for line in self.history.top]

    def all(self):
        lines = self.gone() + [self._cells(self.buffer[row]) for row in range(self.lines)]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _cells(self, line):
        """Characters with how they look, without blanks at the end."""
        cells = [line[column] for column in range(self.columns)]
        while cells and cells[-1].data == " ":
            cells.pop()
        return [(c.data, *(c[1:] if c.data.strip() else ())) for c in cells]


def seen(lines):
    return "\n".join("".join(cell[0] for cell in line) for line in lines)


class Player:
    """Plays pieces to a writer whose drawing is always due."""

    def __init__(self, columns=80, rows=24, **options):
        self.size = (columns, rows)
        self.out, self.screen, self._now_s = io.StringIO(), Watched(columns, rows), 0.0
        self.writer = MarkdownWriter(Screen(self.out, lambda: self.size), clock=lambda: self._now_s, **options)

    def play(self, pieces, dim=False):
        for piece in pieces:
            self._now_s += 1
            self.writer.write(piece, dim)
            self.screen.feed(self.out)
        return self

    def finish(self):
        self.writer.finish()
        self.screen.feed(self.out)
        return self.screen.all()


def whole(text, columns, rows=24):
    """What rich itself prints for the document, seen in the same terminal."""
    page, screen = Page(), Watched(columns, rows)
    tokens = parse(safe(text))
    with page.console.capture() as printed:
        page.console.width = columns - 1
        page.console.print(document(tokens))
    # an empty line before what comes first, where that holds other blocks: rich's habit, not ours
    is_extra = tokens and tokens[0].nesting == 1 and tokens[1].type != "inline" and tokens[1].nesting != -1
    text = "".join(
        part if part.startswith("\x1b[") else safe(part) for part in re.split(SGR, LINK.sub("", printed.get()))
    )
    screen.feed(io.StringIO((text.split("\n", 1)[1] if is_extra else text).replace("\n", "\r\n")))
    return screen.all()


@settings(max_examples=300)
@given(streams(), st.integers(20, 100), st.sampled_from([3, 10, 24]))
def test_a_stream_ends_as_the_whole_document_looks(pieces, columns, rows):
    """Every way of cutting it, at every width, on screens that are far too low: rich's own rendering of the whole."""
    player = Player(columns, rows)
    assert player.play(pieces).finish() == whole("".join(pieces), columns, rows)


@settings(max_examples=150)
@given(streams(), st.integers(20, 60), st.integers(2, 8))
def test_nothing_that_has_scrolled_off_changes_or_comes_again(pieces, columns, rows):
    """At each moment, what has left the screen is the beginning of what the whole will be."""
    player, ends = Player(columns, rows), whole("".join(pieces), columns, rows)
    for piece in pieces:
        gone = player.play([piece]).screen.gone()
        assert gone == ends[: len(gone)]


@settings(max_examples=200)
@given(streams(CODE), st.sampled_from(["python", "c", "js", "", "nosuch", "bash"]), st.integers(20, 60))
def test_long_code_is_finished_part_by_part(pieces, language, columns):
    """Its lines, and their colours, are those of the whole block."""
    pieces = [f"```{language}\n", *pieces]
    player = Player(columns, 6)
    for piece in pieces:
        player.play([piece])
    assert player.finish() == whole("".join(pieces), columns, 6)


def test_lines_of_code_leave_the_open_block_while_it_is_open():
    """A long one can be scrolled back before it is complete; so can a list."""
    code = Player(80, 10).play(["```python\n", *(f"x{number} = {number}\n" for number in range(100))])
    assert "x70 = 70" in seen(code.screen.gone()) and "x99 = 99" in "\n".join(code.screen.display)
    items = Player(80, 10).play([f"- item {number}\n" for number in range(100)])
    assert "item 80" in seen(items.screen.gone()) and "item 99" in "\n".join(items.screen.display)


def test_a_string_over_many_lines_is_not_taken_apart():
    """Code is cut for highlighting only where a lexer can begin anew."""
    text = "```python\n" + "x = '''\n" + "def f(): return 1\n" * 30 + "'''\n" + "y = 1\n" * 40
    player = Player(80, 8).play(text.splitlines(keepends=True))
    lines = player.finish()
    assert {cell[1] for cell in lines[20] if cell[1:]} == {"red"} and lines[40][0][1] == "default"
    assert len(lines) == 74


@given(streams(), st.integers(20, 60), st.integers(5, 80))
def test_a_block_that_grows_without_end_loses_nothing(pieces, columns, limit):
    """It is ended by force, which may cost its looks; every word is there once, however it was cut."""

    def rows(pieces):
        blocks, page, found = Blocks(limit), Page(), []
        for piece in pieces:
            blocks.feed(safe(piece))
            found += blocks.finished()
        return [row for block in found + blocks.rest() for row in page.rows(block.tokens, columns)]

    assert rows(pieces) == rows(["".join(pieces)])


@pytest.mark.parametrize("before", ["", "```\n", "- "])
def test_a_line_of_a_megabyte(before):
    """Each of its characters is shown once, and what is parsed at a time stays small."""
    blocks, page, shown = Blocks(), Page(), 0
    blocks.feed(before)
    for _ in range(100):
        blocks.feed("x" * 10_000)
        for block in blocks.finished():
            shown += sum(row.text.count("x") for row in page.rows(block.tokens, 80))
        assert sum(len(token.content) for block in blocks.rest() for token in block.tokens) <= MAX_BLOCK_CHARS
    shown += sum(row.text.count("x") for block in blocks.rest() for row in page.rows(block.tokens, 80))
    assert shown == 1_000_000


@pytest.mark.parametrize(
    "text", ["> " * 500 + "x", "- " * 500 + "x", "1. " * 99 + "x", "|x" * 99 + "|\n" + "|-" * 99 + "|\n", "日" * 99]
)
def test_what_does_not_fit_is_not_lost(text):
    """Nested too deep, too many columns, wide characters in a narrow window."""
    shown = seen(Player(20, 10).play([text]).finish())
    assert shown.count("x") == text.count("x") and shown.count("日") == text.count("日")


def test_a_narrow_table_folds_its_cells():
    """Not one character is replaced by an ellipsis."""
    text = f"| a | b |\n|---|---|\n| {'long' * 20} | {'word ' * 20} |\n"
    shown = seen(Player(40, 24).play([text]).finish())
    assert "…" not in shown and sum(shown.count(letter) for letter in "lng") == 60 and shown.count("w") == 20


def test_links_show_where_they_lead():
    """As text: no sequence makes it clickable under another name; an image is named."""
    player = Player().play(["[bank](https://evil.example) <https://a.org> ![alt](http://i/x) [x](javascript:1)"])
    assert seen(player.finish()) == (
        "bank (https://evil.example) https://a.org [image: alt] (http://i/x)\n[x](javascript:1)"
    )
    assert "\x1b]" not in player.out.getvalue()


def linked(out):
    """Each address that can be opened, with the text that it lies under, joined over rows."""
    found = {}
    for number, address, text in re.findall(r"\x1b]8;id=(\d+);([^\x1b]+)\x1b\\(.*?)\x1b]8;;\x1b\\", out):
        found[number, address] = found.get((number, address), "") + re.sub(SGR, "", text)
    return {address: text for (_, address), text in found.items()}


def test_an_address_can_be_opened_under_its_own_name():
    """Whole where it takes several rows; web and mail addresses only, and never by the words that a model gives it."""
    long = "https://example.org/" + "path/" * 30
    text = f"[bank](https://evil.example) <me@a.org> [{long}]({long}) [f](file:///x) [l](a.md) [t](ftp://a.org)\n"
    player = Player(40, links=True, draws=False)
    player.writer.write(text)
    player.finish()
    assert linked(player.out.getvalue()) == {
        "https://evil.example": "https://evil.example",
        "mailto:me@a.org": "me@a.org",
        long: long,
    }
    assert len(re.findall(r"]8;id=\d+;https://example.org", player.out.getvalue())) > 3
    assert "(file:///x)" in seen(player.screen.all()) or "[f](file:///x)" in seen(player.screen.all())


@given(st.text(st.characters(codec="utf-8")) | st.text("ab./:;&#x1b27\x1b\x07\\%"))
def test_an_address_holds_nothing_but_itself(address):
    """Whatever a model puts into one: printable ASCII, that ends neither the mark nor the line."""
    out = Player(40, links=True).play([f"[x](https://{address}) <https://{address}>\n\n"]).out.getvalue()
    for found in re.findall(r"\x1b](.*?)(?:\x1b\\|\x07|$)", out, re.S):
        assert re.fullmatch(r"8;(id=\d+;https://[!-~]+|;)", found), found


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "xterm-kitty"}, True),
        ({"TERM": "xterm-256color", "VTE_VERSION": "4803"}, False),
        ({"TERM": "xterm-256color", "VTE_VERSION": "6800"}, True),
        ({"TERM_PROGRAM": "Apple_Terminal"}, False),
        ({"TERM_PROGRAM": "iTerm.app"}, True),
        ({"TERM_PROGRAM": "iTerm.app", "TERM": "screen", "STY": "1.a"}, False),
        ({"TERM": "linux", "WT_SESSION": "1"}, False),
        ({"TMUX": "/x,1,0", "TERM_PROGRAM": "tmux", "TERM_PROGRAM_VERSION": "3.3a", "VTE_VERSION": "6800"}, False),
        ({"TMUX": "/x,1,0", "TERM_PROGRAM": "tmux", "TERM_PROGRAM_VERSION": "3.4"}, True),
        ({"KONSOLE_VERSION": "200401"}, False),
        ({"KONSOLE_VERSION": "none"}, False),
    ],
)
def test_only_terminals_that_are_known_to_open_addresses_get_them(environ, expected):
    """Others might write the marks out."""
    assert opens_links(environ) == expected


SOURCES = [
    (
        "python",
        "@d\nclass A(int):\n    def f(self, x: int = 0x1f) -> str:  # c\n        return f'{x!r}\\n' and print(None)",
    ),
    ("diff", "--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n"),
    ("html", "<!doctype html><a href='x'>&amp;</a><!-- c -->"),
    ("bash", 'for i in $(ls -l "$HOME"); do echo ${i%.x} 2>&1 | sed s/a/b/; done'),
    ("json", '{"a": [1, true, null, "x"]}'),
    ("c", "#include <a.h>\nint main(void) { return L'x' + sizeof(\"y\") * 1.5e3; } // c"),
]


@pytest.mark.parametrize(("name", "code"), SOURCES)
def test_colours_can_be_read_on_black_and_on_white(name, code):
    """Highlighted code, lists, quotes, tables: red and magenta are the only ones; there are some."""
    player = Player().play(
        [f"# h\n\n- `a` **b**\n\n> q\n\n| a |\n|---|\n| <http://x.org> |\n\n```{name}\n{code}\n```\n"]
    )
    player.finish()
    used = codes(player.out.getvalue())
    assert used <= {"0", "1", "2", "3", "4", "9", "31", "35"} and {"31", "35"} & used


@given(st.text(st.characters(codec="utf-8")) | DOCUMENTS)
def test_a_model_cannot_steer_the_terminal(text):
    """Of escape sequences only our own are written, also where entities spell what is stripped."""
    out = Player(40, 10).play([text, "\n\n&#27;]0;x&#7; &#155;2J &#8238;", f"\n```{text}\n{text}"]).out.getvalue()
    ours = r"\x1b\[(\d*A|K|J|\?7[lh]|\?2026[lh]|[\d;]*m)|\r\n|\r"
    assert safe(re.sub(ours, "", out)) == re.sub(ours, "", out)
    assert codes(out) <= {"0", "1", "2", "3", "4", "9", "31", "35"}


def codes(text):
    """The attributes and colours that are switched on."""
    return {code for codes in re.findall(r"\x1b\[([\d;]*)m", text) for code in codes.split(";")}


def test_no_color_keeps_what_is_no_colour():
    """Bold and underlined stay; no colour is written."""
    player = Player(color=False).play(["# h\n\n- **b** `c`\n\n```python\ndef f(): pass\n```\n"])
    player.finish()
    assert codes(player.out.getvalue()) == {"0", "1", "2", "4"}


def test_only_what_changed_is_written():
    """A row that stays is not touched; where nothing is new, nothing is written."""
    player = Player(40).play(["first " * 20, "second "])
    before = len(player.out.getvalue())
    player.play(["third"])
    assert "third" in player.out.getvalue()[before:] and player.out.getvalue()[before:].count("first") < 7
    before = len(player.out.getvalue())
    player.play([" "])
    assert len(player.out.getvalue()) == before


def test_reasoning_is_folded():
    """Dim and bounded while it comes, one line when the answer begins."""
    player = Player(40, 24).play(["\nI think ", "so. " * 300, "Indeed."], dim=True)
    shown = [line.strip() for line in player.screen.display if line.strip()]
    assert len(shown) == 10 and shown[-1].endswith("Indeed.")
    assert seen(player.play(["So."]).finish()) == "thought for 3.0 s, 303 words\nSo."


@given(streams(), st.lists(st.integers(1, 20), min_size=1), st.integers(1, 5), st.booleans())
def test_no_window_is_too_narrow(pieces, widths, rows, reasoning):
    """Nor one that changes while the answer comes: it is written to its end."""
    out, width = io.StringIO(), itertools.cycle(widths)
    writer = MarkdownWriter(Screen(out, lambda: (next(width), rows)), clock=itertools.count().__next__)
    for piece in [*pieces, "\n\nend\n"]:
        writer.write(piece, dim=reasoning)
    writer.finish()
    assert "end" in re.sub(r"\x1b\[[\d;?]*\w|\s", "", out.getvalue())


def test_reasoning_without_an_answer_is_kept():
    """It is all there is: an answer that was stopped before it began."""
    player = Player(40, 10).play(["why " * 100], dim=True)
    assert seen(player.finish()).split() == ["why"] * 100


def test_an_answer_that_is_cut_is_complete_on_the_screen():
    """Also where drawing it was not due, or the turn fails: the end of it is written and its line ended."""
    out = io.StringIO()

    def failing():
        yield Text("- a\n- ")
        yield Text("**b")
        raise KeyError

    with contextlib.suppress(KeyError):
        show(failing(), View(out, out, markdown=True))
    screen = Watched(80, 24)
    screen.feed(out)
    assert seen(screen.all()) == "• a\n• **b" and (screen.cursor.x, screen.cursor.y) == (0, 2)


def test_without_streaming_nothing_is_written_before_the_end():
    """--no-stream gives the same in one piece."""
    player = Player(draws=False).play(["# a\n\n", "b\n\n", "c"])
    assert player.out.getvalue() == ""
    assert seen(player.finish()) == "a\n\nb\n\nc"


@pytest.mark.parametrize(("columns", "rows"), [(60, 10), (30, 10), (40, 5), (40, 20), (25, 6)])
def test_after_a_resize_the_open_block_is_drawn_for_the_new_size(columns, rows, monkeypatch):
    """What was finished stays above, and nothing is there twice."""
    monkeypatch.setenv("XTERM_VERSION", "pyte, like xterm, does not fold rows that have become too long")
    player = Player(40, 10).play(["done\n\n", "word " * 20])
    player.size = (columns, rows)
    player.screen.resize(rows, columns)
    words = seen(player.play(["end"]).finish()).split()
    assert words == ["done", *["word"] * 20, "end"]


def test_rows_that_a_terminal_has_folded_are_found_again():
    """Most terminals fold what has become too long; the cursor goes up as many rows as that makes."""
    player = Player(80, 24).play(["word " * 40])
    player.size = (40, 24)
    before = len(player.out.getvalue())
    player.play(["end"])
    assert "\x1b[4A" in player.out.getvalue()[before:], "three rows of 79, 79 and 39 cells are five of 40"


def test_a_view_without_markdown_loads_nothing_for_it():
    """A pipe pays for no renderer."""
    code = (
        "import io, sys; from localllm.terminal.render import View, show; from localllm.values import *\n"
        "end = TurnEnd('stop', Message('assistant', ''), TurnStats(1, 0, 1, 0.1, 0.1, 1, 0.0, 1, 7))\n"
        "show(iter([Text('a'), end]), View(io.StringIO(), io.StringIO()))\n"
        "print(*{'rich', 'markdown_it', 'pygments'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.model
def test_chat_shows_markdown_and_no_markdown_does_not(terminal):
    """The same answer, with its code rendered and as it is written."""
    greedy = ("--temp", "0", "--max-tokens", "40")
    question = "Write a Python function that adds two numbers."
    rendered = terminal(*greedy).asks(question)
    written = terminal(*greedy, "--no-markdown").asks(question)
    assert "─── python" in rendered and "```" not in rendered
    assert "```python" in written and "───" not in written
