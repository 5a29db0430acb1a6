"""What ``localllm doctor`` finds, as lines or as JSON; and what this terminal can do."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from localllm.doctor.finding import Finding, Status, ok, warning
from localllm.terminal.folding import hanging
from localllm.terminal.render import columns
from localllm.terminal.safe import one_line

_WIDTH = 15  # of names
_COLORS: dict[Status, str] = {"ok": "32", "warning": "33", "problem": "31"}
_NARROW = 40
_MANY_COLORS = ("truecolor", "24bit")


def line(finding: Finding, color: bool) -> str:
    """A finding as a person reads it, folded in a terminal; its advice is a line of its own, to be copied as it is."""
    status, text, indent = f"{finding.status:8}", one_line(finding.text), _WIDTH + 10
    if sys.stdout.isatty():
        text = hanging(text, columns(sys.stdout), indent)
    if color:
        status = f"\x1b[{_COLORS[finding.status]}m{status}\x1b[0m"
    line = f"{status} {finding.name:{_WIDTH}} {text}"
    return f"{line}\n{' ' * indent}-> {one_line(finding.advice)}" if finding.advice else line


def summary(findings: Sequence[Finding]) -> str:
    """The last line."""
    counts = {status: sum(finding.status == status for finding in findings) for status in _COLORS}
    said = [f"{count} {status}{'s' * (count > 1)}" for status, count in counts.items() if count and status != "ok"]
    return ", ".join(said) if said else "all is well"


def as_json(findings: Sequence[Finding]) -> str:
    """One object; ``status`` is the worst of all."""
    worst = max(findings, key=lambda finding: [*_COLORS].index(finding.status), default=None)
    whole = {"status": worst.status if worst else "ok", "findings": [asdict(finding) for finding in findings]}
    return json.dumps(whole, indent=2)


def terminal() -> Iterator[Finding]:
    """What the terminal on stdout can do."""
    encoding = sys.stdout.encoding or ""
    if encoding.lower().replace("-", "") != "utf8":
        text = f"the locale's encoding is {encoding or 'unknown'}: what it lacks is shown as ?"
        yield warning("terminal", text, "choose a UTF-8 locale: export LC_ALL=C.UTF-8")
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        yield ok("terminal", "stdin or stdout is not one; chat needs it, ask does not")
        return
    name, width = os.environ.get("TERM", ""), columns(sys.stdout)
    if name in ("", "dumb", "unknown"):
        text = f"TERM is {name or 'not set'}: no colours, and keys may not work"
        yield warning("terminal", text, "set it to what your terminal is: export TERM=xterm-256color")
        return
    if width < _NARROW:
        yield warning("terminal", f"{width} columns are few: tables are cut", "make the window wider")
        return
    yield ok("terminal", f"{name}, {width} columns, {_colors(name)}")


def _colors(name: str) -> str:
    if os.environ.get("NO_COLOR"):
        return "no colours, as NO_COLOR is set"
    if os.environ.get("COLORTERM") in _MANY_COLORS:
        return "16 million colours"
    return "256 colours" if "256color" in name else "colours"
