"""One turn of the engine, on the byte-level fake decoder."""

import itertools

import pytest
from fakes import CHATML, END, START, THINK, UNTHINK, FakeDecoder, fake_engine, says
from hypothesis import given
from hypothesis import strategies as st

from localllm.cancel import Cancel
from localllm.engine.engine import spelling
from localllm.errors import DecodeError, PromptTooLong, UsageError
from localllm.values import Message, Progress, Prompt, Reasoning, Sampling, Text, TurnEnd

HELLO = [Message("user", "hello")]


def run(engine, prompt=HELLO, **options):
    events = list(engine.reply(prompt, **options))
    assert isinstance(events[-1], TurnEnd) and not any(isinstance(e, TurnEnd) for e in events[:-1])
    return events, events[-1]


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, Text))


def test_a_turn_streams_the_answer_and_ends_with_the_whole_message():
    """Progress first, then text piece by piece, then one TurnEnd whose message is what was streamed."""
    events, end = run(fake_engine(FakeDecoder(says("Grüße, 世界".encode()))))
    kinds = [type(event) for event in events]
    assert kinds == sorted(kinds, key=[Progress, Text, TurnEnd].index)
    assert text_of(events) == end.message.text == "Grüße, 世界"
    assert end.reason == "stop"
    assert end.message.token_ids == tuple("Grüße, 世界".encode())
    assert end.stats.output_tokens == len("Grüße, 世界".encode())
    assert len(end.stats.inter_token_s) == end.stats.output_tokens - 1
    assert 0 <= end.stats.prefill_s <= end.stats.ttft_s


def test_progress_counts_up_to_the_whole_prompt():
    """Progress starts at what was cached, never goes back and ends at the total."""
    decoder = FakeDecoder(says(b"yes"))
    events, end = run(fake_engine(decoder), [Message("user", "x" * 300)])
    steps = [event for event in events if isinstance(event, Progress)]
    assert [s.done for s in steps] == sorted(s.done for s in steps)
    assert steps[0].done == 0 and steps[-1].done == steps[-1].total == end.stats.prompt_tokens


def test_a_second_turn_feeds_only_what_is_new():
    """The ids of the first prompt and of its answer are not computed again."""
    decoder = FakeDecoder(says(b"fine"))
    engine = fake_engine(decoder)
    _, first = run(engine)
    decoder.fed.clear()
    _, second = run(engine, [*HELLO, first.message, Message("user", "and you?")])
    new = [END, *b"\n", START, *b"user\nand you?", END, *b"\n", START, *b"assistant\n"]
    assert list(itertools.chain(*decoder.fed))[: len(new)] == new
    assert second.stats.cached_tokens == first.stats.prompt_tokens + first.stats.output_tokens


def test_the_same_prompt_again_computes_its_end_only():
    """Up to 8 tokens, which were not read in a wide slice; and all of a short prompt."""
    decoder = FakeDecoder(says(b"fine"), slice_tokens=256)
    engine = fake_engine(decoder)
    for text, cached in (("hello", 0), ("hello " * 40, 256)):
        run(engine, [Message("user", text)])
        _, again = run(engine, [Message("user", text)])
        assert again.stats.cached_tokens == cached
        assert again.stats.prompt_tokens - cached < 128


def test_a_decoder_that_cannot_rewind_starts_over():
    """With a recurrent memory the engine computes everything again rather than trusting what is there."""
    decoder = FakeDecoder(says(b"fine"), rewinds=False)
    engine = fake_engine(decoder)
    _, first = run(engine)
    _, again = run(engine, [Message("user", "help")])
    assert again.stats.cached_tokens == 0
    assert again.message.text == first.message.text


def test_generated_ids_are_kept_when_text_would_tokenise_otherwise():
    """An answer whose ids are not those of its text goes back in as the ids that were generated."""
    decoder = FakeDecoder(says([THINK, *b"hm", UNTHINK, *b"ok"]))
    engine = fake_engine(decoder, CHATML)
    answer = Message("assistant", "spelled otherwise", token_ids=(1, 2, 3))
    prompt = engine.encode([*HELLO, answer, Message("user", "more")])
    assert list(prompt.ids) == [
        *[START, *b"user\nhello", END, *b"\n", START, *b"assistant\n", 1, 2, 3, END, *b"\n"],
        *[START, *b"user\nmore", END, *b"\n", START, *b"assistant\n"],
    ]


