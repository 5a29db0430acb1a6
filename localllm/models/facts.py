"""What a GGUF's metadata says, read with types and bounds: nothing in it is believed to be what it should be.

Knows how keys are named. Knows nothing of what the numbers mean. Messages complete the sentence "FILE …".
"""

import re

from localllm.errors import ModelFileError
from localllm.models.container import Array, Container

MAX_WIDTH = 2**24

_NO_WRITERS = {  # they encode texts or images, or help another model
    *("bert", "eurobert", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe"),
    *("clip", "dflash", "eagle3", "gemma-embedding", "gemma4-assistant", "t5", "t5encoder", "wavtokenizer-dec"),
}


class Facts:
    """The metadata of one model. Keys without a known prefix belong to its architecture."""

    def __init__(self, container: Container) -> None:
        self.metadata = container.metadata
        self.architecture = self.text("general.architecture")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.architecture):
            raise ModelFileError(f"names no usable architecture ({self.architecture!r})")
        if self.architecture in _NO_WRITERS:
            raise ModelFileError(f"is a {self.architecture} model, which cannot write text", "name a language model")

    def key(self, name: str) -> str:
        """The whole name of a key."""
        return name if name.startswith(("general.", "tokenizer.")) else f"{self.architecture}.{name}"

    def text(self, name: str) -> str:
        """A text, "" where there is none. Raises ModelFileError for anything else."""
        value = self.metadata.get(self.key(name), "")
        if not isinstance(value, str):
            raise ModelFileError(f"is damaged: {self.key(name)} is not a text")
        return value

    def integer(self, name: str, default: int | None = None, *, low: int = 0, high: int = MAX_WIDTH) -> int:
        """A whole number within bounds. Raises ModelFileError for anything else, and where it is missing."""
        value = self.metadata.get(self.key(name), default)
        if value is None:
            raise ModelFileError(f"does not say its {self.key(name)}")
        return self._bounded(name, value, low, high)

    def per_layer(self, name: str, n_layers: int, default: tuple[int, ...]) -> tuple[int, ...]:
        """A number for each layer; the file may give one for all."""
        value = self.metadata.get(self.key(name))
        if value is None:
            return default
        if not isinstance(value, Array):
            return (self._bounded(name, value, 0, MAX_WIDTH),) * n_layers
        if len(value.values) != n_layers:
            raise ModelFileError(f"gives {value.count} values of {self.key(name)} for its {n_layers} layers")
        return tuple(self._bounded(name, item, 0, MAX_WIDTH) for item in value.values)

    def count(self, name: str) -> int:
        """The number of items of an array, 0 where there is none."""
        value = self.metadata.get(self.key(name))
        return value.count if isinstance(value, Array) else 0

    def _bounded(self, name: str, value: object, low: int, high: int) -> int:
        if not isinstance(value, int):
            raise ModelFileError(f"is damaged: {self.key(name)} is not a whole number")
        if not low <= value <= high:
            raise ModelFileError(f"says {self.key(name)} is {value:,}, outside {low:,} to {high:,}")
        return int(value)
