"""The parts of README.md that are generated from the program, so that they stay true.

Called from cog blocks: ``cog -I scripts -r README.md`` writes them, scripts/check checks them.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import localllm
from localllm.cli.help import VARIABLES, exit_rows
from localllm.settings import TABLE
from localllm.terminal.commands import help_text

WIDTH = 100


def usage(*command: str) -> str:
    """What ``localllm COMMAND --help`` prints, whatever terminal this is run from."""
    program = Path(sys.executable).with_name("localllm")
    env = os.environ | {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb", "PYTHONUTF8": "1"}
    done = subprocess.run([program, *command, "--help"], env=env, capture_output=True, encoding="utf-8", check=True)
    return _block("text", done.stdout)


def slash_commands() -> str:
    """The commands and keys of a chat, as ``/help`` shows them."""
    return _block("text", help_text())


def exit_codes() -> str:
    """Every way to end, with its exit code and what ``--json`` calls it."""
    lines = [f"| {row.exit_code} | `{row.key}`: `{row.value}` | {row.meaning} |" for row in exit_rows()]
    return "\n".join(["| Exit code | In `--json` | Meaning |", "|---:|---|---|", *lines, ""])


def settings() -> str:
    """Every setting: its name, what it does, which values it takes, and what holds otherwise."""
    rows = [(f"`{row.name}`", row.help, row.takes, row.default_text) for row in TABLE]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(["| Setting | What it does | Takes | Otherwise |", "|---|---|---|---|", *lines, ""])


def variables() -> str:
    """The environment variables that are no settings."""
    lines = [f"| {', '.join(f'`{name}`' for name in names.split())} | {text} |" for names, text in VARIABLES.items()]
    return "\n".join(["| Variable | Meaning |", "|---|---|", *lines, ""])


def python_example() -> str:
    """The example of the package's own documentation."""
    _, _, example = (localllm.__doc__ or "").partition("::\n\n")
    return _block("python", textwrap.dedent(example))


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.strip()}\n```\n"
