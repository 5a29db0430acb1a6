"""Grammars that an answer has to follow: which tokens may come next, and when it may or must end.

The matching is llguidance's, and this is the only module that imports it. Knows vocabularies and grammars in
llguidance's own notation; does not know what a grammar is for, and nothing of logits.
"""

from collections.abc import Iterator, Mapping, Sequence

from localllm.engine.decoder import Vocabulary
from localllm.engine.text import VISIBLE_CONTROLS, AnswerStart
from localllm.errors import DecodeError
from localllm.values import ReasoningStart

# Forcing would have bytes that can only come in one way tokenised, which is not exact for every vocabulary.
_OPTIONS = '%llguidance {"no_forcing": true}\n'


def grammar(start: str) -> str:
    """A grammar from the right side of its first rule, in llguidance's dialect of Lark."""
    from llguidance import LLMatcher

    text: str = LLMatcher.grammar_from_lark(f"{_OPTIONS}start: {start}")
    return text


def problem(text: str) -> str | None:
    """Why a grammar cannot be followed, in llguidance's words; None where it can."""
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte", slices=[]), text, log_level=0)
    if matcher.is_error():
        return str(matcher.get_error())
    matcher.compute_bitmask()
    return "nothing satisfies it" if matcher.is_error() else None


class GrammarTokens:
    """The tokens of a vocabulary as llguidance wants them. Made once for a model, in 0.15 s (262,144 tokens: 1.2 s).

    Control tokens stand for no text and are never allowed, but those that end an answer. ``visible`` are those of
    which reasoning may consist, with their spelling.
    """

    def __init__(self, vocab: Vocabulary, visible: Mapping[int, bytes]) -> None:
        """Raises DecodeError for a vocabulary in which nothing can end an answer."""
        from llguidance import LLTokenizer, TokenizerWrapper

        self.pieces = list(vocab.pieces())
        self.is_end = vocab.is_end
        special = {token.id for token in vocab.control_tokens}
        self.ends = {id for id in (*special, *((vocab.eos.id,) if vocab.eos else ())) if vocab.is_end(id)}
        if not self.ends:
            raise DecodeError("this model has no token that ends an answer", "use another model")
        described = _Tokens(self.pieces, sorted(special | self.ends), min(self.ends))
        self.tokenizer = LLTokenizer(
            TokenizerWrapper(described), eos_token=sorted(self.ends), slices=LLTokenizer.json_slices()
        )
        for id, spelled in visible.items():
            self.pieces[id] = spelled
        self._ids = {piece: id for id, piece in enumerate(self.pieces)}

    def tags(self, before: AnswerStart) -> Iterator[int]:
        """Tokens with which a tag goes on, or begins: as a control token, or as a token of its own."""
        for rest in before.tags():
            for spelled in (rest[:length] for length in range(1, len(rest) + 1)):
                if (before.begun or spelled in VISIBLE_CONTROLS) and (
                    id := self._ids.get(spelled.encode())
                ) is not None:
                    yield id


class _Tokens:
    """What llguidance asks of a tokenizer; without forcing it has nothing tokenised."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special_token_ids: Sequence[int], eos_token_id: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special_token_ids, eos_token_id


class GrammarFilter:
    """A TokenFilter for one turn: reasoning first, where the model reasons, and then what the grammar says."""

    def __init__(self, tokens: GrammarTokens, text: str, start: ReasoningStart) -> None:
        from llguidance import LLMatcher

        self._tokens = tokens
        self._before: AnswerStart | None = AnswerStart(start)
        self._matcher = LLMatcher(tokens.tokenizer, text, log_level=0)

    def allowed(self) -> bytes | None:
        """See the protocol. Raises DecodeError where the grammar has become too complex to follow."""
        before = self._before
        if before is None:
            return self._mask()
        if before.reasoning:
            return None
        mask = bytearray(self._tokens.tokenizer.vocab_size if before.begun else self._mask())
        for id in self._tokens.tags(before):
            mask[id] = 1
        return bytes(mask)

    def take(self, token: int) -> bool:
        """See the protocol. An answer must not end within its reasoning, nor begin in the token that ends it."""
        tokens, before = self._tokens, self._before
        if tokens.is_end(token) and (token not in tokens.ends or (before and (before.reasoning or before.begun))):
            return False
        if before:
            if before.reasoning or before.begun or not self._matcher.validate_tokens([token]):
                return before.take(tokens.pieces[token])
            self._before = None
        return bool(self._matcher.consume_token(token))

    def _mask(self) -> bytes:
        mask: bytes = self._matcher.compute_logit_bias()
        if self._matcher.is_error():
            reason = str(self._matcher.get_error()).split("\n", 1)[0]
            raise DecodeError(f"what the answer has to be is too complex to follow: {reason}", "use a simpler schema")
        return mask
