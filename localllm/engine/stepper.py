"""One decode step after another: what is computed in each, and on how many threads.

Brings speculation, the thread governor and the decoder together, and keeps what they learn from turn to turn.
Knows no text and no end of an answer.
"""

import time
from collections.abc import Callable, Sequence

from localllm.cores import preemptions
from localllm.engine.costs import CostModel
from localllm.engine.decoder import Decoder, Sampler
from localllm.engine.drafters import ModelDrafter, TextExperience
from localllm.engine.slicing import slices
from localllm.engine.speculate import Speculator, accepted
from localllm.engine.threads import ThreadGovernor

EXACT_WIDTH = 4  # tokens of every step under --exact


class Stepper:
    """Takes the decode steps of one turn after another.

    ``cost`` is what is known of the costs of drafting, None for plain decoding; ``drafter`` a draft model beside the
    text itself; ``governor`` chooses the threads, else they stay as they are. With ``exact`` every step computes the
    same number of tokens, so that results do not depend on drafts in their last bits. ``remember`` is given
    what was learned at the end of each answer.
    """

    def __init__(
        self,
        decoder: Decoder,
        cost: CostModel | None = None,
        drafter: ModelDrafter | None = None,
        governor: ThreadGovernor | None = None,
        exact: bool = False,
        remember: Callable[[CostModel, ModelDrafter | None], None] = lambda *_: None,
    ) -> None:
        self.exact = exact
        self._remember = remember
        self._experience = TextExperience()
        self._text: list[int] = []  # prompt and answer, with the token that the next step computes
        self._decoder, self._cost, self._drafter, self._governor = decoder, cost, drafter, governor
        self._width = EXACT_WIDTH if exact and decoder.can_undo else 1
        self._most_draft = EXACT_WIDTH - 1 if exact else decoder.slice_tokens - 1
        self._threads = governor.threads if governor else 0
        self._speculator: Speculator | None = None
        self.steps = 0

    @property
    def padding(self) -> int:
        """How many tokens of the context a step needs beside the one that it computes."""
        return self._width - 1

    def prefill(self) -> None:
        """A turn begins, and a prompt is going to be read: on all threads."""
        self.steps = 0
        self._speculator = None
        if self._governor:
            self._use(self._governor.most)

    def begin(self, tokens: Sequence[int]) -> None:
        """An answer begins: ``tokens`` are those of the prompt, and the first of the answer."""
        self._text = list(tokens)
        if self._cost and self._decoder.can_undo:
            self._speculator = Speculator(self._cost, tokens, self._drafter, self._experience)

    def step(self, token: int, sampler: Sampler, cancel: Callable[[], bool], wanted: int | None = None) -> list[int]:
        """Compute ``token`` and check a draft behind it: one token more than was right of it; none where cancelled.

        No more than ``wanted`` tokens come.
        """
        self.steps += 1
        governor, speculator, decoder = self._governor, self._speculator, self._decoder
        if governor:
            self._use(governor.threads)
            preempted = preemptions()
        start, begin_s = len(decoder.tokens), time.perf_counter()
        most = min(decoder.n_ctx - start - 1, self._most_draft, self._most_draft if wanted is None else wanted - 1)
        draft = speculator.draft(most, cancel) if speculator else []
        drafted_s = time.perf_counter()
        padding = [token] * (self._width - 1 - len(draft))
        if not decoder.feed((token, *draft, *padding), cancel, every=bool(draft or padding)):
            return []
        chosen = list(accepted(sampler.sample, draft))
        self._text += chosen
        seconds = time.perf_counter() - drafted_s
        if speculator:
            typical = not governor or (governor.threads == governor.most and not governor.trying)
            speculator.learn(draft, chosen, drafted_s - begin_s, seconds, typical)
        if governor:
            cost = self._cost.relative(len(draft) + 1) if self._cost else 1.0
            governor.observe(seconds, cost, preemptions() - preempted)
        if len(decoder.tokens) > start + len(chosen) and not self._undo(start + len(chosen), cancel) and speculator:
            speculator.stop()
        return chosen

    def end(self, length: int) -> None:
        """The answer ended when ``length`` tokens were given out: guesses that were right, but lie behind, go."""
        if self._speculator and len(self._decoder.tokens) > length:
            self._decoder.rewind(length)
        if self._cost:
            self._remember(self._cost, self._drafter)

    def _use(self, threads: int) -> None:
        if threads != self._threads:
            self._threads = threads
            self._decoder.use_threads(threads)
            if self._drafter:
                self._drafter.use_threads(threads)

    def _undo(self, length: int, cancel: Callable[[], bool]) -> bool:
        """Take back the guesses that were wrong. False where the memory could not, and had to be filled again."""
        kept = self._decoder.rewind(length)
        for start, stop in slices(kept, length, self._decoder.slice_tokens):
            self._decoder.feed(self._text[start:stop], cancel)
        return kept == length

    @property
    def drafting(self) -> str:
        """In words: what guesses, or why nothing does."""
        if not self._cost:
            return "off"
        if not self._decoder.can_undo:
            return "off: this model's memory cannot take a wrong guess back"
        if not self._drafter:
            return "from the text"
        return f"from the text and {self._drafter.name}" + (
            f" ({self._drafter.failure})" if self._drafter.failure else ""
        )

    @property
    def drafted(self) -> int:
        """Guesses that were checked in this turn."""
        return self._speculator.drafted if self._speculator else 0

    @property
    def accepted(self) -> int:
        """Guesses that were right in this turn."""
        return self._speculator.accepted if self._speculator else 0

    @property
    def speedup(self) -> float | None:
        """An estimate of what speculation gained over plain decoding in this turn; None without it."""
        return self._speculator.speedup if self._speculator else None

    def close(self) -> None:
        """Free the draft model, if there is one."""
        if self._drafter:
            self._drafter.close()
