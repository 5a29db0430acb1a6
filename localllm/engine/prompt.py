"""Conversation -> token ids, by the model's own chat template.

Two promises. For ordinary text the ids are those of llama.cpp's tokenizer on the whole rendered prompt. And
text that was typed, piped or read from a file never becomes a control token, whatever it spells: each spelling
of a control token in it is broken by a mark before rendering, the rendered prompt is split at the control tokens
that are left (the template's own), and only then are the marks taken out and the pieces tokenised as plain text.
An assistant's message that still has its generated ids is put in as those ids.

Knows the vocabulary and Jinja; knows no context size and does no decoding. A template comes out of a model file
and is untrusted: it runs in Jinja's immutable sandbox, bounded in time and in size.
"""

import bisect
import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from localllm.cancel import Cancel
from localllm.engine.decoder import ControlToken, Vocabulary
from localllm.engine.template import ChatTemplate
from localllm.engine.text import reasoning_at_end
from localllm.engine.worker import run_in_worker
from localllm.errors import TemplateError, UsageError
from localllm.values import Message, Prompt

_RENDER_LIMIT_S = 10.0
_LONG_CHARS, _KEPT_TEXTS = 2000, 4000  # short texts come again in each turn of a conversation
_SPACE = " \t\n\v\f\r"  # what C's isspace takes, which llama.cpp strips beside some control tokens


class PromptEncoder:
    """Turns conversations into prompts for one model."""

    def __init__(self, vocab: Vocabulary, template: ChatTemplate) -> None:
        self._vocab = vocab
        self._template = template
        self._controls = ControlTexts(vocab.control_tokens)
        self._short = functools.lru_cache(_KEPT_TEXTS)(lambda text: tuple(vocab.tokenize(text)))

    def encode(self, messages: Sequence[Message], cancel: Cancel) -> Prompt:
        """Render and tokenise; the result ends where the assistant's answer begins.

        Raises TemplateError where the template fails, Cancelled where ``cancel`` was set.
        """
        begin_s = time.perf_counter()
        marks = _Marks.not_in(messages)
        kept = {marks.slot(index): m.token_ids for index, m in enumerate(messages) if m.token_ids}
        rendered = self._render(messages, marks, cancel)
        pieces = marks.split(rendered)
        if any(marks.edge in piece for piece in pieces if piece not in kept):  # a slot was cut or changed
            return self.encode([dataclasses.replace(message, token_ids=()) for message in messages], cancel)
        ids = run_in_worker(lambda: self._with_bos(list(self._tokenize(pieces, kept, marks.guard))), cancel)
        reasoning = reasoning_at_end(rendered, self._template.source)
        return Prompt(ids, reasoning, self._template.stop, time.perf_counter() - begin_s)

    def encode_raw(self, text: str, cancel: Cancel) -> Prompt:
        """Tokenise ``text`` as it is, without a template (for base models)."""
        begin_s = time.perf_counter()
        ids = self._with_bos(self.tokenize(text, cancel))
        return Prompt(ids, encode_s=time.perf_counter() - begin_s)

    def tokenize(self, text: str, cancel: Cancel) -> list[int]:
        """The ids of a piece of plain text alone."""
        return run_in_worker(lambda: self._vocab.tokenize(text), cancel)

    def _render(self, messages: Sequence[Message], marks: "_Marks", cancel: Cancel) -> str:
        """The conversation as one text, in which what spells a control token was written by the template.

        Should the control tokens depend on what the messages say, the template may have made one out of harmless
        text. Then it gets the text again with a guard behind every character, so that no two can join.
        """

        def rendered(guarded: Callable[[str], str]) -> str:
            def guard_all() -> tuple[list[str], list[str]]:
                contents = [marks.slot(i) if m.token_ids else guarded(m.text) for i, m in enumerate(messages)]
                return contents, [guarded(m.reasoning) for m in messages]

            contents, reasonings = run_in_worker(guard_all, cancel)
            job = partial(self._template.render, [m.role for m in messages], contents, reasonings)
            return run_in_worker(job, cancel, _RENDER_LIMIT_S)

        try:
            text = rendered(lambda text: self._controls.broken(text, marks.guard))
            neutral = rendered(lambda text: text and "x")
            if self._controls.found(text) != self._controls.found(neutral):
                text = rendered(lambda text: marks.guard.join(text))
        except TimeoutError as error:
            raise TemplateError(f"the model's chat template {error}", "use another file of this model") from error
        return text

    def _tokenize(self, pieces: Sequence[str], kept: dict[str, tuple[int, ...]], guard: str) -> Iterator[int]:
        for piece in pieces:
            if piece in kept:
                yield from kept[piece]
                continue
            for part in self._controls.split(piece):
                if isinstance(part, ControlToken):
                    yield part.id
                elif len(part) > _LONG_CHARS:
                    yield from self._vocab.tokenize(part.replace(guard, ""))
                else:
                    yield from self._short(part.replace(guard, ""))

    def _with_bos(self, ids: list[int]) -> tuple[int, ...]:
        """Begin with BOS exactly once where the model wants it; a template may have written it already."""
        bos = self._vocab.bos
        if bos is not None and self._vocab.add_bos:
            while ids[:1] == [bos.id]:
                ids = ids[1:]
            ids = [bos.id, *ids]
        return tuple(ids)


