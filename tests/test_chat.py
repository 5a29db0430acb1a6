"""``localllm chat`` through a real pseudo-terminal, and the pure rules of its input line."""

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import termios
import time
import tty
from pathlib import Path

import pexpect
import pytest
from fakes import FakeDecoder, fake_engine, says
from hypothesis import given
from hypothesis import strategies as st
from terminals import ENDLESS, PROGRAM, STATUS

from localllm import Message, Sampling, Settings, TurnEnd
from localllm.cancel import Cancel
from localllm.errors import OutOfMemory, PromptTooLong, UsageError
from localllm.session.chat import Chat
from localllm.terminal import attachments, commands
from localllm.terminal.keys import completions, is_complete, path_begun, path_written, unquoted
from localllm.terminal.line_settings import line_settings_kept
from localllm.terminal.render import View
from localllm.terminal.repl import history_path


@pytest.mark.model
def test_a_conversation(terminal, home):
    """Greeting, an answer with its status line, a second turn that reads only what is new, Ctrl-D."""
    chat = terminal("--temp", "0", "--max-tokens", "40")
    assert "context 8,192" in chat.sees(r"Ctrl-D leaves\.")
    first = chat.asks("Name three colours.")
    assert "Red" in first and re.search(r"prefill \d+ tokens", first) and "tok/s" in first
    second = chat.asks("And another one?")
    assert int(re.search(r"prefill (\d+) tokens?", second)[1]) < 25 and re.search(r"\d+ cached", second)
    chat.ready()
    chat.types("\x04")
    assert chat.leaves() == 0
    assert "Name three colours." in (home / ".local/share/localllm/chat_history").read_text()


@pytest.mark.model
def test_commands(terminal):
    """/help, /system, /stats, /clear, /model and /exit do what they say; an unknown one is an error."""
    chat = terminal("--max-tokens", "3")
    for typed, expected in [
        ("/help", r"Ctrl-G opens \$EDITOR"),
        ("/hlp", r"there is no command /hlp; /help\?"),
        ("/stats", "no answer yet"),
        ("/system", "there is no system prompt"),
        ("/system Be brief.", "system prompt set"),
        ("/system", r"Be brief\."),
        ("/model nosuch", "there is no model 'nosuch'"),
        ("/model", "context 8,192"),
    ]:
        chat.ready()
        chat.types(typed + "\r")
        chat.sees(expected)
    chat.asks("Hi")
    chat.ready()
    chat.types("/stats\r")
    chat.sees(r"inter-token p99 +[\d.]+ ms")
    chat.types("/clear\r")
    chat.sees("the system prompt stays")
    chat.types("/exit\r")
    assert chat.leaves() == 0


@pytest.mark.model
def test_another_model_in_the_same_conversation(terminal, gemma):
    """/model PATH loads it and the talk goes on."""
    chat = terminal("--max-tokens", "3", "--ctx-size", "512")
    chat.asks("Hi")
    chat.ready()
    chat.types(f"/model {gemma}\r")
    chat.sees("gemma-3-270m.* context 512")
    chat.asks("Hi again")


@pytest.mark.model
def test_ctrl_c_while_decoding_keeps_the_answer_and_the_conversation(terminal):
    """The answer stops, what was written stays in the conversation, and the next turn builds on it."""
    chat = terminal(*ENDLESS)
    for again in (False, True):
        chat.ready()
        chat.types("Go on.\r")
        chat.sees(r"Go on\.[\s\S]{200}")
        chat.types("\x03")
        stopped = chat.sees(STATUS)
        assert "interrupted" in stopped
        assert bool(re.search(r"\(\d+ cached\)", stopped)) is again


