"""A terminal is left as it was found, whatever happens, and whatever is typed into it is understood or told.

Signals at every moment of a chat, odd terminals, odd bytes, the editor, narrow windows. See test_chat for the rest.
"""

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from terminals import ENDLESS, PROGRAM, STATUS

from localllm.errors import UsageError
from localllm.terminal.editor import edited
from localllm.terminal.render import View, show
from localllm.values import Message, Progress, TurnEnd, TurnStats

ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def model(home, smollm2, monkeypatch):
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))


# Sends itself a signal at the moment when a function of the product returns.
AT_RETURN = """
import os, signal, sys
from localllm.cli.main import main
def watch(frame, event, _):
    if event == "return" and frame.f_code.co_name == sys.argv[0]:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)
del sys.argv[0]  # the name of the function comes to stand where that of the program does
sys.setprofile(watch)
main()
"""


@pytest.mark.model
@pytest.mark.parametrize("function", ["locate", "open_engine"])
def test_ctrl_c_is_not_lost_when_a_chat_has_just_loaded(terminal, function):
    """It comes too late to stop the loading, and ends the program all the same."""
    chat = terminal(command=[sys.executable, "-c", AT_RETURN, function, "chat"])
    assert "interrupted" in chat.sees("localllm: interrupted")
    assert chat.leaves() == 130


@pytest.mark.model
def test_ctrl_c_between_an_answer_and_the_prompt_means_nothing(terminal):
    """It may be a second one, for an answer that the first has stopped: the conversation goes on."""
    chat = terminal(command=[sys.executable, "-c", AT_RETURN, "stats_line", "chat", "--max-tokens", "2"])
    chat.asks("Hi")
    assert "cached" in chat.asks("Hi again")


def caught_signals(pid):
    """The signals that a process handles, from /proc."""
    mask = int(re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())[1], 16)
    return {number for number in signal.valid_signals() if mask >> (number - 1) & 1}


