"""Work that must not hold up or take down this process runs in a child, so that a stop works at any moment.

Knows one protocol: a line "Progress N of M" on stdout says how far the child has come. All else that it writes is
collected, and nothing reaches the terminal. Knows nothing of what the child does.
"""

import os
import re
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from localllm.cancel import Cancel

_PROGRESS = re.compile(rb"Progress (\d+) of (\d+)")
_POLL_S = 0.1
_OUTPUT_LINES = 1000

OnBytes = Callable[[int, int | None], None]  # bytes done, bytes in all (None: not known)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a child ended (its exit code, or minus the signal that killed it), and the last lines that it wrote."""

    code: int
    output: str

    @property
    def ok(self) -> bool:
        """True where it reported success."""
        return self.code == 0


def run(command: Sequence[str], environment: Mapping[str, str], on_bytes: OnBytes, cancel: Cancel) -> Finished:
    """Run ``command`` to its end, reporting its progress as it goes. The child does not outlive this call.

    Raises Cancelled as soon as ``cancel`` asks for it, and OSError where the command cannot be started.
    """
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as child:
        try:
            output = _follow(child.stdout, on_bytes, cancel) if child.stdout else ""
            child.wait()
        except BaseException:
            child.kill()
            raise
    cancel.check()  # Ctrl-C reaches the child as well: its failure is not the reason then
    return Finished(child.returncode, output)


def python(function: Callable[[], None], *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a Python that runs a function of this package; it finds ``arguments`` in sys.argv."""
    package_root = str(Path(__file__).parents[1])
    code = f"from {function.__module__} import {function.__name__}; {function.__name__}()"
    path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
    return [sys.executable, "-P", "-c", code, *arguments], os.environ | {"PYTHONPATH": path}


def _follow(stdout: IO[bytes], on_bytes: OnBytes, cancel: Cancel) -> str:
    """Report progress and collect the other lines until the child closes its output."""
    output: deque[bytes] = deque(maxlen=_OUTPUT_LINES)
    unfinished = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while True:
            cancel.check()
            if not selector.select(_POLL_S):
                continue
            chunk = os.read(stdout.fileno(), 2**16)
            if not chunk:
                return b"\n".join((*output, unfinished)).decode("utf-8", "replace")
            *lines, unfinished = (unfinished + chunk).split(b"\n")
            for line in lines:
                if match := _PROGRESS.fullmatch(line):
                    on_bytes(int(match[1]), int(match[2]) or None)
                else:
                    output.append(line)