@pytest.mark.model
def test_ctrl_c_while_the_prompt_is_read(terminal):
    """Prefill stops too; one line says so, and that the question is not lost; and the conversation goes on."""
    chat = terminal("--temp", "0", "--max-tokens", "5")
    chat.ready()
    chat.types("\x1b[200~" + "the sea and the river and the clouds " * 900 + "\x1b[201~")
    time.sleep(1)
    chat.types("\r")
    chat.sees("reading the prompt")
    chat.types("\x03")
    said = chat.sees(STATUS)
    assert "interrupted: there is no answer; the question is not part of the conversation; ↑ brings it back\n" in said
    chat.ready()
    chat.types("\x1b[A")
    chat.sees("the sea and the river")
    chat.types("\x03")
    assert "prefill" in chat.asks("Hi")


@pytest.mark.model
def test_a_pasted_text_of_many_lines_is_one_message(terminal):
    """Bracketed paste does not send line by line; Enter sends it all."""
    chat = terminal("--max-tokens", "2")
    chat.ready()
    chat.types("\x1b[200~first line\nsecond line\nthird line\x1b[201~")
    time.sleep(0.5)
    assert "tok/s" not in chat.seen
    chat.types("\r")
    chat.sees(STATUS)
    chat.ready()
    chat.types("/stats\r")
    assert int(re.search(r"prompt +(\d+) tokens", chat.sees(r"inter-token p99"))[1]) > 35


@pytest.mark.model
def test_history_is_searched(terminal):
    """Ctrl-R finds what was asked in an earlier session; Enter takes it, a second Enter sends it."""
    first = terminal("--max-tokens", "2")
    first.asks("Name three colours.")
    second = terminal("--max-tokens", "2")
    second.ready()
    second.types("\x12three")
    second.sees("I-search backward: three")
    second.types("\r")
    time.sleep(0.5)
    second.types("\r")
    assert "prefill 34 tokens" in second.sees(STATUS)


@pytest.mark.model
def test_multi_line_input(terminal):
    """A backslash at the end, Ctrl-J and Alt-Enter begin a new line; Enter sends."""
    chat = terminal("--max-tokens", "2")
    chat.ready()
    chat.types("one \\\rtwo\x0athree\x1b\rfour")
    time.sleep(0.5)
    assert "tok/s" not in chat.seen
    chat.types("\r")
    chat.sees(STATUS)


@pytest.mark.model
def test_a_resized_window(terminal):
    """A resize in the middle of an answer, and at the prompt, does no harm."""
    chat = terminal(*ENDLESS, "--max-tokens", "100")
    chat.ready()
    chat.types("Go on.\r")
    chat.sees(r"Go on\.[\s\S]{50}")
    chat.resized(10, 40)
    chat.sees(STATUS)
    chat.resized(40, 120)
    chat.asks("Thanks.")


@pytest.mark.model
def test_ctrl_c_at_the_prompt(terminal):
    """At an empty prompt it gives a hint; with text it takes the text back."""
    chat = terminal("--max-tokens", "2")
    chat.ready()
    chat.types("\x03")
    chat.sees("Ctrl-D or /exit leaves")
    chat.ready()
    chat.types("never mind\x03")
    chat.asks("Hi")
    chat.ready()
    chat.types("/stats\r")
    alone = int(re.search(r"prompt +(\d+) tokens", chat.sees("inter-token p99"))[1])
    assert alone == 31, "the text that was taken back must not be sent along"


@pytest.mark.model
def test_a_conversation_that_no_longer_fits(terminal):
    """It is told with the numbers and with what can be done, and the conversation is unchanged."""
    chat = terminal("--ctx-size", "256", "--max-tokens", "2")
    chat.asks("Hi")
    chat.ready()
    chat.types("word " * 300 + "\r")
    said = chat.sees(r"gives more room")  # nothing is asked: forgetting all would not help
    assert re.search(r"the prompt has \d+ tokens, the context holds 256; /clear begins anew", " ".join(said.split()))
    assert "cached" in chat.asks("Hi")


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_of_an_answer_ends_the_program(terminal, number):
    """What was asked to end ends, and not only its answer."""
    chat = terminal(*ENDLESS)
    chat.ready()
    chat.types("Go on.\r")
    chat.sees(r"Go on\.[\s\S]{200}")
    chat.child.kill(number)
    assert chat.leaves() == 130


