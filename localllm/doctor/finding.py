"""What a check finds, and how checks are run: one that fails is a finding itself and ends no other.

Knows neither what is checked nor how it is shown.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from localllm.errors import LocalLLMError

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer. ``advice`` says what to do, in words or as a command; "" where nothing is to be done.

    A "warning" makes answers slower or worse, or something possible impossible; with a "problem" something fails.
    """

    name: str
    status: Status
    text: str
    advice: str = ""


Check = Callable[[], Iterator[Finding]]


def ok(name: str, text: str, advice: str = "") -> Finding:
    """All is well; advice is about what could be better still."""
    return Finding(name, "ok", text, advice)


def warning(name: str, text: str, advice: str) -> Finding:
    """It works, but not as well as it could."""
    return Finding(name, "warning", text, advice)


def problem(name: str, text: str, advice: str) -> Finding:
    """Something that was meant to work does not."""
    return Finding(name, "problem", text, advice)


def examine(name: str, check: Check) -> Iterator[Finding]:
    """What ``check`` finds, and its own failure as a problem: the others go on."""
    try:
        yield from check()
    except LocalLLMError as error:
        yield problem(name, error.message, error.hint)
    except Exception as error:  # a bug of ours must be seen, and may not hide what the other checks find
        yield problem(
            name, f"this check failed: {type(error).__name__}: {error}", "a bug of localllm's: please report it"
        )
