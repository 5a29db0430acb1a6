"""The ceiling of a chat: what memory allows the model that it is talking with. Measured when nothing else runs.

Knows when the machine is quiet; how to measure, it is told.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from localllm.errors import LocalLLMError
from localllm.session.chat import Chat

if TYPE_CHECKING:
    from localllm.here import Bound


class ChatCeiling:
    """What memory allows the present model of ``chat``: found out by ``measure``, once for each.

    ``quiet_s`` is how long nothing must have happened before.
    """

    def __init__(self, chat: Chat, measure: "Callable[[], Bound]", quiet_s: float = 1.0) -> None:
        self._chat, self._measure, self._quiet_s = chat, measure, quiet_s
        self._found: tuple[object, Bound] | None = None  # the engine that it was found for

    def bound(self) -> "Bound":
        """Measured now where it is not known. Raises LocalLLMError."""
        engine = self._chat.engine
        if self._found is None or self._found[0] is not engine:
            self._found = engine, self._measure()
        return self._found[1]

    def tok_s(self, depth: int) -> float | None:
        """The ceiling behind so many tokens, where it is known."""
        known = self._found is not None and self._found[0] is self._chat.engine
        return self.bound().ceiling_tok_s(depth) if known else None

    @contextmanager
    def measured_when_quiet(self, then: Callable[[], None]) -> Iterator[None]:
        """Find it out while the user reads the first answer and types."""
        if not self._chat.stats or self.tok_s(0) is not None:
            yield
            return

        def find() -> None:
            try:
                with suppress(LocalLLMError):
                    self.bound()
                    then()
            except RuntimeError:  # the program ends meanwhile, and Python begins no more threads
                if threading.main_thread().is_alive():
                    raise

        timer = threading.Timer(self._quiet_s, find)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
