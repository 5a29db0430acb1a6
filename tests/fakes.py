"""A byte-level model for tests of the engine: 256 tokens for bytes, a few control tokens, and a rule that decides.

It keeps the promises of the Decoder protocol and checks that the engine keeps its side.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localllm.engine.decoder import ControlToken, TokenFilter
from localllm.engine.engine import Engine
from localllm.engine.pace import Pace
from localllm.engine.stepper import Stepper
from localllm.engine.template import ChatTemplate
from localllm.values import ModelInfo, Sampling

BOS, START, END, THINK, UNTHINK = 256, 257, 258, 259, 260
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Rule = Callable[[Sequence[int]], int]


class FakeVocabulary:
    """One token a byte, plus control tokens."""

    kind = 2
    n_tokens = 261

    def __init__(self, add_bos: bool = False) -> None:
        self.add_bos = add_bos
        self.bos = ControlToken(BOS, "<s>")
        self.eos = ControlToken(END, "<|im_end|>")
        self.control_tokens = [
            self.bos,
            ControlToken(START, "<|im_start|>"),
            self.eos,
            ControlToken(THINK, "<think>"),
            ControlToken(UNTHINK, "</think>"),
        ]

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def pieces(self) -> list[bytes]:
        return [self.piece(id) for id in range(self.n_tokens)]

    def texts(self) -> list[bytes]:
        return [b"%d" % id for id in range(self.n_tokens)]

    def is_end(self, token: int) -> bool:
        return token == END


@dataclass
class FakeDecoder:
    """``rule`` says which token follows the tokens so far; above temperature 0 a seeded draw may change it.

    ``fed`` records every slice; ``rewinds`` False makes it behave like a recurrent model.
    """

    rule: Rule
    n_ctx: int = 4096
    slice_tokens: int = 32
    rewinds: bool = True
    vocab: FakeVocabulary = field(default_factory=FakeVocabulary)
    tokens: list[int] = field(default_factory=list)
    fed: list[list[int]] = field(default_factory=list)
    before_feed: Callable[[], None] = lambda: None
    open_samplers: int = 0
    threads: int = 0
    window: int | None = None  # tokens whose state can still be saved
    outputs: int = 1  # positions, counted from the end, whose logits are there

    @property
    def can_undo(self) -> bool:
        return self.rewinds

    @property
    def whole_only(self) -> bool:
        return not self.rewinds

    @property
    def forgets(self) -> bool:
        return self.window is not None

    @property
    def block_tokens(self) -> int:
        return min(self.window or 16, 16)

    def save(self, start: int, stop: int) -> bytearray | None:
        assert 0 <= start < stop
        if self.whole_only and (start, stop) != (0, len(self.tokens)):
            return None
        if stop > len(self.tokens) or (self.window and start < len(self.tokens) - self.window):
            return None
        return bytearray(repr(self.tokens[:stop]).encode())  # keys and values depend on all that came before

    def restore(self, ids: Sequence[int], state: bytearray | memoryview) -> bool:
        assert bytes(state) == repr([*self.tokens, *ids]).encode() and not (self.whole_only and self.tokens)
        self.tokens.extend(ids)
        return True

    def feed(self, ids: Sequence[int], cancelled: Callable[[], bool], every: bool = False) -> bool:
        assert 0 < len(ids) <= self.slice_tokens and len(self.tokens) + len(ids) <= self.n_ctx
        self.before_feed()
        if cancelled():
            return False
        self.fed.append(list(ids))
        self.tokens.extend(ids)
        self.outputs = len(ids) if every else 1
        return True

    def likeliest(self) -> tuple[int, float]:
        return self.rule(self.tokens), 0.9

    def use_threads(self, count: int) -> None:
        self.threads = count

    def rewind(self, length: int) -> int:
        if length < len(self.tokens):
            del self.tokens[length if self.rewinds else 0 :]
        return len(self.tokens)

    def sampler(self, sampling: Sampling, seed: int, only: TokenFilter | None = None) -> "FakeSampler":
        self.open_samplers += 1
        return FakeSampler(self, sampling, random.Random(seed), only)

    def close(self) -> None:
        self.tokens.clear()


@dataclass
class FakeSampler:
    decoder: FakeDecoder
    sampling: Sampling
    draw: random.Random
    only: TokenFilter | None = None

    def sample(self, index: int = -1) -> int:
        """What the rule says, if that is allowed; else one of those that are."""
        token, only = self._sample(index), self.only
        if not only:
            return token
        allowed = only.allowed()
        if allowed is not None and not allowed[token]:
            token = self.draw.choice([id for id in (*range(256), END) if allowed[id]])
        while not only.take(token):
            token = self.draw.randrange(256)
        return token

    def _sample(self, index: int) -> int:
        assert -1 <= index < self.decoder.outputs
        tokens = self.decoder.tokens
        token = self.decoder.rule(tokens if index < 0 else tokens[: len(tokens) - self.decoder.outputs + index + 1])
        if self.sampling.temperature > 0 and token < 256 and self.draw.random() < 0.3:
            return self.draw.randint(97, 122)
        return token

    def close(self) -> None:
        self.decoder.open_samplers -= 1


def says(answer: bytes | Sequence[int], prompt_end: bytes = b"assistant\n") -> Rule:
    """A rule: after each prompt (it ends in ``prompt_end``) say ``answer``, then end the turn."""
    script = [*answer, END]

    def rule(tokens: Sequence[int]) -> int:
        end = list(prompt_end)
        for at in range(len(tokens), len(end) - 1, -1):
            if list(tokens[at - len(end) : at]) == end:
                return script[len(tokens) - at] if len(tokens) - at < len(script) else END
        raise AssertionError("no prompt was fed")

    return rule


def fake_engine(
    decoder: FakeDecoder, template: str = CHATML, stepper: Stepper | None = None, pace: Pace | None = None
) -> Engine:
    info = ModelInfo("fake", decoder.n_ctx, "default", "f16", True, 1, 0, 1, True, "fake")
    chat_template = ChatTemplate.of_model(template, "<s>", "<|im_end|>")
    return Engine(decoder, chat_template, info, Sampling(temperature=0), stepper, pace=pace)
