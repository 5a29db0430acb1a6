"""One turn: a prompt goes in, a stream of events comes out.

Knows the order of things (what is already there, prefill, decode, the end) and measures them. Does not know
llama.cpp, files, terminals or how many turns there were: what it shares between turns are the decoder's tokens.
"""

import dataclasses
import functools
import itertools
import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from localllm.cancel import Cancel
from localllm.engine.decoder import Decoder, TokenFilter
from localllm.engine.grammar import GrammarFilter, GrammarTokens
from localllm.engine.pace import Pace
from localllm.engine.prefix import PrefixCache
from localllm.engine.prompt import PromptEncoder
from localllm.engine.slicing import border, landmarks, pure_slices, reusable, slices
from localllm.engine.stepper import Stepper
from localllm.engine.template import ChatTemplate
from localllm.engine.text import VISIBLE_CONTROLS, AnswerDecoder
from localllm.engine.worker import wait_for_workers
from localllm.errors import DecodeError, PromptTooLong, UsageError
from localllm.values import (
    MAX_SEED,
    Begun,
    Constraint,
    Event,
    FinishReason,
    Message,
    ModelInfo,
    Progress,
    Prompt,
    Reasoning,
    Sampling,
    Text,
    TurnEnd,
    TurnStats,
)

_ABOUT_TOKENS = 64  # of a stored prefix, whose text tells people which one it is


