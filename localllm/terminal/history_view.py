"""Stored conversations as text, Markdown and plain objects for JSON. Knows neither files nor options."""

import datetime
from collections.abc import Iterator

from localllm.session.searching import CLOSE, OPEN
from localllm.session.transcripts import Conversation, Row, Summary
from localllm.terminal.safe import one_line, safe

_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_RECAP_MESSAGES, _RECAP_CHARS = 4, 200
_OUTSIDE = "(made room for others: the model does not see it any more)"


def when(seconds: float) -> str:
    """A time in seconds since 1970, as people here read it, to the minute."""
    return f"{datetime.datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def recap(conversation: Conversation) -> list[str]:
    """Where a conversation stands: its title, how long it is, and the end of it in brief."""
    summary, messages = conversation.summary, conversation.messages
    questions = sum(message.role == "user" for message in messages)
    count = "1 question" if questions == 1 else f"{questions:,} questions"
    lines = [f"going on with {summary.id}: {summary.title} ({count}, last {when(summary.updated_s)})"]
    if len(messages) > _RECAP_MESSAGES:
        lines.append("…")
    for message in messages[-_RECAP_MESSAGES:]:
        text = one_line(message.text or message.reasoning)
        brief = text if len(text) <= _RECAP_CHARS else f"{text[: _RECAP_CHARS - 1]}…"
        lines.append(f"> {brief}" if message.role == "user" else brief)
    return lines


def as_text(conversation: Conversation, color: bool) -> Iterator[str]:
    """A conversation to be read in a terminal, piece by piece, without control characters."""
    summary = conversation.summary
    bold, dim, reset = (_BOLD, _DIM, _RESET) if color else ("", "", "")
    yield f"{bold}{one_line(summary.title)}{reset}\n{_facts(conversation)}\n"
    if summary.system:
        yield f"\n{dim}system: {safe(summary.system)}{reset}\n"
    for row in conversation.rows:
        message = row.message
        if not row.in_context:
            yield f"\n{dim}{_OUTSIDE}{reset}"
        if message.reasoning:
            yield f"\n{dim}{safe(message.reasoning).strip()}{reset}\n"
        text = safe(message.text).strip()
        if message.role == "user":
            text = "\n".join(f"> {line}" for line in text.split("\n"))
            yield f"\n{bold}{text}{reset}\n"
        else:
            yield f"\n{text}\n"


def as_markdown(conversation: Conversation) -> Iterator[str]:
    """A conversation as a Markdown document, piece by piece."""
    summary = conversation.summary
    yield f"# {one_line(summary.title)}\n\n{_facts(conversation)}\n"
    if summary.system:
        yield f"\n## System\n\n{safe(summary.system).strip()}\n"
    for row in conversation.rows:
        yield f"\n## {'Question' if row.message.role == 'user' else 'Answer'}\n"
        if not row.in_context:
            yield f"\n*{_OUTSIDE}*\n"
        if reasoning := safe(row.message.reasoning).strip():
            yield "\n" + "\n".join(f"> {line}".rstrip() for line in reasoning.split("\n")) + "\n"
        yield f"\n{safe(row.message.text).strip()}\n"


def as_object(conversation: Conversation) -> dict[str, object]:
    """A whole conversation for JSON."""
    return summary_object(conversation.summary) | {"messages": [_message_object(row) for row in conversation.rows]}


def summary_object(summary: Summary) -> dict[str, object]:
    """What a conversation is about, for JSON; ``messages`` is how many there are. Times are UTC."""
    return {
        "id": summary.id,
        "title": summary.title,
        "model": summary.model,
        "system": summary.system,
        "created": _utc(summary.created_s),
        "updated": _utc(summary.updated_s),
        "messages": summary.messages,
    }


def highlighted(place: str, color: bool) -> str:
    """A place that was found, in one line, with what was looked for in bold."""
    marked = " ".join(place.split()).replace(OPEN, "\ue000").replace(CLOSE, "\ue001")
    start, stop = (_BOLD, _RESET) if color else ("", "")
    return one_line(marked).replace("\ue000", start).replace("\ue001", stop)


def _facts(conversation: Conversation) -> str:
    summary = conversation.summary
    begun, last = when(summary.created_s), when(summary.updated_s)
    period = begun if begun == last else f"{begun} to {last.removeprefix(begun[:11])}"
    return f"{summary.id} · {one_line(summary.model)} · {period} · {summary.messages:,} messages"


def _message_object(row: Row) -> dict[str, object]:
    message = row.message
    return {
        "role": message.role,
        "text": message.text,
        "reasoning": message.reasoning,
        "in_context": row.in_context,
    }


def _utc(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
