"""Code blocks out of answers: every fence, info string and container, compared with what was put in."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes import THINK, UNTHINK, FakeDecoder, fake_engine, says
from hypothesis import given
from hypothesis import strategies as st

from localllm import Message, Sampling, TurnEnd
from localllm.session.extract import CodeBlock, code_block, code_blocks

PROGRAM = str(Path(sys.executable).with_name("localllm"))
INFOS = ["", "python", "c++", "c#", "{.python .numberLines}", 'json title="a b"', "日本", "-", "sh $HOME", "\\*"]
CONTAINERS = [
    ("", ""),
    ("> ", "> "),
    ("- ", "  "),
    ("1. ", "   "),
    ("10) ", "    "),
    ("> - ", ">   "),
    ("- > ", "  > "),
]
LINE = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=12)


@dataclass(frozen=True)
class Fenced:
    """A code block, and how it stands in a document."""

    lines: list[str]
    info: str
    mark: str
    extra: int
    indent: int
    container: tuple[str, str]

    @property
    def code(self) -> str:
        return "\n".join(self.lines)

    def written(self, closed: bool = True) -> str:
        runs = re.findall(f"{self.mark}+", self.code)
        fence = self.mark * (max([3, *(len(run) + 1 for run in runs)]) + self.extra)
        rows = [f"{fence}{self.info}", *self.lines, *([fence] if closed else [])]
        first, rest = self.container
        return "\n".join((rest if number else first) + " " * self.indent + row for number, row in enumerate(rows))


FENCED = st.builds(
    Fenced,
    lines=st.lists(LINE, min_size=1, max_size=5),
    info=st.sampled_from(INFOS),
    mark=st.sampled_from("`~"),
    extra=st.integers(0, 3),
    indent=st.integers(0, 3),
    container=st.sampled_from(CONTAINERS),
)
PROSE = st.sampled_from(
    ["Here it is:", "# Title", "Use `x` or ``y``.", "    an indented line", "<b>bold</b>", "| a |\n|---|"]
)
DOCUMENT = st.lists(st.one_of(PROSE, FENCED), min_size=1, max_size=6)


def text_of(pieces):
    """The pieces as paragraphs; the comment between them ends a list, which would take the next piece in."""
    return "\n\n<!-- -->\n\n".join(piece if isinstance(piece, str) else piece.written() for piece in pieces)


@given(DOCUMENT)
def test_each_block_comes_out_as_it_was_put_in(pieces):
    """Any text in any fence, with any info string, indented, in lists and quotes: unchanged, in order, and closed."""
    wanted = [CodeBlock(piece.code, closed=True) for piece in pieces if isinstance(piece, Fenced)]
    assert code_blocks(text_of(pieces)) == wanted
    assert code_block(text_of(pieces), "first") == next(iter(wanted), None)
    assert code_block(text_of(pieces), "last") == next(iter(wanted[::-1]), None)


@given(DOCUMENT, FENCED)
def test_a_block_that_a_cut_answer_leaves_open_is_there(pieces, last):
    """It has all its lines, and says that it is open; the blocks before it are as they were."""
    *before, found = code_blocks(text_of(pieces) + "\n\n<!-- -->\n\n" + last.written(closed=False) + "\n")
    assert found == CodeBlock(last.code, closed=False)
    assert before == code_blocks(text_of(pieces))


@given(DOCUMENT, st.data())
def test_wherever_an_answer_is_cut_no_finished_block_changes(pieces, data):
    """Only the last block of a cut answer can be other than in the whole one."""
    text = text_of(pieces)
    cut = code_blocks(text[: data.draw(st.integers(0, len(text)))])
    assert cut[:-1] == code_blocks(text)[: max(0, len(cut) - 1)]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("```c++\nint a;\n```", ["int a;"]),
        ("````md\n```py\na\n```\n````", ["```py\na\n```"]),
        ("``` not ` a fence\na", []),
        ("    ```\n    a\n    ```", []),
        ("Use ```x``` here", []),
        ("```\n```", [""]),
        ("```", [""]),
        ("a\n```\nb\r\nc\r\n```\r\n", ["b\nc"]),
        ("```\n\n a\n\n```", ["\n a\n"]),
        ("~~~\n```\n~~~ x\n~~~~", ["```\n~~~ x"]),
        ("", []),
    ],
)
def test_blocks_by_example(text, codes):
    """What CommonMark says of fences."""
    assert [block.code for block in code_blocks(text)] == codes


@pytest.mark.parametrize(
    "text", [">" * 10**5, "- " * 10**5, "`" * 10**6, "[" * 10**5, "```\n" * 10**4, "[a]: <b>\n" * 10**4]
)
def test_an_absurd_answer_takes_no_absurd_time(text):
    """Deep nesting and endless runs end; the suite has its own limit of time."""
    assert len(code_blocks(text)) <= len(text) // 8


def test_reasoning_is_not_searched():
    """A block that the model wrote while it was reasoning is none of its answer."""
    answer = [THINK, *b"```\nwrong\n```", UNTHINK, *b"```\nright\n```"]
    *_, end = fake_engine(FakeDecoder(says(answer))).reply([Message("user", "?")], Sampling(temperature=0))
    assert isinstance(end, TurnEnd) and "wrong" in end.message.reasoning
    assert code_blocks(end.message.text) == [CodeBlock("right", closed=True)]


FIXED = ("--temp", "0", "--threads", "2", "--draft", "off")
TWO_BLOCKS = ("Write a Python function that adds two numbers.", *FIXED, "--max-tokens", "120")


@pytest.fixture
def ask(home, smollm2, monkeypatch):
    """Runs ``localllm ask`` with the default model; returns the finished process."""
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))

    def run(*arguments):
        command = [PROGRAM, "ask", *arguments]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    return run


@pytest.mark.model
def test_only_the_block_is_printed_and_json_has_both(ask):
    """-x and --xl print the code and nothing else; --json keeps the answer whole and adds ``extracted``."""
    found = json.loads(ask("-x", "--json", *TWO_BLOCKS).stdout)
    first, last = (block.code for block in code_blocks(found["answer"]))
    assert found["extracted"] == first != last
    for flag, code in (("-x", first), ("--xl", last)):
        shown = ask(flag, *TWO_BLOCKS)
        assert (shown.returncode, shown.stderr, shown.stdout) == (0, "", code + "\n")


@pytest.mark.model
def test_an_answer_without_a_block_is_printed_whole_and_stderr_says_so(ask):
    """``extracted`` is null in --json; -q says nothing."""
    colours = ("Name three colours.", *FIXED)
    shown = ask("--xl", *colours)
    assert (shown.returncode, shown.stdout) == (0, ask(*colours).stdout)
    assert shown.stderr == "localllm: the answer has no code block, so all of it is given\n"
    quiet = ask("-x", "-q", "--json", *colours)
    assert (quiet.stderr, json.loads(quiet.stdout)["extracted"]) == ("", None)


@pytest.mark.model
def test_a_block_that_was_cut_is_printed_and_stderr_says_so(ask):
    """--max-tokens may end an answer within a block."""
    whole, cut = ask("-x", *TWO_BLOCKS).stdout, ask("-x", *TWO_BLOCKS, "--max-tokens", "12")
    assert cut.returncode == 0 and cut.stdout.strip() and whole.startswith(cut.stdout.strip())
    assert cut.stderr == "localllm: the code block has no end: the answer may be cut\n"


def test_first_and_last_exclude_each_other(home):
    """Exit code 2, before anything is loaded."""
    done = subprocess.run([PROGRAM, "ask", "-x", "--xl", "hi"], stdin=-3, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and "give one of them" in done.stderr
