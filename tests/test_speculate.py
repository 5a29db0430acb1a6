"""Speculative decoding: the answer is that of plain decoding, whatever was guessed."""

from fakes import FakeDecoder, fake_engine, says
from hypothesis import given
from hypothesis import strategies as st

from localllm.engine.speculate import CostModel
from localllm.engine.stepper import Stepper
from localllm.values import Message, Sampling, Text, TurnEnd

ANSWERS = st.lists(st.sampled_from([b"the cat sat ", b"on the mat ", b"a b c d e f g ", b"xyz ", b"\n"]), max_size=30)


def _run(answer: bytes, sampling: Sampling, speculate: bool) -> tuple[str, TurnEnd, list[int]]:
    decoder = FakeDecoder(says(answer))
    engine = fake_engine(decoder, stepper=Stepper(decoder, CostModel()) if speculate else None)
    events = list(engine.reply([Message("user", "the cat sat on the mat")], sampling))
    end = events[-1]
    assert isinstance(end, TurnEnd)
    return "".join(event.text for event in events if isinstance(event, Text)), end, list(decoder.tokens)


@given(
    answer=ANSWERS.map(b"".join),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 100),
    limit=st.none() | st.integers(1, 100),
    stop=st.sampled_from([(), ("mat",), ("t o",)]),
)
def test_the_answer_is_that_of_plain_decoding(
    answer: bytes, temperature: float, seed: int, limit: int | None, stop: tuple[str, ...]
) -> None:
    """Text, ids, reason and what stays in the KV cache are the same, for greedy and seeded sampling and every end."""
    sampling = Sampling(temperature=temperature, seed=seed, max_tokens=limit, stop=stop)
    plain, plain_end, plain_tokens = _run(answer, sampling, speculate=False)
    text, end, tokens = _run(answer, sampling, speculate=True)
    assert (text, end.reason, end.message) == (plain, plain_end.reason, plain_end.message)
    assert tokens[: len(plain_tokens)] == plain_tokens
    assert len(tokens) <= len(plain_tokens) + 1  # the last token of an answer may have been computed already
