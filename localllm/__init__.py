"""localllm: a local assistant for one person, on llama.cpp.

The Python interface is ``open_engine`` and what it returns::

    from localllm import Message, Sampling, Text, open_engine

    with open_engine("smollm2-135m") as engine:
        for event in engine.reply([Message("user", "Name three colours.")], Sampling(seed=1)):
            if isinstance(event, Text):
                print(event.text, end="", flush=True)
"""

import importlib

TYPE_CHECKING = False  # as typing has it, which takes a tenth of the program's start to load
if TYPE_CHECKING:
    from localllm.app import open_engine as open_engine
    from localllm.cancel import Cancel as Cancel
    from localllm.config import Settings as Settings
    from localllm.constraints import json_schema as json_schema
    from localllm.constraints import one_of as one_of
    from localllm.engine.engine import Engine as Engine
    from localllm.errors import LocalLLMError as LocalLLMError
    from localllm.values import Begun as Begun
    from localllm.values import Constraint as Constraint
    from localllm.values import Event as Event
    from localllm.values import Message as Message
    from localllm.values import ModelInfo as ModelInfo
    from localllm.values import Progress as Progress
    from localllm.values import Prompt as Prompt
    from localllm.values import Reasoning as Reasoning
    from localllm.values import Sampling as Sampling
    from localllm.values import Text as Text
    from localllm.values import TurnEnd as TurnEnd
    from localllm.values import TurnStats as TurnStats

_MODULES = {
    "Cancel": "cancel",
    "Engine": "engine.engine",
    "LocalLLMError": "errors",
    "Settings": "config",
    "json_schema": "constraints",
    "one_of": "constraints",
    "open_engine": "app",
    **dict.fromkeys(("Begun", "Constraint", "Event", "Message", "ModelInfo", "Progress", "Prompt"), "values"),
    **dict.fromkeys(("Reasoning", "Sampling", "Text", "TurnEnd", "TurnStats"), "values"),
}

__all__ = [
    "Begun",
    "Cancel",
    "Constraint",
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
    "json_schema",
    "one_of",
    "open_engine",
]


def __getattr__(name: str) -> object:
    """Load what is asked for and nothing else: the program installs its signal handlers before anything heavy."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"localllm.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'localllm' has no attribute {name!r}")
