"""A conversation as a file: as Markdown, and as JSON that can be read back. The one form of each. Pure.

Token ids are left out: they mean nothing to another model, and the text says it all. Markdown has control characters as
they were said: what a terminal may show must go through ``safe`` of terminal/safe.py.
"""

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, get_args

from localllm.errors import UsageError
from localllm.values import Message, Role

if TYPE_CHECKING:
    from localllm.session.chat import Chat
    from localllm.session.transcripts import Conversation, Summary

OUTSIDE = "(made room for others: the model does not see it any more)"
_HEADINGS: dict[Role, str] = {"system": "System", "user": "Question", "assistant": "Answer"}
_MOST_CHARS = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Document:
    """What a file tells of a conversation: questions and answers in turn, and what they are about.

    The model was ``given`` some of them in the end; the others have made room before. ``model`` is a reference as for
    ``-m``. Only what is stored has an ``id``, and times, in seconds since 1970.
    """

    given: Sequence[Message]
    forgotten: Sequence[Message] = ()
    system: str = ""
    title: str = ""
    model: str = ""
    id: str | None = None
    created_s: float | None = None
    updated_s: float | None = None

    @property
    def messages(self) -> list[tuple[Message, bool]]:
        """All of it in order, and whether the model was still given it in the end."""
        return [*((message, False) for message in self.forgotten), *((message, True) for message in self.given)]


def of_chat(chat: "Chat") -> Document:
    """The conversation of a chat, as it is now."""
    from localllm.session.recording import title_of

    forgotten = chat.said[: len(chat.said) - len(chat.remembered)]
    title = title_of(chat.said[0].text) if chat.said else ""
    return Document(chat.given, forgotten, chat.system, title, chat.engine.info.reference)


def of_stored(conversation: "Conversation") -> Document:
    """A conversation as it is stored."""
    forgotten = [row.message for row in conversation.rows if not row.in_context]
    of = conversation.summary
    return Document(conversation.messages, forgotten, of.system, of.title, of.model, of.id, of.created_s, of.updated_s)


def as_markdown(document: Document) -> str:
    """A heading for each message; reasoning as a quotation; what the model was not given any more says so."""
    parts = [f"# {' '.join(document.title.split())}", facts(document)]
    if document.system:
        parts += _section(Message("system", document.system))
    for message, in_context in document.messages:
        parts += _section(message) if in_context else _section(message, f"*{OUTSIDE}*")
    return "\n\n".join(parts) + "\n"


def as_json(document: Document) -> str:
    """What ``from_json`` reads."""
    messages = [
        {"role": message.role, "text": message.text, "reasoning": message.reasoning, "in_context": in_context}
        for message, in_context in document.messages
    ]
    return json.dumps(about(document) | {"messages": messages}, indent=2) + "\n"


def about(of: "Document | Summary") -> dict[str, object]:
    """What a conversation is about, for JSON, as far as it is known. Times are UTC."""
    known = {
        "id": of.id,
        "title": of.title,
        "model": of.model,
        "system": of.system,
        "created": _utc(of.created_s),
        "updated": _utc(of.updated_s),
    }
    return {key: value for key, value in known.items() if value is not None}


def facts(document: Document) -> str:
    """What is known about a conversation, in one line for people here."""
    count = f"{len(document.messages):,} messages"
    known = (document.id, document.model, _period(document.created_s, document.updated_s), count)
    return " · ".join(filter(None, known))


def when(seconds: float) -> str:
    """A time in seconds since 1970, as people here read it, to the minute."""
    return f"{datetime.datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def from_json(text: str) -> Document:
    """The conversation in what ``as_json`` wrote. Raises UsageError where it is something else."""
    hint = "it should be a file that /save NAME.json or `localllm history export --json` wrote"
    if len(text) > _MOST_CHARS:
        raise UsageError("the file is too large for a conversation", hint)
    try:
        found = json.loads(text)
        system, entries = found.get("system", ""), found["messages"]
        if entries and entries[0]["role"] == "system":  # where earlier versions had it
            system, entries = entries[0]["text"], entries[1:]
        given = [_message(entry) for entry in entries if entry.get("in_context", True)]
        forgotten = [_message(entry) for entry in entries if not entry.get("in_context", True)]
        document = Document(given, forgotten, _text(system))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise UsageError("the file holds no conversation", hint) from None
    if not (_take_turns(given) and _take_turns(forgotten)):
        raise UsageError("the messages of the file do not take turns", "a question, its answer, and so on")
    return document


def _section(message: Message, *notes: str) -> list[str]:
    reasoning = message.reasoning.strip()
    quoted = "\n".join(f"> {line}".rstrip() for line in reasoning.split("\n")) if reasoning else ""
    return [f"## {_HEADINGS[message.role]}", *notes, *filter(None, (quoted, message.text.strip()))]


def _period(created_s: float | None, updated_s: float | None) -> str:
    if created_s is None or updated_s is None:
        return ""
    begun, last = when(created_s), when(updated_s)
    return begun if begun == last else f"{begun} to {last.removeprefix(begun[:11])}"


def _utc(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def _message(entry: dict[str, object]) -> Message:
    role = entry["role"]
    if role not in get_args(Role):
        raise ValueError
    return Message(cast("Role", role), _text(entry["text"]), reasoning=_text(entry.get("reasoning", "")))


def _text(value: object) -> str:
    """Raises ValueError for what is no text, or none that could be written."""
    if not isinstance(value, str):
        raise ValueError
    value.encode()
    return value


def _take_turns(messages: Sequence[Message]) -> bool:
    return [message.role for message in messages] == ["user", "assistant"] * (len(messages) // 2)