def test_line_settings_are_put_back_whatever_changed_them(monkeypatch):
    """Also where an exception comes while they are being changed, of which nobody else knows."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        before = termios.tcgetattr(theirs)
        with pytest.raises(SystemExit), line_settings_kept():
            tty.setraw(theirs)
            raise SystemExit(130)
        assert termios.tcgetattr(theirs) == before
    os.close(ours)


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_left_as_it_was_found(terminal, number, monkeypatch):
    """Ended from outside at its prompt, the program puts the line settings back."""
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")  # nobody answers where the cursor is
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with subprocess.Popen([PROGRAM, "chat"], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        seen = b""
        while b">" not in seen.partition(b"leaves.")[2]:
            seen += os.read(ours, 4096)
        assert termios.tcgetattr(theirs) != before, "the prompt should have changed the settings"
        process.send_signal(number)
        assert process.wait(20) == 130
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


@pytest.mark.model
def test_no_color(terminal, monkeypatch):
    """With NO_COLOR our own lines carry no colour."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")
    child = pexpect.spawn(PROGRAM, ["chat"], dimensions=(30, 160), timeout=60, encoding="utf-8")
    child.expect("Ctrl-D leaves")
    assert "\x1b[2m" not in child.before
    child.close(force=True)


def test_a_read_only_home_is_no_reason_not_to_talk(home):
    """Without a place for it, history stays in memory."""
    blocked = home / "file"
    blocked.write_text("")
    assert history_path(blocked / "below") is None
    assert history_path(Path("/" + "x" * 5000)) is None
    path = history_path(home / "data")
    assert path and path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_an_input_history_that_is_no_file_is_done_without(tmp_path, kind):
    """It is neither waited for nor read without end."""
    path = tmp_path / "chat_history"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
    assert history_path(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "complete", "meant"),
    [
        ("hello", True, "hello"),
        ("hello \\", False, "hello \\"),
        ("one \\\ntwo", True, "one \ntwo"),
        ('"""', False, '"""'),
        ('"""\na\nb', False, '"""\na\nb'),
        ('"""\na\nb\n"""', True, "a\nb"),
        ('say """ loud', True, 'say """ loud'),
        ("", True, ""),
    ],
)
def test_when_a_text_is_complete(text, complete, meant):
    """Blocks and trailing backslashes wait for more; what is sent is without them."""
    assert is_complete(text) is complete
    if complete:
        assert unquoted(text) == meant


def test_completion_knows_the_commands():
    """A slash and the beginning of a name; never inside ordinary text."""
    names = [f"/{command.name}" for command in commands.COMMANDS]
    assert [name for name, _ in completions("/", tuple)] == names
    assert [name for name, _ in completions("/st", tuple)] == ["/stats"]
    assert completions("what is /st", tuple) == completions("/system now", tuple) == []


def test_completion_knows_models_commands_and_where_a_path_begins():
    """Each where a command takes it, and a path behind an @ anywhere."""
    models = lambda: ["qwen3-8b", "qwen3-4b", "smollm2-135m"]  # noqa: E731
    assert [name for name, _ in completions("/model qwen", models)] == ["qwen3-8b", "qwen3-4b"]
    assert [name for name, _ in completions("/help re", models)] == ["regen"]
    assert [name for name, _ in completions("/set ex", models)] == ["exact"]
    assert [name for name, _ in completions("/set kv q", models)] == ["q8_0", "q4_0"]
    assert [name for name, _ in completions("/set cache ", models)] == ["true", "false", "default"]
    assert completions("/set temp 0", models) == completions("/set nothing ", models) == []
    assert path_begun("/file ~/do") == ("", "~/do") and path_begun("/save ") == ("", "")
    assert path_begun("compare @a.txt with @b") == ("@", "b") and path_begun("mail me@x") is None
    assert path_begun("@a.txt ") is None and path_begun("/system @") == ("@", "")
    assert path_begun('see @"a b" and @"c d') == ('@"', "c d") and path_begun('/load "a b') == ('"', "a b")
    assert path_begun("@a\n") is None and path_begun('@"a b"') is None


