"""What a conversation can do besides going on: take back, ask anew, change the question, go on with an answer."""

import contextlib
import dataclasses

import pytest
from fakes import THINK, UNTHINK, FakeDecoder, fake_engine, says
from hypothesis import given
from hypothesis import strategies as st

from localllm import Message, Sampling, TurnEnd
from localllm.cancel import Cancel
from localllm.errors import Cancelled, PromptTooLong, UsageError
from localllm.session import portable, room
from localllm.session.chat import Chat
from localllm.terminal.context_view import context_view

ROLES = ("user", "assistant")
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


def test_the_model_can_be_spared_the_oldest_turns():
    """The system prompt stays, and so does what was said; a summary stands in their place."""
    chat = chat_of(system="Be kind.")
    for text in ("one", "two", "three"):
        end_of(chat.turn(text, Cancel()))
    chat.forget(1)
    assert [m.text for m in chat.messages if m.role != "assistant"] == ["Be kind.", "two", "three"]
    chat.forget(1, "They counted.")
    assert chat.messages[2] == Message("assistant", "They counted.") and chat.messages[3].text == "three"
    assert len(chat.said) == 6 and chat.forgotten_turns == 2
    chat.undo()
    assert len(chat.said) == 4 and [m.text for m in chat.given] == [
        "What have we talked about so far?",
        "They counted.",
    ]
    with pytest.raises(UsageError):
        chat.undo()


@pytest.mark.parametrize("turns", [1, 4, 12])
def test_room_is_made_by_forgetting_no_more_than_it_takes(turns):
    """The question fits with a quarter of the context to spare, and one turn more would not have fitted."""
    chat = chat_of(FakeDecoder(says(TEXT), n_ctx=1024), system="Be kind.")
    for number in range(turns):
        chat.replace([*chat.said, Message("user", f"question {number}" * 3), Message("assistant", "answer" * 8)])
    dropped = room.make_room(chat, room.Coming("x" * 300), Cancel())
    prompt = [*chat.messages, Message("user", "x" * 300)]
    assert len(chat.engine.encode(prompt).ids) + 256 <= 1024
    if dropped:
        more = [chat.messages[0], *chat.said[2 * dropped - 2 :], Message("user", "x" * 300)]
        assert len(chat.engine.encode(more).ids) + 256 > 1024
    assert dropped == chat.forgotten_turns and (dropped > 0) == (turns > 4)


def test_a_question_that_never_fits_makes_the_model_forget_nothing():
    """It is refused later, with the conversation as it was."""
    chat = chat_of(FakeDecoder(says(TEXT), n_ctx=256))
    end_of(chat.turn("one", Cancel()))
    assert room.make_room(chat, room.Coming("x" * 300), Cancel()) == 0 and chat.forgotten_turns == 0


def test_what_the_context_holds_is_known_after_each_change():
    """After a turn as the turn counted it, after whatever changed since as the model would be given it now."""
    chat = chat_of(FakeDecoder(says(TEXT), n_ctx=2048))
    assert chat.context_tokens == 0
    first = end_of(chat.turn("one", Cancel())).stats.context_tokens
    assert chat.context_tokens == first
    second = end_of(chat.turn("two " * 50, Cancel())).stats.context_tokens
    assert chat.context_tokens == second > first + 150

    def given():
        return len(chat.engine.encode(chat.messages).ids)

    chat.undo()
    assert chat.context_tokens == given() < first + 30
    chat.system = "Be kind. " * 10
    assert chat.context_tokens == given() > first + 50
    end_of(chat.turn("three", Cancel()))
    chat.forget(1)
    assert chat.context_tokens == given()
    chat.clear()
    assert chat.context_tokens == given()
    chat.system = ""
    assert chat.context_tokens == 0


def test_a_summary_takes_the_place_of_the_older_half():
    """The model writes it; what it stands for is no longer given to the model, and the rest is."""
    chat = chat_of(FakeDecoder(says(b"A summary."), n_ctx=2048))
    for text in ("one", "two", "three", "four"):
        chat.replace([*chat.said, Message("user", text), Message("assistant", "answer to " + text)])
    assert end_of(room.summarise(chat, room.Coming("next"), Cancel())).message.text == "A summary."
    assert chat.forgotten_turns == 2 and [m.text for m in chat.messages][1:3] == ["A summary.", "three"]
    before = chat.messages
    end_of(room.summarise(chat, room.Coming("next"), Cancel(timeout_s=0)))
    assert chat.messages == before


SIZES = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=6)


