"""Speculative decoding: the answer is that of plain decoding, whatever was guessed, and guesses have to pay."""

import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from fakes import FakeDecoder, FakeVocabulary, fake_engine, says
from hypothesis import given
from hypothesis import strategies as st

from localllm.engine import drafters
from localllm.engine.cost_memory import CostMemory
from localllm.engine.costs import CostModel, best_length
from localllm.engine.drafters import Calibration, ModelDrafter, NgramDrafter
from localllm.engine.speculate import Speculator, unlike
from localllm.engine.stepper import EXACT_WIDTH, Stepper
from localllm.errors import OutOfMemory
from localllm.values import Message, Sampling, Text, TurnEnd

ANSWERS = st.lists(st.sampled_from([b"the cat sat ", b"on the mat ", b"a b c d e f g ", b"xyz ", b"\n"]), max_size=30)
FREE = {width: 1.0 + width / 1000 for width in range(2, 33)}  # where a step costs the same whatever its width


class Steady(CostModel):
    """Costs that are known and stay as they are: a plain step takes a second, a fake draft next to nothing of it."""

    def observe(self, n: int, seconds: float) -> None:
        super().observe(1, 1.0)


def _draft_model(answer: bytes, quality: float, seed: int, n_ctx: int = 4096) -> FakeDecoder:
    """A draft that guesses what the target says, or now and then a letter."""
    draw, right = random.Random(seed), says(answer)

    def rule(tokens: Sequence[int]) -> int:
        return right(tokens) if draw.random() < quality else draw.randint(97, 122)

    return FakeDecoder(rule, n_ctx=n_ctx)


def _run(decoder: FakeDecoder, stepper: Stepper | None, sampling: Sampling) -> tuple[str, TurnEnd, list[int]]:
    engine = fake_engine(decoder, stepper=stepper)
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
    shape=st.sampled_from([{}, FREE, {2: 1.8, 4: 2.6, 8: 4.3}]),
    quality=st.none() | st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    n_ctx=st.sampled_from([120, 200, 4096]),
    draft_ctx=st.sampled_from([100, 4096]),
    rewinds=st.booleans(),
    exact=st.booleans(),
)
def test_the_answer_is_that_of_plain_decoding(
    answer, temperature, seed, limit, stop, shape, quality, n_ctx, draft_ctx, rewinds, exact
):
    """Text, ids, reason and what stays in the KV cache are the same: every drafter, sampler, length and end."""
    sampling = Sampling(temperature=temperature, seed=seed, max_tokens=limit, stop=stop)
    room = (EXACT_WIDTH - 1) * (exact and rewinds)
    plain, plain_end, plain_tokens = _run(
        FakeDecoder(says(answer), n_ctx=n_ctx - room, rewinds=rewinds), None, sampling
    )
    decoder = FakeDecoder(says(answer), n_ctx=n_ctx, rewinds=rewinds)
    draft = None if quality is None else _draft_model(answer, quality, seed, draft_ctx)
    drafter = ModelDrafter("small", lambda: draft, {"cost": 0.01}) if draft else None
    text, end, tokens = _run(decoder, Stepper(decoder, CostModel(shape), drafter, exact=exact), sampling)
    assert (text, end.reason, end.message) == (plain, plain_end.reason, plain_end.message)
    assert tokens[: len(plain_tokens)] == plain_tokens
    assert len(tokens) <= len(plain_tokens) + 1  # the last token of an answer may have been computed already
    assert end.stats.accepted <= end.stats.drafted
    assert rewinds or not end.stats.drafted
    if exact and rewinds and end.stats.steps:
        assert {len(ids) for ids in decoder.fed[-end.stats.steps :]} == {EXACT_WIDTH}


@pytest.mark.parametrize("draft", [False, True])
def test_where_guesses_are_right_and_steps_cost_the_same_a_step_gives_many_tokens(draft):
    """From the text where the answer repeats the prompt; from a draft model where nothing was seen before."""
    answer = bytes(range(97, 123)) * 4 if draft else b"the cat sat on the mat" * 10
    decoder = FakeDecoder(says(answer))
    drafter = ModelDrafter("small", lambda: _draft_model(answer, 1.0, 0), {"cost": 0.01}) if draft else None
    _, end, _ = _run(decoder, Stepper(decoder, Steady(FREE), drafter), Sampling(temperature=0))
    assert end.stats.tokens_per_step > 4
    assert end.stats.acceptance_rate > 0.7


