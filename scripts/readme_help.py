"""The parts of README.md that are generated from the program, so that they stay true.

Called from cog blocks: ``cog -I scripts -r README.md`` writes them, scripts/check checks them.
"""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import localllm
from localllm.errors import EXIT_CODES, Cancelled, LocalLLMError
from localllm.terminal.commands import help_text

WIDTH = 100
ANSWERS = {
    "stop": "The model finished its answer, or a --stop text was met.",
    "length": "--max-tokens ended the answer (exit code 5 with --schema and --choice: it is not whole).",
    "context": "The context was full before the answer was finished.",
    "timeout": "--timeout passed; what was written until then is the answer.",
    "interrupted": "Ctrl-C, or a signal that asks to end; what was written until then is the answer.",
}


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
    rows = [(code, "finish_reason", reason, ANSWERS[reason]) for reason, code in EXIT_CODES.items()]
    errors: list[type[LocalLLMError]] = [LocalLLMError, *_descendants(LocalLLMError)]
    for error in errors:
        known_by = ["timeout", "interrupted"] if error is Cancelled else [error.code]  # only instances of it have one
        for code in known_by:
            meaning = (error.__doc__ or "").partition("\n")[0]
            rows.append((EXIT_CODES.get(code, error.exit_code), "error.code", code, meaning))
    lines = [f"| {exit_code} | `{key}`: `{value}` | {meaning} |" for exit_code, key, value, meaning in sorted(rows)]
    return "\n".join(["| Exit code | In `--json` | Meaning |", "|---:|---|---|", *lines, ""])


def python_example() -> str:
    """The example of the package's own documentation."""
    _, _, example = (localllm.__doc__ or "").partition("::\n\n")
    return _block("python", textwrap.dedent(example))


def _descendants(error: type[LocalLLMError]) -> Iterator[type[LocalLLMError]]:
    for child in error.__subclasses__():
        yield child
        yield from _descendants(child)


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.strip()}\n```\n"