@given(sizes=SIZES, question=st.integers(1, 600), replaces_last=st.booleans(), summary=st.sampled_from([b"Sum.", b""]))
def test_making_room_never_takes_what_it_is_for(sizes, question, replaces_last, summary):
    """What is replaced stays, and all else where nothing helps; what has room afterwards is answered."""
    chat = chat_of(FakeDecoder(says(summary), n_ctx=512))
    said = [(Message("user", "q" * asked), Message("assistant", "a" * answered)) for asked, answered in sizes]
    chat.replace([message for turn in said for message in turn])
    before, coming = chat.said, room.Coming("x" * question, replaces_last)
    possible = room.can_have_room(chat, coming, Cancel())
    if possible:
        with contextlib.suppress(PromptTooLong):
            end_of(room.summarise(chat, coming, Cancel()))
    room.make_room(chat, coming, Cancel())
    if replaces_last:
        assert chat.last_question() == before[-2]
    if not possible:
        assert chat.said == before and chat.given == before
    else:
        chat.sampling = dataclasses.replace(greedy(), max_tokens=1)
        end_of((chat.instead if replaces_last else chat.turn)(coming.question, Cancel()))


def test_a_summary_stands_for_what_was_read_for_it_and_no_more():
    """A turn that cannot be read beside the room for a summary is no part of one, and nothing is made up for it."""
    chat = chat_of(FakeDecoder(says(b"A summary."), n_ctx=1024))
    small, large = ("one", "answer"), ("x" * 400, "y" * 300)
    chat.replace([Message(role, text) for turn in (small, large) for role, text in zip(ROLES, turn, strict=True)])
    end_of(room.summarise(chat, room.Coming("next"), Cancel()))
    assert [m.text for m in chat.given][1:] == ["A summary.", *large]
    with pytest.raises(PromptTooLong):
        list(room.summarise(chat, room.Coming("next"), Cancel()))
    assert [m.text for m in chat.given][1:] == ["A summary.", *large]


def test_an_answer_that_goes_on_counts_with_all_that_there_is_of_it():
    """Its beginning takes room too, and what it answers is not forgotten."""
    chat = chat_of(FakeDecoder(says(b"z" * 2000), n_ctx=1024))
    chat.replace([Message("user", "old"), Message("assistant", "o" * 200)])
    assert end_of(chat.turn("write", Cancel())).reason == "context"
    coming = room.Coming("write", True, len(chat.begun()))
    with pytest.raises(PromptTooLong):
        end_of(chat.go_on(Cancel()))
    assert room.make_room(chat, coming, Cancel()) == 1
    before = len(chat.said[-1].text)
    end_of(chat.go_on(Cancel()))
    assert len(chat.said[-1].text) > before and chat.said[-2].text == "write"


@pytest.mark.parametrize("operation", ["undo", "again", "go_on", "instead"])
def test_what_the_model_is_not_given_any_more_cannot_be_changed(operation):
    """And that is what is said, not that nothing was asked."""
    chat = chat_of()
    for text in ("one", "two"):
        end_of(chat.turn(text, Cancel()))
    chat.forget(1)
    chat.undo()
    with pytest.raises(UsageError, match="not given to the model any more"):
        list(chat.undo() if operation == "undo" else getattr(chat, operation)(*_arguments(operation)))


def test_a_summary_ends_by_itself():
    """Not where the user has answers end: after so many tokens, or before a text."""
    chat = chat_of(FakeDecoder(says(b"A summary."), n_ctx=2048))
    chat.replace([Message("user", "one"), Message("assistant", "two")])
    chat.tune(max_tokens=3, stop=(" ",))
    assert end_of(room.summarise(chat, room.Coming("next"), Cancel())).message.text == "A summary."
    assert [m.text for m in chat.given][1:] == ["A summary."]


@pytest.mark.parametrize("system", ["", "Be kind."])
def test_a_summary_is_called_one(system):
    """With the number of messages that it stands for, those of an earlier summary among them, and with its tokens."""
    chat = chat_of(FakeDecoder(says(b"A summary."), n_ctx=4096), system=system)
    for turns, summarised in ((2, 4), (1, 6)):
        for text in ("one", "two"):
            end_of(chat.turn(text, Cancel()))
        chat.forget(turns, "They spoke of numbers.")
        shown = context_view(room.filled(chat), chat.forgotten_turns, 100)
        assert f"of {summarised} earlier messages" in shown and "talked about" not in shown
    tokens = sum(int(row.split()[1].replace(",", "")) for row in shown.split("\n")[1:])
    assert tokens == chat.engine.info.n_ctx
    chat.clear()
    assert room.filled(chat).summarised == 0


def test_what_fills_the_context_adds_up():
    """Tokens of the messages and of the model's layout are those that the last turn left there."""
    chat = chat_of(system="Be kind.")
    end_of(chat.turn("one", Cancel()))
    found = room.filled(chat)
    assert [tokens for _, tokens in found.messages] == [8, 3, len(TEXT)]
    assert found.total_tokens == chat.context_tokens


TURNS = st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=4)