@given(st.lists(st.text("ab .-", min_size=1, max_size=8).filter(lambda name: name.strip(".")), min_size=1, max_size=3))
def test_a_completed_path_is_read_as_that_path(names):
    """Whatever it is called: what Tab writes behind an @ or a command is taken for the file that it stands for."""
    with tempfile.TemporaryDirectory() as folder:
        *folders, name = names
        file = Path(folder, *folders, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("text")
        for opening in ("@", '@"', "", '"'):
            written = path_written(opening, str(file))
            folder_written = path_written(opening, f"{file.parent}/")
            if opening.startswith("@"):
                assert attachments.mentioned(f"see {written}")[0] == [str(file)]
                assert path_begun(f"see {folder_written}")[1] == f"{file.parent}/"
            else:
                assert attachments.unquoted(written) == str(file)
                assert path_begun(f"/file {folder_written}")[1] == f"{file.parent}/"


def test_a_command_and_its_argument_may_be_separated_by_any_space():
    """A new line or a tab after the name is as good as a space."""
    chat = Chat(fake_engine(FakeDecoder(says(b""))), greedy)
    for line in ("/system Be brief.", "/system\nBe brief.", " /system\tBe brief. "):
        chat.system = ""
        commands.run(line, context_of(chat))
        assert chat.system == "Be brief."


@pytest.mark.parametrize("line", ["/clear all", "/undo 2", "/stats\n/context", "/why is the sky blue?"])
def test_what_a_command_would_not_look_at_is_refused(line):
    """It may be a question, or another command; nothing is done."""
    chat = Chat(fake_engine(FakeDecoder(says(b"fine"))), greedy)
    turn(chat)
    with pytest.raises(UsageError, match="takes nothing behind it"):
        commands.run(line, context_of(chat))
    assert len(chat.said) == 2


def context_of(chat):
    return commands.Context(chat, View(sys.stdout, sys.stderr), lambda name: None, lambda _: Settings(), lambda: None)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        *(("/help", True), (" /Help", True), ("/", True), ("/ word", True), ("/, what?", True), ("/nosuch", True)),
        *(("/no/such is what?", True), ("{0} is what?", False), ("What of {0}?", False), ("", False), ("a /b", False)),
        ("{0}/a.txt: is it long?", False),
    ],
)
def test_what_is_a_command(line, command, tmp_path):
    """What begins with a slash; but a path at the beginning of a question is none where it is there."""
    (tmp_path / "a.txt").touch()
    assert commands.is_command(line.format(tmp_path)) is command


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/", "/help lists them"),
        ("/ help", "/help lists them"),
        ("/Hlep", "/help"),
        ("/xyzzyx", 'between two """'),
        ("/no/such is what?", 'between two """'),
    ],
)
def test_a_command_that_there_is_not(line, said):
    """It is told where the commands are, which one was meant, or how to send the text; nothing is asked."""
    with pytest.raises(UsageError) as caught:
        commands.run(line, context_of(Chat(fake_engine(FakeDecoder(says(b""))), greedy)))
    assert said in caught.value.hint


@pytest.mark.parametrize("line", ["/STATS", "/Why"])
def test_answers_of_another_session_have_no_numbers(line):
    """Below answers that can be seen, "no answer yet" would be wrong; a command's name may be in capitals."""
    said = [Message("user", "one"), Message("assistant", "two")]
    chat = Chat(fake_engine(FakeDecoder(says(b""))), greedy, said=said)
    assert commands.run(line, context_of(chat)) == "no answer was written in this session yet"


