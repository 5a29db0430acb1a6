"""Changes a working model file in one or a few places, as damage or malice would: reads it, mutates it, writes it."""

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import gguf
from gguf_files import Gguf, f32, string, text, u32

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a scalar, by its type
_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_INTEGERS = (0, 1, 2, 3, 5, 8, 15, 16, 17, 32, 64, 127, 128, 129, 255, 256, 511, 512, 513, 1024, 65_535, 65_536)
_EDGES = (2**24, 2**30, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
_FLOATS = (float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 1e-45, 1e-5, 1.0, 1e4, 3e38, -3e38)
_TEXTS = (
    *(b"", b"\x1b]0;title\x07", b"\xff\xfe", b"a\x00b", b"x" * 70_000, b"<0x", b"<0x0A>", b"<0xZZ>", b" ", b"\n"),
    *("\u2581".encode(), b"<|im_end|>", b"<end_of_turn>", b"[EMPTY_3]", b"llama", b"gpt2", b"bert", b"t5", b"rwkv"),
    *(b"plamo2", b"no_vocab", b"gemma4", b"hybriddna", b"whitespace", b"default", b"llama-bpe", b"gpt-4o", b"tekken"),
    *(b"kimi-k2", b"deepseek-v3", b"superbpe", b"linear", b"yarn", b"longrope", b"none", b"mamba", b"qwen2", b"gemma2"),
)
_ARCHITECTURES = (
    *("llama", "llama4", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "qwen35", "qwen3next", "gemma", "gemma2", "gemma3"),
    *("gemma3n", "gemma4", "phi3", "mamba", "mamba2", "jamba", "lfm2", "lfm2moe", "granite", "granitehybrid", "bert"),
    *("t5", "gpt2", "falcon", "mpt", "bloom", "starcoder2", "deepseek2", "openai-moe", "gpt-oss", "olmo2", "cohere2"),
    *("mistral3", "smollm3", "exaone4", "glm4", "nemotron_h", "rwkv7", "minicpm", "dream", "llada", "clip"),
)
_KEYS = (  # of the architecture: what llama.cpp looks for, beyond what a tiny model says
    *("vocab_size", "embedding_length_out", "leading_dense_block_count", "nextn_predict_layers", "pooling_type"),
    *("expert_count", "expert_used_count", "expert_shared_count", "expert_group_count", "expert_group_used_count"),
    *("expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_gating_func", "expert_weights_scale"),
    *("attention.causal", "attention.key_length", "attention.value_length", "attention.sliding_window"),
    *("attention.sliding_window_pattern", "attention.key_length_swa", "attention.value_length_swa", "attention.scale"),
    *("attention.clamp_kqv", "attention.max_alibi_bias", "attention.layer_norm_epsilon", "attention.group_norm_groups"),
    *("attention.shared_kv_layers", "attention.key_length_mla", "attention.value_length_mla", "logit_scale"),
    *("attention.q_lora_rank", "attention.kv_lora_rank", "attention.temperature_length", "attention.temperature_scale"),
    *("attn_logit_softcapping", "final_logit_softcapping", "residual_scale", "embedding_scale", "swin_norm"),
    *("rope.dimension_count", "rope.dimension_count_swa", "rope.dimension_sections", "rope.freq_base"),
    *("rope.freq_base_swa", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"),
    *("rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_beta_fast"),
    *("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count"),
    *("ssm.dt_b_c_rms", "shortconv.l_cache", "full_attention_interval", "attention.recurrent_layers"),
    *("wkv.head_size", "token_shift_count", "interleave_moe_layer_step", "decoder_start_token_id"),
)
_TOKENIZER_KEYS = (
    *("token_type_count", "scores", "bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id"),
    *("seperator_token_id", "padding_token_id", "mask_token_id", "add_bos_token", "add_eos_token", "add_sep_token"),
    *("add_space_prefix", "remove_extra_whitespaces", "escape_whitespaces", "precompiled_charsmap", "pre", "model"),
    *("fim_pre_token_id", "fim_pad_token_id", "suppress_tokens", "merges", "token_type", "tokens"),
)


@dataclass
class Model(Gguf):
    """A whole model file, taken apart; ``data`` are the bytes of each tensor."""

    data: list[bytes] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Model":
        """Take apart a file that is in order."""
        source = _Bytes(path.read_bytes())
        n_tensors, n_keys = struct.unpack("<QQ", source.take(24)[8:])
        metadata = {source.string().decode(): source.value() for _ in range(n_keys)}
        rows = [source.tensor() for _ in range(n_tensors)]
        start = -(-source.at // 32) * 32
        model = cls(metadata, [row[:3] for row in rows])
        for _, dims, kind, offset in rows:
            begin = start + offset
            model.data.append(source.whole[begin : begin + model.tensor_bytes(dims, kind)])
        return model

    def file(self) -> bytes:
        header = self.header()
        parts = [header.ljust(self._padded(len(header)), b"\0")]
        for (_, dims, kind), data in zip(self.tensors, self.data, strict=True):
            size = min(self.tensor_bytes(dims, kind), 2**22)
            parts.append((data + bytes(max(0, size - len(data))))[:size].ljust(self._padded(size), b"\0"))
        return b"".join(parts)

    @staticmethod
    def tensor_bytes(dims: tuple[int, ...], kind: int) -> int:
        block_values, block_bytes = gguf.GGML_QUANT_SIZES.get(kind, (1, 1))
        n_values = 1
        for dim in dims:
            n_values *= dim
        return n_values // block_values * block_bytes

    @property
    def architecture(self) -> str:
        return self.metadata.get("general.architecture", text("llama"))[12:].decode(errors="replace")


class _Bytes:
    """Reads GGUF values in order."""

    def __init__(self, whole: bytes) -> None:
        self.whole, self.at = whole, 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.whole[self.at - size : self.at]

    def number(self, form: str) -> int:
        return int(struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0])

    def string(self) -> bytes:
        return self.take(self.number("Q"))

    def value(self) -> bytes:
        """The type and all the bytes of a metadata value."""
        begin = self.at
        kind, count = self.number("I"), 1
        if kind == _ARRAY:
            kind, count = self.number("I"), self.number("Q")
        for _ in range(count):
            self.string() if kind == _STRING else self.take(_SIZES[kind])
        return self.whole[begin : self.at]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, n_dims = self.string().decode(), self.number("I")
        return name, tuple(self.number("Q") for _ in range(n_dims)), self.number("I"), self.number("Q")


def strings(value: bytes) -> list[bytes]:
    """The items of an array of strings."""
    source = _Bytes(value)
    count = struct.unpack("<Q", source.take(16)[8:])[0]
    return [source.string() for _ in range(count)]


def of_strings(items: list[bytes]) -> bytes:
    """An array of strings, of any bytes."""
    return struct.pack("<IIQ", _ARRAY, _STRING, len(items)) + b"".join(map(string, items))


def of_numbers(kind: int, items: list[float]) -> bytes:
    """An array of numbers of a GGUF type; what does not fit wraps around."""
    return struct.pack("<IIQ", _ARRAY, kind, len(items)) + b"".join(_packed(kind, item) for item in items)


def _packed(kind: int, value: float) -> bytes:
    form = _FORMS[kind]
    if form in "fd":
        return struct.pack(f"<{form}", value)
    if form == "?":
        return bytes([bool(value)])
    whole = 0 if value != value or abs(value) > 2**64 else int(value)
    return (whole % 2**64).to_bytes(8, "little")[: _SIZES[kind]]


# --- random changes -------------------------------------------------------------------------------------------

Mutate = Callable[[Model, random.Random], str]


def mutate(model: Model, rng: random.Random) -> str:
    """Change ``model`` at random, in one place or up to three; returns what was changed."""
    return "; ".join(rng.choice(_MUTATIONS)(model, rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))


def _change_value(model: Model, rng: random.Random) -> str:
    key = rng.choice([*model.metadata])
    value = model.metadata[key]
    kind = struct.unpack("<I", value[:4])[0]
    if kind == _STRING:
        chosen = rng.choice(_TEXTS)
        model.metadata[key] = text(chosen)
        return f"{key} = {chosen[:20]!r}"
    if kind == _ARRAY:
        return f"{key}: {_change_array(model, key, rng)}"
    old = struct.unpack(f"<{_FORMS[kind]}", value[4:])[0]
    new = _number(rng, old)
    kind = rng.choice((kind, kind, kind, *_FORMS))
    model.metadata[key] = struct.pack("<I", kind) + _packed(kind, new)
    return f"{key} = {new} as type {kind}"


def _number(rng: random.Random, old: float) -> float:
    if isinstance(old, float):
        return rng.choice((*_FLOATS, old * 2, -old))
    near = (old + 1, old - 1, old * 2, old // 2)
    return rng.choice((*near, *near, *_INTEGERS, *_EDGES))


def _change_array(model: Model, key: str, rng: random.Random) -> str:
    value = model.metadata[key]
    kind = struct.unpack("<I", value[4:8])[0]
    if kind == _STRING:
        items: list[bytes] = strings(value)
        change = _change_items(items, rng, lambda: rng.choice(_TEXTS))
        model.metadata[key] = of_strings(items)
        return change
    numbers: list[float] = list(struct.unpack(f"<{(len(value) - 16) // _SIZES[kind]}{_FORMS[kind]}", value[16:]))
    change = _change_items(numbers, rng, lambda: _number(rng, rng.choice(numbers or [0])))
    kind = rng.choice((kind, kind, kind, *_FORMS))
    model.metadata[key] = of_numbers(kind, numbers)
    return f"{change} as type {kind}"


def _change_items(items: list, rng: random.Random, new: Callable[[], object]) -> str:
    if not items:
        items.append(new())
        return "one item"
    match rng.randrange(7):
        case 0:
            items.pop(rng.randrange(len(items)))
            return "an item less"
        case 1:
            items.append(rng.choice(items))
            return "an item more"
        case 2:
            items.clear()
            return "emptied"
        case 3:
            items[rng.randrange(len(items))] = rng.choice(items)
            return "an item twice"
        case 4:
            items[:] = [new()] * len(items)
            return f"all items {items[0]!r:.30}"
        case 5:
            rng.shuffle(items)
            return "shuffled"
        case _:
            at = rng.randrange(len(items))
            items[at] = new()
            return f"item {at} = {items[at]!r:.30}"


def _drop_key(model: Model, rng: random.Random) -> str:
    key = rng.choice([*model.metadata])
    del model.metadata[key]
    return f"{key} dropped"


def _add_key(model: Model, rng: random.Random) -> str:
    key = rng.choice((f"{model.architecture}.{rng.choice(_KEYS)}", f"tokenizer.ggml.{rng.choice(_TOKENIZER_KEYS)}"))
    value: object
    match rng.randrange(5):
        case 0 | 1:
            value = rng.choice((*_INTEGERS, *_EDGES))
            model.metadata[key] = u32(value)
        case 2:
            value = rng.choice(_FLOATS)
            model.metadata[key] = f32(value)
        case 3:
            value = rng.choice((False, True))
            model.metadata[key] = struct.pack("<I?", 7, value)
        case _:
            kind = rng.choice((0, 4, 5, 6, 7))
            value = [rng.choice((0, 1, 2, 3, 16, 255, 10**6)) for _ in range(rng.choice((1, 2, 4, 6, 300)))]
            model.metadata[key] = of_numbers(kind, value)
    return f"{key} = {value!r:.40}"


def _other_architecture(model: Model, rng: random.Random) -> str:
    old, new = model.architecture, rng.choice(_ARCHITECTURES)
    renamed = {
        (new + key.removeprefix(old) if key.startswith(f"{old}.") else key): value
        for key, value in model.metadata.items()
    }
    model.metadata = renamed | {"general.architecture": text(new)}
    return f"{old} called {new}"


def _change_tensor(model: Model, rng: random.Random) -> str:
    at = rng.randrange(len(model.tensors))
    name, dims, kind = model.tensors[at]
    match rng.randrange(7):
        case 0:
            place = rng.randrange(len(dims))
            new = rng.choice((0, 1, dims[place] + 1, dims[place] - 1, dims[place] * 2, dims[place] // 2, 32, 2**31))
            dims = (*dims[:place], new, *dims[place + 1 :])
        case 1:
            dims = (*dims, rng.choice((1, 1, 2)))
        case 2:
            dims = dims[::-1] if len(dims) > 1 else (dims[0] // 2, 2)
        case 3:
            kind = rng.choice([*gguf.GGML_QUANT_SIZES])
        case 4:
            del model.tensors[at], model.data[at]
            return f"{name} dropped"
        case 5:
            other = rng.choice(model.tensors)[0]
            model.tensors[at] = (rng.choice((other + "x", "x" * 63, name.replace("0", "1"))), dims, kind)
            return f"{name} renamed to {model.tensors[at][0]}"
        case _:
            name_to, dims_to, kind_to = rng.choice(model.tensors)
            model.tensors.append((rng.choice((name_to.replace("weight", "bias"), "output.weight")), dims_to, kind_to))
            model.data.append(b"")
            return f"{model.tensors[-1][0]} added"
    model.tensors[at] = (name, dims, kind)
    return f"{name} is {dims} of type {kind}"


def _change_data(model: Model, rng: random.Random) -> str:
    at = rng.randrange(len(model.data))
    data = bytearray(model.data[at])
    fill = rng.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\xff" * 4, b"\0" * 4, b"\0\x7e"))
    if rng.random() < 0.5:
        model.data[at] = (fill * (len(data) // len(fill) + 1))[: len(data)]
        return f"{model.tensors[at][0]} filled with {fill.hex()}"
    for _ in range(rng.choice((1, 10, 1000))):
        place = rng.randrange(max(1, len(data) - 4))
        data[place : place + len(fill)] = rng.choice((fill, rng.randbytes(4)))
    model.data[at] = bytes(data)
    return f"{model.tensors[at][0]} strewn with {fill.hex()}"


_MUTATIONS: tuple[Mutate, ...] = (
    *(_change_value,) * 6,
    *(_add_key,) * 3,
    *(_change_tensor,) * 3,
    *(_change_data,) * 3,
    _drop_key,
    _other_architecture,
)


def damaged(whole: bytes, rng: random.Random) -> tuple[bytes, str]:
    """The same file with bytes flipped, overwritten, inserted or left out, mostly in its header."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(rng.choice((len(data), min(len(data), 12_000), min(len(data), 2_000))))
        match rng.randrange(4):
            case 0:
                data[place] ^= 1 << rng.randrange(8)
            case 1:
                data[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                data[place : place + 4] = struct.pack("<I", rng.choice(_EDGES))
            case _:
                data[place : place + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
    return bytes(data), "damaged bytes"


def mutants(paths: list[Path], seed: int) -> Iterator[tuple[str, bytes]]:
    """Without end: what was done to which model, and the file that came of it. The same for the same seed."""
    rng = random.Random(seed)
    originals = [(path.stem, path.read_bytes(), Model.read(path)) for path in paths]
    while True:
        name, whole, parsed = rng.choice(originals)
        if rng.random() < 0.15:
            data, what = damaged(whole, rng)
        else:
            model = Model(dict(parsed.metadata), list(parsed.tensors), data=list(parsed.data))
            what = mutate(model, rng)
            data = model.file()
        yield f"{name}: {what}", data
