"""A conversation that goes on: messages, their order, and what a turn adds to them.

Knows the engine; knows no terminal and no commands.
"""

from collections.abc import Callable, Iterator

from localllm.cancel import Cancel
from localllm.engine.engine import Engine
from localllm.values import Event, Message, Sampling, TurnEnd, TurnStats


class Chat:
    """One conversation with one engine. Both may be changed between turns."""

    def __init__(self, engine: Engine, choose_sampling: Callable[[Engine], Sampling], system: str = "") -> None:
        self.engine = engine
        self.sampling = choose_sampling(engine)
        self.system = system
        self.last: TurnStats | None = None
        self._choose_sampling = choose_sampling
        self._messages: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """What the model sees: the system prompt, if there is one, and all that was said."""
        return [*([Message("system", self.system)] if self.system else []), *self._messages]

    def clear(self) -> None:
        """Forget what was said; the system prompt stays."""
        self._messages.clear()
        self.last = None

    def switch(self, load: Callable[[], Engine], reload: Callable[[], Engine]) -> None:
        """Go on with the engine that ``load`` opens; where that fails, with what ``reload`` opens.

        The present engine is freed first, as there may not be room for two. Generated ids belong to the old
        vocabulary: the text is what remains of earlier answers. Raises what ``load`` raises.
        """
        self.engine.close()
        try:
            self.engine = load()
        except BaseException:
            self.engine = reload()
            raise
        self.sampling = self._choose_sampling(self.engine)
        self._messages = [Message(m.role, m.text, reasoning=m.reasoning) for m in self._messages]

    def turn(self, text: str, cancel: Cancel, hold_unopened: bool = False) -> Iterator[Event]:
        """Ask and answer. A partial answer is kept; a turn without any answer leaves the conversation as it was.

        ``hold_unopened``: see ``Engine.reply``. Raises PromptTooLong where the conversation no longer fits; it is
        unchanged then, too.
        """
        question = Message("user", text)
        for event in self.engine.reply([*self.messages, question], self.sampling, cancel, hold_unopened):
            if isinstance(event, TurnEnd):
                self.last = event.stats
                if event.message.text or event.message.reasoning:
                    self._messages += [question, event.message]
            yield event
