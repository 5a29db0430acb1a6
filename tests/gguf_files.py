"""Writes GGUF files byte by byte, also such as no honest program would write.

Apart from our reader on purpose: it shares no table and no code with it.
"""

import io
import struct
from dataclasses import dataclass, field
from pathlib import Path

from localllm.models.gguf import ModelShape, parse_header

F32, F16, Q4_0, Q8_0, I32 = 0, 1, 2, 8, 26
_BLOCKS = {F32: (1, 4), F16: (1, 2), I32: (1, 4), Q4_0: (32, 18), Q8_0: (32, 34)}


def u32(value: int) -> bytes:
    return struct.pack("<II", 4, value)


def f32(value: float) -> bytes:
    return struct.pack("<If", 6, value)


def text(value: str | bytes) -> bytes:
    return struct.pack("<I", 8) + string(value)


def texts(*values: str) -> bytes:
    return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(string, values))


def u32s(*values: int) -> bytes:
    return struct.pack("<IIQ", 9, 4, len(values)) + struct.pack(f"<{len(values)}I", *values)


def string(value: str | bytes) -> bytes:
    data = value.encode(errors="surrogateescape") if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


@dataclass
class Gguf:
    """What to write. ``twice`` is metadata that comes after the rest; ``tensors`` are (name, dims, type)."""

    metadata: dict[str, bytes]
    tensors: list[tuple[str, tuple[int, ...], int]]
    twice: dict[str, bytes] = field(default_factory=dict)
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    offset_error: int = 0  # added to the offset of the last tensor
    n_tensors: int | None = None
    n_keys: int | None = None

    def header(self) -> bytes:
        pairs = [*self.metadata.items(), *self.twice.items()]
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(pairs) if self.n_keys is None else self.n_keys
        parts = [self.magic, struct.pack("<IQQ", self.version, n_tensors, n_keys)]
        parts += [string(key) + value for key, value in pairs]
        offset = 0
        for index, (name, dims, kind) in enumerate(self.tensors):
            last = index == len(self.tensors) - 1
            place = offset + (self.offset_error if last else 0)
            parts.append(string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, place))
            offset = self._padded(offset + self.tensor_bytes(dims, kind))
        return b"".join(parts)

    def data_bytes(self) -> int:
        """Length of the data section, up to the end of the last tensor."""
        end = 0
        for _, dims, kind in self.tensors:
            end = self._padded(end) + self.tensor_bytes(dims, kind)
        return end

    def file(self) -> bytes:
        header = self.header()
        return header.ljust(self._padded(len(header)), b"\0") + bytes(min(self.data_bytes(), 2**24))

    def write(self, path: Path) -> Path:
        path.write_bytes(self.file())
        return path

    def shape(self) -> ModelShape:
        """What our reader makes of the header, told that all the data is there."""
        header = self.header()
        return parse_header(io.BytesIO(header), self._padded(len(header)) + self.data_bytes())

    @staticmethod
    def tensor_bytes(dims: tuple[int, ...], kind: int) -> int:
        block_values, block_bytes = _BLOCKS.get(kind, (1, 1))
        n_values = 1
        for dim in dims:
            n_values *= dim
        return n_values // block_values * block_bytes

    def _padded(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment


def tiny(architecture: str = "llama", n_layers: int = 2, n_embd: int = 64, n_vocab: int = 48) -> Gguf:
    """A small valid model with tied embeddings: 4 attention heads, 2 KV heads."""
    n_kv = n_embd // 2
    tensors = [("token_embd.weight", (n_embd, n_vocab), Q8_0), ("output_norm.weight", (n_embd,), F32)]
    for layer in range(n_layers):
        tensors += [
            (f"blk.{layer}.attn_norm.weight", (n_embd,), F32),
            (f"blk.{layer}.attn_q.weight", (n_embd, n_embd), Q4_0),
            (f"blk.{layer}.attn_k.weight", (n_embd, n_kv), Q4_0),
            (f"blk.{layer}.attn_v.weight", (n_embd, n_kv), Q4_0),
            (f"blk.{layer}.ffn_up.weight", (n_embd, 2 * n_embd), Q4_0),
        ]
    metadata = {
        "general.architecture": text(architecture),
        "general.name": text("Tiny"),
        "general.license": text("mit"),
        "general.file_type": u32(2),
        f"{architecture}.block_count": u32(n_layers),
        f"{architecture}.context_length": u32(512),
        f"{architecture}.embedding_length": u32(n_embd),
        f"{architecture}.attention.head_count": u32(4),
        f"{architecture}.attention.head_count_kv": u32(2),
        f"{architecture}.attention.layer_norm_rms_epsilon": f32(1e-5),
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.tokens": texts(*(f"<{index}>" for index in range(n_vocab))),
        "tokenizer.ggml.token_type": u32s(*([1] * n_vocab)),
        "tokenizer.ggml.bos_token_id": u32(1),
        "tokenizer.ggml.eos_token_id": u32(2),
        "tokenizer.chat_template": text("{{ messages }}"),
    }
    return Gguf(metadata, tensors)
