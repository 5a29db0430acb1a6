"""Speculative decoding: guessing the next tokens, and deciding how many guesses pay.

One pass over the target's weights checks a whole draft. At each position the target's own sampler decides: a drafted
token that it would have chosen anyway has cost next to nothing, and the first that differs ends the step. So a draft
changes how fast an answer comes and never which one.

Knows drafters (what may come next), acceptance (how often they were right) and costs (what a step of n tokens takes).
Knows nothing of llama.cpp, of text, or of how an answer ends.
"""

import bisect
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from localllm.engine.decoder import Decoder, Vocabulary
from localllm.errors import LocalLLMError

MAX_DRAFT = 31  # with the token before it a step of 32: beyond, no curve that was measured pays
_N_GRAM = 3  # tokens that have to agree before what followed them is guessed again
_REACH = 16  # tokens of a source behind an edit, among which it is taken up again
_LONGEST_MATCH = 32

# What a step of n tokens costs beside one of 1 token before anything was measured here: between the curves of two
# quantised models on two cores (docs/speculation.md).
_PRIOR_COST = {1: 1.0, 2: 1.8, 3: 2.1, 4: 2.4, 5: 3.2, 8: 4.0, 16: 7.0, 32: 13.0}
# How often a guess is right before anything was learned, by the number of tokens that agree before it.
_GRADES = (
    *(0.5, 0.45, 0.55, 0.6, 0.68, 0.75, 0.8, 0.84, 0.87, 0.9),
    *(0.91, 0.92, 0.93, 0.94, 0.95, 0.955, 0.96, 0.965, 0.97),
)
_LEARNING_RATE, _FIRST_STEPS = 0.2, 6
_PROBE_SHARE = 0.02  # of the time, spent on drafts that are not expected to pay, to notice when they do
_FIRST_CREDIT = 3.0  # plain steps that may be spent on probes at once where no costs are known
_WIDTHS = (2, 4, 8, 16)  # of steps that are measured first; the others follow from them
_PRIOR_DRAFT_COST, _PRIOR_DRAFT_CHANCE = 0.15, 0.85  # hopeful: what is never tried is never learned
_PRIOR_GUESSES, _LAST_GUESSES = 5, 50  # guesses that a prior chance counts as; and those that count at all
# How often a guess of a draft model is right before anything was learned, by the tenths of its own confidence.
_CONFIDENCE_GRADES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.75, 0.8, 0.9, 0.95)
_PRICE_OF_LOADING = 20  # a draft model, in steps of the target
_MOST_TOKENS_APART, _FIRST_COMPARED = 128, 5  # as in llama.cpp
_CATCH_UP_TOKENS = 64  # that a draft model reads at most before one step


class CostModel:
    """Seconds that one step takes, by the number of its tokens; learned from the steps themselves.

    A step's cost is ``unit × shape(n)``: the unit follows the machine's load and the depth of the context, the shape
    belongs to model, machine and settings, and can be remembered (``shape``, by n, relative to n = 1).
    """

    def __init__(self, shape: Mapping[int, float] = {}) -> None:
        self._shape = {1: 1.0, **{n: cost for n, cost in shape.items() if 1 < n <= MAX_DRAFT + 1}}
        self._unit_s = 0.0
        self._observed = 0
        self._costs: list[float] = []

    @property
    def unknown(self) -> bool:
        """True where no step of several tokens was ever measured."""
        return len(self._shape) == 1

    @property
    def shape(self) -> Mapping[int, float]:
        """Relative costs of the widths that were measured."""
        return dict(self._shape)

    def observe(self, n: int, seconds: float) -> None:
        """Learn from a step of ``n`` tokens."""
        if not self._unit_s:
            self._unit_s = seconds / self.relative(n)
        ratio = min(2.0, max(0.5, seconds / self.step_s(n)))  # a preempted step says nothing about the next
        self._unit_s *= ratio if self._observed < _FIRST_STEPS else ratio**_LEARNING_RATE  # the first one warms up
        self._observed += 1
        if n > 1:
            before = self.relative(n)
            self._shape[n] = before * ratio**_LEARNING_RATE
            self._costs.clear()

    def step_s(self, n: int) -> float:
        """What a step of ``n`` tokens takes, in seconds; 0 before anything was observed."""
        return self._unit_s * self.relative(n)

    def relative(self, n: int) -> float:
        """Cost of a step of ``n`` tokens in units of one of 1 token."""
        if not self._costs:
            self._costs = list(self._interpolated())
        return self._costs[n]

    def _interpolated(self) -> Iterator[float]:
        """The prior curve, bent so that it goes through what was measured."""
        known = sorted(self._shape)
        bends = [math.log(self._shape[n] / _prior(n)) for n in known]
        yield 0.0
        for n in range(1, MAX_DRAFT + 2):
            yield _prior(n) * math.exp(_between(n, known, bends))


