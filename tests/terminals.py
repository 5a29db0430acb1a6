"""A real pseudo-terminal for tests: what is typed goes in as keys, what comes out is read as a person reads it."""

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pexpect
from screen import Screen

PROGRAM = str(Path(sys.executable).with_name("localllm"))
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][AB0]|\x1b[=>]|\r|\x08")
STATUS = r"tokens?[^·]* ·[\s\S]*?prefill[\s\S]*?(TTFT\s[\d.]+\ss|(?=\n\s*>))"  # a narrow window folds it

# All tokens equally likely: the one that ends the answer does not come by chance.
ENDLESS = ("--temp", "100", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1")


def run_at_terminal(*arguments, **options) -> subprocess.CompletedProcess[str]:
    """The program with a terminal for stdin and stdout, which nobody reads, and stderr apart."""
    ours, theirs = pty.openpty()
    try:
        return subprocess.run(
            [PROGRAM, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            **options,
        )
    finally:
        os.close(ours)
        os.close(theirs)


class Terminal:
    """A chat in a pseudo-terminal; ``sees`` waits for a pattern in what a person would read, which is no traceback.

    ``screen`` is what stands there now; as a real terminal, it answers where the cursor is.
    """

    def __init__(self, *arguments, columns=160, command=None):
        program, *rest = command or [PROGRAM, "chat", "--seed", "1"]
        self.child = pexpect.spawn(
            program,
            [*rest, *arguments],
            dimensions=(30, columns),
            timeout=30,
            encoding="utf-8",
            codec_errors="replace",
        )
        self.seen = ""
        self.screen = Screen(columns, 30, self.child.send)

    def sees(self, pattern, timeout=60):
        deadline = time.monotonic() + timeout
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline, f"{pattern!r} not in {self.seen[-800:]!r}"
            if not self._reads():
                deadline = 0
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        assert "Traceback" not in before and "Unhandled exception" not in before, before
        return before

    def shows(self, pattern, timeout=60):
        """Wait for a pattern on the screen; the cursor stands at "█"."""
        deadline = time.monotonic() + timeout
        while not re.search(pattern, shown := self._with_cursor()):
            assert time.monotonic() < deadline and self._reads(), f"{pattern!r} not in {shown}"

    def _with_cursor(self):
        rows = list(self.screen.display)
        x, y = self.screen.cursor.x, self.screen.cursor.y
        rows[y] = rows[y][:x] + "█" + rows[y][x + 1 :]
        return "\n".join(row.rstrip() for row in rows)

    def _reads(self):
        """False at the end."""
        try:
            written = self.child.read_nonblocking(4096, timeout=0.2)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.seen += ANSI.sub("", written)
        self.screen.feed(written)
        return True

    def resized(self, rows, columns):
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def ready(self):
        return self.sees(r"(^|\n)>")

    def types(self, text):
        self.child.send(text)

    def asks(self, text):
        self.ready()
        self.types(text + "\r")
        return self.sees(STATUS)

    def leaves(self):
        self.child.expect(pexpect.EOF, timeout=30)
        self.child.close()
        return self.child.exitstatus
