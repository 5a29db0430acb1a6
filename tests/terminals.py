"""A real pseudo-terminal for tests: what is typed goes in as keys, what comes out is read as a person reads it."""

import re
import sys
import time
from pathlib import Path

import pexpect

PROGRAM = str(Path(sys.executable).with_name("localllm"))
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][AB0]|\x1b[=>]|\r|\x08")
STATUS = r"tokens?[^·]* ·[\s\S]*?context\s[\d,]+\sof\s[\d,]+"  # a narrow window folds it

# All tokens equally likely: the one that ends the answer does not come by chance.
ENDLESS = ("--temp", "100", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1")


class Terminal:
    """A chat in a pseudo-terminal; ``sees`` waits for a pattern in what a person would read, which is no traceback."""

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

    def sees(self, pattern, timeout=60):
        deadline = time.monotonic() + timeout
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline, f"{pattern!r} not in {self.seen[-800:]!r}"
            try:
                self.seen += ANSI.sub("", self.child.read_nonblocking(4096, timeout=0.2))
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                deadline = 0
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        assert "Traceback" not in before and "Unhandled exception" not in before, before
        return before

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
