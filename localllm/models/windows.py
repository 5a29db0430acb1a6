"""Which layers look at a sliding window only: mostly no file says so, llama.cpp has it in its code.

Knows the patterns of the architectures that llama.cpp gives a window. Knows nothing of bytes. For an architecture that
is not here llama.cpp ignores a window that the file declares; whether another runtime does, nobody told us.
Source: llama.cpp as in llama-cpp-python 0.3.36, ``load_arch_hparams`` of each file in src/models/.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from localllm.models.container import Array
from localllm.models.facts import MAX_WIDTH, Facts

MAX_WINDOW = 2**30
_PATTERN = "attention.sliding_window_pattern"


@dataclass(frozen=True, slots=True)
class _Rule:
    """Every ``period``-th layer sees everything: the last of each group, or its first. 0: none does; 1: all do."""

    period: int
    full_first: bool = False
    default: int = 0  # the window in tokens where the file names none
    fixed: int = 0  # the window in tokens whatever the file names


_RULES: Final[dict[str, _Rule]] = {
    "afmoe": _Rule(4),
    "cohere2": _Rule(4),
    "cohere2moe": _Rule(4, full_first=True),
    "exaone-moe": _Rule(4, default=128),
    "exaone4": _Rule(4, default=4096),  # the model of 64 layers only
    "gemma2": _Rule(2, default=4096),
    "gemma3": _Rule(6),
    "gemma3n": _Rule(5),
    "gemma4": _Rule(1),
    "gpt-oss": _Rule(2),
    "granite_swa": _Rule(1),
    "laguna": _Rule(4, full_first=True),
    "lfm2": _Rule(0),
    "llama4": _Rule(4, default=8192, fixed=8192),  # chunks: a token sees what its own chunk holds so far
    "maple": _Rule(1),
    "mellum": _Rule(4),
    "mimo2": _Rule(1),
    "muse-glimmer": _Rule(4),
    "olmo2": _Rule(4),
    "phi3": _Rule(1),  # switched off in llama.cpp
    "plamo3": _Rule(8),
    "smallthinker": _Rule(4, full_first=True, fixed=4096),
    "spark2_5": _Rule(1),
    "step35": _Rule(1),
}
_EXAONE4_LAYERS = 64


@dataclass(frozen=True, slots=True)
class Windows:
    """``tokens`` is the size of the window, 0 for none; ``layers`` says for each layer whether it has it.

    ``known`` is False where the file declares a window and it is not known which layers have it: then none is marked.
    """

    tokens: int
    layers: tuple[bool, ...]
    known: bool = True


def windows(facts: Facts, n_layers: int, n_blocks: int) -> Windows:
    """The sliding windows of a model with ``n_layers``, and ``n_blocks`` with those that predict further tokens.

    Raises ModelFileError where the metadata cannot be right.
    """
    declared = facts.integer("attention.sliding_window", 0, high=MAX_WINDOW)
    given = isinstance(facts.metadata.get(facts.key(_PATTERN)), Array)
    rule = _RULES.get(facts.architecture)
    if rule is None:
        marked = facts.per_layer(_PATTERN, n_blocks, ())[:n_layers] if given else (0,) * n_layers
        return Windows(declared, _flags(marked), known=given or not declared)
    tokens = _tokens(facts, rule, declared, n_layers)
    if given and facts.architecture != "phi3":
        marked = facts.per_layer(_PATTERN, n_blocks, ())[:n_layers]
    else:
        marked = _periodic(n_layers, facts.integer(_PATTERN, rule.period, high=MAX_WIDTH), rule.full_first)
    return Windows(tokens or declared, _flags(marked) if tokens else (False,) * n_layers)


def _tokens(facts: Facts, rule: _Rule, declared: int, n_layers: int) -> int:
    """The window that llama.cpp uses, 0 for none."""
    if facts.architecture == "exaone4" and n_layers != _EXAONE4_LAYERS:
        return 0
    silent = facts.key("attention.sliding_window") not in facts.metadata
    if silent:
        return rule.default
    return rule.fixed if rule.fixed and declared else declared


def _periodic(n_layers: int, period: int, full_first: bool) -> tuple[int, ...]:
    if period == 0:
        return (1,) * n_layers
    full = 0 if full_first else period - 1
    return tuple(int(index % period != full) for index in range(n_layers))


def _flags(values: Iterable[int]) -> tuple[bool, ...]:
    return tuple(bool(value) for value in values)
