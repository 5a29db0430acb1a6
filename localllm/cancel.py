"""A request to stop, made once and read in many places.

Set by Ctrl-C, SIGTERM or a deadline; read between slices and tokens and, on a CPU, inside llama.cpp's own
computation. A running generator cannot be closed from outside and an exception raised inside a ctypes callback
is swallowed, so a flag is the only thing that always works. Knows nothing of signals or of models.
"""

import time
from typing import Literal

from localllm.errors import Cancelled

CancelReason = Literal["interrupted", "timeout"]


class Cancel:
    """A flag with a reason and, optionally, a deadline ``timeout_s`` seconds from its creation."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self._reason: CancelReason | None = None
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s

    def set(self, reason: CancelReason = "interrupted") -> None:
        """Ask to stop. The first reason stands. Safe to call from a signal handler."""
        self._reason = self._reason or reason

    @property
    def reason(self) -> CancelReason | None:
        """Why to stop, or None to go on."""
        if self._reason is None and self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            self._reason = "timeout"
        return self._reason

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the deadline (0 once it has passed), or None without one."""
        return None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())

    def __call__(self) -> bool:
        """Tell whether to stop."""
        return self.reason is not None

    def check(self) -> None:
        """Raise ``Cancelled`` if a stop was asked for: for work that has no partial result to keep."""
        if self.reason is not None:
            raise Cancelled(self.reason)