@dataclass(frozen=True, slots=True)
class _Marks:
    """Two characters that no message holds: a ``guard`` that breaks spellings, an ``edge`` around slots.

    A slot stands for an answer whose generated ids are kept.
    """

    guard: str
    edge: str

    @classmethod
    def not_in(cls, messages: Sequence[Message]) -> "_Marks":
        """Noncharacters (Unicode 23.7: for internal use) where they are free, else what follows them."""
        used = set().union(*(message.text + message.reasoning for message in messages))
        unused = (chr(code) for code in range(0xFDD0, 0x110000) if chr(code) not in used)
        try:
            return cls(next(unused), next(unused))
        except StopIteration:
            raise UsageError("the text holds every character there is", "leave some out") from None

    def slot(self, index: int) -> str:
        """What stands for the answer in message ``index``."""
        return f"{self.edge}{index}{self.edge}"

    def split(self, rendered: str) -> list[str]:
        """Slots and the text between them."""
        return re.split(f"({self.edge}[0-9]+{self.edge})", rendered)


_Match = tuple[int, int, ControlToken]  # start, stop, token


class ControlTexts:
    """Finds the spellings of control tokens in text. Pure; one per vocabulary."""

    def __init__(self, tokens: Sequence[ControlToken]) -> None:
        # A spelling of one character could not be broken, so it is never a control token in a prompt.
        self._by_text = {token.text: token for token in tokens if len(token.text) > 1}
        self._lengths = sorted({len(text) for text in self._by_text}, reverse=True)
        self._first = re.compile("|".join({re.escape(text[0]) for text in self._by_text}))
        self._forward = sorted(self._by_text)
        self._backward = sorted(text[::-1] for text in self._by_text)

    def broken(self, text: str, guard: str) -> str:
        """``text`` with ``guard`` inside every spelling, also those that could form with what surrounds it.

        Taking the guards out gives ``text`` again. Text without such spellings comes back as it is.
        """
        while cuts := [start + 1 for start, _, _ in self._matches(text)]:  # again: another may have overlapped
            bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
            text = guard.join(text[start:stop] for start, stop in bounds)
        return self._guard_ends(text, guard)

    def found(self, text: str) -> list[int]:
        """The ids of the control tokens that ``text`` spells, in order."""
        return [token.id for _, _, token in self._matches(text)]

    def split(self, text: str) -> Iterator[ControlToken | str]:
        """Control tokens and the plain text between them, in order; empty text is left out."""
        position, strip_next = 0, False
        for start, stop, token in self._matches(text):
            before = text[position:start]
            before = before.lstrip(_SPACE) if strip_next else before
            before = before.rstrip(_SPACE) if token.lstrip else before
            if before:
                yield before
            yield token
            position, strip_next = stop, token.rstrip
        rest = text[position:].lstrip(_SPACE) if strip_next else text[position:]
        if rest:
            yield rest

    def _matches(self, text: str) -> Iterator[_Match]:
        """Leftmost, then longest. Only where a first character occurs is there anything to look up."""
        if not self._by_text:
            return
        position = 0
        while first := self._first.search(text, position):
            position = first.start()
            for length in self._lengths:
                token = self._by_text.get(text[position : position + length])
                if token is not None:
                    yield position, position + length, token
                    position += length
                    break
            else:
                position += 1

    def _guard_ends(self, text: str, guard: str) -> str:
        """Guard a beginning or an end that could complete a spelling together with its surroundings.

        White space stays outside, so that a template which trims still trims.
        """
        core = text.strip()
        if not core or not self._by_text:
            return text
        start = len(text) - len(text.lstrip())
        stop = start + len(core)
        if _could_begin(self._forward, core, self._lengths[0]):
            text = text[:stop] + guard + text[stop:]
        if _could_begin(self._backward, core[::-1], self._lengths[0]):
            text = text[:start] + guard + text[start:]
        return text


def _could_begin(ordered: list[str], text: str, longest: int) -> bool:
    """True where some tail of ``text`` is the beginning of an entry of ``ordered`` (sorted)."""
    for length in range(1, min(longest, len(text)) + 1):
        tail = text[-length:]
        at = bisect.bisect_left(ordered, tail)
        if at < len(ordered) and ordered[at].startswith(tail):
            return True
    return False
