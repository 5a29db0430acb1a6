"""Token bytes -> events of text: UTF-8 over token borders, reasoning blocks, stop strings over token borders.

Three incremental decoders, each with ``decode`` and ``flush``, and ``AnswerDecoder`` that chains them. However
the bytes are cut, the text that comes out is the same. Knows no tokens and no model.
"""

import codecs
import copy
from collections.abc import Iterator, Sequence
from typing import Literal

from localllm.values import Reasoning, ReasoningStart, Text

# How models write their reasoning: (opening, closing). Only at the beginning of an answer is an opening one meant.
REASONING_TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
)
# Alone in a template, these tell that its model reasons ("<|end|>" ends other things as well).
_TELLING = tuple(closing for _, closing in REASONING_TAGS if closing != "<|end|>")
# Written around the answer itself by models that speak in channels; never shown.
FRAMING = ("<|start|>assistant", "<|channel|>final<|message|>")
_OPENING = tuple(opening for opening, _ in REASONING_TAGS)
_CLOSING = tuple(closing for _, closing in REASONING_TAGS)
# Control tokens whose spelling the splitter must see; every other control token stands for no text.
VISIBLE_CONTROLS = frozenset((*_OPENING, *_CLOSING, "<|channel>", "<|start|>", "<|channel|>", "<|message|>"))


def reasoning_at_end(rendered: str, template_source: str) -> ReasoningStart:
    """How an answer that follows the ``rendered`` prompt begins; ``template_source`` shows what it knows."""
    tail = rendered[-200:].rstrip()
    if tail.endswith(_OPENING):
        return "open"
    if tail.endswith(_TELLING) or not any(closing in template_source for closing in _TELLING):
        return "none"
    return "possible"


class StopStrings:
    """Passes text on until one of ``stops`` is complete; that one and all after it are dropped.

    Text that may be the beginning of a stop string is held back until it is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def decode(self, text: str) -> str:
        """The text that is certain not to belong to a stop string."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        self._held += text
        found = _first_complete(self._held, self._stops)
        if found:
            self.stopped = True
            return self._release(found[1])
        return self._release(len(self._held) - _overlap(self._held, self._stops))

    def flush(self) -> str:
        """What was held back, now that no more text comes."""
        return "" if self.stopped else self._release(len(self._held))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text


