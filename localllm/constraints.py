"""What an answer has to be: a value that a JSON schema describes, or one of several texts.

Makes the engine's Constraints, and refuses with a reason what they could not hold an answer to, before any model is
loaded. Knows JSON and how to write a grammar; not how one is followed.
"""

import json
import time
from collections.abc import Sequence

from localllm.engine import grammar
from localllm.engine.text import FRAMING, REASONING_TAGS
from localllm.errors import UsageError
from localllm.schema import Json, Schema, normalised
from localllm.values import Constraint

# Between the parts of a value a model may write a space, or a line break and an indentation, but not go on with them.
_LAYOUT: dict[str, Json] = {"whitespace_pattern": r"[ ]|\n[ \t]{0,32}"}
_MAX_CHOICES, _MAX_CHOICE_CHARS = 1000, 1000
_SEARCH_S = 2.0  # for the part that is at fault
_TAGS = (*(opening for opening, _ in REASONING_TAGS), *FRAMING)


def json_schema(schema: str | dict[str, Json] | bool) -> Constraint:
    """The answer is one JSON value that satisfies ``schema``: the text of one, or what it says.

    Properties come in the schema's order. Raises UsageError, which says what is not supported and where.
    """
    checked = normalised(schema if isinstance(schema, str) else json.dumps(schema))
    text = _grammar(checked, checked.whole)
    if reason := grammar.problem(text):
        at = _at_fault(checked, reason, time.monotonic() + _SEARCH_S)
        raise UsageError(
            f"the schema at {at}: {_in_words(reason)}", "change it: the answer cannot be held to it as it is"
        )
    return Constraint(text)


def one_of(choices: Sequence[str]) -> Constraint:
    """The answer is exactly one of ``choices``. Raises UsageError for some that it could not be."""
    if not choices or len(choices) > _MAX_CHOICES:
        raise UsageError(f"there are {len(choices):,} choices", f"give from 1 to {_MAX_CHOICES:,}")
    for choice in choices:
        if not choice or choice != choice.strip() or len(choice) > _MAX_CHOICE_CHARS:
            raise UsageError(
                f"the choice {choice[:40]!r} is empty, too long or has white space around it", "give a word or a few"
            )
        if not all(c.isprintable() or c == "\n" for c in choice):
            raise UsageError(f"the choice {choice[:40]!r} has characters that are not printed", "leave them out")
        if choice.startswith(_TAGS):
            raise UsageError(f"the choice {choice[:40]!r} begins as a model's reasoning does", "begin it otherwise")
    spelled = ("".join(f"\\x{{{ord(character):x}}}" for character in choice) for choice in choices)
    return Constraint(grammar.grammar(f"/{'|'.join(spelled)}/"))


def _grammar(schema: Schema, part: Json) -> str:
    if isinstance(part, dict):
        part = {"x-guidance": _LAYOUT, **part, "$defs": schema.definitions}
    return grammar.grammar(f"%json {json.dumps(part, ensure_ascii=False)}")


def _at_fault(schema: Schema, reason: str, deadline_s: float) -> str:
    """The pointer to the innermost part that fails for the same reason by itself; to the whole if that takes long."""
    wanted = _in_words(reason)
    innermost = sorted(schema.parts, key=lambda pointer: pointer.count("/"), reverse=True)
    for pointer in innermost:
        if time.monotonic() > deadline_s:
            break
        failed = grammar.problem(_grammar(schema, schema.parts[pointer]))
        if failed and _in_words(failed) == wanted:
            return pointer
    return "#"


def _in_words(reason: str) -> str:
    """What llguidance says, without the grammar that it quotes and its own options."""
    line = reason.split("failed to compile JSON schema: ", 1)[-1].split("\n   1 | ", 1)[0]
    if line.startswith("oneOf"):
        return "'oneOf' is supported only where its schemas plainly exclude each other; 'anyOf' may do"
    if "recursion limit" in line:
        return "it is nested too deeply"
    if "regex parse error" in line:
        return f"its pattern is not supported: {line.rsplit('error: ', 1)[-1]}"
    return " ".join(line.split())[:300]