def messages_of(turns):
    return [
        message
        for question, answer, reasoning in turns
        for message in (Message("user", question), Message("assistant", answer, reasoning=reasoning))
    ]


@given(given=TURNS, forgotten=TURNS, system=st.text())
def test_a_conversation_is_read_back_as_it_was_written(given, forgotten, system):
    """Whatever its text holds, in a file that steers no terminal and that any locale can write."""
    document = portable.Document(messages_of(given), messages_of(forgotten), system)
    written = portable.as_json(document)
    assert portable.from_json(written) == document
    assert written.isascii() and written.replace("\n", "").isprintable()


def test_a_chat_is_saved_and_goes_on_as_it_stood():
    """With what the model is no longer given, and the summary that it is given instead."""
    chat = chat_of(system="Be kind.")
    for text in ("one", "two", "three"):
        end_of(chat.turn(text, Cancel()))
    chat.forget(1, summary="They said one.")
    document = portable.from_json(portable.as_json(portable.of_chat(chat)))
    again = chat_of(system="Be rude.")
    end_of(again.turn("what was there before", Cancel()))
    again.replace([*document.forgotten, *document.given])
    again.system = document.system
    again.forget(len(document.forgotten) // 2)
    plain = [(message.role, message.text) for message in chat.messages]
    assert [(message.role, message.text) for message in again.messages] == plain
    assert [message.text for message in again.said[:2]] == ["one", TEXT.decode()]
    markdown = portable.as_markdown(portable.of_chat(chat))
    assert markdown.startswith("# one\n\n") and markdown.count("made room for others") == 2
    assert markdown.count("## Question\n") == 4 and "## System\n\nBe kind.\n" in markdown


def test_a_file_with_the_system_prompt_as_its_first_message_is_read():
    """As files had it once; what is not said there is as it would be."""
    text = '[{"role": "system", "text": "s"}, {"role": "user", "text": "q"}, {"role": "assistant", "text": "a"}]'
    document = portable.from_json(f'{{"messages": {text}}}')
    assert document == portable.Document([Message("user", "q"), Message("assistant", "a")], [], "s")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"messages": 3}',
        '{"messages": [{"role": "user", "text": "only a question"}]}',
        '{"messages": [{"role": "assistant", "text": "a"}, {"role": "user", "text": "b"}]}',
        '{"messages": [{"role": "tool", "text": "a"}]}',
        '{"messages": [{"role": "user", "text": 3}, {"role": "assistant", "text": "b"}]}',
        '{"messages": [{"role": "user", "text": "\\ud800"}, {"role": "assistant", "text": "b"}]}',
        '{"system": 3, "messages": []}',
        '{"messages": {"role": "user"}}',
        '{"messages": [{"role": "user", "text": "a"}, {"role": "system", "text": "b"}]}',
        '{"messages": [{"role": "user", "text": "a"}, {"role": "assistant", "text": "b", "in_context": false}]}',
        "[" * 100_000,
    ],
)
def test_a_file_that_holds_no_conversation_is_refused(text):
    """In one line, whatever it is."""
    with pytest.raises(UsageError):
        portable.from_json(text)


def test_a_model_that_cannot_even_be_loaded_again_says_what_to_do():
    """As where Ctrl-C comes twice; the next question is refused, and another model can be loaded."""
    chat = chat_of()
    end_of(chat.turn("one", Cancel()))

    def fails():
        raise Cancelled("interrupted")

    with pytest.raises(Cancelled) as stopped:
        chat.switch(fails, fails)
    assert "/model NAME" in stopped.value.hint
    chat.switch(lambda: fake_engine(FakeDecoder(says(TEXT))), fails)
    assert end_of(chat.turn("two", Cancel())).message.text == TEXT.decode()


@given(st.integers(1, 60), st.booleans())
def test_what_fills_the_context_is_what_the_engine_left_there(tokens, thinks):
    """Of an answer cut anywhere, too: never more than the context holds, and the same number as the toolbar's."""
    answer = (b"<think>hm</think>" if thinks else b"") + b"z" * 2000
    chat = chat_of(FakeDecoder(says(answer), n_ctx=128))
    chat.tune(max_tokens=tokens)
    end = end_of(chat.turn("write", Cancel()))
    fills = room.filled(chat)
    assert fills.total_tokens == end.stats.context_tokens == chat.context_tokens <= 128
    assert fills.layout_tokens + sum(count for _, count in fills.messages) == fills.total_tokens


def test_it_is_known_what_a_conversation_began_without():
    """Where all that was said had to be dropped; not where the user began anew."""
    chat = chat_of()
    for text in ("one", "two"):
        end_of(chat.turn(text, Cancel()))
    chat.forget(2)
    assert (chat.turns_before, chat.forgotten_turns, chat.said) == (2, 0, ())
    chat.clear()
    assert chat.turns_before == 0