@pytest.mark.parametrize("command", [command for command in commands.COMMANDS if not command.argument])
def test_a_pasted_text_that_begins_like_a_command_does_nothing(command):
    """A command that takes no argument refuses one: it neither leaves nor takes anything back."""
    said = [Message("user", "one"), Message("assistant", "two")]
    chat = Chat(fake_engine(FakeDecoder(says(b""))), greedy, said=said)
    context = commands.Context(chat, View(sys.stdout, sys.stderr), None, None, None)
    for name in (command.name, *command.aliases):
        with pytest.raises(UsageError, match="takes nothing behind it"):
            commands.run(f"/{name} is\nwhat my log says", context)
    assert list(chat.said) == said


def test_unknown_commands_are_errors_with_the_nearest_name():
    """Never sent to the model."""
    with pytest.raises(UsageError) as caught:
        commands.find("sytem")
    assert "/system" in caught.value.hint


def greedy(_engine):
    return Sampling(temperature=0)


def turn(chat, text="hello", cancel=None):
    return next(event for event in chat.turn(text, cancel or Cancel()) if isinstance(event, TurnEnd))


def test_a_conversation_keeps_questions_and_answers():
    """The messages alternate, with the system prompt in front, and clear() leaves only that."""
    chat = Chat(fake_engine(FakeDecoder(says(b"fine"))), greedy, "Be kind.")
    turn(chat)
    turn(chat, "and?")
    assert [m.role for m in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
    chat.clear()
    assert chat.messages == [Message("system", "Be kind.")]


def test_a_turn_without_an_answer_leaves_the_conversation_as_it_was():
    """Stopped in prefill, or too long: nothing of it remains."""
    chat = Chat(fake_engine(FakeDecoder(says(b"fine"), n_ctx=128)), greedy)
    turn(chat)
    before = chat.messages
    assert turn(chat, "again", Cancel(timeout_s=0)).reason == "timeout"
    assert chat.messages == before
    with pytest.raises(PromptTooLong):
        turn(chat, "x" * 200)
    assert chat.messages == before


def test_another_model_gets_the_text_and_not_the_ids():
    """Ids of one vocabulary mean nothing in another."""
    chat = Chat(fake_engine(FakeDecoder(says(b"fine"))), greedy)
    turn(chat)
    assert chat.messages[1].token_ids
    chat.switch(lambda: fake_engine(FakeDecoder(says(b"other"))), lambda: None)
    assert chat.messages[1] == Message("assistant", "fine")
    assert turn(chat).message.text == "other"


@pytest.mark.parametrize("error", [OutOfMemory("too large"), KeyboardInterrupt()])
def test_a_model_that_cannot_be_loaded_leaves_the_old_one(error):
    """The conversation goes on with the engine it had, ids and all."""
    chat = Chat(fake_engine(FakeDecoder(says(b"fine"))), greedy)
    turn(chat)
    before = chat.messages

    def load():
        raise error

    with pytest.raises(type(error)):
        chat.switch(load, lambda: fake_engine(FakeDecoder(says(b"again"))))
    assert chat.messages == before
    assert turn(chat).message.text == "again"


def test_there_is_no_chat_without_a_terminal(home):
    """In a pipe it is told what to use instead, before anything is loaded."""
    for arguments in ([], ["-m", "smollm2-135m"], ["chat"]):  # without a command, options are those of chat
        result = subprocess.run([PROGRAM, *arguments], input="hi", capture_output=True, text=True, env=os.environ)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("localllm: chat needs a terminal") and result.stderr.count("\n") == 1


def test_a_prompt_without_a_command_is_told_where_it_belongs(home):
    """``localllm "hello"`` is no command; the message says what is."""
    result = subprocess.run([PROGRAM, "hello there"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 2
    assert "No such command 'hello there'" in result.stderr and 'localllm ask "…"' in result.stderr
