"""A conversation as a file that people or programs read: Markdown, and JSON that can be read back. Pure.

Token ids are left out: they mean nothing to another model, and the text says it all.
"""

import json
from collections.abc import Sequence
from typing import cast, get_args

from localllm.errors import UsageError
from localllm.values import Message, Role

_TITLES: dict[Role, str] = {"system": "System", "user": "You", "assistant": "Assistant"}
_MOST_CHARS = 64 * 2**20


def as_markdown(messages: Sequence[Message]) -> str:
    """Each message under a heading with who said it; reasoning as a quotation."""
    parts = []
    for message in messages:
        parts.append(f"## {_TITLES[message.role]}")
        if message.reasoning.strip():
            parts.append("\n".join(f"> {line}".rstrip() for line in message.reasoning.strip().splitlines()))
        parts.append(message.text.strip())
    return "\n\n".join(parts) + "\n"


def as_json(messages: Sequence[Message]) -> str:
    """What ``from_json`` reads."""
    said = [
        {"role": message.role, "text": message.text} | ({"reasoning": message.reasoning} if message.reasoning else {})
        for message in messages
    ]
    return json.dumps({"messages": said}, ensure_ascii=False, indent=1) + "\n"


def from_json(text: str) -> list[Message]:
    """The messages in what ``as_json`` wrote: at most one system prompt, then questions and answers in turn.

    Raises UsageError where it is something else.
    """
    hint = "it should be a file that /save NAME.json wrote"
    if len(text) > _MOST_CHARS:
        raise UsageError("the file is too large for a conversation", hint)
    try:
        said = json.loads(text)["messages"]
        messages = [_message(entry) for entry in said]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise UsageError("the file holds no conversation", hint) from None
    turns = [message.role for message in messages if message.role != "system"]
    systems = [index for index, message in enumerate(messages) if message.role == "system"]
    if systems not in ([], [0]) or turns != ["user", "assistant"] * (len(turns) // 2):
        raise UsageError("the messages of the file do not take turns", "a question, its answer, and so on")
    return messages


def _message(entry: dict[str, object]) -> Message:
    role, text, reasoning = entry["role"], entry["text"], entry.get("reasoning", "")
    if role not in get_args(Role) or not isinstance(text, str) or not isinstance(reasoning, str):
        raise ValueError
    return Message(cast("Role", role), text, reasoning=reasoning)
