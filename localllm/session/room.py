"""What fills the context of a conversation, and how room is made in it.

Knows the engine's tokenizer and the order of messages; knows no terminal. Making room changes the conversation, and
says by how much: nothing is dropped without a word.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from localllm.cancel import Cancel
from localllm.errors import PromptTooLong
from localllm.session.chat import Chat
from localllm.values import Event, Message, TurnEnd

_SUMMARISE = (
    "Summarise our conversation so far for yourself: what was asked, what was found or decided, and every name, number "
    "and fact that may be needed later. Write a short list and nothing else."
)


@dataclass(frozen=True, slots=True)
class Filled:
    """Tokens that each message takes, in order, and the ``total_tokens`` that are in the context.

    The first question and answer are a summary of so many ``summarised`` messages, if there are any.
    """

    messages: tuple[tuple[Message, int], ...]
    total_tokens: int
    n_ctx: int
    summarised: int = 0

    @property
    def layout_tokens(self) -> int:
        """What is no message: what the model's layout adds in all, and the reasoning before the last answer."""
        return max(0, self.total_tokens - sum(tokens for _, tokens in self.messages))


def filled(chat: Chat, cancel: Cancel | None = None) -> Filled:
    """What fills the context now. Raises what ``Engine.encode`` raises."""
    engine, cancel = chat.engine, cancel or Cancel()
    counts = []
    for message in chat.messages:
        ids = message.token_ids or (engine.encode_raw(message.text, cancel).ids if message.text else ())
        counts.append((message, len(ids)))
    return Filled(tuple(counts), chat.count(cancel), engine.info.n_ctx, chat.summarised)


@dataclass(frozen=True, slots=True)
class Coming:
    """What the model is to answer next, for which there has to be room.

    ``replaces_last``: it takes the place of the last question, which therefore must not be forgotten. ``begun_tokens``:
    of an answer that goes on.
    """

    question: str
    replaces_last: bool = False
    begun_tokens: int = 0


def needed_tokens(chat: Chat, coming: Coming, cancel: Cancel, forgotten: int = 0) -> int:
    """How many tokens it takes, behind what the model is given without so many more of the oldest turns.

    Raises what ``Engine.encode`` raises.
    """
    before = chat.without(forgotten, newest=int(coming.replaces_last))
    return len(chat.engine.encode([*before, Message("user", coming.question)], cancel).ids) + coming.begun_tokens


def can_have_room(chat: Chat, coming: Coming, cancel: Cancel) -> bool:
    """Whether it would fit if all was forgotten that can be. Raises what ``Engine.encode`` raises."""
    return needed_tokens(chat, coming, cancel, _forgettable(chat, coming)) < chat.engine.info.n_ctx


def make_room(chat: Chat, coming: Coming, cancel: Cancel) -> int:
    """Forget the oldest turns until what is ``coming`` fits with a quarter of the context for its answer.

    Returns how many turns the model is no longer given; the system prompt stays. Where even the question alone does
    not fit, nothing is forgotten. Raises what ``Engine.encode`` raises.
    """
    most, n_ctx = _forgettable(chat, coming), chat.engine.info.n_ctx
    for turns in range(most + 1):
        room = n_ctx // 4 if turns < most else 1  # a question that stands alone may leave less for its answer
        if needed_tokens(chat, coming, cancel, turns) + room <= n_ctx:
            if turns:
                chat.forget(turns)
            return turns
    return 0


def summarise(chat: Chat, coming: Coming, cancel: Cancel, hold_unopened: bool = False) -> Iterator[Event]:
    """Have the model put the older half of what it is given into a summary, and give it that instead.

    Of the half as many turns as it can read beside the room for a summary. Yields what ``Engine.reply`` yields. What
    answers are to end at does not end it. Nothing changes where the summary does not come to its own end. Raises
    PromptTooLong where not one turn can be read so.
    """
    turns = min(_older_half(chat), _forgettable(chat, coming))
    seen, n_ctx = chat.messages, chat.engine.info.n_ctx
    start = len(seen) - len(chat.remembered)
    request = Message("user", _SUMMARISE)
    while turns and len(chat.engine.encode([*seen[: start + 2 * turns], request], cancel).ids) > n_ctx - n_ctx // 4:
        turns -= 1
    if not turns:
        raise PromptTooLong("there is no question with its answer that the model could summarise", "")
    sampling = replace(chat.sampling, max_tokens=None, stop=())
    for event in chat.engine.reply([*seen[: start + 2 * turns], request], sampling, cancel, hold_unopened):
        if isinstance(event, TurnEnd) and event.reason == "stop" and event.message.text.strip():
            chat.forget(turns, event.message.text.strip())
        yield event


def _forgettable(chat: Chat, coming: Coming) -> int:
    """How many turns can be forgotten for it at most."""
    return len(chat.remembered) // 2 - coming.replaces_last


def _older_half(chat: Chat) -> int:
    """How many turns make up the older half of what the model is given, by size: at least one."""
    sizes = [len(message.text) for message in chat.remembered]
    total, count = sum(sizes), 0
    while count + 2 <= len(sizes) and sum(sizes[: count + 2]) <= total / 2:
        count += 2
    return max(1, count // 2)
