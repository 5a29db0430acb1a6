"""Speculative decoding: guessing the next tokens, and deciding how many guesses pay.

One pass over the target's weights checks a whole draft. At each position the target's own sampler decides: a drafted
token that it would have chosen anyway has cost next to nothing, and the first that differs ends the step. So a draft
changes how fast an answer comes and never which one.

Brings drafters (what may come next) and costs (what a step of n tokens takes) together. Knows nothing of llama.cpp, of
text, or of how an answer ends.
"""

from collections.abc import Callable, Iterator, Sequence

from localllm.engine.costs import MAX_DRAFT, CostModel, best_length
from localllm.engine.decoder import Vocabulary
from localllm.engine.drafters import ModelDrafter, NgramDrafter, TextExperience

_PROBE_SHARE = 0.02  # of the time, spent on drafts that are not expected to pay, to notice when they do
_PRICE_OF_LOADING = 20.0  # a draft model, in plain steps
_WIDTHS = (2, 4, 8, 16)  # of steps that are measured first; the others follow from them
_STAKE, _LOSS_SHARE = 2.0, 0.04  # plain steps, and share of them, that guesses from the text may lose in one turn
_MOST_TOKENS_APART, _FIRST_COMPARED = 128, 5  # as in llama.cpp


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


class Speculator:
    """Proposes what to check next, and learns from what became of it. One for each turn; costs outlive it."""

    def __init__(
        self,
        cost: CostModel,
        tokens: Sequence[int],
        model: ModelDrafter | None = None,
        experience: TextExperience | None = None,
    ) -> None:
        """``experience`` is that of guesses from the text, as earlier turns have seen it.

        ``tokens`` is the text so far, with the token that the next step computes.
        """
        self._cost, self._model = cost, model
        self._ngram = NgramDrafter(experience=experience or TextExperience())
        self._ngram.follow(tokens)
        if model:
            model.begin()
        self._probing = False
        self._stopped = False
        self._stake = _STAKE  # plain steps that guesses from the text may lose
        self._given = 0  # tokens
        self._paid = 0.0  # for them, in plain steps
        self.drafted = self.accepted = 0

    def draft(self, most: int, cancelled: Callable[[], bool]) -> list[int]:
        """Tokens to check behind the one that was chosen last; none where no guess is expected to pay."""
        most = 0 if self._stopped else min(most, MAX_DRAFT)
        self._probing = False
        guesses = self._ngram.guesses(self._affordable(most))
        length, rate = best_length(self._ngram.chances(len(guesses)), self._cost)
        if most and self._model and self._model.gain(self._cost, most) > rate:
            return self._ask_model(self._model, most, cancelled) or guesses[:length]
        return guesses[:length] or self._probe(most, cancelled)

    def _affordable(self, most: int) -> int:
        """How many guesses from the text may be wrong together: no more than was won with others, and a small stake.

        The expected gain alone would be larger without this; but a short answer must not pay for the next ones.
        """
        while most and self._cost.relative(most + 1) > 1 + self._stake:
            most -= 1
        return most

    def _ask_model(self, model: ModelDrafter, most: int, cancelled: Callable[[], bool]) -> list[int]:
        guesses, chances = model.draft(self._ngram.tokens, most, self._cost, cancelled)
        return guesses[: best_length(chances, self._cost)[0]]

    def _probe(self, most: int, cancelled: Callable[[], bool]) -> list[int]:
        """Now and then try what is not expected to pay: to learn what steps cost, and whether the model has got better.

        Widths that were never measured come first: any tokens tell what they cost. Guesses from the text are judged
        without being checked.
        """
        missing = next((width - 1 for width in _WIDTHS if width not in self._cost.shape and width <= most + 1), 0)
        if missing:
            self._probing = self._cost.credit >= self._cost.relative(missing + 1) - 1
            return [*self._ngram.guesses(missing), *self._ngram.tokens[-missing:]][:missing] if self._probing else []
        model = self._model
        if not model or not most or not model.gain(self._cost, most):
            return []
        self._probing = self._cost.credit > (0 if model.loaded else _PRICE_OF_LOADING)
        return self._ask_model(model, most, cancelled) if self._probing else []

    def learn(
        self, draft: Sequence[int], chosen: Sequence[int], drafting_s: float, step_s: float, typical: bool = True
    ) -> None:
        """``chosen`` came out of a step that checked ``draft``: guessing took ``drafting_s``, checking ``step_s``.

        A step that was not ``typical`` (on another number of threads) teaches nothing about costs.
        """
        checking = self._cost.relative(len(draft) + 1)
        plain_s = self._cost.step_s(1) or step_s
        paid = checking + (drafting_s / plain_s if plain_s else 0.0)
        self._ngram.judge(chosen)
        self._ngram.follow(chosen)
        if self._model:
            self._model.learn(chosen, checking)
        if typical:
            self._cost.observe(len(draft) + 1, step_s)
        if self._probing:
            self._cost.credit += min(0.0, len(chosen) - paid)
        elif not draft:
            self._cost.credit += _PROBE_SHARE
        self.drafted += len(draft)
        self.accepted += len(chosen) - 1
        self._stake += len(chosen) - (1 - _LOSS_SHARE) * checking
        self._given += len(chosen)
        self._paid += paid

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
