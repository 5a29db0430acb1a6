"""Odd input through the command line, stdin, files, the environment, signals and the terminal.

Each case gets its right answer, or one clear line and its exit code. The ordinary cases are in test_ask and test_chat.
"""

import ctypes
import json
import os
import pty
import re
import resource
import shlex
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminals import PROGRAM

from localllm import Sampling
from localllm.errors import UsageError
from localllm.terminal.safe import one_line, readable

MODULE = [sys.executable, "-m", "localllm"]
ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
QUESTION = ("--seed", "1", "--temp", "0", "--max-tokens", "3", "Name three colours.")


@pytest.fixture
def no_model(home, monkeypatch):
    """For what must end before a model is looked for: there is none."""
    monkeypatch.setenv("LOCALLLM_MODEL", "/no/model.gguf")


@pytest.fixture
def model(home, smollm2, monkeypatch):
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def run(*command, **options):
    """A program to its end; output as bytes, stdin empty unless given."""
    stdin = {} if "input" in options else {"stdin": subprocess.DEVNULL}
    return subprocess.run(command, capture_output=True, timeout=120, **(stdin | options))


def shell(script, **options):
    """A shell script in which $ASK is ``localllm ask``."""
    return run("bash", "-c", f"ASK={shlex.quote(PROGRAM)}' ask'; {script}", **options)


def refused(result, code=2):
    """The one line on stderr of a run that ended with ``code`` and printed nothing."""
    line = result.stderr.decode()
    assert (result.returncode, result.stdout) == (code, b""), line
    assert line.startswith("localllm: ") and line.count("\n") == 1, line
    return line


@pytest.fixture(scope="module")
def colours(smollm2):
    """The answer to QUESTION under ordinary circumstances."""
    result = run(PROGRAM, "ask", *QUESTION, "-m", str(smollm2))
    assert (result.returncode, result.stderr) == (0, b"") and result.stdout.strip()
    return result.stdout


# --- the command line


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_every_flag_refuses_what_makes_no_sense(no_model, command):
    """NaN, infinities, values out of range and words: one line that names the flag, before anything is loaded."""
    for flag, value in [
        *(("temp", "nan"), ("temp", "1e400"), ("top-p", "nan"), ("top-p", "-0.1"), ("min-p", "nan"), ("min-p", "-inf")),
        *(("repeat-penalty", "nan"), ("repeat-penalty", "0"), ("top-k", "-1"), ("top-k", "2147483648")),
        *(("seed", "-1"), ("seed", "1e3"), ("seed", "4294967295"), ("max-tokens", "0"), ("max-tokens", "2147483648")),
        *(("stop", ""), ("ctx-size", "-5"), ("threads", "0"), ("threads", "1000000"), ("gpu-layers", "-1")),
        ("kv", "f64"),
    ]:
        line = refused(run(PROGRAM, command, f"--{flag}", value))
        assert {"stop": "a stop string"}.get(flag, f"--{flag}") in line and "; " in line


@given(st.sampled_from(["temperature", "top_p", "min_p", "repeat_penalty"]), st.floats())
def test_sampling_takes_numbers_in_range_and_no_others(field, value):
    """The rule behind the flags, for every number there is: NaN passes ``x < low or x > high``, but not this."""
    low, high = {"temperature": (0, 100), "repeat_penalty": (0.01, 100)}.get(field, (0, 1))
    if low <= value <= high:
        assert getattr(Sampling(**{field: value}), field) == value
    else:
        with pytest.raises(UsageError, match="out of range"):
            Sampling(**{field: value})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ask", "-5 + 3?"], 'localllm ask -- "-5 + 3?"'),
        (["ask", "--what is this"], 'localllm ask -- "-5 + 3?"'),
        (["ask", "hi", "--temp"], "see localllm ask --help\n"),
        (["chat", "--seed", "x"], "see localllm chat --help\n"),
        (["--nonsense"], "see localllm chat --help\n"),
        (["hello"], 'to ask something: localllm ask "…"'),
        (["ask", "--timeout", "1e300", "hi"], "choose a value from 0.001 to 10,000,000 seconds"),
        (["ask", "--timeout", "-1", "hi"], "choose a value from 0.001 to 10,000,000 seconds"),
    ],
)
def test_a_wrong_command_line_is_told_where_to_look(no_model, arguments, says):
    """The hint names the command's own help, and how a question that looks like an option is asked."""
    assert says in refused(run(PROGRAM, *arguments))


@pytest.mark.parametrize("value", ["9" * 5000, "\x1b]0;title\x07" + "x" * 5000])
def test_a_line_stays_a_line_whatever_it_quotes(no_model, value):
    """What is absurdly long loses its middle, and no control character is repeated."""
    for arguments in (["--seed", value], ["-m", value, "hi"], ["-f", value, "hi"]):
        result = run(PROGRAM, "ask", *arguments)
        line = refused(result, result.returncode)
        assert result.returncode in (2, 4) and len(line) < 1100 and "\x1b" not in line and "; " in line


