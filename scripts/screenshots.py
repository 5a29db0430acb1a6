"""Makes the pictures of README.md. Started by scripts/screenshots.

A shell runs in a real pseudo-terminal, in an empty home, and the commands are typed into it. What it shows is written
as it is: the answers are those of the small default model, at temperature 0, so they mostly come out the
same again; the rates are this machine's.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
from screen import Screen, svg

from localllm import config
from localllm.models.catalog import load_catalog
from localllm.models.store import resolve

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
COLUMNS, ROWS = 120, 44
MINUTES = ROOT / "scripts" / "data" / "minutes.txt"
SHELL, CHAT = "$", ">"  # prompts
_PATIENCE_S = 180
_TABLE = "| Fruit | Colour |\n|---|---|\n| Banana | yellow |\n\n"


class Session:
    """A shell in a pseudo-terminal, and what it shows."""

    def __init__(self, child: "pexpect.spawn[str]") -> None:
        self._child = child
        self.screen = Screen(COLUMNS, ROWS, child.send)

    def until(self, is_seen: Callable[[Screen], bool]) -> None:
        """Wait for something to be on the screen. Raises SystemExit where it does not come."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not is_seen(self.screen):
            if time.monotonic() > deadline_s:
                raise SystemExit(f"this is not what was waited for:\n{self.screen.text}")
            try:
                self.screen.feed(self._child.read_nonblocking(4096, timeout=0.1))
            except pexpect.TIMEOUT:
                continue

    def enter(self, text: str, then: str) -> None:
        """Type a line or several, Enter, and wait for the prompt ``then``."""
        self._child.send(text)
        last = text.splitlines()[-1]
        self.until(lambda screen: screen.cursor_row.endswith(last[-10:]))
        self._child.send("\r")
        self.until(lambda screen: screen.cursor_row == then)


def chat(session: Session) -> None:
    """A conversation with a list, code and a table."""
    session.enter("localllm", CHAT)
    session.enter("Name three colours, as a list.", CHAT)
    session.enter("Write a Python function that reverses a string, with an example.", CHAT)
    session.enter("/clear", CHAT)
    session.enter(f"{_TABLE}Go on with this table: add apples and cherries.", CHAT)
    session.until(lambda screen: "of the ceiling" in screen.text)  # it is measured when all is quiet


def pipe(session: Session) -> None:
    """Two questions about one text, of which it is read for the first."""
    session.enter('cat minutes.txt | localllm ask -u "When and where is the next meeting?"', SHELL)
    session.enter('cat minutes.txt | localllm ask -u --choice oak,steel "What is the new bridge made of?"', SHELL)


def ceiling(session: Session) -> None:
    """Two cards, and how their rates fall with the context."""
    session.enter("localllm ceiling qwen3-8b --gpu 4090 --gpu 3090 --plot", SHELL)


PICTURES = {
    chat: "A chat with SmolLM2 135M",
    pipe: "Two questions about one text, answered by SmolLM2 135M",
    ceiling: "The ceilings of two graphics cards for Qwen3 8B",
}


def main() -> None:
    """Make all pictures, or those that are named."""
    parser = argparse.ArgumentParser(prog="scripts/screenshots", description="Make the pictures of README.md.")
    names = [picture.__name__ for picture in PICTURES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all unless given")
    parser.add_argument("--out", type=Path, default=IMAGES, help="the folder for them (default: docs/images)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"there is no picture {', '.join(unknown)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for take, title in PICTURES.items():
        if take.__name__ in (options.names or names):
            with started() as session:
                take(session)
                (options.out / f"{take.__name__}.svg").write_text(svg(session.screen, title), "utf-8")


@contextmanager
def started() -> Iterator[Session]:
    """A shell as a new user has it, but for the model, which is there already."""
    model = resolve(config.DEFAULT_MODEL, load_catalog()).path
    with tempfile.TemporaryDirectory() as home:
        models = Path(home, ".cache", "localllm", "models")
        models.parent.mkdir(parents=True)
        models.symlink_to(model.parent)
        shutil.copy(MINUTES, home)
        child = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile"],
            cwd=home,
            env=environment(home),
            dimensions=(ROWS, COLUMNS),
            encoding="utf-8",
        )
        session = Session(child)
        session.until(lambda screen: screen.cursor_row == SHELL)
        yield session
        child.close(force=True)


def environment(home: str) -> dict[str, str]:
    """Ours, without what a user may have set, and with the likeliest token always taken."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOCALLLM_", "XDG_"))}
    chosen = {"MODEL": config.DEFAULT_MODEL, "SEED": "1", "TEMP": "0"}
    ours = {"HOME": home, "PS1": f"{SHELL} ", "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**kept, **ours, "PATH": path, **{f"LOCALLLM_{name}": value for name, value in chosen.items()}}


if __name__ == "__main__":
    main()
