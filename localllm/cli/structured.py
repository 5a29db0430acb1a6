"""``ask --schema`` and ``--choice``: answers that a script can rely on.

Knows what is written of them, and when. An answer that was cut is no answer here: into a pipe nothing is written of it,
and the exit code says so.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from localllm.cancel import Cancel
from localllm.cli.inputs import text_of
from localllm.errors import EXIT_CODES, UsageError
from localllm.terminal.safe import escaped, readable
from localllm.values import Constraint, Event, Text, TurnEnd

if TYPE_CHECKING:
    from localllm.terminal.render import View

Schema = Annotated[
    str | None,
    typer.Option("--schema", metavar="FILE", help="Answer with one JSON value that satisfies this JSON schema."),
]
Choice = Annotated[
    str | None,
    typer.Option("--choice", metavar="A,B,C", help="Answer with exactly one of these."),
]


def constraint_from(
    schema: str | None, choice: str | None, stop: list[str] | None, cancel: Cancel, tell: Callable[[str], None]
) -> Constraint | None:
    """What the answer has to be, if anything. Raises UsageError where it could not be held to that; Cancelled."""
    if schema is None and choice is None:
        return None
    if schema is not None and choice is not None:
        raise UsageError("--schema and --choice exclude each other", "give one; a schema can have an enum")
    if stop:
        raise UsageError("--stop would cut an answer that is to be whole", "leave it out")

    from localllm import constraints

    if schema is not None:
        return constraints.json_schema(text_of(schema, cancel, tell))
    return constraints.one_of([text.strip() for text in readable(choice or "").split(",")])


def write(events: Iterator[Event], view: "View") -> TurnEnd:
    """Stream the answer to a person; into a pipe, write it when it is whole."""
    from localllm.terminal.render import collect, show

    if sys.stdout.isatty():
        return show(map(_escaped, events), view)
    end = collect(events, view)
    if end.reason == "stop":
        view.out.write(escaped(end.message.text) + "\n")
        view.out.flush()
    return end


def _escaped(event: Event) -> Event:
    return dataclasses.replace(event, text=escaped(event.text)) if isinstance(event, Text) else event


def exit_code(end: TurnEnd) -> int:
    """As for every answer, but that one which --max-tokens has cut is none."""
    return EXIT_CODES["context" if end.reason == "length" else end.reason]