def test_long_lines_lose_their_middle():
    """And short ones nothing."""
    assert one_line("x" * 1000) == "x" * 1000
    assert one_line("a" * 900 + "b" * 900) == "a" * 500 + " … " + "b" * 500


def test_json_of_an_error_is_whole(no_model):
    """The object has the full text that the line on stderr had to cut."""
    result = run(PROGRAM, "ask", "--json", "--seed", "9" * 5000)
    assert "9" * 5000 in json.loads(result.stdout)["error"]["message"]


@pytest.mark.model
def test_two_thousand_arguments(model):
    """They are one prompt, counted like any other."""
    line = refused(run(PROGRAM, "ask", "--ctx-size", "512", *["word"] * 2000), 3)
    assert re.search(r"the prompt has 2,0\d\d tokens", line)


@pytest.mark.parametrize("locale", [{}, ASCII_LOCALE], ids=["UTF-8", "ASCII"])
def test_arguments_are_utf8_whatever_the_locale(locale):
    """Bytes that are no UTF-8 become U+FFFD; all others are what they were, even where the locale has only ASCII."""
    script = "import sys; from localllm.terminal.safe import readable; print(ascii(readable(sys.argv[1])))"
    result = run(sys.executable, "-c", script, "ü 漢 ".encode() + b"caf\xe9", env=os.environ | locale)
    assert result.stdout.decode().strip() == ascii("ü 漢 caf\ufffd")
    assert readable("\ufffd plain ü") == "\ufffd plain ü"


@pytest.mark.model
def test_a_prompt_with_wrong_bytes_is_answered_and_told(model):
    """In an argument as in a pipe: the answer to the same text with U+FFFD, and one line that says what was done."""
    command = (PROGRAM, "ask", "--seed", "1", "--temp", "0", "--max-tokens", "3")
    expected = run(*command, "-q", "caf\ufffd?").stdout
    for arguments, options in [((b"caf\xe9?",), {}), ((), {"input": b"caf\xe9?"})]:
        result = run(*command, *arguments, **options)
        assert (result.returncode, result.stdout, result.stderr.count(b"\n")) == (0, expected, 1)
        assert b"bytes that are no UTF-8" in result.stderr


# --- stdin and files

READ = "import sys; from localllm.cancel import Cancel; from localllm.terminal.inputs import attached_text; "
READ += "sys.stdout.write(attached_text(sys.argv[1:], Cancel(5), print))"


def attached(*names, **options):
    """What ``-f NAME…`` attaches, read by the product's own function in a process of its own."""
    return run(sys.executable, "-c", READ, *names, **options).stdout.decode()


def test_stdin_may_stand_anywhere_among_the_files(tmp_path):
    """First unless a - says where; read once, and each with its name, one that is blank too."""
    for name in ("a", "b", "blank"):
        (tmp_path / name).write_text("" if name == "blank" else f"file {name}\n")
    piped, a, b = "==> stdin <==\npiped", "==> a <==\nfile a\n", "==> b <==\nfile b\n"
    assert attached("a", "b", input=b"piped", cwd=tmp_path) == f"{piped}\n\n{a}\n\n{b}"
    assert (
        attached("a", "-", "blank", "b", "-", input=b"piped", cwd=tmp_path)
        == f"{a}\n\n{piped}\n\n==> blank <==\n\n\n{b}"
    )
    with (tmp_path / "a").open() as stdin:  # opened anew, /dev/stdin would give the file a second time
        assert attached("/dev/stdin", stdin=stdin) == "file a\n"


@pytest.mark.parametrize(
    ("arguments", "redirection", "says"),
    [
        (["-f", ""], "", "the name of a file is empty"),
        (["-f", "-"], "<&-", "stdin is closed"),
        (["-f", "~"], "", "cannot read ~: No such file"),
        (["-f", "/"], "", "cannot read /: Is a directory"),
        (["-f", "/dev/zero"], "", "gives more than 64 MiB"),
        (["-f", "\udcff"], "", "No such file"),
        ([], "< <(yes)", "stdin gives more than 64 MiB"),
        ([], "< <(printf 'a\\0b')", "binary data"),
    ],
)
def test_what_cannot_be_attached_is_told(no_model, arguments, redirection, says):
    """One line with the reason, exit 2, and bounded memory and time even where the input never ends."""
    result = shell(f'exec $ASK "$@" hi {redirection}'.replace('"$@"', shlex.join(arguments)))
    assert says in refused(result)


def drop_privileges():
    """Root may read everything; without these two capabilities (linux/capability.h) it may not."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: gone with the next exec


def test_a_file_without_permission(no_model, tmp_path):
    """Said by its name."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0)
    result = run(PROGRAM, "ask", "-f", str(secret), "hi", preexec_fn=drop_privileges if os.getuid() == 0 else None)
    assert f"cannot read {secret}: Permission denied; check the path and its permissions" in refused(result)


