"""Flags that people bring along from other programs: --color, --model-draft, and -f and -t of a chat."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.cli.main import program
from localllm.terminal.render import View, show, wants_color
from localllm.values import Message, Text, TurnEnd, TurnStats

SGR = re.compile(r"\x1b\[[0-9;]*m")
ANSWER = "# Rivers\n\n- **Rhine**\n- Elbe\n\n```python\nprint('Oder')\n```\n"


class Stream(io.StringIO):
    """What stdout is to the program: a terminal or not."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def fileno(self) -> int:
        raise OSError


def view(monkeypatch, is_terminal, **variables):
    """What a View of these streams would be, for each choice of --color."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", Stream(is_terminal))
    return View.of_terminal


def shown(text: str, to: View, pieces: int = 3) -> str:
    """An answer as it is written there, in pieces of so many characters."""
    events = [Text(text[at : at + pieces]) for at in range(0, len(text), pieces)]
    show(iter([*events, TurnEnd("stop", Message("assistant", text), TurnStats(*[0] * 9))]), to)
    return to.out.getvalue()


@pytest.mark.parametrize(
    ("is_terminal", "variables", "auto"),
    [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False), (False, {}, False)],
)
def test_color_is_as_said_and_else_as_the_terminal_and_no_color_want(monkeypatch, is_terminal, variables, auto):
    """What is said on the command line wins over NO_COLOR, TERM and pipes, both ways."""
    view(monkeypatch, is_terminal, **variables)
    assert (wants_color("auto"), wants_color("always"), wants_color("never")) == (auto, True, False)


@pytest.mark.parametrize("stream", [True, False])
def test_colours_in_a_pipe_are_for_a_pager(monkeypatch, stream):
    """Markdown in colour, of which every control sequence is a colour: nothing is redrawn; and no word is lost."""
    written = shown(ANSWER, view(monkeypatch, False)(color="always", stream=stream))
    assert SGR.search(written)
    plain = SGR.sub("", written)
    assert "\x1b" not in plain and "\r" not in plain
    assert [word in plain for word in ("Rivers", "Rhine", "Elbe", "print('Oder')")] == [True] * 4
    assert "```" not in plain and written.endswith("\n")


@given(st.text(st.sampled_from("a *_`#\n-1.|>"), max_size=80), st.integers(1, 9))
def test_a_pipe_gets_the_same_however_the_answer_is_cut_into_pieces(text, pieces):
    """What a pager gets depends on the answer alone."""
    with pytest.MonkeyPatch.context() as patch:
        of_terminal = view(patch, False)
        whole = shown(text, of_terminal(color="always", stream=False))
        patch.setattr("sys.stdout", Stream(False))
        assert shown(text, of_terminal(color="always"), pieces) == whole


@pytest.mark.parametrize("color", ["auto", "never"])
def test_without_that_a_pipe_gets_the_answer_as_it_is(monkeypatch, color):
    """No Markdown, no control characters."""
    assert shown(ANSWER, view(monkeypatch, False)(color=color)) == ANSWER


@pytest.mark.parametrize("name", ["ask", "chat"])
def test_a_draft_model_has_the_name_that_others_give_it(name):
    """``--model-draft`` is ``--draft``, as ``-md`` is."""
    (option,) = (one for one in program().commands[name].params if one.name == "draft")
    assert {"--draft", "--model-draft", "-md"} == set(option.opts)


@pytest.mark.parametrize("words", [("history", "show"), ("history", "search"), ("doctor",)])
def test_what_colours_takes_the_flag(words):
    """The commands that write colours can be told to, or not to."""
    command = program()
    for word in words:
        command = command.commands[word]
    assert "--color" in {option for one in command.params for option in one.opts}