class Engine:
    """A loaded model that answers. One turn at a time; use ``open_engine`` to make one.

    ``info`` says what is loaded and how, ``sampling`` are the model's own defaults. A context manager: leaving
    it frees the model.
    """

    def __init__(
        self,
        decoder: Decoder,
        template: ChatTemplate,
        info: ModelInfo,
        sampling: Sampling | None = None,
        stepper: Stepper | None = None,
        prefix: PrefixCache | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.info = info
        self.sampling = sampling or Sampling()
        self._decoder = decoder
        self._encoder = PromptEncoder(decoder.vocab, template)
        self._stepper = stepper or Stepper(decoder)
        self._prefix = prefix
        self._pace = pace or Pace()
        self._keeping: threading.Thread | None = None
        self._pure = 0  # tokens at the beginning of the KV cache that are pure (see ``slicing``)
        self._prompt_tokens = 0  # of the last turn
        self._ends: list[int] = []  # how many tokens it held at the end of earlier turns
        self._turn: _Turn | None = None
        self._visible = {
            token.id: token.text.encode() for token in decoder.vocab.control_tokens if token.text in VISIBLE_CONTROLS
        }

    def encode(self, messages: Sequence[Message], cancel: Cancel | None = None) -> Prompt:
        """Render and tokenise a conversation. Raises TemplateError, Cancelled."""
        return self._encoder.encode(messages, cancel or Cancel())

    def encode_raw(self, text: str, cancel: Cancel | None = None) -> Prompt:
        """Tokenise text as it is, without a chat template."""
        return self._encoder.encode_raw(text, cancel or Cancel())

    def believed(self, messages: Iterable[Message]) -> list[Message]:
        """Messages from elsewhere, with only those token ids that spell their text in this model's vocabulary."""
        n_tokens = self._decoder.vocab.n_tokens

        def spelled(message: Message) -> bool:
            known = all(0 <= id < n_tokens for id in message.token_ids)
            return known and b"".join(map(self._piece, message.token_ids)) == message.text.encode("utf-8", "replace")

        return [m if not m.token_ids or spelled(m) else dataclasses.replace(m, token_ids=()) for m in messages]

    def reply(
        self,
        prompt: Prompt | Sequence[Message],
        sampling: Sampling | None = None,
        cancel: Cancel | None = None,
        hold_unopened: bool = False,
        begun: Sequence[int] = (),
        constraint: Constraint | None = None,
    ) -> Iterator[Event]:
        """Answer: Progress while the prompt is read, then Reasoning and Text, at last one TurnEnd.

        ``begun`` are ids of an answer that was cut: it goes on from there, after an event Begun, and the finished
        message has all of it.
        ``hold_unopened``: for a model that may forget to open its reasoning, give nothing out before that is
        decided. ``constraint``: what the answer, not its reasoning, has to be. It is that if the turn ends with the
        reason "stop", and else a part of it. Raises PromptTooLong before anything is computed, DecodeError where
        llama.cpp fails. A turn that is cancelled ends with its reason and what there is of the answer.
        """
        sampling, cancel = sampling or self.sampling, cancel or Cancel()
        if not isinstance(prompt, Prompt):
            prompt = self.encode(prompt, cancel)
        if begun:
            prompt = dataclasses.replace(prompt, ids=(*prompt.ids, *begun))
        if len(prompt.ids) >= self.info.n_ctx:
            raise PromptTooLong(
                f"the prompt has {len(prompt.ids):,} tokens, the context holds {self.info.n_ctx:,}",
                "shorten it, or give a larger context if the model allows",
            )
        if not prompt.ids:
            raise UsageError("the prompt has no tokens", "write something; or the model's chat template is at fault")
        only = None
        if constraint:
            only, prompt = self._constrained(constraint, prompt, sampling, begun)
        self._wait_for_keeping()
        turn = self._turn = _Turn(
            prompt, sampling, AnswerDecoder((*sampling.stop, *prompt.stop), prompt.reasoning, hold_unopened), only
        )
        if begun:
            yield turn.go_on(begun, self._piece)
        completed = yield from self._prefill(turn, cancel)
        reason = (yield from self._decode(turn, cancel)) if completed else cancel.reason or "interrupted"
        yield from turn.timed(turn.text.flush())
        reason = "stop" if turn.text.stopped else reason
        stats = turn.stats(self._stepper, len(self._decoder.tokens))
        yield TurnEnd(reason, turn.message(self._piece), stats, (*begun, *turn.ids))

    def _constrained(
        self, constraint: Constraint, prompt: Prompt, sampling: Sampling, begun: Sequence[int]
    ) -> tuple[TokenFilter, Prompt]:
        """What keeps the answer to it; and the prompt, with nothing that would cut it or doubt where it begins."""
        if sampling.stop:
            raise UsageError("a stop string would cut the answer, which is to be whole", "leave it out")
        if prompt.reasoning == "possible":
            prompt = dataclasses.replace(prompt, reasoning="none")
        only = GrammarFilter(self._grammar_tokens, constraint.grammar, prompt.reasoning)
        if not all(only.allowed() is None or only.take(token) for token in begun):
            raise UsageError("the answer that was begun is not what it has to be", "ask anew")
        return only, dataclasses.replace(prompt, stop=())

    @functools.cached_property
    def _grammar_tokens(self) -> GrammarTokens:
        return GrammarTokens(self._decoder.vocab, self._visible)

    def _prefill(self, turn: "_Turn", cancel: Cancel) -> Generator[Event, None, bool]:
        """Read what of the prompt is not in the KV cache yet; False where cancelled.

        The last token is always read, since its logits choose the first token of the answer.
        """
        ids, decoder = turn.prompt.ids, self._decoder
        self._stepper.prefill()
        self._pace.begin()
        turn.cached = turn.read_to = self._reuse(ids)
        all_pure = turn.cached == self._pure
        pure = border(len(ids)) if all_pure else self._pure
        cut = partial(pure_slices, marks=landmarks(pure) if decoder.whole_only else ()) if all_pure else slices
        for start, stop in cut(turn.cached, len(ids), decoder.slice_tokens):
            yield Progress(start, len(ids), turn.cached, stop, self._pace.tok_s)
            self._check_turn(turn)
            begin_s = time.perf_counter()
            completed = decoder.feed(ids[start:stop], cancel)
            turn.read(stop if completed else start)
            if not completed:
                return False
            self._pace.saw(stop - start, time.perf_counter() - begin_s)
            self._pure = min(stop, pure)
            if self._prefix:
                self._prefix.hold(pure)
        yield Progress(len(ids), len(ids), turn.cached, len(ids), self._pace.tok_s)
        return True

    def _reuse(self, ids: Sequence[int]) -> int:
        """Have as many of the prompt's first tokens in the KV cache as can be, from this process or an earlier one.

        A conversation goes on from where one of its turns ended. Else only what is pure is used, and as much of it as
        leaves the answer as it would be without.
        """
        decoder, exact = self._decoder, self._stepper.exact
        shared = _common_prefix(decoder.tokens, ids)
        ends = [*self._ends, len(decoder.tokens)] if self._answered else self._ends
        ends = [end for end in ends if self._pure < end <= shared and end < len(ids)]
        held = max(0 if exact else max(ends, default=0), reusable(min(shared, self._pure), len(ids)))
        restored = self._restored(ids, held)
        if not restored and (there := decoder.rewind(held)) < held:  # the decoder's memory cannot go back
            held = there
            restored = self._restored(ids, held)
        if restored:
            held, self._pure = restored
        elif self._prefix:
            self._prefix.rewound(held)
        self._pure = min(self._pure, held)
        self._ends = [end for end in ends if end <= held]
        self._prompt_tokens = len(ids)
        return held

    @property
    def _answered(self) -> bool:
        """Whether the last turn has come so far that something of its answer is in the KV cache."""
        return len(self._decoder.tokens) > self._prompt_tokens

    def _restored(self, ids: Sequence[int], more_than: int) -> tuple[int, int] | None:
        return self._prefix.restore(ids, more_than, only_pure=self._stepper.exact) if self._prefix else None

    def _decode(self, turn: "_Turn", cancel: Cancel) -> Generator[Event, None, FinishReason]:
        """One token after another until something ends the answer; returns what did."""
        decoder, stepper, is_end = self._decoder, self._stepper, self._decoder.vocab.is_end
        room = decoder.n_ctx - stepper.padding
        sampler = decoder.sampler(turn.sampling, turn.seed, turn.only)
        try:
            chosen = [sampler.sample()]
            stepper.begin((*turn.prompt.ids, *chosen))
            while True:
                for token in chosen:
                    if is_end(token):
                        return "stop"
                    yield from turn.take(token, self._piece(token))
                    self._check_turn(turn)
                    if turn.text.stopped:
                        return "stop"
                    if len(turn.ids) == turn.sampling.max_tokens:
                        return "length"
                    if len(turn.prompt.ids) + len(turn.ids) > room:
                        return "context"
                most = turn.sampling.max_tokens
                chosen = stepper.step(chosen[-1], sampler, cancel, most and most - len(turn.ids))
                turn.step(len(chosen))
                if self._prefix:
                    self._prefix.hold(self._pure)
                if not chosen:
                    return cancel.reason or "interrupted"
        finally:
            sampler.close()
            if self._turn is turn:
                stepper.end(len(turn.prompt.ids) + len(turn.ids))

    def _check_turn(self, turn: "_Turn") -> None:
        """The KV cache belongs to the turn that began last; one that was left behind must not go on."""
        if self._turn is not turn:
            raise DecodeError("another turn has begun, or the engine was closed", "let one turn end before the next")

    def _piece(self, token: int) -> bytes:
        return self._visible.get(token) or self._decoder.vocab.piece(token)

    def keep(self, background: bool = False) -> None:
        """Store for later processes what this one has computed; call it when the answer has reached the user.

        In the ``background`` it goes on until it is done or something else is asked of the engine, which waits for it.
        Without a prefix cache that is the rate of reading alone.
        """
        prefix = self._prefix
        self._pace.keep()
        self._wait_for_keeping()
        if not prefix or not self._decoder.tokens:
            return
        pieces = (self._piece(token) for token in self._decoder.tokens[:_ABOUT_TOKENS])
        text = b"".join(pieces).decode("utf-8", "replace")
        keeping = threading.Thread(target=prefix.keep, args=(self._pure, self._answered, text))
        keeping.start()
        self._keeping = keeping
        if not background:
            self._wait_for_keeping()

    def _wait_for_keeping(self) -> None:
        if self._keeping:
            self._keeping.join()
            self._keeping = None

    def close(self) -> None:
        """Free the model. The engine cannot be used afterwards."""
        self._turn = self._prefix = None
        self._wait_for_keeping()
        wait_for_workers()
        self._stepper.close()
        self._decoder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Turn:
    """What one turn has produced so far, and when."""

    def __init__(self, prompt: Prompt, sampling: Sampling, text: AnswerDecoder, only: TokenFilter | None) -> None:
        self.prompt, self.sampling, self.text, self.only = prompt, sampling, text, only
        self.seed = random.randint(0, MAX_SEED) if sampling.seed is None else sampling.seed
        self.ids: list[int] = []
        self._begun: tuple[int, ...] = ()
        self.cached = self.read_to = self.step_tokens = 0
        self._begin_s = time.perf_counter()
        self._prefilled_s = self._begin_s
        self._first_text_s: float | None = None
        self._token_s: list[float] = []
        self._step_begins: list[int] = []  # how many tokens there were before each step

    def go_on(self, begun: Sequence[int], piece: Callable[[int], bytes]) -> Begun:
        """Have the text decoders where an answer with these tokens had them; returns what they gave then."""
        self._begun = tuple(begun)
        given = [event for token in begun for event in self.text.decode(piece(token))]
        text, reasoning = (
            "".join(event.text for event in given if isinstance(event, kind)) for kind in (Text, Reasoning)
        )
        return Begun(text, reasoning)

    def read(self, stop: int) -> None:
        self.read_to, self._prefilled_s = stop, time.perf_counter()

    def step(self, tokens: int) -> None:
        self.step_tokens += tokens
        self._step_begins.append(len(self._token_s))

    def take(self, token: int, piece: bytes) -> Iterator[Text | Reasoning]:
        self._token_s.append(time.perf_counter())
        self.ids.append(token)
        yield from self.timed(self.text.decode(piece))

    def timed(self, pieces: Iterator[Text | Reasoning]) -> Iterator[Text | Reasoning]:
        for piece in pieces:
            if self._first_text_s is None:
                self._first_text_s = time.perf_counter()
            yield piece

    def message(self, piece: Callable[[int], bytes]) -> Message:
        reasoning, text = self.text.result()
        return Message("assistant", text, spelling((*self._begun, *self.ids), piece, text), reasoning)

    def stats(self, stepper: Stepper, context_tokens: int) -> TurnStats:
        times, first_text_s = self._token_s, self._first_text_s
        return TurnStats(
            prompt_tokens=len(self.prompt.ids),
            cached_tokens=self.cached,
            read_tokens=self.read_to - self.cached,
            prefill_s=self._prefilled_s - self._begin_s,
            ttft_s=None if first_text_s is None else self.prompt.encode_s + first_text_s - self._begin_s,
            output_tokens=len(self.ids),
            decode_s=times[-1] - times[0] if times else 0.0,
            context_tokens=context_tokens,
            seed=self.seed,
            steps=stepper.steps,
            drafted=stepper.drafted,
            accepted=stepper.accepted,
            speedup=stepper.speedup,
            drafting=stepper.drafting,
            step_tokens=self.step_tokens,
            inter_token_s=tuple(self._inter_token_s()),
        )

    def _inter_token_s(self) -> Iterator[float]:
        times = self._token_s
        for begin, end in itertools.pairwise([*self._step_begins, len(times)]):
            if end > begin:
                yield from [(times[end - 1] - times[begin - 1]) / (end - begin)] * (end - begin)


def spelling(ids: Sequence[int], piece: Callable[[int], bytes], text: str) -> tuple[int, ...]:
    """The last of ``ids`` that spell ``text`` exactly, or () where no run does.

    They are all of ``ids``, unless reasoning came before or a stop string cut the text.
    """
    wanted = text.encode()
    missing, start = len(wanted), len(ids)
    while missing > 0 and start > 0:
        start -= 1
        missing -= len(piece(ids[start]))
    chosen = tuple(ids[start:])
    return chosen if b"".join(map(piece, chosen)) == wanted else ()


def _common_prefix(held: Sequence[int], wanted: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(held, wanted, strict=False)):
        if a != b:
            return index
    return min(len(held), len(wanted))