@pytest.mark.parametrize("limit", [None, 50])
def test_the_time_of_a_step_is_divided_among_its_tokens(limit):
    """So no token took no time, those of one step took the same, and together they took what decoding did."""
    decoder = FakeDecoder(says(b"the cat sat on the mat" * 10))
    _, end, _ = _run(decoder, Stepper(decoder, Steady(FREE)), Sampling(temperature=0, max_tokens=limit))
    times = end.stats.inter_token_s
    assert len(times) == end.stats.output_tokens - 1 and min(times) > 0
    assert len(set(times)) <= end.stats.steps < len(times) / 2
    assert sum(times) == pytest.approx(end.stats.decode_s)
    assert sum(times) / len(times) == pytest.approx(1 / end.stats.decode_tok_s)


def test_guesses_that_do_not_pay_are_not_checked_but_for_probes():
    """Random text on a machine where a second token costs as much as a step: next to nothing is drafted."""
    draw = random.Random(1)
    answer = bytes(draw.randint(97, 122) for _ in range(1500))
    decoder = FakeDecoder(says(answer))
    cost = Steady({width: float(width) for width in range(2, 33)})
    drafter = ModelDrafter("small", lambda: _draft_model(answer, 0.3, 0), {"cost": 0.2})
    _, end, _ = _run(decoder, Stepper(decoder, cost, drafter), Sampling(temperature=0))
    assert end.stats.drafted < 0.1 * len(answer)


def test_a_draft_that_cannot_be_loaded_is_asked_once():
    """The answer goes on from the text alone, and says why."""
    asked = []

    def load() -> FakeDecoder:
        asked.append(1)
        raise OutOfMemory("no room")

    answer = b"the cat sat on the mat" * 10
    decoder = FakeDecoder(says(answer))
    text, end, _ = _run(
        decoder, Stepper(decoder, Steady(FREE), ModelDrafter("small", load, {"cost": 0.01})), Sampling(temperature=0)
    )
    assert text == answer.decode() and asked == [1]
    assert end.stats.drafting == "from the text and small (no room)"


def test_a_model_that_cannot_go_back_says_that_nothing_is_drafted():
    decoder = FakeDecoder(says(b"the cat sat on the mat"), rewinds=False)
    _, end, _ = _run(decoder, Stepper(decoder, CostModel(FREE)), Sampling(temperature=0))
    assert end.stats.drafting.startswith("off: ") and end.stats.drafted == 0


def test_the_source_is_taken_up_again_after_an_edit():
    """One token replaced by one, two by one, one by two: after the next tokens that agree, guesses go on."""
    source = list(range(100, 160))
    for old, new in (((110,), (1,)), ((110, 111), (1,)), ((110,), (1, 2))):
        drafter = NgramDrafter()
        drafter.follow([*source, 7])
        drafter.follow(source[:10])
        drafter.follow(new)
        after = source.index(old[-1]) + 1
        drafter.follow(source[after : after + 2])
        assert drafter.guesses(5) == source[after + 2 : after + 7], (old, new)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12, unique=True), st.integers(1, 31))
def test_a_text_that_repeats_itself_is_guessed_beyond_its_own_end(period, most):
    """However short its period: as many guesses as are wanted, not as many as stand between the source and the end."""
    drafter = NgramDrafter()
    drafter.follow((period * 40)[:40])
    assert drafter.guesses(most) == [period[at % len(period)] for at in range(40, 40 + most)]


def test_the_last_tokens_of_an_answer_do_not_wait_for_a_draft_model():
    """What it gave with long drafts is no promise where one guess can be checked: the text, which agrees, is taken."""
    model = ModelDrafter("small", lambda: pytest.fail("was asked"), {"cost": 0.2, "gain": 2.5})
    cost = Steady({2: 1.3, 4: 2.0, 8: 3.0, 16: 5.0})
    cost.observe(1, 1.0)
    speculator = Speculator(cost, [1, 2, 3, 4, 5] * 8, model)
    for token in [1, 2, 3, 4, 5] * 4:
        assert not speculator.draft(0, bool)
        speculator.learn([], [token], 0.0, 1.0)
    assert speculator.draft(1, bool) == [1]


@given(st.lists(st.floats(0, 1), max_size=31), st.dictionaries(st.integers(2, 32), st.floats(1, 40)))
def test_the_length_that_is_chosen_is_the_best_there_is(chances, shape):
    """By the definition: tokens that are expected, over what the step costs."""
    cost = CostModel(shape)

    def rate(n: int) -> float:
        reached, tokens = 1.0, 1.0
        for chance in chances[:n]:
            reached *= chance
            tokens += reached
        return tokens / cost.relative(n + 1)

    length, found = best_length(chances, cost)
    assert found == pytest.approx(rate(length))
    assert all(rate(n) <= found * (1 + 1e-9) for n in range(len(chances) + 1))


