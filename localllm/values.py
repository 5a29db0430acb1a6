"""Frozen values and events shared by every layer.

Knows nothing of models, terminals or files. Events are plain data: one class per meaning, handled with
``match`` and ``assert_never``, and serialisable, so that they can one day travel over a socket.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from localllm.errors import UsageError

Role = Literal["system", "user", "assistant"]
KvType = Literal["f16", "q8_0", "q4_0"]
ReasoningStart = Literal["none", "possible", "open"]
ContextReason = Literal["chosen", "trained", "default", "memory"]
Color = Literal["auto", "always", "never"]
WhenFull = Literal["ask", "drop", "summarise", "stop"]
FinishReason = Literal["stop", "length", "context", "timeout", "interrupted"]

_COLD = 1e-6  # colder, and the exponentials of llama.cpp's sampler overflow
MAX_INT = 2**31 - 1
MAX_SEED = 2**32 - 2  # llama.cpp reads 2**32 - 1 as "a new random seed at each call"
RANGES: Final = {
    "temperature": (0, 100),
    "top_k": (0, MAX_INT),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repeat_penalty": (0.01, 100),
    "seed": (0, MAX_SEED),
    "max_tokens": (1, MAX_INT),
}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    ``token_ids`` are the ids that the model generated for ``text`` (assistant messages only; empty where the
    text was typed or cut inside a token). A later turn feeds these, so an answer is never tokenised anew.
    """

    role: Role
    text: str
    token_ids: tuple[int, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered and tokenised conversation, ready for ``Engine.reply``.

    ``reasoning`` tells how the answer begins: "open" where the template itself opened a reasoning block,
    "possible" where the template knows reasoning but leaves the beginning to the model, else "none".
    ``stop`` are the strings that end an answer in this layout, besides the model's own end tokens.
    ``encode_s`` is the time that rendering and tokenising took, in seconds; it is part of TTFT.
    """

    ids: tuple[int, ...]
    reasoning: ReasoningStart = "none"
    stop: tuple[str, ...] = ()
    encode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is loaded, and how.

    ``n_ctx`` is the context size in tokens, prompt and answer together; ``n_ctx_reason`` says whether the user chose
    it or what bounds it: the model's training, our default or the memory. ``layers`` counts the output layer too.
    ``chat_template`` is False where the model has none and our fallback stands in. ``reference`` finds the model again
    from anywhere: its name, or for a file its path.
    """

    name: str
    n_ctx: int
    n_ctx_reason: ContextReason
    kv: KvType
    flash_attention: bool
    threads: int
    gpu_layers: int
    layers: int
    chat_template: bool
    reference: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen, and when to stop. Order and defaults follow llama.cpp.

    ``temperature`` 0 is greedy: the arg-max, no random numbers. ``seed`` None draws a new one per turn.
    ``max_tokens`` None means: until the model ends its answer or the context is full.
    ``repeat_penalty`` looks at the last 64 tokens; 1 turns it off.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what llama.cpp would take silently: NaN, infinities, seeds that wrap around."""
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None:
                check_range(name, value, low, high)
        for name, value in (("top_k", self.top_k), ("seed", self.seed), ("max_tokens", self.max_tokens)):
            if value is not None and not isinstance(value, int):
                raise UsageError(f"{name} is {value!r}", "give a whole number")
        if any(not stop for stop in self.stop):
            raise UsageError("a stop string is empty", "give --stop at least one character")

    @property
    def greedy(self) -> bool:
        """True where the most likely token is always taken."""
        return self.temperature < _COLD or self.top_k == 1


def check_range(name: str, value: float, low: float, high: float, unit: str = "") -> None:
    """Raise UsageError for a value that is out of range, or no number."""
    if not low <= value <= high:  # which NaN is not either
        hint = f"choose a value from {low:,} to {high:,} {unit}".rstrip()
        raise UsageError(f"{name} is {value}, which is out of range", hint)


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer has to be, as a grammar that the engine can follow; ``constraints`` makes them."""

    grammar: str


@dataclass(frozen=True, slots=True)
class TurnStats:
    """What one turn cost. Counts are tokens, times are seconds; None is "could not be measured".

    ``prompt_tokens`` counts the whole prompt, ``cached_tokens`` the part that needed no reading, ``read_tokens``
    what prefill did read: all the rest, unless it was stopped. ``context_tokens`` are in the KV cache at the end.
    ``ttft_s`` runs from the request, tokenising included and loading not, to the first text or reasoning.
    ``decode_s`` runs from the first token to the last, so it spans ``output_tokens - 1`` tokens.
    ``inter_token_s`` holds what each token but the first took: the time of a step that gave several, as with drafts, is
    divided among them equally. So its sum is ``decode_s`` and its mean TPOT, 1 / ``decode_tok_s``.
    ``seed`` is the one that was used or drawn.
    ``steps`` counts passes over the weights while decoding, ``step_tokens`` what they gave (with the one that ended the
    answer), ``drafted`` and ``accepted`` the guesses that they checked;
    ``speedup`` estimates the gain over plain decoding from what steps of each width were seen to cost; ``drafting``
    says in words what guesses.
    """

    prompt_tokens: int
    cached_tokens: int
    read_tokens: int
    prefill_s: float
    ttft_s: float | None
    output_tokens: int
    decode_s: float
    context_tokens: int
    seed: int
    inter_token_s: tuple[float, ...] = ()
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    speedup: float | None = None
    drafting: str = "off"
    step_tokens: int = 0

    @property
    def prefill_tok_s(self) -> float | None:
        """Prompt tokens read per second of prefill."""
        return self.read_tokens / self.prefill_s if self.read_tokens > 0 and self.prefill_s > 0 else None

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens per second while decoding (the inverse of TPOT)."""
        return (self.output_tokens - 1) / self.decode_s if self.output_tokens > 1 and self.decode_s > 0 else None

    @property
    def acceptance_rate(self) -> float | None:
        """The share of the guesses that were right."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that one pass over the weights gave while decoding."""
        return self.step_tokens / self.steps if self.steps and self.step_tokens else None

    @property
    def passes_s(self) -> float | None:
        """Passes over the weights per second while decoding: tokens per second, over the tokens that a pass gave.

        Held against a ceiling, which bounds passes, this is the share of it that an answer reached: guesses that were
        right make an answer faster, and change nothing about how well memory is used.
        """
        return self.decode_tok_s / (self.tokens_per_step or 1) if self.decode_tok_s else None

    @property
    def decode_depth(self) -> int:
        """Tokens that a pass in the middle of the answer had before it."""
        return max(0, self.context_tokens - self.output_tokens // 2)

    def inter_token_percentile(self, percent: float) -> float | None:
        """The given percentile of the inter-token latency in seconds, by the nearest-rank method."""
        return percentile(self.inter_token_s, percent)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The given percentile by the nearest-rank method; None where there are no values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Progress:
    """Prefill has computed ``done`` of ``total`` prompt tokens; ``cached`` of them were there before.

    The next event comes when it has computed ``until``; ``tok_s`` is the rate to expect (tokens per second), if known.
    """

    done: int
    total: int
    cached: int
    until: int = 0
    tok_s: float | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """What there was of an answer that goes on now, before anything else: it was given out by the turn that began it.

    What that turn held back when it was cut (half a character, what may be a tag) is not in it: it comes again.
    """

    text: str
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The last event of every turn: why it ended, the finished message, and what it cost.

    ``ids`` are all ids of the answer, reasoning included and the end token not: what it takes to go on with it.
    """

    reason: FinishReason
    message: Message
    stats: TurnStats
    ids: tuple[int, ...] = ()


Event = Begun | Progress | Reasoning | Text | TurnEnd
