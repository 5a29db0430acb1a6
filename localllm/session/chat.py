"""A conversation that goes on: messages, their order, and what a turn adds to them.

Knows the engine; knows no terminal and no commands.
"""

from collections.abc import Iterator

from localllm.cancel import Cancel
from localllm.engine.engine import Engine
from localllm.values import Event, Message, Sampling, TurnEnd, TurnStats


class Chat:
    """One conversation with one engine. Both may be changed between turns."""

    def __init__(self, engine: Engine, sampling: Sampling, system: str = "") -> None:
        self.engine = engine
        self.sampling = sampling
        self.last: TurnStats | None = None
        self._system = system
        self._messages: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """What the model sees: the system prompt, if there is one, and all that was said."""
        return [*([Message("system", self._system)] if self._system else []), *self._messages]

    @property
    def system(self) -> str:
        """The system prompt, or "" ."""
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        self._system = text

    @property
    def turns(self) -> int:
        """How many questions were answered."""
        return len(self._messages) // 2

    @property
    def used_tokens(self) -> int:
        """Tokens of the context that were in use at the end of the last turn."""
        return self.last.prompt_tokens + self.last.output_tokens if self.last else 0

    def clear(self) -> None:
        """Forget what was said; the system prompt stays."""
        self._messages.clear()
        self.last = None

    def switch(self, engine: Engine, sampling: Sampling) -> None:
        """Go on with another engine. Generated ids belong to the old vocabulary: the text is what remains."""
        self.engine, self.sampling = engine, sampling
        self._messages = [Message(m.role, m.text, reasoning=m.reasoning) for m in self._messages]

    def turn(self, text: str, cancel: Cancel) -> Iterator[Event]:
        """Ask and answer. A partial answer is kept; a turn without any answer leaves the conversation as it was.

        Raises PromptTooLong where the conversation no longer fits; it is unchanged then, too.
        """
        question = Message("user", text)
        for event in self.engine.reply([*self.messages, question], self.sampling, cancel):
            if isinstance(event, TurnEnd):
                self.last = event.stats
                if event.message.text or event.message.reasoning:
                    self._messages += [question, event.message]
            yield event
