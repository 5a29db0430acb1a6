"""What fills the context of a conversation, and how room is made in it.

Knows the engine's tokenizer and the order of messages; knows no terminal. Making room changes the conversation, and
says by how much: nothing is dropped without a word.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from localllm.cancel import Cancel
from localllm.session.chat import Chat
from localllm.values import Event, Message, TurnEnd

_SUMMARISE = (
    "Summarise our conversation so far for yourself: what was asked, what was found or decided, and every name, number "
    "and fact that may be needed later. Write a short list and nothing else."
)


@dataclass(frozen=True, slots=True)
class Filled:
    """Tokens that each message takes, in order, and what the model's layout adds in all."""

    messages: tuple[tuple[Message, int], ...]
    layout_tokens: int
    n_ctx: int

    @property
    def total_tokens(self) -> int:
        """All that the next prompt would hold without its question."""
        return self.layout_tokens + sum(tokens for _, tokens in self.messages)


def filled(chat: Chat, cancel: Cancel | None = None) -> Filled:
    """What fills the context now. Raises what ``Engine.encode`` raises."""
    engine, cancel = chat.engine, cancel or Cancel()
    counts = []
    for message in chat.messages:
        ids = message.token_ids or (engine.encode_raw(message.text, cancel).ids if message.text else ())
        counts.append((message, len(ids)))
    total = len(engine.encode(chat.messages, cancel).ids) if counts else 0
    return Filled(tuple(counts), max(0, total - sum(tokens for _, tokens in counts)), engine.info.n_ctx)


def make_room(chat: Chat, question: str, cancel: Cancel) -> int:
    """Forget the oldest turns until ``question`` fits with a quarter of the context for its answer.

    Returns how many turns the model is no longer given; the system prompt stays. Where even the question alone does
    not fit, nothing is forgotten. Raises what ``Engine.encode`` raises.
    """
    most = len(chat.remembered) // 2
    for turns in range(most + 1):
        n_ctx = chat.engine.info.n_ctx
        room = n_ctx // 4 if turns < most else 1  # a question that stands alone may leave less for its answer
        if len(chat.engine.encode([*chat.without(turns), Message("user", question)], cancel).ids) + room <= n_ctx:
            if turns:
                chat.forget(turns)
            return turns
    return 0


def summarise(chat: Chat, cancel: Cancel, hold_unopened: bool = False) -> Iterator[Event]:
    """Have the model put the older half of what it is given into a summary, and give it that instead.

    Yields what ``Engine.reply`` yields. What the user has answers end at does not end it. Nothing changes where the
    summary does not come to its own end.
    """
    turns = _older_half(chat)
    seen, n_ctx = chat.messages, chat.engine.info.n_ctx
    start = len(seen) - len(chat.remembered)
    older = seen[: start + 2 * turns]
    request = Message("user", _SUMMARISE)
    while len(chat.engine.encode([*older, request], cancel).ids) + n_ctx // 4 > n_ctx and len(older) > start:
        del older[start : start + 2]  # what cannot be read beside the room for a summary is not in it
    sampling = replace(chat.sampling, max_tokens=None, stop=())
    for event in chat.engine.reply([*older, request], sampling, cancel, hold_unopened):
        if isinstance(event, TurnEnd) and event.reason == "stop" and event.message.text.strip():
            chat.forget(turns, event.message.text.strip())
        yield event


def _older_half(chat: Chat) -> int:
    """How many turns make up the older half of what the model is given, by size: at least one."""
    sizes = [len(message.text) for message in chat.remembered]
    total, count = sum(sizes), 0
    while count + 2 <= len(sizes) and sum(sizes[: count + 2]) <= total / 2:
        count += 2
    return max(1, count // 2)
