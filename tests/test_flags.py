"""Flags that people bring along from other programs: --color, --model-draft, and -f and -t of a chat."""

import io
import json
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminals import PROGRAM, run_at_terminal

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


# --- what goes with the first message of a chat


FEW = ("--max-tokens", "4", "--ctx-size", "1024", "--threads", "2", "--draft", "off")


def questions() -> list[str]:
    """What was asked in the last conversation, as the model got it."""
    listed = subprocess.run([PROGRAM, "history", "list", "--json"], capture_output=True, text=True, timeout=60)
    last = json.loads(listed.stdout)[0]["id"]
    shown = subprocess.run([PROGRAM, "history", "show", "--json", last], capture_output=True, text=True, timeout=60)
    return [one["text"] for one in json.loads(shown.stdout)["messages"] if one["role"] == "user"]


@pytest.mark.model
def test_a_file_goes_with_the_first_message_of_a_chat_and_no_other(terminal, tmp_path):
    """It is told at the beginning, and is before what is typed."""
    (tmp_path / "rivers.txt").write_text("The Oder is in the east.\n")
    chat = terminal(*FEW, "-f", str(tmp_path / "rivers.txt"))
    chat.sees(r"rivers.txt: 25 bytes.*goes with your first message")
    chat.asks("Where is it?")
    chat.asks("And the Elbe?")
    chat.ready()
    chat.types("/exit\r")
    assert chat.leaves() == 0
    assert questions() == ["==> rivers.txt <==\nThe Oder is in the east.\n\nWhere is it?", "And the Elbe?"]


@pytest.mark.model
def test_a_template_goes_around_the_first_message_of_a_chat(terminal, tmp_path, home):
    """With its parameters and its system prompt; where nothing is missing, Enter alone sends it."""
    folder = home / ".config" / "localllm" / "templates"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "system: Be $mood.\nprompt: 'Sum up: $input'\nparameters:\n  mood: {default: brief}\n"
    )
    (tmp_path / "rivers.txt").write_text("The Oder is in the east.\n")
    chat = terminal(*FEW, "-t", "mine", "-p", "mood", "kind", "-f", str(tmp_path / "rivers.txt"))
    chat.sees("template mine goes around your first message; Enter alone sends it")
    chat.asks("")
    chat.asks("And the Elbe?")
    chat.ready()
    chat.types("/system\r")
    chat.sees("Be kind.")
    chat.ready()
    chat.types("/exit\r")
    assert chat.leaves() == 0
    assert questions() == ["Sum up: ==> rivers.txt <==\nThe Oder is in the east.", "And the Elbe?"]


@pytest.mark.model
def test_a_file_that_does_not_fit_can_be_left_out(terminal, tmp_path):
    """The message is refused with the way out; what is attached stays attached until then."""
    (tmp_path / "long.txt").write_text("The Oder is in the east.\n" * 300)
    chat = terminal(*FEW, "-f", str(tmp_path / "long.txt"))
    chat.ready()
    chat.types("Where is it?\r")
    chat.sees("/file none leaves out what is attached")
    chat.ready()
    chat.types("/file none\r")
    chat.asks("Where is it?")
    chat.ready()
    chat.types("/exit\r")
    assert chat.leaves() == 0
    assert questions() == ["Where is it?"]


@pytest.mark.model
def test_clear_drops_what_waits_for_a_first_message(terminal, tmp_path):
    """Files and template belong to the conversation that is not begun any more."""
    (tmp_path / "rivers.txt").write_text("The Oder is in the east.\n")
    chat = terminal(*FEW, "-t", "summarise", "-f", str(tmp_path / "rivers.txt"))
    chat.ready()
    chat.types("/clear\r")
    chat.sees("a new conversation begins")
    chat.asks("Hello")
    chat.ready()
    chat.types("/exit\r")
    assert chat.leaves() == 0
    assert questions() == ["Hello"]


@pytest.mark.parametrize("arguments", [("-f", "/nowhere"), ("-t", "nowhere"), ("-p", "a", "b")])
def test_what_cannot_go_with_a_message_is_told_before_a_model_is_looked_for(home, arguments):
    """One line and exit 2, though there is no such model either."""
    done = run_at_terminal("chat", "-m", "/none.gguf", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "none.gguf" not in done.stderr