def test_costs_are_learned_and_follow_the_load():
    """The shape comes near the true one, and a machine twice as slow changes the unit only."""
    true = {1: 1.0, 2: 1.5, 4: 1.6, 8: 2.5}
    cost, draw = CostModel(), random.Random(3)
    for factor in (0.01, 0.02):
        for _ in range(400):
            width = draw.choice([1, 1, 1, *true])
            cost.observe(width, factor * true[width] * draw.uniform(0.95, 1.05))
        for width, relative in true.items():
            assert cost.relative(width) == pytest.approx(relative, rel=0.15)
            assert cost.step_s(width) == pytest.approx(factor * relative, rel=0.2)


def test_one_slow_step_hardly_moves_what_is_known():
    """Costs that were remembered are not thrown over by a step that something held up."""
    cost = CostModel({8: 3.0})
    for width, seconds in ((1, 1.0), (8, 3.0), (8, 300.0), (1, 1.0)):
        cost.observe(width, seconds)
    assert cost.relative(8) < 3.0 * 1.5


@given(rate=st.floats(0.05, 0.98), said=st.floats(-2, 4), seed=st.integers(0, 5))
def test_a_calibration_comes_to_tell_the_truth(rate, said, seed):
    """Whatever a drafter says of its guesses: after some of them, their chance is how often they were right."""
    calibration, draw = Calibration(), random.Random(seed)
    found = []
    for number in range(400):
        calibration.learn(said, draw.random() < rate)
        found += [calibration.chance(said)] if number >= 200 else []
    assert sum(found) / len(found) == pytest.approx(rate, abs=0.1)


def test_a_calibration_learns_which_guesses_are_good_ones():
    """Two kinds, said to be nearly the same: one is always right, the other never."""
    calibration = Calibration()
    for _ in range(100):
        calibration.learn(1.0, True)
        calibration.learn(-1.0, False)
    assert calibration.chance(1.0) > 0.9 and calibration.chance(-1.0) < 0.1


def test_costs_outlive_the_process(tmp_path):
    """Kept by model, draft and settings; a damaged file or a folder that cannot be written is as none."""
    model = tmp_path / "a.gguf"
    model.write_text("weights")
    cost = CostModel({2: 1.7, 8: 3.0}, credit=0.5)
    drafter = ModelDrafter("small", lambda: FakeDecoder(lambda tokens: 97), {"cost": 0.25, "gain": 1.6})
    CostMemory(tmp_path / "costs", [model], "2 threads").keep(cost, drafter)
    assert not CostMemory(tmp_path / "costs", [model], "2 threads").draft  # it was never wanted: nothing was learned
    drafter.draft([1, 2, 3], 1, cost, bool)
    CostMemory(tmp_path / "costs", [model], "2 threads").keep(cost, drafter)
    again = CostMemory(tmp_path / "costs", [model], "2 threads")
    assert again.cost_model().shape == pytest.approx({1: 1.0, 2: 1.7, 8: 3.0}) and again.cost_model().credit == 0.5
    known = ModelDrafter("small", lambda: FakeDecoder(says(b"")), again.draft).known
    assert known == pytest.approx(drafter.known, abs=0.01) and known["gain"] == pytest.approx(1.6)
    assert set(CostMemory(tmp_path / "costs", [model], "4 threads").cost_model().shape) == {1}
    (file,) = (tmp_path / "costs").iterdir()
    for damaged in ("", "null", "[1]", '{"2": "x"}', '{"2": NaN}', '{"2": -1}', '{"2": 1e999}', "[" * 10_000):
        file.write_text(damaged)
        assert set(CostMemory(tmp_path / "costs", [model], "2 threads").cost_model().shape) == {1}, damaged
    CostMemory(model, [model], "2 threads").keep(cost, drafter)  # no folder: nothing is kept, nothing raised
    CostMemory(tmp_path / "costs", [tmp_path / "gone"], "").keep(cost, drafter)


class Vocabulary(FakeVocabulary):
    """One that differs in one thing."""

    def __init__(self, **changes: object) -> None:
        super().__init__()
        self.changed = changes.pop("text", None)
        for name, value in changes.items():
            setattr(self, name, value)

    def texts(self) -> list[bytes]:
        texts = super().texts()
        texts += [b"more"] * (self.n_tokens - len(texts))
        if self.changed is not None:
            texts[self.changed] = b"another"
        return texts


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"n_tokens": 261 + 128}, None),
        ({"text": 4}, None),  # llama.cpp compares from the fifth on
        ({"kind": 1}, "kind"),
        ({"bos": None}, "BOS"),
        ({"eos": None}, "EOS"),
        ({"add_bos": True}, "BOS"),
        ({"n_tokens": 261 + 129}, "390 tokens"),
        ({"text": 5}, "token 5"),
        ({"text": 260}, "token 260"),
    ],
)
def test_a_draft_needs_the_vocabulary_of_its_target(changes, reason):
    """The rule of llama.cpp, one difference at a time."""
    said = unlike(FakeVocabulary(), Vocabulary(**changes))
    assert said is None if reason is None else reason in said


