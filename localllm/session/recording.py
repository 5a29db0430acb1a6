"""Keeps a conversation on disk while it goes on: finds out what changed since the last time, and stores that.

A conversation must go on whatever becomes of its transcript, so each problem is told once and nothing is raised. Knows
no SQL and no terminal.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from localllm.errors import TranscriptError
from localllm.session.chat import Chat
from localllm.session.transcripts import Conversation, Edit, Row, Transcripts
from localllm.values import Message

_TITLE_CHARS = 48
_TITLE_SOURCE_CHARS = 2000
_FILE = re.compile(r"==> [^\n]+ <==\n")  # what a message with files begins with
_COURTESY = re.compile(
    r"(?:(?:hi|hello|hey|please|thanks|(?:can|could|would|will) you|i (?:want|need|would like) you to)\b[\s,.!:]*)+",
    re.IGNORECASE,
)


class Recorder:
    """The transcript of what is said from now on, in ``folder``: a new conversation, or one that is ``resumed``.

    ``tell`` gets what a user has to know. The file is opened when there is something to store; ``close`` it in the end.
    """

    def __init__(
        self,
        folder: Path,
        tell: Callable[[str], None],
        resumed: Conversation | None = None,
    ) -> None:
        self._folder, self._tell = folder, tell
        self._known = resumed.summary if resumed else None
        self._hold(resumed.rows if resumed else ())
        self._beginnings = 0
        self._removed = False
        self._told: set[str] = set()
        self._transcripts: Transcripts | None = None

    def _hold(self, rows: Sequence[Row]) -> None:
        """Remember what is stored."""
        self._rows: Sequence[Row] = [row for row in rows if row.in_context]
        self._dropped = len(self._rows) < len(rows)
        self._last_position = max((row.position for row in rows), default=-1.0)

    @property
    def id(self) -> str | None:
        """The conversation's id; None where nothing is stored."""
        return self._known.id if self._known else None

    def __call__(self, chat: Chat) -> None:
        """Store what changed in the chat: to be given to it as ``record``."""
        before = self._known
        if chat.beginnings != self._beginnings:
            self._beginnings, self._known, self._removed = chat.beginnings, None, False
            self._hold(())
        asked = chat.remembered
        about = asked[0].text if asked else before.title if before else ""
        self.keep(chat.given, chat.system, chat.engine.info.reference, about, len(chat.given) - len(asked))

    def keep(self, said: Sequence[Message], system: str, model: str, about: str = "", summary: int = 0) -> None:
        """Store what changed; ``model`` is its reference.

        ``about`` is what gives the title, if it is not all of what was said first; the first ``summary`` messages are
        one, so that no question is among them.
        """
        if self._removed or not (said or self._known):
            return
        try:
            self._transcripts = self._transcripts or Transcripts.open(self._folder)
            self._write(self._transcripts, said, system, model, about, summary)
        except TranscriptError as error:
            self._tell_once(f"this conversation is not kept: {error.message}; {error.hint}")

    def close(self) -> None:
        """Close the file."""
        if self._transcripts:
            self._transcripts.close()
            self._transcripts = None

    def _write(
        self,
        transcripts: Transcripts,
        said: Sequence[Message],
        system: str,
        model: str,
        about: str,
        summary: int,
    ) -> None:
        known = self._known
        if known is None:
            return self._begin(transcripts, title_of(about or said[0].text), said, system, model)
        before, edit, behind = changes(self._rows, self._last_position, said)
        wanted = replace(known, model=model, system=system)
        if edit == Edit() and wanted == known:
            return None
        if edit.new and not (before[summary:] or self._dropped):  # the first question, or another one in its place
            wanted = replace(wanted, title=title_of(about or said[0].text))
        new = transcripts.change(wanted, edit)
        if new == "gone":
            self._removed = True
            return self._tell_once("this conversation was removed from the history; it is not kept any more")
        if new == "changed":
            self._known = None
            self._hold(())
            if said:
                self._begin(transcripts, wanted.title, said, system, model)
                self._tell_once(f"this conversation has gone on elsewhere too; from here on it is kept as {self.id}")
            return None
        self._dropped = self._dropped or bool(edit.dropped)
        self._rows = [*before, *new, *behind]
        self._last_position = max([self._last_position, *(row.position for row in new)])
        self._known = replace(wanted, writes=wanted.writes + 1) if self._rows or self._dropped else None
        return None

    def _begin(self, transcripts: Transcripts, title: str, said: Sequence[Message], system: str, model: str) -> None:
        begun = transcripts.begin(title, model, system, said)
        self._known = begun.summary
        self._hold(begun.rows)

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)


def changes(
    rows: Sequence[Row], last_position: float, said: Sequence[Message]
) -> tuple[Sequence[Row], Edit, Sequence[Row]]:
    """What it takes to make ``rows`` into ``said``; and the rows that stay, before and behind what is new.

    The last question and its answer may be taken back, and are gone then. What is changed further up made room in the
    context: it stays, but outside of it, and what came in its stead has its place behind it.
    """
    same = _common(rows, said)
    if same >= len(rows) - 2:
        taken_back = tuple(row.key for row in rows[same:])
        return rows[:same], Edit(taken_back, (), _placed(said[same:], last_position, None)), ()
    tail = min(_common(rows[::-1], said[::-1]), min(len(rows), len(said)) - same)
    before, dropped, behind = rows[:same], rows[same : len(rows) - tail], rows[len(rows) - tail :]
    inserted = said[same : len(said) - tail]
    if behind:
        low = max((row.position for row in (*before[-1:], *dropped[-1:])), default=behind[0].position - 1)
        new = _placed(inserted, low, behind[0].position)
    else:
        new = _placed(inserted, last_position, None)
    return before, Edit((), tuple(row.key for row in dropped), new), behind


def _placed(messages: Sequence[Message], low: float, high: float | None) -> tuple[tuple[float, Message], ...]:
    """Messages with positions above ``low`` and, where it is given, below ``high``."""
    step = 1.0 if high is None else (high - low) / (len(messages) + 1)
    return tuple((low + step * number, message) for number, message in enumerate(messages, 1))


def _common(rows: Sequence[Row], said: Sequence[Message]) -> int:
    """How many messages at the beginning are the same. Their ids may differ: another model does not know them."""
    pairs = zip(rows, said, strict=False)
    return sum(1 for _ in takewhile(lambda pair: _same(pair[0].message, pair[1]), pairs))


def _same(a: Message, b: Message) -> bool:
    return a is b or (a.role, a.text, a.reasoning) == (b.role, b.text, b.reasoning)


def title_of(text: str) -> str:
    """A few words that tell what a question is about: its first ones that are more than a courtesy.

    Where files go before it, that is the last paragraph.
    """
    if _FILE.match(text):
        text = text.rstrip().rpartition("\n\n")[2]
    words = " ".join(text[:_TITLE_SOURCE_CHARS].split()).rstrip(" .:;,")
    begin = _COURTESY.match(words)
    words = (words[begin.end() :] if begin else "") or words
    if len(words) <= _TITLE_CHARS:
        return words
    head = words[: _TITLE_CHARS - 1]
    return f"{head.rpartition(' ')[0] or head}…"