def _prior(n: int) -> float:
    known = sorted(_PRIOR_COST)
    return _between(n, known, [_PRIOR_COST[width] for width in known])


def _between(x: int, xs: Sequence[int], ys: Sequence[float]) -> float:
    """Linear interpolation; beyond the ends the last value holds."""
    at = bisect.bisect_left(xs, x)
    if at == 0 or at == len(xs):
        return ys[min(at, len(xs) - 1)]
    low, high = xs[at - 1], xs[at]
    share = (x - low) / (high - low)
    return ys[at - 1] * (1 - share) + ys[at] * share


class Acceptance:
    """How often guesses were right, by grade: what the drafter knew of its guess, from 0 (worst) upwards."""

    def __init__(self, prior: Sequence[float] = _GRADES) -> None:
        self._rates = list(prior)
        self._seen = [_PRIOR_GUESSES] * len(self._rates)

    def __getitem__(self, grade: int) -> float:
        return self._rates[min(grade, len(self._rates) - 1)]

    def learn(self, grade: int, accepted: bool) -> None:
        """One guess was right or wrong. The first ones count most; later ones as the last fifty."""
        grade = min(grade, len(self._rates) - 1)
        self._seen[grade] = min(self._seen[grade] + 1, _LAST_GUESSES)
        self._rates[grade] += (accepted - self._rates[grade]) / self._seen[grade]


def accepted(sample: Callable[[int], int], draft: Sequence[int]) -> Iterator[int]:
    """What the target's sampler chooses at each position, up to the first that differs from the draft.

    Always one token more than was right: where all of it was, the one that follows. The sampler has then seen what is
    emitted and nothing else, so that its state is that of plain decoding.
    """
    for index, guess in enumerate((*draft, None)):
        token = sample(index)
        yield token
        if token != guess:
            return


def expected_tokens(chances: Iterable[float]) -> Iterator[float]:
    """Tokens that a step yields with drafts of 0, 1, 2 … of these guesses: 1 + c₁ + c₁c₂ + …"""
    yield from itertools.accumulate(itertools.accumulate(chances, lambda a, b: a * b), initial=1.0)


def best_length(chances: Sequence[float], cost: CostModel) -> tuple[int, float]:
    """How many of the guesses to check, and the tokens per unit of cost that this gives. Guessing is paid already."""
    rates = [tokens / cost.relative(n + 1) for n, tokens in enumerate(expected_tokens(chances))]
    best = max(range(len(rates)), key=rates.__getitem__)
    return best, rates[best]


