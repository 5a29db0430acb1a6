"""localllm: a local assistant for one person, on llama.cpp.

The Python interface is ``open_engine`` and what it returns::

    from localllm import Message, Sampling, Text, open_engine

    with open_engine("smollm2-135m") as engine:
        for event in engine.reply([Message("user", "Name three colours.")], Sampling(seed=1)):
            if isinstance(event, Text):
                print(event.text, end="", flush=True)
"""

from typing import TYPE_CHECKING

from localllm.cancel import Cancel
from localllm.config import Settings
from localllm.errors import LocalLLMError
from localllm.values import (
    Event,
    Message,
    ModelInfo,
    Progress,
    Prompt,
    Reasoning,
    Sampling,
    Text,
    TurnEnd,
    TurnStats,
)

if TYPE_CHECKING:
    from localllm.app import open_engine as open_engine
    from localllm.engine.engine import Engine as Engine

__all__ = [
    "Cancel",
    "Engine",
    "Event",
    "LocalLLMError",
    "Message",
    "ModelInfo",
    "Progress",
    "Prompt",
    "Reasoning",
    "Sampling",
    "Settings",
    "Text",
    "TurnEnd",
    "TurnStats",
    "open_engine",
]


def __getattr__(name: str) -> object:
    """Load the engine only for those who use it: ``localllm --help`` must not wait for it."""
    if name == "Engine":
        from localllm.engine.engine import Engine

        return Engine
    if name == "open_engine":
        from localllm.app import open_engine

        return open_engine
    raise AttributeError(f"module 'localllm' has no attribute {name!r}")
