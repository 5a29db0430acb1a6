"""How fast a model reads prompts here, as it was last seen: so that it can be told how long a long one will take.

Kept from one process to the next, a number in a file for each model and way of running it. Only what is told depends
on it: a bad one is ignored. Does not know what is told.
"""

import math
import os
from contextlib import suppress
from pathlib import Path

from localllm.engine.slicing import WIDE

_WEIGHT = 0.5  # of the last slice: the deeper, the slower, and other programs come and go
_NEWS = 0.1  # the part by which a rate must have changed to be written anew
_MOST_BYTES = 100


class Pace:
    """``tok_s`` are tokens per second, None where none were seen. ``path`` is the file, None for keeping nothing."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.tok_s = self._kept = self._read()
        self._tokens, self._seconds = 0, 0.0  # of this prompt

    def begin(self) -> None:
        """A prompt begins: what the one before took on the whole is what to expect, not what its deep end took."""
        self.tok_s = self._mean
        self._tokens, self._seconds = 0, 0.0

    @property
    def _mean(self) -> float | None:
        return self._tokens / self._seconds if self._tokens else self.tok_s

    def saw(self, tokens: int, seconds: float) -> None:
        """A slice was read. A narrow one takes longer for each token, and tells nothing."""
        if tokens >= WIDE and seconds > 0:
            rate = tokens / seconds
            self._tokens += tokens
            self._seconds += seconds
            self.tok_s = rate if self.tok_s is None else _WEIGHT * rate + (1 - _WEIGHT) * self.tok_s

    def keep(self) -> None:
        """Remember what the last prompt took, where it is news. A folder that cannot be written remembers nothing."""
        tok_s = self._mean
        if not self._path or tok_s is None or (self._kept and abs(tok_s / self._kept - 1) < _NEWS):
            return
        self._kept = tok_s
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            written = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            written.write_text(f"{tok_s:.4g}\n", encoding="ascii")
            written.replace(self._path)

    def _read(self) -> float | None:
        if not self._path:
            return None
        try:
            with self._path.open("rb") as file:
                tok_s = float(file.read(_MOST_BYTES))
        except (OSError, ValueError):
            return None
        return tok_s if math.isfinite(tok_s) and 0.01 < tok_s < 1e7 else None
