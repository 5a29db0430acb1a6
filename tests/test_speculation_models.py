"""Speculation on real models: exact where every step has the same width, and where not, the same but for near ties.

Drafts are forced: steps are said to cost little more where they are wider, so that nearly all check guesses.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from made_models import deepened, requantised
from proofs import sample_size

from localllm.cancel import Cancel
from localllm.config import cache_dir
from localllm.engine.bindings import lib
from localllm.engine.costs import CostModel
from localllm.engine.drafters import ModelDrafter
from localllm.engine.llama import LlamaDecoder, LoadOptions
from localllm.engine.samplers import _Chain
from localllm.engine.slicing import slices
from localllm.engine.stepper import Stepper
from localllm.values import Sampling

GREEDY, SAMPLED = Sampling(temperature=0), Sampling(temperature=0.8, repeat_penalty=1.1)

_BEGINNINGS = (
    "The history of the city begins",
    "def quicksort(items):\n    if len(items) < 2:\n        return items\n    pivot =",
    '{"name": "Ada", "age": 36}\n{"name": "Alan", "age": 41}\n{"name": "Grace",',
    "1. Wash the potatoes.\n2. Peel the potatoes.\n3.",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
)


class Cheap(CostModel):
    """Costs that make nearly every guess worth checking, and are never learned."""

    def observe(self, n: int, seconds: float) -> None:
        self._unit_s = self._unit_s or seconds

    def relative(self, n: int) -> float:
        return 1 + n / 40


def prompts(count: int) -> list[str]:
    draw = random.Random(5)
    endings = ["", " in", "\n", " a", " the", " 7", " (", " not", ":", " and so"]
    every = [beginning + ending for ending in endings for beginning in _BEGINNINGS]
    return every[:5] + draw.sample(every[5:], count - 5) if count > 5 else every[:count]


@pytest.fixture(scope="module")
def folder() -> Path:
    made = cache_dir() / "tests"
    made.mkdir(parents=True, exist_ok=True)
    return made


@pytest.fixture(scope="module", params=["smollm2", "gemma", "deep"])
def pair(request: pytest.FixtureRequest, smollm2: Path, gemma: Path, folder: Path) -> Iterator[tuple]:
    """A target, and drafts for it: one that nearly always agrees, and one that seldom does."""
    if request.param == "gemma":
        target, drafts = gemma, (gemma, requantised(gemma, "Q2_K", folder))
    else:
        target = smollm2 if request.param == "smollm2" else deepened(smollm2, 36, folder)
        drafts = (smollm2, requantised(smollm2, "Q2_K", folder))
    options = LoadOptions(n_ctx=1024, threads=sample_size(full=1, sample=2))  # hours beside other work, or seconds
    with ExitStack() as stack:
        yield [stack.enter_context(closing(LlamaDecoder(path, options))) for path in (target, *drafts)]


def written(decoder: LlamaDecoder, stepper: Stepper, ids: Sequence[int], sampling: Sampling, count: int) -> list[int]:
    """The tokens of an answer of ``count`` tokens or more, end tokens included."""
    decoder.rewind(0)
    for start, stop in slices(0, len(ids), decoder.slice_tokens):
        decoder.feed(ids[start:stop], bool)
    stepper.prefill()
    with closing(decoder.sampler(sampling, 7)) as sampler:
        tokens = [sampler.sample()]
        stepper.begin([*ids, *tokens])
        while len(tokens) < count:
            tokens += stepper.step(tokens[-1], sampler, bool)
    return tokens


def steppers(decoders: Sequence[LlamaDecoder], exact: bool) -> dict[str, Stepper]:
    """Plain decoding, and each drafter."""
    target, good, bad = decoders
    return {
        "off": Stepper(target, exact=exact),
        "text": Stepper(target, Cheap(), exact=exact),
        "good": Stepper(target, Cheap(), ModelDrafter("good", lambda: good, {"cost": 0.001}), exact=exact),
        "bad": Stepper(target, Cheap(), ModelDrafter("bad", lambda: bad, {"cost": 0.001}), exact=exact),
    }


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.proof("speculation")
def test_padded_to_one_width_every_draft_gives_the_same_tokens(pair, record_property):
    """Greedy and seeded, with a good draft, a bad one, the text alone and none: token for token."""
    count, tokens = sample_size(full=20, sample=1), sample_size(full=200, sample=40)
    target = pair[0]
    checked = 0
    for text in prompts(count):
        ids = target.vocab.tokenize(text)
        for sampling in (GREEDY, SAMPLED):
            ways = steppers(pair, exact=True)
            plain = written(target, ways.pop("off"), ids, sampling, tokens)[:tokens]
            for name, stepper in ways.items():
                assert written(target, stepper, ids, sampling, tokens)[:tokens] == plain, (name, text, sampling)
                checked += stepper.drafted
    assert checked > count * tokens
    record_property("cases", count * 2 * 3 * tokens)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.proof("speculation")
def test_unpadded_answers_part_only_at_near_ties(pair, record_property):
    """Steps of other widths round in another way. The first token that differs was as good, within that rounding."""
    count, tokens = sample_size(full=20, sample=1), sample_size(full=200, sample=40)
    target = pair[0]
    for text in prompts(count):
        ids = target.vocab.tokenize(text)
        ways = steppers(pair, exact=False)
        plain = written(target, ways.pop("off"), ids, GREEDY, tokens)[:tokens]
        for stepper in ways.values():
            found = written(target, stepper, ids, GREEDY, tokens)[:tokens]
            parted = next((at for at, (a, b) in enumerate(zip(plain, found, strict=True)) if a != b), None)
            if parted is not None:
                margin = _margin(target, [*ids, *plain[:parted]], plain[parted], found[parted])
                assert margin <= _rounding(target, ids, plain), (text, parted)
    record_property("cases", count * 3 * tokens)


def _margin(decoder: LlamaDecoder, ids: Sequence[int], token: int, other: int) -> float:
    """How far apart two tokens are, in logits, after ``ids``."""
    decoder.rewind(0)
    for start, stop in slices(0, len(ids), 64):
        decoder.feed(ids[start:stop], bool)
    logits = _logits(decoder)
    return abs(float(logits[token] - logits[other]))


def _rounding(decoder: LlamaDecoder, ids: Sequence[int], answer: Sequence[int]) -> float:
    """By how much the width of its steps alone moves two of the ten likeliest tokens apart, at most, in logits.

    Behind each token of this very answer: in steps of eight tokens, against steps of one.
    """
    seen: dict[int, list[np.ndarray]] = {}
    for width in (1, 8):
        decoder.rewind(0)
        for start, stop in slices(0, len(ids), decoder.slice_tokens):
            decoder.feed(ids[start:stop], bool)
        for start in range(0, len(answer) - len(answer) % 8, width):
            decoder.feed(answer[start : start + width], bool, every=width > 1)
            seen.setdefault(width, []).extend(_logits(decoder, index - width) for index in range(width))
    changes = [(wide - plain)[np.argsort(plain)[-10:]] for plain, wide in zip(seen[1], seen[8], strict=True)]
    return max(float(np.ptp(change)) for change in changes)


def _logits(decoder: LlamaDecoder, index: int = -1) -> np.ndarray:
    return np.ctypeslib.as_array(lib.llama_get_logits_ith(decoder._ctx, index), (decoder.vocab.n_tokens,)).copy()


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.proof("speculation")
def test_the_next_tokens_have_the_distribution_of_plain_decoding(pair, record_property):
    """Over many seeds, other ones for each way: chi-square of the first three tokens, taken together.

    Padded to one width, since the rounding of another one is seen in so many draws (with Gemma 3).
    """
    count = sample_size(full=500, sample=60)
    target = pair[0]
    ids = target.vocab.tokenize("My favourite colour is")
    sampling = Sampling(temperature=1.0, top_k=sample_size(full=4, sample=2), top_p=1, min_p=0)
    ways = steppers(pair, exact=True)
    seen = {}
    for number, (name, stepper) in enumerate(ways.items()):
        seeds = range(number * count, (number + 1) * count)
        seen[name] = Counter(_three(target, stepper, ids, sampling, seed) for seed in seeds)
    for name in ("text", "good", "bad"):
        assert _chi_square_holds(seen["off"], seen[name]), name
    record_property("cases", 4 * count)


def _three(decoder: LlamaDecoder, stepper: Stepper, ids: Sequence[int], sampling: Sampling, seed: int) -> tuple:
    decoder.rewind(len(ids) - 1) if list(decoder.tokens[: len(ids)]) == list(ids) else decoder.rewind(0)
    decoder.feed(ids[len(decoder.tokens) :], bool)
    stepper.prefill()
    with closing(decoder.sampler(sampling, seed)) as sampler:
        tokens = [sampler.sample()]
        stepper.begin([*ids, *tokens])
        while len(tokens) < 3:
            tokens += stepper.step(tokens[-1], sampler, bool)
    return tuple(tokens[:3])


def _chi_square_holds(ours: Counter, theirs: Counter) -> bool:
    """Two samples of equal size come from one distribution, at one in a thousand (Wilson and Hilferty's formula)."""
    bins = [(ours[key], theirs[key]) for key in ours.keys() | theirs.keys()]
    rare = [pair for pair in bins if sum(pair) < 10]
    bins = [pair for pair in bins if sum(pair) >= 10] + [(sum(a for a, _ in rare), sum(b for _, b in rare))]
    value = sum((a - b) ** 2 / (a + b) for a, b in bins if a + b)
    free = len(bins) - 1
    bound = free * (1 - 2 / (9 * free) + 3.09 * (2 / (9 * free)) ** 0.5) ** 3
    return free > 2 and value < bound


PERSON = r"""
root ::= "{" pair ("," pair)* "}"
pair ::= " \"" [a-z]+ "\": " ([0-9]+ | "\"" [A-Za-z ]* "\"")
"""


@pytest.mark.model
@pytest.mark.slow
def test_a_grammar_holds_whatever_is_guessed(pair):
    """Guesses that it forbids are wrong ones: the answer is that of plain decoding under the grammar."""
    target = pair[0]
    ids = target.vocab.tokenize('A person as JSON, {"name": "Ada", "age": 36}, and another one:')
    ways = steppers(pair, exact=True)
    plain = constrained(target, ways.pop("off"), ids)
    text = b"".join(map(target.vocab.piece, plain)).decode()
    assert text.startswith('{ "')
    for name, stepper in ways.items():
        assert constrained(target, stepper, ids) == plain, name
        assert stepper.accepted > 0, name


def constrained(decoder: LlamaDecoder, stepper: Stepper, ids: Sequence[int], count: int = 40) -> list[int]:
    """The first tokens of an answer that PERSON allows."""
    decoder.rewind(0)
    decoder.feed(ids, bool)
    stepper.prefill()
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    grammar = lib.llama_sampler_init_grammar(decoder.vocab._vocab, PERSON.encode(), b"root")
    assert grammar
    for step in (grammar, lib.llama_sampler_init_greedy()):
        lib.llama_sampler_chain_add(chain, step)
    with closing(_Chain(decoder._ctx, chain)) as sampler:
        tokens = [sampler.sample()]
        stepper.begin([*ids, *tokens])
        while len(tokens) < count and not any(map(decoder.vocab.is_end, tokens)):
            tokens += stepper.step(tokens[-1], sampler, bool)
    end = next((at for at, token in enumerate(tokens) if decoder.vocab.is_end(token)), count)
    return tokens[: min(end, count)]


def test_the_chi_square_tells_distributions_apart():
    """A test of the test: equal ones pass, a shift of a tenth does not."""
    draw = random.Random(1)
    weights = [5, 3, 2, 1]
    one, two = (Counter(draw.choices("abcd", weights, k=2000)) for _ in range(2))
    other = Counter(draw.choices("abcd", [4, 4, 2, 1], k=2000))
    assert _chi_square_holds(one, two)
    assert not _chi_square_holds(one, other)


@pytest.mark.model
def test_exact_answers_do_not_depend_on_what_was_cached(smollm2):
    """--exact: the second turn of a conversation that stayed in memory equals that of a fresh start."""
    from localllm import Message, Settings, Text, open_engine

    def answer(engine, messages: list[Message]) -> str:
        sampling = Sampling(temperature=0.9, seed=11, max_tokens=60)
        return "".join(event.text for event in engine.reply(messages, sampling, Cancel()) if isinstance(event, Text))

    settings = Settings(ctx_size=2048, threads=2, exact=True)
    question = [Message("user", "Name three rivers. " * 150)]
    with open_engine(str(smollm2), settings) as engine:
        first = answer(engine, question)
        messages = [*question, Message("assistant", first), Message("user", "And three lakes?")]
        warm = answer(engine, messages)
    for draft in ("off", "ngram"):
        fresh = Settings(ctx_size=2048, threads=2, exact=True, draft=draft)
        with open_engine(str(smollm2), fresh) as engine:
            assert answer(engine, messages) == warm
