"""The GGUF container: typed metadata and a table of tensors, from a stream of bytes.

Knows the file format (versions 2 and 3, little-endian) and bounds all that it reads: the file may be hostile.
Knows nothing of what the metadata means, and never reads a weight. Messages complete the sentence "FILE …".
Source of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from localllm.errors import ModelFileError

MAX_HEADER_BYTES = 128 * 2**20  # the largest vocabularies of today take 16 MiB
MAX_ENTRIES = 2**16  # metadata keys, tensors
MAX_ARRAY_ITEMS = 2**22
MAX_KEPT_ITEMS = 2**12  # longer arrays are vocabularies: counted, checked for length, and skipped
MAX_KEY_BYTES = 2**16 - 1
MAX_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME, less its closing zero
MAX_DIMENSIONS = 4

_CHUNK_BYTES = 2**20
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_SCALARS = {
    code: struct.Struct("<" + form)
    for code, form in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}

# ggml's tensor types: name, values per block, bytes per block. Numbers left out were withdrawn.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}


@dataclass(frozen=True, slots=True)
class Array:
    """An array in the metadata. ``values`` stays empty for strings and beyond MAX_KEPT_ITEMS numbers."""

    count: int
    values: tuple[int | float, ...] = ()


Value = bool | int | float | str | Array


@dataclass(frozen=True, slots=True)
class Tensor:
    """A row of the tensor table. ``dims`` is innermost first, ``offset`` counts from the data's start."""

    name: str
    dims: tuple[int, ...]
    type_name: str
    n_bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Container:
    """All that stands before the weights. ``end_bytes`` is how long the whole file has to be."""

    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]
    header_bytes: int
    end_bytes: int


class _CutShort(ModelFileError):
    """The stream ends before its header does."""


def holds_header(source: BinaryIO) -> bool:
    """False where ``source``, the beginning of a GGUF, ends inside the header.

    True where it holds all of it, and where what it holds is no header at all: more would not help.
    """
    try:
        read_container(source)
    except _CutShort:
        return False
    except ModelFileError:
        return True
    return True


def read_container(source: BinaryIO) -> Container:
    """Read the header of the GGUF that starts at the position of ``source``, and nothing beyond it.

    Raises ModelFileError where llama.cpp would refuse the file, or where a bound above is exceeded.
    """
    stream = _Stream(source)
    n_tensors, n_keys = _read_preamble(stream)
    metadata = _read_metadata(stream, n_keys)
    alignment = _alignment(metadata)
    tensors = _read_tensors(stream, n_tensors, alignment)
    data_start = _padded(stream.position, alignment)
    end = data_start + tensors[-1].offset + tensors[-1].n_bytes if tensors else stream.position
    return Container(metadata, tensors, stream.position, end)


