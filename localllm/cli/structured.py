"""``ask --schema`` and ``--choice``: what an answer has to be, checked before anything is loaded."""

from collections.abc import Callable
from typing import Annotated

import typer

from localllm.cancel import Cancel
from localllm.errors import UsageError
from localllm.terminal.inputs import text_of
from localllm.terminal.safe import readable
from localllm.values import Constraint

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
