"""What the engine knows of a model runtime: these protocols and nothing else.

``llama.py`` implements them on llama.cpp; tests implement them in a few lines. Knows no text and no chat.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from localllm.values import Sampling


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that steers the model and must never come out of a user's text, such as ``<|im_end|>``.

    ``lstrip`` and ``rstrip``: white space before or after the spelling belongs to the token.
    """

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


class Vocabulary(Protocol):
    """The tokens of a model."""

    @property
    def kind(self) -> int:
        """The kind of tokenizer, as the runtime numbers them."""
        ...

    @property
    def n_tokens(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def control_tokens(self) -> Sequence[ControlToken]:
        """All of them; they are few beside the vocabulary."""
        ...

    @property
    def bos(self) -> ControlToken | None:
        """The token that begins a text, where the model has one."""
        ...

    @property
    def eos(self) -> ControlToken | None:
        """The token that ends a text, where the model has one."""
        ...

    @property
    def add_bos(self) -> bool:
        """True where the model wants ``bos`` at the beginning of every prompt."""
        ...

    def tokenize(self, text: str) -> list[int]:
        """Token ids of plain text: no BOS is added and no control token is ever made."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens."""
        ...

    def pieces(self) -> Sequence[bytes]:
        """``piece`` of every token; faster than one by one."""
        ...

    def texts(self) -> Sequence[bytes]:
        """The spelling of every token, as the model's file has it."""
        ...

    def is_end(self, token: int) -> bool:
        """True where this token ends the model's turn."""
        ...


class TokenFilter(Protocol):
    """Says which tokens may come next in one turn."""

    def allowed(self) -> bytes | None:
        """A byte for each token, 0 where it must not come next; None where any may."""
        ...

    def take(self, token: int) -> bool:
        """``token`` was chosen. False where it cannot come after all, and another has to be chosen."""
        ...


class Sampler(Protocol):
    """Chooses one token after another for one turn; it remembers what it chose."""

    def sample(self, index: int = -1) -> int:
        """The next token, from the logits of the last token that was fed, or of number ``index`` of the last slice.

        Logits of others than the last are there after ``feed`` with ``every``.
        """
        ...

    def close(self) -> None:
        """Free what it holds. It cannot be used afterwards."""
        ...


class Decoder(Protocol):
    """One model with its KV cache: a sequence of tokens that grows by ``feed`` and shrinks by ``rewind``."""

    @property
    def vocab(self) -> Vocabulary:
        """The model's vocabulary."""
        ...

    @property
    def n_ctx(self) -> int:
        """The most tokens the KV cache can hold."""
        ...

    @property
    def slice_tokens(self) -> int:
        """The most tokens that one ``feed`` may take."""
        ...

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens whose keys and values are held, in order. Read only."""
        ...

    @property
    def can_undo(self) -> bool:
        """True where the last tokens can be taken back exactly, as checking a draft needs it."""
        ...

    @property
    def whole_only(self) -> bool:
        """True where only the state of all tokens can be saved, not that of some (recurrent memory)."""
        ...

    @property
    def forgets(self) -> bool:
        """True where what was computed long ago can no longer be saved (sliding windows)."""
        ...

    @property
    def block_tokens(self) -> int:
        """The most tokens whose state can be saved in one piece."""
        ...

    def save(self, start: int, stop: int) -> bytearray | None:
        """The keys and values of the tokens [start, stop); None where they are no longer there as a whole."""
        ...

    def restore(self, ids: Sequence[int], state: bytearray | memoryview) -> bool:
        """Put back behind ``tokens`` what ``save`` gave for ``ids`` at this place; False where that fails.

        No logits come of it: at least one token has to be fed before sampling. A state is trusted: it must be
        byte for byte what was saved with this model, loaded in the same way.
        """
        ...

    def feed(self, ids: Sequence[int], cancelled: Callable[[], bool], every: bool = False) -> bool:
        """Compute ``ids`` (at least one) after ``tokens``; the logits of the last one can then be sampled.

        With ``every``, those of each of them.

        Returns False if ``cancelled`` turned true: ``tokens`` is then a prefix of what was asked for, usually
        what it was before. Raises DecodeError where the runtime fails.
        """
        ...

    def likeliest(self) -> tuple[int, float]:
        """The most probable next token and its probability, from the logits of the last token that was fed."""
        ...

    def use_threads(self, count: int) -> None:
        """Compute on so many threads from now on."""
        ...

    def rewind(self, length: int) -> int:
        """Forget all but the first ``length`` tokens; returns how many are left.

        Fewer than ``length`` where the kind of memory (sliding window, recurrent) cannot go back exactly.
        """
        ...

    def sampler(self, sampling: Sampling, seed: int, only: TokenFilter | None = None) -> Sampler:
        """A new sampler for one turn. Repetition penalties look at ``tokens`` too; ``only`` says what it may choose."""
        ...

    def close(self) -> None:
        """Free the model. The decoder cannot be used afterwards."""
        ...