def test_waiting_for_stdin_is_told_in_a_terminal(no_model):
    """A pipe that nobody closes is no silent hang: a line says what is waited for, and Ctrl-C ends it."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([PROGRAM, "ask", "hi"], stdin=-1, stdout=-1, stderr=theirs) as process:
        seen = b""
        while b"\n" not in seen:
            seen += os.read(ours, 4096)
        assert seen == b"localllm: waiting for the end of stdin\r\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert os.read(ours, 4096) == b"localllm: interrupted\r\n"
    os.close(ours)
    os.close(theirs)


@pytest.mark.slow
@pytest.mark.model
def test_ten_megabytes(model):
    """Counted and refused with the numbers, or cut as told, within a bounded memory."""
    text = ("The river runs to the sea, and the sea gives it back to the clouds. " * 160_000)[: 10 * 2**20].encode()
    assert re.search(r"has 2,\d{3},\d{3} tokens, the context holds 8,192", refused(run(*MODULE, "ask", input=text), 3))
    result = run(PROGRAM, "ask", *QUESTION, "--ctx-size", "512", "--on-overflow", "middle", input=text)
    assert result.returncode == 0 and b"dropped the middle of the attached text: 2," in result.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1.5 * 2**20  # in KiB


@pytest.mark.model
def test_ctrl_c_while_a_huge_prompt_is_read_or_counted(model):
    """Whatever it is busy with: exit 130, soon."""
    with subprocess.Popen([PROGRAM, "ask"], stdin=-1, stdout=-1, stderr=-1) as process:
        process.stdin.write(b"a" * (20 * 2**20))
        process.stdin.close()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        begin_s = time.monotonic()
        assert process.wait(30) == 130
        assert time.monotonic() - begin_s < 10
        assert process.stderr.read().startswith(b"localllm: interrupted")


def test_too_little_memory_for_the_input(no_model):
    """One line and exit 4, no traceback."""
    result = shell("ulimit -v 150000; head -c 60M /dev/zero | tr '\\0' a | $ASK hi")
    assert "there is not enough memory" in refused(result, 4)


# --- output


@pytest.mark.model
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2> >(true)"])
def test_an_answer_does_not_depend_on_who_reads_stderr(model, colours, redirection):
    """Closed, full or left by its reader: what was to be said there is lost, the answer and the exit code are not."""
    result = shell(f"exec {redirection}; sleep 0.2; $ASK -u {shlex.join(QUESTION)}")
    assert (result.returncode, result.stdout) == (0, colours)
    assert shell(f"exec {redirection}; sleep 0.2; $ASK --temp nan hi").returncode == 2


@pytest.mark.model
def test_odd_surroundings(model, colours):
    """A deleted directory, no permission for new files, warnings as errors, a narrow window and an unknown locale."""
    odd = "mkdir gone; cd gone; rmdir ../gone; umask 777; export PYTHONWARNINGS=error COLUMNS=1 LC_ALL=ja_JP.SJIS"
    result = shell(f"{odd} TERM=nonsense 2>/dev/null; trap '' PIPE; exec $ASK {shlex.join(QUESTION)} <&-")
    assert (result.returncode, result.stdout, result.stderr) == (0, colours, b"")


# --- signals

SLOW_MODULE = "import time; print('loading', flush=True); time.sleep(60)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_modules_load_is_silent(no_model, tmp_path, number):
    """Exit 130 without a word, however slow the disk: here one of the modules takes a minute."""
    (tmp_path / "typer.py").write_text(SLOW_MODULE)
    slow = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    with subprocess.Popen([*MODULE, "ask", "hi"], stdin=-3, stdout=-1, stderr=-1, env=slow) as process:
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(number)
        assert (process.wait(20), process.stderr.read()) == (130, b"")


@pytest.mark.model
def test_ignored_signals_stay_ignored(model):
    """Under nohup, and in the background of a script, an answer is not cut."""
    ignoring = "trap '' HUP INT QUIT TERM; exec $ASK --raw 'one two three one two three' --temp 0 --max-tokens 40"
    with subprocess.Popen(["bash", "-c", f"ASK={PROGRAM}' ask'; {ignoring}"], stdin=-3, stdout=-1) as process:
        begun = process.stdout.read(4)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            process.send_signal(number)
        assert begun and process.stdout.read().count(b" ") > 5
        assert process.wait(20) == 0


@pytest.mark.model
def test_a_stopped_process_goes_on(model, colours):
    """SIGSTOP and SIGCONT in the middle change nothing but the time."""
    with subprocess.Popen([PROGRAM, "ask", *QUESTION], stdin=-3, stdout=-1) as process:
        time.sleep(0.3)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        process.send_signal(signal.SIGCONT)
        assert (process.stdout.read(), process.wait(30)) == (colours, 0)
