"""Asks llama.cpp itself how many bytes it has allocated. Linux only: the answer is a std::map of libstdc++.

``llama_get_memory_breakdown`` is no C function: it returns ``std::map<buffer type, three sizes>`` by value. Its layout
is walked here: a header with the root, and nodes of a colour, three pointers, the key and the sizes.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llama_cpp._ggml import libggml

from localllm.engine.bindings import lib


@dataclass(frozen=True, slots=True)
class Allocated:
    """Bytes in all buffers of a model and one context: its weights, its memory of past tokens, its scratch space."""

    weights: int
    cache: int
    compute: int


class _Sizes(ctypes.Structure):
    _fields_ = (("weights", ctypes.c_size_t), ("cache", ctypes.c_size_t), ("compute", ctypes.c_size_t))


class _Node(ctypes.Structure):
    pass


_Node._fields_ = (
    ("colour", ctypes.c_size_t),
    ("parent", ctypes.c_void_p),
    ("left", ctypes.POINTER(_Node)),
    ("right", ctypes.POINTER(_Node)),
    ("buffer_type", ctypes.c_void_p),
    ("sizes", _Sizes),
)


class _Map(ctypes.Structure):
    _fields_ = (
        ("comparator", ctypes.c_size_t),
        ("colour", ctypes.c_size_t),
        ("root", ctypes.POINTER(_Node)),
        ("leftmost", ctypes.c_void_p),
        ("rightmost", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
    )


def allocated(ctx: Any) -> Allocated:
    """All of it. Weights are counted as they are in the file, without the copies that kernels have rearranged."""
    found = breakdown(ctx)
    weights = sum(sizes.weights for name, sizes in found.items() if name != "CPU_REPACK")
    return Allocated(
        weights, sum(sizes.cache for sizes in found.values()), sum(sizes.compute for sizes in found.values())
    )


def breakdown(ctx: Any) -> dict[str, Allocated]:
    """What lies in each type of buffer, by the name of the type."""
    ask = lib._lib._Z26llama_get_memory_breakdownPK13llama_context
    ask.argtypes, ask.restype = (ctypes.c_void_p,), _Map
    name = libggml.ggml_backend_buft_name
    name.argtypes, name.restype = (ctypes.c_void_p,), ctypes.c_char_p
    answer = ask(ctx)
    found = {
        name(node.buffer_type).decode(): Allocated(node.sizes.weights, node.sizes.cache, node.sizes.compute)
        for node in _nodes(answer.root)
    }
    assert len(found) == answer.count
    return found


def _nodes(pointer: Any) -> Iterator[_Node]:
    if pointer:
        yield from _nodes(pointer.contents.left)
        yield pointer.contents
        yield from _nodes(pointer.contents.right)