@dataclass(slots=True)
class NgramDrafter:
    """Guesses that the text goes on as it did where its last tokens stood before.

    Follows its source token by token. After an edit it takes the source up again: at the next token, in case one was
    replaced by one, or where the source has, not far on, the token that has just come.
    """

    tokens: list[int] = field(default_factory=list)
    acceptance: Acceptance = field(default_factory=Acceptance)
    _places: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> what followed it last
    _source: int | None = None  # where in the tokens the next one is expected to stand
    _match: int = 0  # how many tokens before it agree
    _trusted: int = 0  # how many agreed before the last edit
    _lost: int | None = None  # where the source was left

    def follow(self, tokens: Iterable[int]) -> None:
        """Take in what the text now goes on with."""
        for token in tokens:
            if len(self.tokens) >= _N_GRAM:
                self._places[tuple(self.tokens[-_N_GRAM:])] = len(self.tokens)
            self._step(token)
            self.tokens.append(token)
        self._look_up()

    def _step(self, token: int) -> None:
        source = self._source
        if source is None:
            return
        if self.tokens[source] == token:
            self._source, self._match = source + 1, min(self._match + 1, _LONGEST_MATCH)
        elif self._match:
            self._trusted = max(self._trusted // 2, self._match)
            self._lost, self._source, self._match = source, source + 1, 0  # perhaps one stands for one
        else:
            self._source = None

    def _look_up(self) -> None:
        """Find a source, or a better one than that which is followed by a mere guess."""
        if self._match >= _N_GRAM or len(self.tokens) < _N_GRAM:
            return
        resumed, seen = self._resumed(), self._places.get(tuple(self.tokens[-_N_GRAM:]))
        matches = {place: self._agreement(place) for place in (resumed, seen) if place is not None}
        best = max(matches, key=matches.__getitem__, default=None)
        if best is not None and matches[best] > self._match:
            self._source, self._match = best, matches[best]
            self._trusted = self._trusted if best == resumed else 0

    def _resumed(self) -> int | None:
        if self._lost is None:
            return None
        stop = min(self._lost + _REACH, len(self.tokens) - 1)
        return next((at + 1 for at in range(self._lost, stop) if self.tokens[at] == self.tokens[-1]), None)

    def _agreement(self, place: int) -> int:
        """How many tokens before ``place`` equal the last ones."""
        pairs = zip(reversed(self.tokens[max(0, place - 8) : place]), reversed(self.tokens[-8:]), strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    def guesses(self, most: int) -> list[int]:
        """Up to ``most`` tokens that may follow."""
        if self._source is None:
            return []
        return self.tokens[self._source : self._source + most]

    def grade(self, index: int) -> int:
        """How well founded guess number ``index`` is, if those before it are right.

        Behind an edit the first is a mere try; where it is right, the source counts as taken up again.
        """
        agreeing = self._match + index
        return agreeing + self._trusted // 2 if agreeing else 0


class ModelDrafter:
    """Guesses with a smaller model of the same vocabulary. Loaded when it is first wanted; one for all turns."""

    def __init__(
        self, name: str, load: Callable[[], Decoder], cost: float | None = None, usual: float | None = None
    ) -> None:
        """``load`` may raise LocalLLMError: the draft is then never asked again.

        ``cost`` is what one of its tokens takes, in units of a step of the target, and ``usual`` how often it is
        right, as far as is known.
        """
        self.name = name
        self._load = load
        self._decoder: Decoder | None = None
        self._threads = 0  # as many as it was loaded with
        self._agreed = 0  # tokens in its KV cache that are known to be those of the text
        self._guesses: list[int] = []
        self._grades: list[int] = []
        self._chances = Acceptance(_CONFIDENCE_GRADES)
        self._usual = Acceptance([usual or _PRIOR_DRAFT_CHANCE])
        self.cost = cost or _PRIOR_DRAFT_COST
        self.measured = False
        self.failure = ""  # why it cannot serve

    @property
    def usual(self) -> float:
        """How often a guess is right, on the whole."""
        return self._usual[0]

    @property
    def price(self) -> float:
        """What has to be paid before its first guess, roughly, in steps of the target."""
        return 0 if self._decoder else _PRICE_OF_LOADING

    def begin(self) -> None:
        """A new turn: its text may be another."""
        self._agreed = 0

    def best_rate(self, most: int, cost: CostModel) -> tuple[int, float]:
        """How many guesses promise the most, and the tokens per unit of cost that they are expected to give."""
        if self.failure or most < 1:
            return 0, 1.0
        rates = [
            tokens / (cost.relative(n + 1) + n * self.cost)
            for n, tokens in enumerate(expected_tokens(itertools.repeat(self.usual, most)))
        ]
        best = max(range(len(rates)), key=rates.__getitem__)
        return best, rates[best]

    def use_threads(self, count: int) -> None:
        """Compute on so many threads from now on."""
        self._threads = count
        if self._decoder:
            self._decoder.use_threads(count)

    def draft(
        self, tokens: Sequence[int], least: int, most: int, cost: CostModel, cancelled: Callable[[], bool]
    ) -> tuple[list[int], list[float]]:
        """Up to ``most`` guesses at what follows ``tokens``, and how likely each is right if those before it are.

        Goes on for as long as another guess may pay, but to ``least`` in any case. No guess where it lags behind:
        it then reads on for a bit, so that no step waits long for it.
        """
        guesses = self._guesses = []
        chances: list[float] = []
        self._grades.clear()
        try:
            decoder = self._ready(tokens, cancelled)
            room = 0 if decoder is None else min(most, decoder.n_ctx - len(decoder.tokens))
            while decoder and len(guesses) < room and (len(guesses) < least or self._pays(chances, room, cost)):
                begin_s = time.perf_counter()
                if guesses and not decoder.feed(guesses[-1:], cancelled):
                    break
                guess, confidence = decoder.likeliest()
                if guesses and cost.step_s(1):
                    seen = (time.perf_counter() - begin_s) / cost.step_s(1)
                    self.measured = True
                    self.cost += _LEARNING_RATE * (min(seen, 2 * self.cost + 0.1) - self.cost)
                guesses.append(guess)
                self._grades.append(int(confidence * (len(_CONFIDENCE_GRADES) - 1)))
                chances.append(self._chances[self._grades[-1]])
        except LocalLLMError as error:  # the answer goes on without it
            self.failure = error.message
            guesses.clear()
        return guesses, chances

    def _ready(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> Decoder | None:
        """The draft model with all of the text read, or None while it still has to catch up."""
        if self._decoder is None:
            self._decoder = self._load()
            if self._threads:
                self._decoder.use_threads(self._threads)
        decoder, held = self._decoder, self._decoder.tokens
        shared = min(len(held), len(tokens))
        while self._agreed < shared and held[self._agreed] == tokens[self._agreed]:
            self._agreed += 1
        self._agreed = decoder.rewind(min(self._agreed, len(tokens) - 1))
        stop = min(len(tokens), self._agreed + min(_CATCH_UP_TOKENS, decoder.slice_tokens))
        if stop >= decoder.n_ctx:
            return None
        if not decoder.feed(tokens[self._agreed : stop], cancelled):
            return None
        self._agreed = stop
        return decoder if stop == len(tokens) else None

    def _pays(self, chances: Sequence[float], most: int, cost: CostModel) -> bool:
        """Whether one guess more, or some more, would raise the tokens per second that this step gives."""
        count = len(chances)
        reached = math.prod(chances)
        tokens = list(expected_tokens(chances))[-1]
        rate = tokens / (cost.relative(count + 1) + count * self.cost)
        for n in range(count + 1, most + 1):
            reached *= self.usual
            tokens += reached
            if tokens / (cost.relative(n + 1) + n * self.cost) > rate:
                return True
        return False

    def learn(self, chosen: Sequence[int]) -> None:
        """What came tells which guesses were right, also of those that were not checked."""
        for guess, grade, token in zip(self._guesses, self._grades, chosen, strict=False):
            right = guess == token
            self._chances.learn(grade, right)
            self._usual.learn(0, right)
            if not right:
                break
        self._guesses = []

    def close(self) -> None:
        """Free the draft model."""
        if self._decoder:
            self._decoder.close()


class Speculator:
    """Proposes what to check next, and learns from what became of it. One for each turn; costs outlive it."""

    def __init__(
        self,
        cost: CostModel,
        tokens: Sequence[int],
        model: ModelDrafter | None = None,
        acceptance: Acceptance | None = None,
    ) -> None:
        """``acceptance`` is that of guesses from the text, as earlier turns have seen it.

        ``tokens`` is the text so far, with the token that the next step computes.
        """
        self._cost, self._model = cost, model
        self._ngram = NgramDrafter(acceptance=acceptance or Acceptance())
        self._ngram.follow(tokens)
        if model:
            model.begin()
        self._credit = _FIRST_CREDIT if cost.unknown else 0.0  # towards the next probe, in plain steps
        self._stopped = False
        self._given = 0  # tokens
        self._paid = 0.0  # for them, in plain steps
        self.drafted = self.accepted = 0

    def draft(self, most: int, cancelled: Callable[[], bool]) -> list[int]:
        """Tokens to check behind the one that was chosen last; none where no guess is expected to pay."""
        most = 0 if self._stopped else min(most, MAX_DRAFT)
        guesses = self._ngram.guesses(most)
        chances = [self._ngram.acceptance[self._ngram.grade(index)] for index in range(len(guesses))]
        length, rate = best_length(chances, self._cost)
        wanted, model_rate = self._model.best_rate(most, self._cost) if self._model else (0, 0.0)
        if wanted and model_rate > rate:
            return self._ask_model(0, most, cancelled) or guesses[:length]
        return guesses[:length] or self._probe(guesses, most, cancelled)

    def _ask_model(self, least: int, most: int, cancelled: Callable[[], bool]) -> list[int]:
        assert self._model
        guesses, chances = self._model.draft(self._ngram.tokens, least, most, self._cost, cancelled)
        return guesses[: max(least, best_length(chances, self._cost)[0])]

    def _probe(self, guesses: Sequence[int], most: int, cancelled: Callable[[], bool]) -> list[int]:
        """Now and then check guesses that are not expected to pay, to learn what that costs and whether it still is so.

        Widths that were never measured come first: any tokens tell what they cost.
        """
        missing = next((width - 1 for width in _WIDTHS if width not in self._cost.shape and width <= most + 1), 0)
        model = self._model if self._model and not self._model.failure and not missing else None
        count = missing or (max(1, model.best_rate(most, self._cost)[0]) if model else min(1, len(guesses)))
        price = self._cost.relative(count + 1) - 1 + (count * model.cost + model.price if model else 0)
        if not 0 < count <= most or self._credit < price:
            return []
        self._credit -= price
        return self._ask_model(count, count, cancelled) if model else [*guesses, *self._ngram.tokens[-count:]][:count]

    def learn(
        self, draft: Sequence[int], chosen: Sequence[int], drafting_s: float, step_s: float, typical: bool = True
    ) -> None:
        """``chosen`` came out of a step that checked ``draft``: guessing took ``drafting_s``, checking ``step_s``.

        A step that was not ``typical`` (on another number of threads) teaches nothing about costs.
        """
        accepted = len(chosen) - 1
        self._judge_ngrams(chosen)
        self._ngram.follow(chosen)
        if self._model:
            self._model.learn(chosen)
        if typical:
            self._cost.observe(len(draft) + 1, step_s)
        self._credit += 0.0 if draft else _PROBE_SHARE
        self.drafted += len(draft)
        self.accepted += accepted
        self._given += len(chosen)
        self._paid += self._cost.relative(len(draft) + 1) + drafting_s / (self._cost.step_s(1) or step_s)

    def _judge_ngrams(self, chosen: Sequence[int]) -> None:
        """Learn from guesses whether or not they were checked: what came tells which were right."""
        for index, (guess, token) in enumerate(zip(self._ngram.guesses(len(chosen)), chosen, strict=False)):
            self._ngram.acceptance.learn(self._ngram.grade(index), guess == token)
            if guess != token:
                return

    def stop(self) -> None:
        """Draft no more: wrong guesses cannot be taken back."""
        self._stopped = True

    @property
    def speedup(self) -> float | None:
        """An estimate of the gain over plain decoding: tokens, over what they cost in plain steps by the cost curve.

        Not by the clock: a step that something else held up would have been held up without a draft too.
        """
        return self._given / self._paid if self._paid else None


def unlike(target: Vocabulary, draft: Vocabulary) -> str | None:
    """Why a draft model cannot guess for a target, by their vocabularies; None where it can.

    The rule is llama.cpp's own (common_speculative_are_compatible).
    """
    if target.kind != draft.kind:
        return "its tokens are of another kind"
    for name, ours, its in (("BOS", target.bos, draft.bos), ("EOS", target.eos, draft.eos)):
        if (ours and ours.id) != (its and its.id):
            return f"its {name} token is another"
    if target.add_bos != draft.add_bos:
        return "only one of the two begins its texts with a BOS token"
    if abs(target.n_tokens - draft.n_tokens) > _MOST_TOKENS_APART:
        return f"it has {draft.n_tokens:,} tokens, the model {target.n_tokens:,}"
    texts = zip(target.texts(), draft.texts(), strict=False)
    differing = next((id for id, (ours, its) in enumerate(texts) if id >= _FIRST_COMPARED and ours != its), None)
    return None if differing is None else f"its token {differing:,} is another"