def test_a_step_never_waits_long_for_a_draft_that_lags_behind():
    """A long text that the draft has not read: at most a stretch of it before each step, then guesses."""
    answer = bytes(range(97, 123)) * 20
    draft = _draft_model(answer, 1.0, 0)
    draft.slice_tokens = 512
    decoder = FakeDecoder(says(answer), slice_tokens=512)
    stepper = Stepper(decoder, Steady(FREE), ModelDrafter("small", lambda: draft, {"cost": 0.01}))
    engine = fake_engine(decoder, stepper=stepper)
    (*_, end) = engine.reply([Message("user", "x" * 1000)], Sampling(temperature=0))
    assert max(map(len, draft.fed)) == 64
    assert end.stats.accepted > 300


def test_reading_what_a_draft_has_not_read_takes_a_tenth_of_the_time_at_most(monkeypatch):
    """A text of 5,000 tokens that would take a draft 500 plain steps to read, and an answer of 200."""
    clock = [0.0]
    monkeypatch.setattr(drafters, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    answer = bytes(range(97, 123)) * 20
    draft = _draft_model(answer, 1.0, 0, n_ctx=8192)
    draft.slice_tokens = 512

    def feed(ids: Sequence[int], *others: object, **named: object) -> bool:
        clock[0] += 0.1 * len(ids)
        return FakeDecoder.feed(draft, ids, *others, **named)

    draft.feed = feed
    decoder = FakeDecoder(says(answer), n_ctx=8192, slice_tokens=512)
    engine = fake_engine(
        decoder, stepper=Stepper(decoder, Steady(FREE), ModelDrafter("small", lambda: draft, {"cost": 0.1}))
    )
    (*_, end) = engine.reply([Message("user", "x" * 5000)], Sampling(temperature=0, max_tokens=200))
    assert 6 < clock[0] < 3 + 0.1 * end.stats.steps + 6.4


@given(st.lists(st.integers(0, 31), min_size=1, max_size=200), st.sampled_from([{}, {2: 1.9, 8: 4.6, 32: 16.0}]))
def test_guesses_from_the_text_never_lose_more_than_a_stake(right, shape):
    """However often and however far they are wrong, an answer takes 2 plain steps and 4 % more than without them."""
    cost = CostModel(shape, credit=0.0)
    text = list(range(100, 200)) * 3
    speculator = Speculator(cost, text)
    given, paid = 0, 0.0
    for number, count in enumerate(right):
        speculator._ngram.experience = drafters.TextExperience(Calibration(3.0), Calibration(3.0))  # believe anything
        draft = speculator.draft(31, bool)
        chosen = [*draft[:count], 1_000 + number]
        if number % 3 == 0:  # lead it back
            chosen[-1] = 100 + number % 100
        given, paid = given + len(chosen), paid + cost.relative(len(draft) + 1)
        speculator.learn(draft, chosen, 0.0, cost.step_s(len(draft) + 1) or 1.0)
        assert paid * 0.96 <= given + 2 + 1e-6


def test_what_a_speculator_says_it_gained_is_what_it_gained():
    """Four tokens in a step that took as long as two: twice as fast."""
    cost = CostModel({4: 2.0})
    cost.observe(1, 0.01)
    speculator = Speculator(cost, [1, 2, 3])
    for _ in range(20):
        speculator.learn([5, 6, 7], [5, 6, 7, 8], 0.0, 0.02)
    assert speculator.speedup == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("slow", [0, 1, 10])
def test_a_step_that_was_held_up_is_no_gain(slow):
    """Steps of the same width, one of them fifty times as long: neither faster nor slower than plain decoding."""
    speculator = Speculator(CostModel(), [1, 2, 3])
    for number in range(20):
        speculator.learn([], [5], 0.0, 0.5 if number == slow else 0.01)
    assert speculator.speedup == pytest.approx(1.0)


@given(limit=st.integers(1, 60), wide=st.booleans())
def test_no_step_guesses_beyond_the_tokens_that_are_wanted(limit, wide):
    """With --max-tokens the last step is no wider than what is still to come."""
    decoder = FakeDecoder(says(b"the cat sat on the mat" * 10))
    stepper = Stepper(decoder, Steady(FREE if wide else {}))
    _, end, _ = _run(decoder, stepper, Sampling(temperature=0, max_tokens=limit))
    steps = [len(ids) for ids in decoder.fed[len(decoder.fed) - end.stats.steps :]] if end.stats.steps else []
    assert sum(steps) - (end.stats.drafted - end.stats.accepted) <= limit
    assert not steps or steps[-1] <= limit