def test_reasoning_is_told_from_the_answer_and_its_ids_are_not_kept():
    """Reasoning comes as Reasoning; the message keeps the answer's ids alone, as templates drop old reasoning."""
    events, end = run(fake_engine(FakeDecoder(says([THINK, *b"let me see", UNTHINK, *b"\n\n42"]))))
    assert end.message.reasoning == "let me see" == "".join(e.text for e in events if isinstance(e, Reasoning))
    assert end.message.text == text_of(events) == "42"
    assert end.message.token_ids == tuple(b"42")


@pytest.mark.parametrize("hold", [True, False])
def test_reasoning_without_an_opening_tag(hold):
    """A block that was never opened counts as reasoning; with ``hold`` none of it is streamed as text."""
    template = CHATML + "{# strips </think> #}"
    decoder = FakeDecoder(says([*b"hmm", UNTHINK, *b"\n42"]))
    events, end = run(fake_engine(decoder, template), hold_unopened=hold)
    assert (end.message.reasoning, end.message.text) == ("hmm", "42")
    assert ("hmm" in text_of(events)) is not hold


def test_reasoning_that_the_template_opened():
    """Where the prompt ends in an opening tag, the answer begins inside the block."""
    decoder = FakeDecoder(says([*b"hmm", UNTHINK, *b"42"], prompt_end=b"assistant\n" + b"\n"))
    engine = fake_engine(decoder, CHATML.replace("assistant\n", "assistant\n<think>\n"))
    decoder.rule = lambda tokens: [*b"hmm", UNTHINK, *b"42", END][len(tokens) - start]
    prompt = engine.encode(HELLO)
    start = len(prompt.ids)
    assert prompt.reasoning == "open"
    _, end = run(engine, prompt)
    assert (end.message.reasoning, end.message.text) == ("hmm", "42")


@pytest.mark.parametrize(
    ("sampling", "reason", "text"),
    [
        (Sampling(temperature=0, max_tokens=3), "length", "abc"),
        (Sampling(temperature=0, stop=("de",)), "stop", "abc"),
        (Sampling(temperature=0, stop=("nope",)), "stop", "abcdefgh"),
    ],
)
def test_what_ends_an_answer(sampling, reason, text):
    """The user's own limits end an answer whole; a stop string is not part of it."""
    _, end = run(fake_engine(FakeDecoder(says(b"abcdefgh"))), sampling=sampling)
    assert (end.reason, end.message.text) == (reason, text)


def test_a_full_context_ends_the_answer_with_what_there_is():
    """The answer is cut where the context is full, says so, and the last token is not lost."""
    decoder = FakeDecoder(says(b"x" * 500), n_ctx=64)
    _, end = run(fake_engine(decoder))
    assert end.reason == "context"
    assert end.stats.context_tokens == len(decoder.tokens) == 64
    assert end.stats.prompt_tokens + end.stats.output_tokens == 64 + 1  # the last token was sampled, not fed


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_computed():
    """PromptTooLong names both sizes, and nothing was fed."""
    decoder = FakeDecoder(says(b"x"), n_ctx=64)
    with pytest.raises(PromptTooLong, match=r"has 1[0-9][0-9] tokens, the context holds 64"):
        run(fake_engine(decoder), [Message("user", "x" * 100)])
    assert decoder.fed == []


@pytest.mark.parametrize("after", range(14))
def test_cancelling_anywhere_leaves_a_state_from_which_the_next_turn_is_right(after):
    """Cancelled in prefill or decode, the turn ends with its reason, and the next answer is as if nothing was."""
    decoder = FakeDecoder(says(b"abcdefgh"), slice_tokens=16)
    engine, cancel, feeds = fake_engine(decoder), Cancel(), itertools.count()
    decoder.before_feed = lambda: cancel.set() if next(feeds) == after else None
    _, end = run(engine, [Message("user", "x" * 30)], cancel=cancel)
    if cancel.reason:
        assert end.reason == "interrupted"
        assert "abcdefgh".startswith(end.message.text)
    decoder.before_feed = lambda: None
    _, end = run(engine)
    assert (end.reason, end.message.text) == ("stop", "abcdefgh")
    assert decoder.open_samplers == 0


