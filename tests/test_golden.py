"""Every command and every key of a chat through a real pseudo-terminal, and ``ask`` where a person sits before it."""

import base64
import re
import shlex

import pytest
from terminals import ENDLESS, PROGRAM, STATUS

from localllm.cli.answers import Form, report
from localllm.terminal.commands import COMMANDS, KEYS_HELP
from localllm.terminal.render import View
from localllm.values import Message, ModelInfo, TurnEnd, TurnStats

# A command, what is typed, and what is read then; in one conversation.
COMMANDS_TYPED = (
    ("help", "/help copy", "/copy: copy the last answer to the clipboard"),
    ("help", "/?", r"Ctrl-G opens \$EDITOR"),
    ("system", "/system Be brief.", "system prompt set"),
    ("set", "/set temp=0.5", r"temp = 0\.5; takes 0 to 100"),
    ("set", "/set tmp 1", r"tmp[^;]*; [\s\S]*temp"),
    ("set", "/set temp hot", r"temp[\s\S]*hot|hot[\s\S]*temp"),
    ("set", "/set when-full dorp", r"when_full is 'dorp'; give one of ask, drop"),
    ("set", "/set ctx_size 999999", r"a\s+context\s+of\s+999,999\s+tokens\s+is\s+too\s+large"),
    ("set", "/set threads", r"threads = \d+ \(one per core\); takes 1 to 512"),
    ("set", "/set", r"temp +0\.5[\s\S]*max_tokens +3[\s\S]*ctx_size +[\d,]+ \(\w[\s\S]*cache +"),
    ("copy", "/copy", "there is no answer yet"),
    ("file", "/file notes.txt", r"notes\.txt: 28 bytes, \d+ tokens .*goes with your next message"),
    ("", "What do the notes say?", STATUS),
    ("copy", "/copy", r"\x1b\]52;c;[\w+/=]+\x07\d+ characters sent to the terminal"),
    ("regen", "/regen", STATUS),
    ("continue", "/continue", STATUS),
    ("context", "/context", r"system +\d+[\s\S]*you +\d+[\s\S]*answer +\d+[\s\S]*free +[\d,]+"),
    ("stats", "/stats", r"TTFT[\s\S]*all turns +3"),
    ("why", "/why", r"of\s+that\s+ceiling"),
    ("model", "/model", r"SmolLM2\S*, context 8,192"),
    ("save", "/save talk.json", r"saved 1 question with its answer to talk\.json"),
    ("edit", "/edit", "> What do the notes say"),
    ("edit", "\x03", "the question stays as it was"),
    ("undo", "/undo", "taken back: What do the notes say"),
    ("load", "/load talk.json", r"1 question with its answer from talk\.json"),
    ("clear", "/clear", "a new conversation begins, the system prompt stays"),
    ("exit", "/bye", ""),
)

