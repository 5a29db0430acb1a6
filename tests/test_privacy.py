"""What ``-n`` promises: nothing of what was said stays on the disk."""

import json
import subprocess
from pathlib import Path

import pytest
from terminals import PROGRAM

from localllm.engine.prefix_store import entries

pytestmark = pytest.mark.model

SECRET = "Ozymandias hides beneath the orangery"
LONG = f"{SECRET}. " * 20  # so long that it would be kept
FLAGS = ("--temp", "0", "--max-tokens", "4", "--ctx-size", "1024", "--threads", "2", "--draft", "off")


@pytest.fixture
def ask(home, smollm2, monkeypatch):
    """Runs the program in a home of its own, with a prefix cache."""
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))
    monkeypatch.setenv("LOCALLLM_CACHE_SIZE", "1GB")

    def run(*arguments, text=""):
        return subprocess.run([PROGRAM, *arguments], input=text, capture_output=True, text=True, timeout=60)

    return run


def holding(home: Path, *texts: str) -> list[Path]:
    """The files below the home with one of the texts in them."""
    files = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if any(text.encode() in path.read_bytes() for text in texts)]


def cached(home: Path) -> int:
    """How many blocks the prefix cache holds."""
    return sum(1 for _ in entries(home / ".cache" / "localllm" / "prefix"))


@pytest.mark.parametrize("quiet", [("-n",), ("--no-log", "--json"), ("-n", "--raw")], ids=" ".join)
def test_nothing_of_a_call_with_n_is_on_the_disk(ask, home, quiet):
    """Neither what was asked nor a block of what the model made of it; without -n both would be there."""
    done = ask("ask", *FLAGS, *quiet, "What is this?", text=LONG)
    assert done.returncode == 0, done.stderr
    assert (holding(home, SECRET), cached(home)) == ([], 0)
    ask("ask", *FLAGS, "What is this?", text=LONG)
    assert holding(home, SECRET) and cached(home)


def test_with_n_what_is_in_the_cache_is_still_found(ask, home):
    """What another call has read is not read again, and no block is added to it."""
    ask("ask", *FLAGS, "What is this?", text=LONG)
    before = cached(home)
    done = ask("ask", *FLAGS, "-n", "--json", "Is there anything else in it?", text=LONG)
    assert json.loads(done.stdout)["stats"]["cached_tokens"] > 100
    assert cached(home) == before


def test_the_setting_log_promises_the_same(ask, home):
    """``config set log false`` is -n for good."""
    assert ask("config", "set", "log", "false").returncode == 0
    ask("ask", *FLAGS, "What is this?", text=LONG)
    assert (holding(home, SECRET), cached(home)) == ([], 0)


def test_nothing_of_a_chat_with_n_is_on_the_disk(terminal, home, monkeypatch):
    """Its lines can be had again with the arrow keys while it lasts, and are in no file then or later."""
    monkeypatch.setenv("LOCALLLM_CACHE_SIZE", "1GB")
    chat = terminal(*FLAGS, "-n")
    chat.asks(LONG)
    chat.ready()
    chat.types("\x1b[A")
    chat.shows("hides beneath")
    assert (holding(home, SECRET), cached(home)) == ([], 0)
    chat.types("\x03")
    chat.types("/exit\r")
    assert chat.leaves() == 0
    assert (holding(home, SECRET), cached(home)) == ([], 0)
