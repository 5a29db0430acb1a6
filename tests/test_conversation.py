"""What a conversation can do besides going on: take back, ask anew, change the question, go on with an answer."""

import dataclasses

import pytest
from fakes import THINK, UNTHINK, FakeDecoder, fake_engine, says
from hypothesis import given
from hypothesis import strategies as st

from localllm import Message, Sampling, TurnEnd
from localllm.cancel import Cancel
from localllm.errors import UsageError
from localllm.session.chat import Chat

TEXT = "Grüße, a 日本 answer with several words.".encode()


def greedy(_engine=None):
    return Sampling(temperature=0)


def end_of(events):
    return [event for event in events if isinstance(event, TurnEnd)][-1]


def chat_of(decoder=None, **options):
    return Chat(fake_engine(decoder or FakeDecoder(says(TEXT))), greedy, **options)


@given(cut=st.integers(2, len(TEXT)), reasoning=st.booleans())
def test_an_answer_that_was_cut_anywhere_goes_on_as_if_it_had_not_been(cut, reasoning):
    """Inside a character or in reasoning: the finished message and its ids are those of an answer in one piece."""
    rule = says(bytes(TEXT)) if not reasoning else says([THINK, *b"thought so", UNTHINK, *TEXT])
    whole, parts = chat_of(FakeDecoder(rule)), chat_of(FakeDecoder(rule))
    end_of(whole.turn("hello", Cancel()))
    parts.sampling = dataclasses.replace(greedy(), max_tokens=cut)
    first = end_of(parts.turn("hello", Cancel()))
    assert first.reason == "length" and first.stats.output_tokens == cut
    parts.sampling = greedy()
    assert end_of(parts.go_on(Cancel())).reason == "stop"
    assert parts.said == whole.said


def test_going_on_feeds_the_model_nothing_twice():
    """The question and the beginning of the answer are in the KV cache; only what is left of it is computed."""
    decoder = FakeDecoder(says(TEXT))
    chat = chat_of(decoder)
    chat.sampling = dataclasses.replace(greedy(), max_tokens=10)
    end_of(chat.turn("hello", Cancel()))
    end = end_of(chat.go_on(Cancel()))
    assert end.stats.read_tokens <= 1 and end.stats.cached_tokens >= end.stats.prompt_tokens - 1


def test_undo_regen_and_edit_change_only_the_last_turn():
    """And each tells whoever keeps the conversation."""
    kept = []
    chat = chat_of(record=lambda chat: kept.append(chat.said))
    end_of(chat.turn("one", Cancel()))
    end_of(chat.turn("two", Cancel()))
    end_of(chat.again(Cancel()))
    assert [m.text for m in chat.said if m.role == "user"] == ["one", "two"]
    end_of(chat.instead("three", Cancel()))
    assert [m.text for m in chat.said if m.role == "user"] == ["one", "three"]
    assert chat.undo() == Message("user", "three")
    assert [m.text for m in chat.said if m.role == "user"] == ["one"] and kept[-1] == chat.said
    assert len(kept) == 5


def test_a_change_that_fails_changes_nothing():
    """An edited question that is too long, or whose answer was stopped before it began."""
    chat = chat_of(FakeDecoder(says(TEXT), n_ctx=256))
    end_of(chat.turn("one", Cancel()))
    before = chat.said
    end_of(chat.instead("two", Cancel(timeout_s=0)))
    assert chat.said == before


@pytest.mark.parametrize("operation", ["undo", "again", "go_on", "instead"])
def test_there_must_have_been_a_question(operation):
    """Each says so in a line."""
    chat = chat_of()
    with pytest.raises(UsageError, match="nothing was asked"):
        list(chat.undo() if operation == "undo" else getattr(chat, operation)(*_arguments(operation)))


def _arguments(operation):
    return ["text", Cancel()] if operation == "instead" else [Cancel()]


def test_the_oldest_turns_can_be_dropped():
    """The system prompt stays, and no more are dropped than there are."""
    chat = chat_of(system="Be kind.")
    for text in ("one", "two", "three"):
        end_of(chat.turn(text, Cancel()))
    assert chat.drop_oldest(2) == 2 and [m.text for m in chat.messages if m.role != "assistant"] == [
        "Be kind.",
        "three",
    ]
    assert chat.drop_oldest(5) == 1 and chat.messages == [Message("system", "Be kind.")]