@pytest.mark.model
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_every_signal_that_asks_to_end_is_handled_in_a_chat(terminal):
    """At its prompt and in an answer, so that none leaves the terminal as it was changed."""
    asking = {"HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "XCPU"}
    wanted = {getattr(signal, f"SIG{name}") for name in asking}
    chat = terminal(*ENDLESS)
    chat.ready()
    assert wanted <= caught_signals(chat.child.pid)
    chat.types("Go on.\r")
    chat.sees(r"Go on\.[\s\S]{100}")
    assert wanted <= caught_signals(chat.child.pid)
    chat.child.kill(signal.SIGQUIT)
    assert chat.leaves() == 130


def in_terminal(command, act, columns=100):
    """Run ``command`` with a terminal of its own; ``act(process, ours, theirs)`` plays the user.

    Returns the exit code, and whether the terminal's settings are what they were.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, columns))
    before = termios.tcgetattr(theirs)
    with subprocess.Popen(command, preexec_fn=lambda: os.login_tty(theirs), pass_fds=[theirs]) as process:
        act(process, ours, theirs)
        code = process.wait(30)
    unchanged = termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
    return code, unchanged


def until(descriptor, pattern):
    """All that is written until ``pattern`` (bytes) appears."""
    seen = b""
    while not re.search(pattern, seen):
        assert select.select([descriptor], [], [], 60)[0], seen
        seen += os.read(descriptor, 4096)
    return seen


def flaws(written):
    """What a program should not have left behind in the terminal to which it wrote these bytes."""
    last = {kind: re.findall(pattern, written)[-1:] for kind, pattern in MODES.items()}
    found = [kind for kind, switched in last.items() if switched not in ([], [LEFT[kind]])]
    return found + ["traceback"] * (b"Traceback" in written) + ["half a sequence"] * bool(HALF.search(written))


MODES = {"cursor": rb"\x1b\[\?25[hl]", "paste": rb"\x1b\[\?2004[hl]", "colour": rb"\x1b\[[\d;]*m"}
LEFT = {"cursor": b"\x1b[?25h", "paste": b"\x1b[?2004l", "colour": b"\x1b[0m"}
HALF = re.compile(rb"\x1b(\[[\d;?]*)?$")


def test_an_exception_leaves_the_terminal_as_it_was_found():
    """Keys are unseen inside, and seen again after whatever ends the block, a bug included."""
    script = "import sys; from localllm.terminal.line_settings import keys_unseen\nwith keys_unseen():\n"
    script += "    print('inside', flush=True); sys.stdin.read(1); raise KeyError"

    def act(process, ours, theirs):
        until(ours, b"inside")
        assert not termios.tcgetattr(theirs)[3] & termios.ECHO
        os.write(ours, b"x")
        until(ours, b"KeyError")

    assert in_terminal([sys.executable, "-c", script], act) == (1, True)


def test_a_model_that_cannot_be_loaded_leaves_the_terminal_as_it_was_found(home, tmp_path):
    """Exit 4, one line."""
    (tmp_path / "notes.gguf").write_text("no model, but long enough to hold a header")

    def act(process, ours, theirs):
        seen = until(ours, b"\n")
        assert seen.startswith(b"localllm: ") and b"GGUF" in seen and b"Traceback" not in seen

    assert in_terminal([PROGRAM, "chat", "-m", str(tmp_path / "notes.gguf")], act) == (4, True)


@pytest.mark.model
@pytest.mark.parametrize("delay_s", [0.15, 0.3, 0.45, 0.6, 0.9, 1.5])
def test_ctrl_c_at_any_moment_of_an_ask_in_a_terminal(model, tmp_path, delay_s):
    """Loading, prefill or decode: exit 130, no traceback, settings restored and no escape sequence left open."""
    (tmp_path / "long.txt").write_text("The river runs to the sea, and the sea gives it back to the clouds. " * 200)
    written = bytearray()

    def act(process, ours, theirs):
        def read():  # to the end: where the program was not loaded yet, it ends without a word
            while (readable := select.select([ours], [], [], 0.2)[0]) or process.poll() is None:
                written.extend(os.read(ours, 4096) if readable else b"")

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(delay_s)
        os.write(ours, b"\x03")
        reader.join(30)

    # Not measured for coverage: that makes Python start slowly, and until it has started, Ctrl-C is Python's.
    untraced = ["env", *(f"--unset={name}" for name in os.environ if name.startswith("COVERAGE_"))]
    command = [*untraced, PROGRAM, "ask", *ENDLESS, "-f", str(tmp_path / "long.txt"), "Go on."]
    assert in_terminal(command, act) == (130, True)
    assert not flaws(bytes(written))


@pytest.mark.model
@pytest.mark.parametrize(("term", "columns"), [("dumb", 30), ("unknown", 1), ("", 0), ("xterm", 20)])
def test_odd_terminals(terminal, monkeypatch, term, columns):
    """Without abilities, without a name, without a size or nearly without room: it can be talked with."""
    monkeypatch.setenv("TERM", term)
    chat = terminal("--max-tokens", "2", columns=columns)
    chat.sees(r"Ctrl-D\s+leaves\.")
    time.sleep(0.3)
    chat.types("Hi\r")
    chat.sees(STATUS)
    time.sleep(0.3)
    chat.types("/exit\r")
    assert chat.leaves() == 0


@pytest.mark.model
def test_odd_bytes_in_a_chat(terminal, home):
    """Bytes that are no UTF-8, zero bytes and escape sequences, typed and pasted, are text like any other."""
    chat = terminal("--max-tokens", "2")
    chat.ready()
    chat.child.delaybeforesend = None
    os.write(chat.child.child_fd, b"\x1b[200~caf\xe9 \xff a\x00b \x1b[2J\x1b]0;title\x07 end\x1b[201~")
    chat.sees(" end")
    chat.types("\r")
    chat.sees(STATUS)
    chat.asks("Hi")
    chat.ready()
    chat.types("\x04")
    assert chat.leaves() == 0
    assert "+Hi" in (home / ".local/share/localllm/chat_history").read_text("utf-8")


@pytest.mark.model
def test_a_chat_in_an_ascii_locale(terminal, monkeypatch):
    """What is typed is UTF-8 all the same: as many tokens as in any other locale."""
    counts = []
    for locale in ({}, ASCII_LOCALE):
        for name, value in locale.items():
            monkeypatch.setenv(name, value)
        chat = terminal("--max-tokens", "2")
        chat.ready()
        chat.types("Grüße, 漢字!\r")
        counts.append(chat.sees(r"prefill \d+ tokens").split()[-2])
    assert counts[0] == counts[1]


@pytest.mark.model
def test_a_history_that_cannot_be_written(model, terminal):
    """The conversation goes on, and what was typed can still be had with the arrow."""
    chat = terminal(command=["bash", "-c", f"ulimit -f 0; exec {PROGRAM} chat --max-tokens 2"])
    chat.asks("Hello there")
    chat.ready()
    time.sleep(0.3)
    chat.types("\x1b[A")
    chat.sees("Hello there")


EDITORS = {
    "appends": ("#!/bin/sh\nprintf ' and more\\n' >> \"$1\"\n", "text and more"),
    "writes Latin-1": ("#!/bin/sh\nprintf 'caf\\351' > \"$1\"\n", "caf\ufffd"),
    "fails": ("#!/bin/sh\nexit 3\n", "failed with exit code 3"),
    "deletes": ('#!/bin/sh\nrm "$1"\n', "No such file"),
}


@pytest.mark.parametrize(("script", "expected"), EDITORS.values(), ids=EDITORS)
def test_editors(tmp_path, monkeypatch, script, expected):
    """The text as the editor leaves it, or one error that names the editor."""
    program = tmp_path / "an editor"
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", shlex.quote(str(program)))
    try:
        assert edited("text") == expected
    except UsageError as error:
        assert expected in error.message and "an editor" in error.message and error.hint


@pytest.mark.parametrize("editor", ["/no/such/editor -w", "vi '", "/"])
def test_an_editor_that_cannot_be_started_is_named(monkeypatch, editor):
    """No other one is started in its place."""
    monkeypatch.setenv("VISUAL", editor)
    with pytest.raises(UsageError) as caught:
        edited("text")
    assert repr(editor) in caught.value.message


@pytest.mark.model
def test_ctrl_c_in_the_editor_belongs_to_the_editor(terminal, tmp_path, monkeypatch):
    """The line that is edited is not lost by it; and an editor that then fails says so and changes nothing."""
    editor = tmp_path / "editor"
    editor.write_text(
        '#!/bin/bash\ntrap \'printf " and more" >> "$1"; mv "$0" "$0.gone"; exit 0\' INT\n'
        "echo editing\nfor i in {1..100}; do sleep 0.1; done\n"
    )
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    chat = terminal("--max-tokens", "2")
    chat.ready()
    chat.types("some text\x07")
    chat.sees("editing")
    chat.types("\x03")
    chat.sees("some text and more")
    time.sleep(0.3)
    chat.types("\x07")
    chat.sees("cannot edit with")
    chat.sees("some text and more")
    chat.types("\r")
    chat.sees(STATUS)


def test_the_progress_line_keeps_to_one_row():
    """In a narrow window it is cut: a second row could not be taken away again."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, 20))
    end = TurnEnd("stop", Message("assistant", ""), TurnStats(1, 0, 1, 0.1, None, 0, 0.0, 1, 7))

    def events():
        time.sleep(0.6)
        yield Progress(100_000, 200_000, 0)
        yield end

    with os.fdopen(theirs, "w") as status, Path(os.devnull).open("w") as out:
        show(events(), View(out, status, progress=True))
        written = until(ours, rb":(.|\s)*\x1b\[K$")
    os.close(ours)
    assert set(written.split(b"\r\x1b[K")) == {b"", b"reading the prompt:"}  # once, or more often where it took longer


@pytest.mark.model
def test_lines_of_ours_are_folded_between_words(terminal):
    """In a narrow window no word of a notice is broken, and no line is longer than the window."""
    chat = terminal("--max-tokens", "2", columns=40)
    greeting = chat.sees(r"leaves\.")
    assert all(len(line) <= 40 for line in greeting.splitlines()) and "/help shows" in " ".join(greeting.split())
    chat.ready()
    chat.types("/nonsense\r")
    chat.sees("there is no command /nonsense")
    chat.types("/help\r")
    shown = chat.sees(r"Ctrl-D\s+leaves\.")
    assert all(len(line) <= 40 for line in shown.splitlines())


@pytest.mark.model
@pytest.mark.parametrize("redirection", ["", "<&-", "</dev/null", "<text"])
def test_a_chat_behind_an_answer_reads_the_terminal(terminal, tmp_path, monkeypatch, redirection):
    """Whatever stdin is, even where it is closed."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("Some text.")
    chat = terminal(command=["sh", "-c", f"exec {PROGRAM} ask -i --max-tokens 2 hi {redirection}"])
    chat.asks("and you?")
    chat.ready()
    chat.types("\x04")
    assert chat.leaves() == 0


@pytest.mark.parametrize("redirection", ["<&-", "</dev/null", "<&- 2>&-"])
def test_without_a_terminal_there_is_no_chat_behind_an_answer(home, redirection):
    """That is refused before a model is loaded."""
    command = f"exec {PROGRAM} ask -i -m nosuch.gguf hi {redirection}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert done.returncode == 2 and not done.stdout
    assert "-i needs a terminal" in done.stderr or "2>&-" in redirection


@pytest.mark.model
@pytest.mark.parametrize("answering", [False, True])
def test_a_window_that_is_closed_ends_a_chat(terminal, tmp_path, answering):
    """At once, with the code of a signal, and without a word: there is nobody to read it."""
    errors = tmp_path / "errors"
    chat = terminal(command=["sh", "-c", f"exec {PROGRAM} chat {' '.join(ENDLESS)} 2>{errors}"])
    chat.ready()
    if answering:
        chat.types("Tell me a story.\r")
        chat.sees(r"story\.[\s\S]{80}")
    else:
        chat.types("half a question")
        chat.sees("half a question")
    chat.child.ptyproc.fileobj.close()
    assert chat.child.wait() == 130
    assert not errors.read_text()


@pytest.mark.model
@pytest.mark.parametrize("columns", [100, 60])
def test_an_answer_that_was_stopped_goes_on_below_the_shell(terminal, columns):
    """After Ctrl-Z and fg the open block is there once, below what the shell said; also in another size."""
    chat = terminal(command=["bash", "--norc", "-i"], columns=100)
    chat.types(f"{shlex.quote(PROGRAM)} ask --temp 0 --max-tokens 120 Write a long story about a river.\r")
    chat.sees("The river was")
    for _ in range(2):
        chat.types("\x1a")
        chat.sees("Stopped")
        chat.resized(30, columns)
        chat.types("fg\r")
        chat.sees("The river was")
    chat.types("echo end$((40 + 2))\r")
    chat.sees("end42")
    shown = chat.screen.text
    assert shown.count("The river was a majestic creature") == 1, shown
    assert shown.rindex("Stopped") < shown.index("The river was a majestic creature")


# Forks before an input line; each child sends itself a signal at another return of a function within it.
HUNG_UP = """
import gc, os, signal, sys
from localllm.cli.signals import leave_on_signals, leaving
from localllm.terminal import keys
prompt = keys.new_prompt(None, print)
leave_on_signals()
for number in (*range(10, 130, 12), *range(130, 5600, 600)):  # most goes wrong while the event loop is made
    if child := os.fork():
        print(f"<{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}>", flush=True)
        continue
    def watch(frame, event, _):
        global number
        number -= event == "return"
        if number == 0:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGHUP)
    sys.setprofile(watch)
    try:
        keys.read(prompt, "> ", leaving)
    except SystemExit as error:
        code = error.code
    gc.collect()
    sys.exit(code)