def test_a_stopped_prefill_counts_what_it_read():
    """The numbers are those of the slices that were computed, not of the prompt."""
    decoder = FakeDecoder(says(b"abc"), slice_tokens=16)
    cancel, feeds = Cancel(), itertools.count()
    decoder.before_feed = lambda: cancel.set() if next(feeds) == 2 else None
    _, end = run(fake_engine(decoder), [Message("user", "x" * 100)], cancel=cancel)
    assert end.stats.read_tokens == end.stats.context_tokens == 32
    assert end.stats.prompt_tokens > 100


def test_a_turn_that_was_not_consumed_to_its_end_does_no_harm():
    """Whoever breaks out of the loop leaves a decoder from which the next turn is right, and no sampler open."""
    decoder = FakeDecoder(says(b"abcdefgh"))
    engine = fake_engine(decoder)
    events = engine.reply(HELLO)
    for event in events:
        if isinstance(event, Text):
            break
    events.close()
    assert decoder.open_samplers == 0
    assert run(engine)[1].message.text == "abcdefgh"


@pytest.mark.parametrize("hold", [True, False])
def test_a_stop_string_ends_an_answer_that_is_held_back(hold):
    """Text that is kept back because it may be reasoning is searched for stop strings all the same."""
    engine = fake_engine(FakeDecoder(says(b"abcSTOP" + b"x" * 50)), CHATML + "{# </think> #}")
    _, end = run(engine, sampling=Sampling(temperature=0, stop=("STOP",)), hold_unopened=hold)
    assert (end.reason, end.message.text, end.stats.output_tokens) == ("stop", "abc", 7)


def test_a_deadline_ends_a_turn_as_timeout():
    """A deadline that has passed stops before the first slice."""
    _, end = run(fake_engine(FakeDecoder(says(b"abc"))), cancel=Cancel(timeout_s=0))
    assert (end.reason, end.message.text, end.stats.ttft_s) == ("timeout", "", None)


def test_same_seed_same_answer_and_other_seed_other_answer():
    """The seed, and nothing else, decides what is drawn."""

    def answer(seed):
        engine = fake_engine(FakeDecoder(says(b"a" * 60)))
        return run(engine, sampling=Sampling(temperature=1, seed=seed))[1].message.text

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


@given(st.lists(st.sampled_from([b"a", b"bc", "é".encode(), b"\xc3", b""])), st.integers(0, 5))
def test_spelling_never_gives_ids_that_do_not_spell_the_text(pieces, cut):
    """Either the ids spell the text byte for byte, or there are none."""
    text = b"".join(pieces[cut:]).decode("utf-8", "replace")
    ids = spelling(range(len(pieces)), pieces.__getitem__, text)
    assert ids == () or b"".join(pieces[i] for i in ids) == text.encode()
    if b"".join(pieces[cut:]).decode("utf-8", "replace").encode() == b"".join(pieces[cut:]) and text:
        assert ids


def test_a_prompt_without_tokens_is_refused():
    """There would be no logits to choose a token from."""
    for prompt in (Prompt(()), [Message("user", "hi")]):
        with pytest.raises(UsageError, match="no tokens"):
            run(fake_engine(FakeDecoder(says(b"")), "{{ '' }}"), prompt)


def test_a_turn_that_was_left_behind_cannot_go_on():
    """After another turn, or after close(), its generator raises instead of mixing two answers."""
    engine = fake_engine(FakeDecoder(says(b"abcdefgh")))
    for end_it in (lambda: run(engine), engine.close):
        events = engine.reply(HELLO)
        while not isinstance(next(events), Text):
            pass
        end_it()
        with pytest.raises(DecodeError, match="another turn"):
            list(events)


def test_raw_prompts_have_no_template():
    """``encode_raw`` is the text and nothing else."""
    assert fake_engine(FakeDecoder(says(b""))).encode_raw("ab").ids == Prompt((97, 98)).ids


@pytest.mark.parametrize("limit", [None, 3])
def test_plain_decoding_gives_a_token_a_step(limit):
    """The token that ends the answer is one of them, so that a short answer does not look slower than it was."""
    engine = fake_engine(FakeDecoder(says(b"short")), stepper=None)
    *_, end = engine.reply([Message("user", "hi")], Sampling(temperature=0, max_tokens=limit))
    assert end.stats.steps == (5 if limit is None else 2) and end.stats.tokens_per_step == 1
