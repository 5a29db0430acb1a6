"""The pictures of README.md, and how scripts/screenshots draws what a terminal shows."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import screenshots
from hypothesis import given
from hypothesis import strategies as st
from screen import CELL_HEIGHT, CELL_WIDTH, Screen, svg

ROOT = Path(__file__).parent.parent
IMAGES = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", (ROOT / "README.md").read_text())
SVG = "{http://www.w3.org/2000/svg}"

# Text with all that a program may mix into it: colours, moves of the cursor, wide and combining characters.
TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cn"]) | st.sampled_from("a<&>'\" \t\r\n中あ⠂─\u0301\ufe0f"),
    max_size=20,
)
SEQUENCES = st.builds(
    "\x1b[{}{}".format, st.sampled_from(["", "1", "2", "7", "0;2;3", "38;5;2", "48;2;2;2;2"]), st.just("m")
)
MOVES = st.builds("\x1b[{};{}{}".format, st.integers(1, 8), st.integers(1, 24), st.just("H"))
OUTPUTS = st.lists(TEXTS | SEQUENCES | MOVES, max_size=30).map("".join)


def drawn(picture):
    """The rows of a picture, each piece of text put where it says it stands."""
    rows = {}
    for text in ET.fromstring(picture).iter(f"{SVG}text"):
        column, cells = (round(float(text.get(name)) / CELL_WIDTH) for name in ("x", "textLength"))
        row, end = rows.get(int(text.get("y")) // CELL_HEIGHT, ("", 0))
        assert column >= end, "two pieces of text in one place"
        rows[int(text.get("y")) // CELL_HEIGHT] = row + " " * (column - end) + text.text, column + cells
    return [rows.get(number, ("", 0))[0].rstrip(" ") for number in range(max(rows, default=-1) + 1)]


@given(OUTPUTS)
def test_a_picture_shows_exactly_what_the_screen_shows(output):
    """Every character, in its row and behind what is before it, whatever its colour and width; nothing else."""
    screen = Screen(24, 8)
    screen.feed(output)
    lines = screen.text.rstrip("\n").split("\n")
    assert drawn(svg(screen, "a title")) == (lines if any(lines) else [])


def test_looks_are_drawn():
    """Colour, bold, italics, lines and swapped colours; dim is grey, which a colour's own number 2 is not."""
    screen = Screen(20, 2)
    screen.feed("\x1b[1;31mA\x1b[0;3;4mB\x1b[0;7mC\x1b[0;2mD\x1b[0;38;5;2mE\x1b[0mF")
    texts = {text.text: text.attrib for text in ET.fromstring(svg(screen, "")).iter(f"{SVG}text")}
    assert texts["A"]["font-weight"] == "bold" and texts["A"]["fill"] == "#e06c75"
    assert texts["B"]["font-style"] == "italic" and texts["B"]["text-decoration"] == "underline"
    assert texts["C"]["fill"] == "#1e2127" and texts["D"]["fill"] == "#8a919e" and texts["E"]["fill"] == "#00cd00"
    assert "fill" not in texts["F"]


def test_the_screen_answers_where_its_cursor_is():
    """As a terminal does; what is written is not answered."""
    answers = []
    screen = Screen(20, 5, answers.append)
    screen.feed("one\r\nand two\x1b[6n and more")
    assert answers == ["\x1b[2;8R"]


@pytest.mark.parametrize(("alt", "name"), IMAGES)
def test_the_pictures_of_the_readme(alt, name):
    """Each is there, small, whole, has text in it, fetches nothing, and has words for those who cannot see it."""
    picture = (ROOT / name).read_text()
    assert len(alt.split()) > 5 and len(picture) < 40_000
    assert sum(map(len, drawn(picture))) > 200
    assert "href" not in picture and "url(" not in picture and "<script" not in picture


def test_the_readme_shows_every_picture_that_is_made():
    """And the program's own names are in them."""
    made = {f"docs/images/{take.__name__}.svg" for take in screenshots.PICTURES}
    assert {name for _, name in IMAGES} == made == {f"docs/images/{path.name}" for path in screenshots.IMAGES.iterdir()}
    for name in made:
        assert "localllm" in "\n".join(drawn((ROOT / name).read_text()))


@pytest.mark.model
def test_a_picture_is_made(smollm2, tmp_path):
    """A shell in a pseudo-terminal shows what the program says, with nothing of the user's own settings."""
    with screenshots.started() as session:
        session.enter("localllm ceiling --gpu 3090 --model-bytes 19e9", screenshots.SHELL)
        session.enter("ls; env | grep -c ^XDG_", screenshots.SHELL)
    lines = drawn(svg(session.screen, "a title"))
    assert lines[0] == "$ localllm ceiling --gpu 3090 --model-bytes 19e9" and "at most 49" in "\n".join(lines)
    assert lines[-3:] == ["minutes.txt", "0", "$"]