print("the end")
"""


def test_a_signal_at_any_moment_of_an_input_line_ends_it_without_a_word(monkeypatch):
    """It is not lost in an event loop, and nothing complains of what was not awaited."""
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")  # nobody answers here
    monkeypatch.setenv("TERM", "xterm")
    seen = b""

    def act(process, ours, theirs):
        nonlocal seen
        seen = until(ours, b"the end")

    assert in_terminal([sys.executable, "-c", HUNG_UP], act)[0] == 0
    assert re.findall(rb"<(\d+)>", seen) == [b"130"] * 20
    assert not re.search(rb"Warning|Exception|Traceback", seen)


@pytest.mark.model
def test_a_window_that_is_closed_at_the_question_of_a_full_context(terminal, home, tmp_path):
    """As anywhere else; what was said and what was asked last are kept."""
    errors = tmp_path / "errors"
    options = " ".join(["--ctx-size", "512", "--max-tokens", "8", "--no-cache", *ENDLESS])  # no answer is empty
    chat = terminal(command=["sh", "-c", f"exec {PROGRAM} chat {options} 2>{errors}"])
    chat.asks("one " * 200)
    chat.ready()
    chat.types("two " * 260 + "\r")
    chat.sees("d/s/n>")
    chat.types("d")
    chat.child.ptyproc.fileobj.close()
    assert chat.child.wait() == 130
    assert not errors.read_text()
    assert "+two two" in (home / ".local/share/localllm/chat_history").read_text("utf-8")
    listed = subprocess.run([PROGRAM, "history", "list"], capture_output=True, text=True, check=True)
    assert "one one" in listed.stdout


@pytest.mark.model
def test_what_is_typed_before_the_program_has_begun_is_in_the_first_prompt(terminal):
    """Enter sends it, as later; and what is not finished stands in a prompt, not before our first line."""
    chat = terminal("--max-tokens", "2")
    chat.types("What is this?\rand more")
    chat.shows(r"\n> What is this\?\n[\s\S]*tokens[\s\S]*\n> and more█")
    assert chat.screen.text.count("and more") == 1
    assert re.search(r"^\S+, context [\d,]+\. /help", chat.screen.text, re.MULTILINE)