# A key, what is typed with it, and what the screen shows then, with the cursor at "█".
KEYS_TYPED = (
    ("Enter", "/system one\r", r"system prompt set[^\n]*\n> █"),
    ("Ctrl-J", "/system one\x0atwo", r"> /system one\n  two█"),
    ("Ctrl-J", "\r/system\r", r"\none\ntwo\n> █"),
    ("Alt-Enter", "/system one\x1b\rthree", r"> /system one\n  three█"),
    ("Alt-Enter", "\r/system\r", r"\none\nthree\n> █"),
    ("\\", "/system one\\\rfour", r"> /system one\\\n  four█"),
    ("\\", "\r/system\r", r"\none\nfour\n> █"),
    ('"""', '"""\r/system five\r"""', r'> """\n  /system five\n  """█'),
    ('"""', "\r", r"TTFT\s[\d.]+\ss[^>]*\n> █"),
    ('"""', "/edit\r", r"\n> /system five█"),
    ("Ctrl-C", "\x03", r"the question stays as it was\n> █"),
    ("Ctrl-C", "not this\x03", r"> not this\n> █"),
    ("Ctrl-C", "\x03", r"Ctrl-D or /exit leaves\n> █"),
    ("Ctrl-R", "\x12four", r"I-search backward: four"),
    ("Ctrl-R", "\r", r"> /system one\\\n  █our\n"),
    ("Tab", "\x03/sys", r"> /sys█\n +/system "),
    ("Tab", "\t", r"> /system█"),
    ("Tab", "\x03/set when", r"> /set when█\n +when_full "),
    ("Tab", "\t", r"> /set when_full█"),
    ("Tab", "\x03/model qwen3-0.", r"> /model qwen3-0\.█\n +qwen3-0\.6b"),
    ("Tab", "\t", r"> /model qwen3-0\.6b█"),
    ("Tab", "\x03/file no", r"> /file no█\n +notes\.txt"),
    ("Tab", "\t", r"> /file notes\.txt█"),
    ("Tab", "\x03compare @no\t", r"> compare @notes\.txt█"),
    ("Tab", "\x03compare @wi\t", r'> compare @"with space/█'),
    ("Tab", "\t", r'> compare @"with space/in\.txt"█'),
    ("Tab", "\x03/mo\t", r"> /model█"),
    ("Ctrl-G", "\x03short\x07", r"> short, but edited█"),
    ("Ctrl-D", "\x03\x04", ""),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the chat is started: a file, an editor, and no clipboard but the terminal's."""
    (tmp_path / "notes.txt").write_text("The secret is a heliotrope.\n")
    (tmp_path / "with space").mkdir()
    (tmp_path / "with space" / "in.txt").write_text("text")
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf ", but edited" >> "$1"\n')
    editor.chmod(0o755)
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME", "TMUX", "VISUAL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_command_and_no_key_is_left_out():
    """What /help names is typed in the two conversations below."""
    assert {name for name, *_ in COMMANDS_TYPED} - {""} == {command.name for command in COMMANDS}
    named = re.findall(r'Ctrl-\w|Alt-Enter|Enter|Tab|"""|\\', KEYS_HELP)
    assert {key for key, *_ in KEYS_TYPED} == set(named)


@pytest.mark.model
def test_every_command(terminal, folder):
    """Each says what it did, or what is wrong, and the conversation goes on."""
    chat = terminal("--max-tokens", "3", *ENDLESS)
    for _, typed, expected in COMMANDS_TYPED:
        if typed != "\x03":
            chat.ready()
        chat.types(typed if typed == "\x03" else f"{typed}\r")
        seen = chat.sees(expected)
        if copied := re.search(r"52;c;([\w+/=]+)\x07(\d+)", seen):
            assert len(base64.b64decode(copied[1]).decode()) == int(copied[2]) > 0
    assert chat.leaves() == 0


@pytest.mark.model
def test_every_key(terminal, folder):
    """What stands on the screen, and where the cursor is, after each."""
    chat = terminal("--max-tokens", "2", *ENDLESS, columns=100)
    chat.shows("> █")
    for _, typed, expected in KEYS_TYPED:
        chat.types(typed)
        if expected:
            chat.shows(expected)
    assert chat.leaves() == 0


@pytest.mark.model
def test_the_toolbar(terminal):
    """Under the input: the model and its context; after an answer its numbers; in a narrow window less of it."""
    chat = terminal("--max-tokens", "4", *ENDLESS, columns=100)
    chat.shows(r"> █\n+.*context 8,192\n*$")
    chat.types("Hello\r")
    chat.shows(r"> █\n+.*\d+/8,192 \(0 %\) · [\d.]+ tok/s(, \d+ % of ceiling)? · 0 cached")
    chat.resized(20, 36)
    chat.shows(r"> █\n+SmolLM[^\n]{,29}\n*$")
    chat.types("\x04")
    assert chat.leaves() == 0


@pytest.mark.model
def test_a_pipe_that_becomes_a_chat(terminal, folder):
    """The first answer is about the piped text, then the terminal is read; what was typed meanwhile is not lost."""
    ask = f"cat notes.txt | {shlex.quote(PROGRAM)} ask -i --seed 1 --max-tokens 4 'What is this?'"
    chat = terminal(command=["bash", "-c", ask])
    chat.shows("> █")
    chat.types("And?\r")
    chat.shows(r"\(\d+ cached\)[\s\S]*> █")
    chat.types("/context\r")
    chat.shows(r"you +\d+ [\s\S]*answer +\d+ [\s\S]*you +\d+ [\s\S]*answer +\d+ [\s\S]*> █")
    chat.types("\x04")
    assert chat.leaves() == 0


@pytest.mark.model
def test_what_is_typed_while_ask_answers_is_not_shown_and_reaches_who_reads_next(terminal):
    """A shell, by its line, whichever way Enter is sent; and with -i the chat, as keys."""
    ask = f"{shlex.quote(PROGRAM)} ask --max-tokens 60 {shlex.join(ENDLESS)}"
    after = terminal(command=["bash", "-c", f'{ask} begin; stty -a; read line; echo "<$line>"'])
    after.sees(r"\w[\s\S]{60}")
    after.types("typed ahead\r")
    seen = after.sees(r"<typed.*>")
    assert "typed ahead" not in seen.partition("speed ")[0] and seen.endswith("<typed ahead>")
    assert re.search(r"\bicrnl\b", seen) and " -echo " not in seen and " -icanon" not in seen
    chat = terminal(command=["bash", "-c", f"{ask} -i begin"])
    chat.sees(r"\w[\s\S]{60}")
    chat.types("/exit\r")
    assert chat.leaves() == 0


@pytest.mark.model
def test_an_ask_in_the_background_leaves_the_terminal_alone(terminal):
    """It would be stopped if it touched its settings."""
    shell = terminal(command=["bash", "--norc", "-i"])
    shell.types(f"{shlex.quote(PROGRAM)} ask --max-tokens 3 hi & wait; echo ended $((40 + 2))\r")
    assert "Stopped" not in shell.sees("ended 42")


@pytest.mark.parametrize(
    ("reason", "text", "said"), [("length", "", True), ("length", "so", False), ("stop", "", False)]
)
def test_reasoning_without_an_answer_is_told(capsys, reason, text, said):
    """Where --max-tokens came first there is no answer, and an empty line alone would not say why."""
    stats = TurnStats(
        prompt_tokens=9,
        cached_tokens=0,
        read_tokens=9,
        prefill_s=0.1,
        ttft_s=0.1,
        output_tokens=3,
        decode_s=0.1,
        context_tokens=12,
        seed=1,
    )
    end = TurnEnd(reason, Message("assistant", text, reasoning="well"), stats)
    info = ModelInfo("model", 8192, "default", "f16", True, 2, 0, 31, True)
    report(end, Form(View.of_terminal()), info, usage=False, extract=None)
    assert ("before the end of the reasoning: there is no answer" in capsys.readouterr().err) is said
