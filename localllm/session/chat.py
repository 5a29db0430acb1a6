"""A conversation that goes on: messages, their order, and what a turn adds to them or takes back.

Knows the engine; knows no terminal, no commands and no files.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from localllm.cancel import Cancel
from localllm.engine.engine import Engine
from localllm.errors import LocalLLMError, UsageError
from localllm.values import Event, Message, Sampling, TurnEnd, TurnStats

SYSTEM_CHANGED = "the system prompt was changed"
MODEL_CHANGED = "the model was changed"
MODEL_LOADED = "the model was loaded anew"
_ASKED = "What have we talked about so far?"


class Chat:
    """One conversation with one engine. Both may be changed between turns.

    ``record`` is called with the chat after each change of what was said, so that somebody may keep it. ``beginnings``
    counts how often all was put aside: what is said from then on is another conversation.

    Turns that no longer fit into the context can be forgotten: they stay in ``said``, and the model is not given them.
    """

    def __init__(
        self,
        engine: Engine,
        choose_sampling: Callable[[Engine], Sampling],
        system: str = "",
        said: Sequence[Message] = (),
        record: "Callable[[Chat], None]" = lambda _: None,
    ) -> None:
        self.engine = engine
        self.sampling = choose_sampling(engine)
        self.beginnings = 0
        self.turns_before = 0  # questions of the conversation that ended when it had no room left for this one
        self.stats: list[TurnStats] = []  # of this process's turns, one after another
        self.last: TurnStats | None = None  # those of the last one, if it was with this model
        self.anew = ""  # why the model has to read what was said once more; "" where it need not
        self._context_tokens: int | None = None  # None: what was said has changed since they were counted
        self._system = system
        self._choose_sampling = choose_sampling
        self._tuned: dict[str, object] = {}
        self._said = list(said)
        self._forgotten = 0  # messages at the beginning that the model is not given any more
        self._summary: tuple[Message, ...] = ()  # what it is given in their place
        self.summarised = 0  # messages that the summary stands for
        self._record = record
        self._cut: tuple[int, ...] = ()  # all ids of the last answer, where it did not come to its own end
        self._finished = False  # it did; of an answer of another process that is not known

    @property
    def system(self) -> str:
        """The system prompt; "" is none."""
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        if text != self._system and self._said:
            self.anew = SYSTEM_CHANGED
        self._system = text
        self._context_tokens = None
        self._record(self)

    @property
    def messages(self) -> list[Message]:
        """What the model sees: the system prompt, if there is one, and what was said and is not forgotten."""
        return self.without(0)

    def without(self, oldest: int, newest: int = 0) -> list[Message]:
        """What the model would see without so many more of the oldest turns, and of the newest ones."""
        return self._seen(self._forgotten + 2 * oldest, len(self._said) - 2 * newest)

    @property
    def said(self) -> tuple[Message, ...]:
        """All questions and answers, in turn."""
        return tuple(self._said)

    @property
    def remembered(self) -> tuple[Message, ...]:
        """Those of them that the model is still given."""
        return tuple(self._said[self._forgotten :])

    @property
    def given(self) -> tuple[Message, ...]:
        """What the model is given of them: a summary of the oldest, if there is one, and the others."""
        return (*self._summary, *self.remembered)

    @property
    def forgotten_turns(self) -> int:
        """How many of the oldest questions, with their answers, the model is not given any more."""
        return self._forgotten // 2

    @property
    def context_tokens(self) -> int:
        """What the model is given, in tokens: as the last turn left it, counted anew where that was changed since."""
        return self.count(Cancel())

    def count(self, cancel: Cancel) -> int:
        """As ``context_tokens``, where it may take long. Raises what ``Engine.encode`` raises."""
        if self._context_tokens is None:
            self._context_tokens = len(self.engine.encode(self.messages, cancel).ids) if self.messages else 0
        return self._context_tokens

    def clear(self) -> None:
        """Begin anew, without what was said; the system prompt stays."""
        self.replace([])

    def undo(self) -> Message:
        """Take the last question and its answer back; returns the question. Raises UsageError where there is none."""
        question = self.last_question()
        self._change(self._said[:-2])
        return question

    def forget(self, turns: int, summary: str = "") -> None:
        """Give the model no longer the oldest of the turns that it is given, but ``summary`` where there is one.

        They stay in ``said``; but where that is all of them, a new conversation begins.
        """
        if summary:
            self._summary = (Message("user", _ASKED), Message("assistant", summary))
            self.summarised += 2 * turns
        self._forgotten += 2 * turns
        if self._forgotten >= len(self._said):
            self.beginnings += 1
            self.turns_before = len(self._said) // 2
            self._said, self._forgotten = [], 0
        self._context_tokens = None
        self._record(self)

    def replace(self, messages: Sequence[Message]) -> None:
        """Begin anew with these questions and answers."""
        self.beginnings += 1
        self._forgotten, self._summary, self.summarised, self.turns_before = 0, (), 0, 0
        self._change(list(messages))

    def tune(self, **chosen: object) -> None:
        """Choose sampling for the turns to come, by the names in Sampling. Raises UsageError for a wrong value."""
        self.sampling = dataclasses.replace(self.sampling, **chosen)  # type: ignore[arg-type]
        self._tuned |= chosen

    def switch(self, load: Callable[[], Engine], reload: Callable[[], Engine], same_model: bool = False) -> None:
        """Go on with the engine that ``load`` opens; where that fails, with what ``reload`` opens.

        The present engine is freed first, as there may not be room for two. Generated ids belong to the old
        vocabulary: unless it is the ``same_model``, the text is what remains of earlier answers. Raises what ``load``
        raises.
        """
        self.engine.close()
        try:
            self.engine = load()
        except BaseException:
            try:
                self.engine = reload()
            except LocalLLMError as error:
                error.hint = "no model is loaded now: /model NAME loads one"
                raise
            raise
        self.sampling = dataclasses.replace(self._choose_sampling(self.engine), **self._tuned)  # type: ignore[arg-type]
        if self._said:
            self.anew = MODEL_LOADED if same_model else MODEL_CHANGED
        if not same_model:
            self._said = [Message(m.role, m.text, reasoning=m.reasoning) for m in self._said]
            self._cut, self.last, self._context_tokens = (), None, None
        self._record(self)

    def turn(self, text: str, cancel: Cancel, hold_unopened: bool = False) -> Iterator[Event]:
        """Ask and answer. A partial answer is kept; a turn without any answer leaves the conversation as it was.

        ``hold_unopened``: see ``Engine.reply``. Raises PromptTooLong where the conversation no longer fits; it is
        unchanged then, too.
        """
        yield from self._answer(len(self._said), Message("user", text), cancel, hold_unopened)

    def instead(self, text: str, cancel: Cancel, hold_unopened: bool = False) -> Iterator[Event]:
        """As ``turn``, in the place of the last question and its answer. Raises UsageError where there is none."""
        self.last_question()
        yield from self._answer(len(self._said) - 2, Message("user", text), cancel, hold_unopened)

    def again(self, cancel: Cancel, hold_unopened: bool = False) -> Iterator[Event]:
        """Answer the last question anew, with another seed. Raises UsageError where there is none."""
        sampling = dataclasses.replace(self.sampling, seed=None)
        question = self.last_question()
        yield from self._answer(len(self._said) - 2, question, cancel, hold_unopened, sampling)

    def go_on(self, cancel: Cancel, hold_unopened: bool = False) -> Iterator[Event]:
        """Go on with the last answer from where it ends. Raises UsageError where that cannot be."""
        question, begun = self.last_question(), self.begun()
        yield from self._answer(len(self._said) - 2, question, cancel, hold_unopened, begun=begun)

    def begun(self) -> Sequence[int]:
        """The ids of the last answer, to go on from. Raises UsageError where it is finished or they are unknown."""
        self.last_question()
        if self._finished:
            raise UsageError("the answer is finished: the model ended it", "ask for more, or /regen answers anew")
        answer = self._said[-1]
        begun = self._cut or (() if answer.reasoning else answer.token_ids or self.engine.encode_raw(answer.text).ids)
        if not begun:
            raise UsageError("how this answer was written is not known any more", "/regen answers anew")
        return begun

    def last_question(self) -> Message:
        """The last question that the model is given with its answer. Raises UsageError where there is none."""
        if not self._said:
            raise UsageError("nothing was asked yet", "")
        if len(self.remembered) < 2:
            raise UsageError("the last question is not given to the model any more", "ask something first")
        return self._said[-2]

    def _answer(
        self,
        kept: int,
        question: Message,
        cancel: Cancel,
        hold_unopened: bool,
        sampling: Sampling | None = None,
        begun: Sequence[int] = (),
    ) -> Iterator[Event]:
        """Ask ``question`` behind the first ``kept`` messages; what stood behind them gives way to it."""
        prompt = [*self._seen(self._forgotten, kept), question]
        for event in self.engine.reply(prompt, sampling or self.sampling, cancel, hold_unopened, begun):
            if isinstance(event, TurnEnd):
                self.stats.append(event.stats)
                self.last = event.stats
                if event.message.text or event.message.reasoning:
                    self.anew = ""
                    self._change([*self._said[:kept], question, event.message])
                    self._finished = event.reason == "stop"
                    self._cut = () if self._finished else event.ids
                    self._context_tokens = event.stats.context_tokens
            yield event

    def _seen(self, start: int, stop: int) -> list[Message]:
        system = [Message("system", self._system)] if self._system else []
        return [*system, *self._summary, *self._said[start:stop]]

    def _change(self, said: list[Message]) -> None:
        self._said = said
        self._cut, self._finished, self._context_tokens = (), False, None
        self._record(self)
