"""Stored conversations as a terminal shows them. Knows neither files nor options."""

from collections.abc import Iterator

from localllm.session.portable import OUTSIDE, Document, facts, when
from localllm.session.searching import CLOSE, OPEN
from localllm.session.transcripts import Conversation
from localllm.terminal.safe import one_line, safe

_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_RECAP_MESSAGES, _RECAP_CHARS = 4, 200


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


def as_text(document: Document, color: bool) -> Iterator[str]:
    """A conversation to be read in a terminal, piece by piece, without control characters."""
    bold, dim, reset = (_BOLD, _DIM, _RESET) if color else ("", "", "")
    yield f"{bold}{one_line(document.title)}{reset}\n{one_line(facts(document))}\n"
    if document.system:
        yield f"\n{dim}system: {safe(document.system)}{reset}\n"
    for message, in_context in document.messages:
        if not in_context:
            yield f"\n{dim}{OUTSIDE}{reset}"
        if message.reasoning:
            yield f"\n{dim}{safe(message.reasoning).strip()}{reset}\n"
        text = safe(message.text).strip()
        if message.role == "user":
            text = "\n".join(f"> {line}" for line in text.split("\n"))
            yield f"\n{bold}{text}{reset}\n"
        else:
            yield f"\n{text}\n"


def highlighted(place: str, color: bool) -> str:
    """A place that was found, in one line, with what was looked for in bold."""
    marked = " ".join(place.split()).replace(OPEN, "\ue000").replace(CLOSE, "\ue001")
    start, stop = (_BOLD, _RESET) if color else ("", "")
    return one_line(marked).replace("\ue000", start).replace("\ue001", stop)