class _Stream:
    """Reads forward through ``source`` by a window of about a megabyte, at most MAX_HEADER_BYTES in all."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._window = b""
        self._at = 0  # the next unread byte, counted inside the window
        self._before = 0  # bytes of the file that lie before the window

    @property
    def position(self) -> int:
        """Bytes of the file that have been read."""
        return self._before + self._at

    def take(self, size: int) -> bytes:
        self._need(size)
        taken = self._window[self._at : self._at + size]
        self._at += size
        return taken

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def string(self, max_bytes: int) -> str:
        size = self.u64()
        if size > max_bytes:
            raise ModelFileError(f"is damaged: it holds a text of {size:,} bytes where {max_bytes:,} are the most")
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError:
            raise ModelFileError(f"is damaged: it holds a text that is not UTF-8 at byte {self.position:,}") from None

    def skip(self, size: int) -> None:
        while size:
            step = min(size, _CHUNK_BYTES)
            self._need(step)
            self._at += step
            size -= step

    def skip_strings(self, count: int) -> None:
        """Step over ``count`` strings without making them: a vocabulary has up to half a million."""
        length_at = _U64.unpack_from
        while count:
            self._need(8)
            window, at = self._window, self._at
            with suppress(struct.error, OverflowError):  # the next length lies beyond the window
                while count:
                    at += 8 + length_at(window, at)[0]
                    count -= 1
            self.skip(at - self._at)

    def _need(self, size: int) -> None:
        """Make ``size`` bytes available in the window."""
        missing = self._at + size - len(self._window)
        if missing <= 0:
            return
        if self.position + size > MAX_HEADER_BYTES:
            raise ModelFileError(f"is damaged: its header claims to be longer than {MAX_HEADER_BYTES:,} bytes")
        fresh = self._source.read(max(missing, _CHUNK_BYTES))
        self._before += self._at
        self._window = self._window[self._at :] + fresh
        self._at = 0
        if len(fresh) < missing:
            raise _CutShort(
                f"is cut short: it ends inside its header, after {self._before + len(self._window):,} bytes"
            )


def _read_preamble(stream: _Stream) -> tuple[int, int]:
    """Magic, version and the numbers of tensors and keys."""
    magic = stream.take(4)
    if magic != b"GGUF":
        raise ModelFileError(f"is not a GGUF file: it begins with {magic!r}")
    version = stream.u32()
    if version & 0xFFFF == 0:
        raise ModelFileError("is written for big-endian machines")
    if version not in (2, 3):
        raise ModelFileError(f"has GGUF version {version}; versions 2 and 3 can be read")
    n_tensors, n_keys = stream.u64(), stream.u64()
    if n_tensors > MAX_ENTRIES or n_keys > MAX_ENTRIES:
        raise ModelFileError(f"is damaged: it claims {n_tensors:,} tensors and {n_keys:,} metadata keys")
    return n_tensors, n_keys


def _read_metadata(stream: _Stream, n_keys: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for _ in range(n_keys):
        key = stream.string(MAX_KEY_BYTES)
        if not key or key in metadata:
            raise ModelFileError(f"is damaged: the metadata key {key!r} " + ("comes twice" if key else "is empty"))
        metadata[key] = _read_value(stream, key)
    return metadata


def _read_value(stream: _Stream, key: str) -> Value:
    kind = stream.u32()
    if kind == _STRING:
        return stream.string(MAX_HEADER_BYTES)
    if kind == _ARRAY:
        return _read_array(stream, key)
    if kind not in _SCALARS:
        raise ModelFileError(f"is damaged: the metadata key {key!r} has the unknown type {kind}")
    value: bool | int | float = _SCALARS[kind].unpack(stream.take(_SCALARS[kind].size))[0]
    return value


def _read_array(stream: _Stream, key: str) -> Array:
    kind, count = stream.u32(), stream.u64()
    if count > MAX_ARRAY_ITEMS:
        raise ModelFileError(f"is damaged: the metadata key {key!r} claims {count:,} items")
    if kind == _STRING:
        stream.skip_strings(count)
        return Array(count)
    if kind not in _SCALARS:  # nested arrays included: llama.cpp refuses them as well
        raise ModelFileError(f"is damaged: the metadata key {key!r} is an array of the unknown type {kind}")
    item = _SCALARS[kind]
    if count > MAX_KEPT_ITEMS:
        stream.skip(count * item.size)
        return Array(count)
    return Array(count, tuple(value for (value,) in item.iter_unpack(stream.take(count * item.size))))


def _alignment(metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise ModelFileError(f"is damaged: its alignment {alignment!r} is not a power of two")
    return alignment


def _read_tensors(stream: _Stream, n_tensors: int, alignment: int) -> tuple[Tensor, ...]:
    """The tensor table. As in llama.cpp each tensor has to begin where the one before it ends, padded."""
    tensors: dict[str, Tensor] = {}
    expected_offset = 0
    for _ in range(n_tensors):
        tensor = _read_tensor(stream)
        if tensor.name in tensors:
            raise ModelFileError(f"is damaged: the tensor {tensor.name!r} comes twice")
        if tensor.offset != expected_offset:
            raise ModelFileError(
                f"is damaged: the tensor {tensor.name!r} begins at byte {tensor.offset:,} of the data,"
                f" not at {expected_offset:,}"
            )
        tensors[tensor.name] = tensor
        expected_offset = _padded(tensor.offset + tensor.n_bytes, alignment)
    return tuple(tensors.values())


def _read_tensor(stream: _Stream) -> Tensor:
    name = stream.string(MAX_TENSOR_NAME_BYTES)
    n_dims = stream.u32()
    if not 1 <= n_dims <= MAX_DIMENSIONS:
        raise ModelFileError(f"is damaged: the tensor {name!r} has {n_dims} dimensions")
    dims = tuple(stream.u64() for _ in range(n_dims))
    kind, offset = stream.u32(), stream.u64()
    if kind not in TENSOR_TYPES:
        raise ModelFileError(
            f"holds the tensor {name!r} of type {kind}, which is unknown here",
            "the file is damaged, or made for another version of llama.cpp",
        )
    type_name, block_values, block_bytes = TENSOR_TYPES[kind]
    n_values = 1
    for dim in dims:
        n_values *= dim
    if not 0 < n_values < 2**63 or dims[0] % block_values:
        raise ModelFileError(f"is damaged: the tensor {name!r} has the impossible shape {list(dims)} for {type_name}")
    return Tensor(name, dims, type_name, n_values // block_values * block_bytes, offset)


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
