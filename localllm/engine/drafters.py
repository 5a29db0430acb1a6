"""Who guesses what comes next, and how likely each guess is right.

The text itself (it may go on as it did before), and a smaller model of the same vocabulary. Both learn from what came.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from localllm.engine.costs import MAX_DRAFT, CostModel, rates
from localllm.engine.decoder import Decoder
from localllm.errors import LocalLLMError

_MOST_LOG_ODDS = 6.0
_VARIANCE, _SLOPE_VARIANCE = 2.0, 0.2  # of shift and slope before anything was learned
_DRIFT, _SLOPE_DRIFT = 0.01, 0.0005  # by which they grow with each guess: old ones fade

_N_GRAM = 3  # tokens that have to agree before what followed them is guessed again
_REACH = 16  # tokens of a source behind an edit, among which it is taken up again
_LONGEST_MATCH = 32
# How often a guess from the text is right, by the number of tokens that agree before it: measured on 62 answers of a
# small chat model.
_BY_MATCH = (
    *(0.1, 0.16, 0.28, 0.57, 0.62, 0.74, 0.82, 0.83, 0.84, 0.87),
    *(0.88, 0.91, 0.93, 0.93, 0.94, 0.95, 0.96, 0.96, 0.97, 0.97, 0.98),
)

# A draft model is right more often than it says: log odds of 1.2 + 1.35 times its own, in two quantisations.
_CONFIDENCE, _CONFIDENCE_SLOPE = 1.2, 1.35
# What one of its guesses costs in plain steps, how often it is right, and the tokens per plain step that it leads to,
# before anything is known: hopeful, for what is never tried is never learned. Where the best chance does not pay,
# nothing does.
_COST, _CHANCE, _GAIN, _BEST_CHANCE = 0.15, 0.85, 1.3, 0.97
_FIRST_GUESSES, _LAST_GUESSES = 5, 50  # that what was known counts as; and that count at all
_FIRST_STEPS, _LAST_STEPS = 6.0, 30.0  # the same for the steps it was asked for
_LEARNING_RATE = 0.2
_READING_SHARE, _READING_AT_ONCE = 0.1, 3.0  # of the time; and plain steps: for reading what it has not read
_CATCH_UP_TOKENS = 64  # that it reads at most before one step


class Calibration:
    """How likely a guess is right: what its drafter says, in log odds, made true by how its guesses turned out.

    Platt scaling, ``slope × said + shift``, learned guess by guess as by an extended Kalman filter.
    """

    def __init__(self, shift: float = 0.0) -> None:
        self.shift, self._slope = shift, 1.0
        self._variance, self._covariance, self._slope_variance = _VARIANCE, 0.0, _SLOPE_VARIANCE

    def chance(self, said: float) -> float:
        """The probability that a guess is right of which its drafter says so much."""
        log_odds = self._slope * said + self.shift
        return 1 / (1 + math.exp(-min(_MOST_LOG_ODDS, max(-_MOST_LOG_ODDS, log_odds))))

    def learn(self, said: float, right: bool) -> None:
        """One guess was right or wrong."""
        chance = self.chance(said)
        information = chance * (1 - chance)
        shift = self._variance + self._covariance * said
        slope = self._covariance + self._slope_variance * said
        variance = 1 / information + shift + slope * said
        error = (right - chance) / information / variance
        self.shift += shift * error
        self._slope += slope * error
        self._variance += _DRIFT - shift * shift / variance
        self._covariance -= shift * slope / variance
        self._slope_variance += _SLOPE_DRIFT - slope * slope / variance


def log_odds(chance: float) -> float:
    """The logarithm of chance to counter-chance, within bounds."""
    return min(_MOST_LOG_ODDS, max(-_MOST_LOG_ODDS, math.log(max(chance, 1e-9) / max(1 - chance, 1e-9))))


_LOG_ODDS = [log_odds(chance) for chance in _BY_MATCH]


@dataclass(slots=True)
class TextExperience:
    """How guesses from the text turned out: while it goes on as its source does, and right behind an edit."""

    going_on: Calibration = field(default_factory=Calibration)
    behind_edits: Calibration = field(default_factory=Calibration)


@dataclass(slots=True)
class NgramDrafter:
    """Guesses that the text goes on as it did where its last tokens stood before.

    Follows its source token by token. After an edit it takes the source up again: at the next token, in case one was
    replaced by one, or where the source has, not far on, the token that has just come.
    """

    tokens: list[int] = field(default_factory=list)
    experience: TextExperience = field(default_factory=TextExperience)
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
        """Up to ``most`` tokens that may follow. At the end of the text the guesses themselves are the source."""
        if self._source is None:
            return []
        found = self.tokens[self._source : self._source + most]
        return list(itertools.islice(itertools.cycle(found), most))

    def chances(self, count: int) -> list[float]:
        """How likely each of the first guesses is right, if those before it are."""
        return [calibration.chance(said) for calibration, said in map(self._founded, range(count))]

    def judge(self, chosen: Sequence[int]) -> None:
        """Learn from guesses whether or not they were checked: what came tells which were right."""
        for index, (guess, token) in enumerate(zip(self.guesses(len(chosen)), chosen, strict=False)):
            calibration, said = self._founded(index)
            calibration.learn(said, guess == token)
            if guess != token:
                return

    def _founded(self, index: int) -> tuple[Calibration, float]:
        """How well guess number ``index`` is founded, in log odds, and what corrects that.

        Behind an edit the first is a mere try; where it is right, the source counts as taken up again.
        """
        agreeing, trusted = self._match + index, self._trusted // 2
        if agreeing:
            return self.experience.going_on, _LOG_ODDS[min(agreeing + trusted, len(_LOG_ODDS) - 1)]
        return self.experience.behind_edits, _LOG_ODDS[min(trusted, 3)]


class ModelDrafter:
    """Guesses with a smaller model of the same vocabulary. Loaded when it is first wanted; one for all turns."""

    def __init__(self, name: str, load: Callable[[], Decoder], known: Mapping[str, float] = {}) -> None:
        """``load`` may raise LocalLLMError: the draft is then never asked again. ``known`` is an earlier ``known``."""
        self.name = name
        self._load = load
        self._decoder: Decoder | None = None
        self._threads = 0  # as many as it was loaded with
        self._agreed = 0  # tokens in its KV cache that are known to be those of the text
        self._guesses: list[int] = []
        self._said: list[float] = []  # by the draft model of each guess, in log odds
        self._calibration = Calibration(log_odds(known.get("odds", 0.5)))
        self._usual, self._judged = known.get("right", _CHANCE), _FIRST_GUESSES
        self._given, self._paid = known.get("gain", _GAIN) * _FIRST_STEPS, _FIRST_STEPS
        self._cost, self._measured = known.get("cost", _COST), 0
        self._read_s = self._decoded = 0.0  # seconds for what it had not read; what was decoded, in plain steps
        self.failure = ""  # why it cannot serve

    @property
    def known(self) -> Mapping[str, float]:
        """What has been learned of it.

        ``cost`` of a guess in plain steps of the target; how often one is ``right``; the ``odds`` of one of which it
        says even odds, as a probability; and its ``gain``, tokens per plain step.
        """
        odds = self._calibration.chance(0.0)
        return {"cost": self._cost, "right": self._usual, "odds": odds, "gain": self._given / self._paid}

    @property
    def loaded(self) -> bool:
        """Whether it was wanted before."""
        return self._decoder is not None

    def begin(self) -> None:
        """A new turn: its text may be another."""
        self._agreed = 0
        self._read_s = self._decoded = 0.0

    def gain(self, cost: CostModel, most: int) -> float:
        """Tokens per plain step that steps have given for which it was asked; 0 where it cannot serve or pay.

        No more than the best chances would give with up to ``most`` guesses.
        """
        best = max(rates(itertools.repeat(_BEST_CHANCE, most), cost, self._cost))
        return 0.0 if self.failure or best <= 1 else min(best, self._given / self._paid)

    def use_threads(self, count: int) -> None:
        """Compute on so many threads from now on."""
        self._threads = count
        if self._decoder:
            self._decoder.use_threads(count)

    def draft(
        self, tokens: Sequence[int], most: int, cost: CostModel, cancelled: Callable[[], bool]
    ) -> tuple[list[int], list[float]]:
        """Up to ``most`` guesses at what follows ``tokens``, and how likely each is right if those before it are.

        Goes on for as long as another guess may pay. No guess where it lags behind: it then reads on for a bit, so
        that no step waits long for it.
        """
        guesses = self._guesses = []
        chances: list[float] = []
        self._said.clear()
        try:
            decoder = self._ready(tokens, cost, cancelled)
            room = 0 if decoder is None else min(most, decoder.n_ctx - len(decoder.tokens))
            while decoder and len(guesses) < room and (not guesses or self._pays(chances, room, cost)):
                begin_s = time.perf_counter()
                if guesses and not decoder.feed(guesses[-1:], cancelled):
                    break
                guess, confidence = decoder.likeliest()
                if guesses:
                    self._observe(time.perf_counter() - begin_s, cost)
                guesses.append(guess)
                self._said.append(_CONFIDENCE + _CONFIDENCE_SLOPE * log_odds(confidence))
                chances.append(self._calibration.chance(self._said[-1]))
        except LocalLLMError as error:  # the answer goes on without it
            self.failure = error.message
            guesses.clear()
        return guesses, chances

    def _ready(self, tokens: Sequence[int], cost: CostModel, cancelled: Callable[[], bool]) -> Decoder | None:
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
        lags = len(tokens) - self._agreed > MAX_DRAFT + 1
        stop = min(len(tokens), self._agreed + min(_CATCH_UP_TOKENS, decoder.slice_tokens))
        begin_s = time.perf_counter()
        allowed_s = (_READING_AT_ONCE + _READING_SHARE * self._decoded) * cost.step_s(1)
        if (lags and self._read_s > allowed_s) or stop >= decoder.n_ctx:
            return None
        begin, self._agreed = self._agreed, stop
        if not decoder.feed(tokens[begin:stop], cancelled):
            return None
        seconds = time.perf_counter() - begin_s
        if lags:
            self._read_s += seconds
        elif begin == stop - 1:
            self._observe(seconds, cost)
        return decoder if stop == len(tokens) else None

    def _observe(self, seconds: float, cost: CostModel) -> None:
        """Learn from one guess what it costs."""
        if cost.step_s(1):
            self._measured += 1
            seen = min(seconds / cost.step_s(1), 2 * self._cost + 0.1)
            self._cost += max(_LEARNING_RATE, 1 / self._measured) * (seen - self._cost)

    def _pays(self, chances: Sequence[float], most: int, cost: CostModel) -> bool:
        """Whether one guess more, or some more, would raise the tokens per second that this step gives."""
        count = len(chances)
        usual = itertools.repeat(self._usual, most - count)
        found = rates(itertools.chain(chances, usual), cost, self._cost)
        return max(found[count + 1 :]) > found[count]

    def learn(self, chosen: Sequence[int], checking: float) -> None:
        """What came tells which guesses were right, also of those that were not checked.

        ``checking`` is what the step cost, in plain steps.
        """
        self._decoded += checking
        if not self._guesses:
            return
        paid = checking + len(self._guesses) * self._cost
        fading = min(1.0, _LAST_STEPS / (self._paid + paid))
        self._given, self._paid = (self._given + len(chosen)) * fading, (self._paid + paid) * fading
        for guess, said, token in zip(self._guesses, self._said, chosen, strict=False):
            right = guess == token
            self._calibration.learn(said, right)
            self._judged = min(self._judged + 1, _LAST_GUESSES)
            self._usual += (right - self._usual) / self._judged
            if not right:
                break
        self._guesses = []

    def close(self) -> None:
        """Free the draft model."""
        if self._decoder:
            self._decoder.close()
