"""The tokens of a model that llama.cpp has loaded. See the Vocabulary protocol."""

import array
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from localllm.engine.bindings import lib
from localllm.engine.decoder import ControlToken
from localllm.errors import DecodeError

_STRETCH_CHARS = 500_000  # on a stack of 512 MiB, 1.5 million equal characters pass and 2 million do not


class LlamaVocabulary:
    """See the Vocabulary protocol."""

    def __init__(self, model: Any) -> None:
        self._vocab = lib.llama_model_get_vocab(model)
        self.kind: int = lib.llama_vocab_type(self._vocab)
        self.n_tokens: int = lib.llama_vocab_n_tokens(self._vocab)
        self.add_bos: bool = lib.llama_vocab_get_add_bos(self._vocab)
        self.bos = self._known(lib.llama_vocab_bos(self._vocab))
        self.eos = self._known(lib.llama_vocab_eos(self._vocab))
        self.piece = functools.cache(self._piece)

    @functools.cached_property
    def suppressed(self) -> list[int]:
        """Tokens that the model's publisher never wants to be generated."""
        count = ctypes.c_int32()
        ids = lib.llama_vocab_get_suppress_tokens(self._vocab, ctypes.byref(count))
        return list(ids[: count.value])

    @functools.cached_property
    def control_tokens(self) -> list[ControlToken]:
        """All tokens with the attribute CONTROL or UNKNOWN.

        The API only tells them one by one, which takes twice as long as this. A stretch of tokens without any has
        the same text with and without special tokens written out, and one call tells that for thousands at once.
        """
        every = (lib.llama_token * self.n_tokens).from_buffer(array.array("i", range(self.n_tokens)))

        def text_bytes(start: int, stop: int, special: bool) -> int:
            ids = ctypes.cast(ctypes.byref(every, start * ctypes.sizeof(lib.llama_token)), lib.llama_token_p)
            needed: int = lib.llama_detokenize(self._vocab, ids, stop - start, None, 0, False, special)
            return -needed

        found: list[ControlToken] = []
        pending = [(0, self.n_tokens)]
        while pending:
            start, stop = pending.pop()
            if stop - start <= 64:
                found.extend(token for id in range(start, stop) if (token := self._control(id)))
            elif text_bytes(start, stop, True) != text_bytes(start, stop, False):
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
        return found

    def tokenize(self, text: str) -> list[int]:
        """Token ids of plain text: no control token is read out of it.

        Text far beyond any context is cut into stretches, so that the memory and the recursion of llama.cpp's
        pre-tokenizers stay bounded and a stop is noticed.
        """
        if not self._vocab:
            raise DecodeError("the model was closed", "open it again")
        return [id for stretch in _stretches(text) for id in self._tokenize(stretch)]

    def _tokenize(self, text: str) -> list[int]:
        data = text.encode("utf-8", "replace")
        capacity = len(data) + 16
        while True:
            ids = (lib.llama_token * capacity)()
            count = lib.llama_tokenize(self._vocab, data, len(data), ids, capacity, False, False)
            if count >= 0:
                return list(ids[:count])
            capacity = -count

    def pieces(self) -> list[bytes]:
        """See the protocol. 0.06 s for 49,152 tokens, 0.3 s for 262,144."""
        size = 64
        buffer = ctypes.create_string_buffer(size)
        read, vocab = lib.llama_token_to_piece, self._vocab
        counts = (read(vocab, id, buffer, size, 0, False) for id in range(self.n_tokens))
        return [ctypes.string_at(buffer, n) if n >= 0 else self._piece(id) for id, n in enumerate(counts)]

    def texts(self) -> list[bytes]:
        """See the protocol."""
        return [lib.llama_vocab_get_text(self._vocab, id) for id in range(self.n_tokens)]

    def is_end(self, token: int) -> bool:
        """True where this token ends the model's turn."""
        return bool(lib.llama_vocab_is_eog(self._vocab, token))

    def close(self) -> None:
        """Forget the vocabulary, which is freed with its model."""
        self._vocab = None

    def _piece(self, token: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def _known(self, id: int) -> ControlToken | None:
        """The token with this id, where the model has it (and its file does not lie about the vocabulary)."""
        return self._token(id, lib.llama_vocab_get_attr(self._vocab, id)) if 0 <= id < self.n_tokens else None

    def _control(self, id: int) -> ControlToken | None:
        attributes = lib.llama_vocab_get_attr(self._vocab, id)
        wanted = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        return self._token(id, attributes) if attributes & wanted else None

    def _token(self, id: int, attributes: int) -> ControlToken:
        text = lib.llama_vocab_get_text(self._vocab, id).decode("utf-8", "replace")
        strips = (
            bool(attributes & lib.LLAMA_TOKEN_ATTR_LSTRIP),
            bool(attributes & lib.LLAMA_TOKEN_ATTR_RSTRIP),
        )
        return ControlToken(id, text, *strips)


def _stretches(text: str) -> Iterator[str]:
    """``text`` in parts of at most a bounded length, cut behind a line break where there is one not far back."""
    start = 0
    while len(text) - start > _STRETCH_CHARS:
        stop = start + _STRETCH_CHARS
        line_break = text.rfind("\n", stop - 10_000, stop)
        stop = line_break + 1 if line_break >= 0 else stop
        yield text[start:stop]
        start = stop
    yield text[start:]