class ReasoningSplitter:
    """Tells reasoning from answer.

    An answer begins in one of two places: at an opening tag, or at once. Where the prompt has opened the block
    (``start`` "open") it begins inside. ``hold``: where ``start`` is "possible", keep everything back until a
    closing tag, one of ``stops`` or the end tells which it was, for readers to whom reasoning must not be shown
    even when the model forgot to open the block.
    """

    def __init__(self, start: ReasoningStart = "none", hold: bool = False, stops: Sequence[str] = ()) -> None:
        self._state: Literal["begin", "reasoning", "held", "answer"] = "reasoning" if start == "open" else "begin"
        self._hold = hold and start == "possible"
        self._closing = _TELLING
        self._stops = tuple(stops)
        self._skip_space = start == "open"
        self._held = ""
        self._searched = 0  # so far there is no closing tag in what is held
        self.found = start == "open"  # True once there was a tag: what precedes the answer is not the answer

    @property
    def reasoning(self) -> bool:
        """True within reasoning."""
        return self._state == "reasoning"

    @property
    def held(self) -> str:
        """What is kept back because it may be the beginning of a tag."""
        return self._held

    def decode(self, text: str) -> Iterator[Reasoning | Text]:
        """The pieces that are decided, in order."""
        self._held += text
        before = None
        while self._held and before != (self._state, len(self._held)):
            before = (self._state, len(self._held))
            yield from self._step()

    def flush(self) -> Iterator[Reasoning | Text]:
        """What was held back, as what it must be now that no more text comes."""
        held, self._held = self._held, ""
        if held and self._state == "reasoning":
            yield Reasoning(held)
        elif held and not (self._skip_space and not held.strip()):
            yield Text(held)

    def _step(self) -> Iterator[Reasoning | Text]:
        if self._skip_space:
            self._held = self._held.lstrip()
            self._skip_space = not self._held
        match self._state:
            case "begin":
                self._begin()
            case "answer":
                yield Text(self._take(len(self._held)))
            case "reasoning" | "held":
                yield from self._until_closed()

    def _begin(self) -> None:
        start = self._held.lstrip()
        tags = (*_OPENING, *FRAMING)
        tag = next((tag for tag in tags if start.startswith(tag)), None)
        if tag is not None:
            self._held = start[len(tag) :]
            self._skip_space = self.found = True
            if tag in _OPENING:
                self._state, self._closing = "reasoning", (dict(REASONING_TAGS)[tag],)
        elif not any(tag.startswith(start) for tag in tags):  # else it is not decided yet
            self._state = "held" if self._hold and not self.found else "answer"

    def _until_closed(self) -> Iterator[Reasoning | Text]:
        closed = _first_complete(self._held, self._closing, self._searched)
        stopped = _first_complete(self._held, self._stops, self._searched) if self._state == "held" else None
        self._searched = 0
        if stopped and (closed is None or stopped < closed):
            self._state = "answer"
        elif closed:
            stop, start = closed
            if start:
                yield Reasoning(self._take(start))
            self._take(stop - start)
            self._state = "begin"
            self._skip_space = self.found = True
        elif self._state == "reasoning":
            certain = len(self._held) - _overlap(self._held, self._closing)
            if certain:
                yield Reasoning(self._take(certain))
        else:
            self._searched = len(self._held)

    def _take(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text


class AnswerStart:
    """Follows what comes before an answer: reasoning and framing. Bytes in, one token after another."""

    def __init__(self, start: ReasoningStart) -> None:
        self._splitter = ReasoningSplitter(start)

    @property
    def reasoning(self) -> bool:
        """True within reasoning, where anything may come."""
        return self._splitter.reasoning

    @property
    def begun(self) -> bool:
        """True where a tag has begun and must go on."""
        return bool(self._splitter.held)

    def tags(self) -> Iterator[str]:
        """What could come now as a tag, or as the rest of the one that has begun."""
        held = self._splitter.held
        return (tag[len(held) :] for tag in (*_OPENING, *FRAMING) if tag.startswith(held))

    def take(self, piece: bytes) -> bool:
        """Whether the answer has still not begun with this; it is forgotten where it has."""
        after = copy.copy(self._splitter)
        if any(isinstance(event, Text) for event in after.decode(piece.decode("latin-1"))):  # tags are ASCII
            return False
        self._splitter = after
        return True


class AnswerDecoder:
    """The bytes of an answer's tokens -> Text and Reasoning events.

    Stop strings are looked for in the answer, not in the reasoning. ``stopped`` turns true when one was found.
    """

    def __init__(self, stops: Sequence[str] = (), start: ReasoningStart = "none", hold: bool = False) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._splitter = ReasoningSplitter(start, hold, stops)
        self._start = start
        self._stops = StopStrings(stops)
        self._text: list[str] = []
        self._reasoning: list[str] = []

    @property
    def stopped(self) -> bool:
        """True once a stop string was found."""
        return self._stops.stopped

    def result(self) -> tuple[str, str]:
        """All the reasoning and all the answer, once flushed.

        Where the model closed a block that nobody had opened, what precedes the closing tag counts as reasoning
        here, although it was streamed as text.
        """
        reasoning, text = "".join(self._reasoning), "".join(self._text)
        if self._start == "possible" and not self._splitter.found:
            for closing in _TELLING:
                before, tag, after = text.partition(closing)
                if tag:
                    return before, after.lstrip()
        return reasoning, text

    def decode(self, data: bytes) -> Iterator[Reasoning | Text]:
        """Events for the next bytes."""
        text = self._utf8.decode(data)
        if text:
            yield from self._stopping(self._splitter.decode(text))

    def flush(self) -> Iterator[Reasoning | Text]:
        """Events for what was held back; the answer ends here."""
        rest = self._utf8.decode(b"", final=True)
        yield from self._stopping(self._splitter.decode(rest))
        yield from self._stopping(self._splitter.flush())
        yield from self._emit(Text(self._stops.flush()))

    def _stopping(self, pieces: Iterator[Reasoning | Text]) -> Iterator[Reasoning | Text]:
        for piece in pieces:
            yield from self._emit(Text(self._stops.decode(piece.text)) if isinstance(piece, Text) else piece)

    def _emit(self, piece: Reasoning | Text) -> Iterator[Reasoning | Text]:
        if piece.text:
            (self._text if isinstance(piece, Text) else self._reasoning).append(piece.text)
            yield piece


def _first_complete(text: str, targets: Sequence[str], searched: int = 0) -> tuple[int, int] | None:
    """(end, start) of the target that is complete first in ``text``, which does not depend on how it was cut.

    No target ends within the first ``searched`` characters: that was looked at before.
    """
    begin = max(0, searched - max(map(len, targets), default=0))
    return min(((at + len(t), at) for t in targets if (at := text.find(t, begin)) >= 0), default=None)


def _overlap(text: str, targets: Sequence[str]) -> int:
    """Length of the longest end of ``text`` with which one of ``targets`` begins."""
    longest = min(len(text), max(map(len, targets)) - 1)
    for length in range(longest, 0, -1):
        if text.endswith(tuple(target[:length] for target in targets if len(target) > length)):
            return length
    return 0
