"""GGUF headers: right on what is right, and a clear refusal of everything else."""

import io
import math
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy
import pytest
from conftest import as_a_user
from gguf_files import F16, F32, I32, Q4_0, Q8_0, Gguf, f32, string, text, texts, tiny, u32, u32s
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.errors import ModelFileError
from localllm.models.container import MAX_HEADER_BYTES, read_container
from localllm.models.gguf import ModelShape, parse_header, read_header


def test_a_shape_holds_what_the_header_says() -> None:
    """Names, counts and sizes come out as they were written."""
    shape = tiny().shape()
    layer_bytes = 64 * 4 + (64 * 64 + 2 * 64 * 32 + 64 * 128) // 32 * 18
    assert (shape.architecture, shape.name, shape.licence) == ("llama", "Tiny", "mit")
    assert (shape.n_layers, shape.n_embd, shape.n_vocab, shape.n_ctx_train) == (2, 64, 48, 512)
    assert (shape.n_kv_heads, shape.head_dim_k, shape.head_dim_v) == ((2, 2), 16, 16)
    assert shape.quantisation == "Q4_0"
    assert shape.chat_template == "{{ messages }}"
    assert shape.layer_bytes == (layer_bytes, layer_bytes)
    assert shape.embedding_bytes == shape.token_embd_bytes == 64 * 48 // 32 * 34
    assert shape.tensor_bytes == shape.embedding_bytes + 64 * 4 + 2 * layer_bytes
    assert shape.tied_embeddings
    assert shape.file_bytes == len(tiny().file())


def _oracle_agrees(path: Path) -> None:
    """Every tensor has the name, type, shape, size and place that the gguf package finds."""
    with path.open("rb") as file:
        container = read_container(file)
    reader = gguf.GGUFReader(path)
    ours = [(t.name, t.type_name, t.dims, t.n_bytes) for t in container.tensors]
    theirs = [(t.name, t.tensor_type.name, tuple(map(int, t.shape)), int(t.n_bytes)) for t in reader.tensors]
    assert ours == theirs
    last = reader.tensors[-1]
    assert container.end_bytes == last.data_offset + last.n_bytes
    assert read_header(path).tensor_bytes == sum(int(t.n_bytes) for t in reader.tensors)
    for key, value in container.metadata.items():
        if isinstance(value, (bool, int, float, str)):
            assert reader.fields[key].contents() == value


def test_the_gguf_package_reads_our_test_files_alike(tmp_path: Path) -> None:
    """The files that the other tests are built on are GGUF files by someone else's judgement."""
    _oracle_agrees(tiny().write(tmp_path / "tiny.gguf"))


def test_files_of_the_gguf_package_are_read(tmp_path: Path) -> None:
    """Each tensor type that the gguf package can write is priced as it does; other alignments are followed."""
    path = tmp_path / "types.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(128)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(256)
    writer.add_head_count(4)
    writer.add_vocab_size(8)
    writer.add_float64("some.number", 0.5)
    writer.add_array("some.texts", ["a", "b"])
    for kind, (_, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        width = 256 // gguf.GGML_QUANT_SIZES[kind][0] * block_bytes
        writer.add_tensor(f"blk.0.{kind.name}", numpy.zeros((3, width), numpy.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _oracle_agrees(path)


@pytest.mark.model
def test_the_default_model_is_read(smollm2: Path) -> None:
    """A real file: the gguf package agrees, and the numbers are those of the model's description."""
    _oracle_agrees(smollm2)
    shape = read_header(smollm2)
    assert (shape.n_layers, shape.n_vocab, shape.n_ctx_train) == (30, 49_152, 8_192)
    assert shape.kv_bytes_per_token("f16") == 23_040
    assert shape.quantisation == "Q4_1"
    assert shape.tied_embeddings
    assert shape.tensor_bytes < shape.streamed_bytes < shape.tensor_bytes + 1_000  # one row of the table more
    assert "<|im_start|>" in shape.chat_template


@pytest.mark.model
@pytest.mark.slow
def test_a_model_with_sliding_windows_is_read(gemma: Path) -> None:
    """Another real file, of mixed tensor types, without a chat template and with a vocabulary of 262,144."""
    _oracle_agrees(gemma)
    shape = read_header(gemma)
    assert (shape.architecture, shape.n_vocab, shape.sliding_window) == ("gemma3", 262_144, 512)
    assert shape.kv_bytes_per_token("f16") == 18 * 2 * 256 * 2
    assert (shape.quantisation, shape.licence, shape.chat_template) == ("Q4_K_M", "gemma", "")


# --- bytes per token --------------------------------------------------------------------------------------------


def test_kv_cache_of_llama_3_1_8b() -> None:
    """32 layers of 8 KV heads of 128 values: 131,072 bytes per token in f16; q8_0 and q4_0 by their block sizes."""
    model = tiny(n_layers=32, n_embd=4096)
    model.metadata |= {"llama.attention.head_count": u32(32), "llama.attention.head_count_kv": u32(8)}
    shape = model.shape()
    assert shape.kv_bytes_per_token("f16") == 131_072
    assert shape.kv_bytes_per_token("q8_0") == 131_072 // 2 * 34 // 32
    assert shape.kv_bytes_per_token("q4_0") == 131_072 // 2 * 18 // 32
    assert shape.kv_bytes(8_192, "f16") == 2**30


def test_an_output_matrix_of_its_own_is_streamed_instead_of_the_table() -> None:
    """Untied: one row of the embedding table and the whole output matrix are read per token."""
    tied, model = tiny().shape(), tiny()
    model.tensors.append(("output.weight", (64, 48), Q4_0))
    untied = model.shape()
    output, table, row = 64 * 48 // 32 * 18, 64 * 48 // 32 * 34, 64 // 32 * 34
    assert (untied.tied_embeddings, untied.output_bytes) == (False, output)
    assert tied.streamed_bytes == tied.tensor_bytes + row
    assert untied.streamed_bytes == untied.tensor_bytes - table + row


def test_per_layer_and_position_tables_are_looked_up() -> None:
    """Of these tables a token reads one row, although the token table is read whole as the output."""
    plain, model = tiny().shape(), tiny()
    model.tensors += [
        ("per_layer_token_embd.weight", (128, 48), Q8_0),
        ("position_embd.weight", (64, 512), F32),
    ]
    shape = model.shape()
    assert shape.embedding_bytes - plain.embedding_bytes == 48 * 136 + 512 * 256
    assert shape.streamed_bytes - plain.streamed_bytes == 136 + 256


def test_only_the_used_experts_are_streamed() -> None:
    """With 2 of 8 experts a quarter of the expert tensors is read; shared experts and router are read whole."""
    dense, model = tiny().shape(), tiny()
    model.tensors += [
        ("blk.1.ffn_up_exps.weight", (64, 128, 8), Q4_0),
        ("blk.1.ffn_up_shexp.weight", (64, 128), Q4_0),
        ("blk.1.ffn_gate_inp.weight", (64, 8), F32),
    ]
    model.metadata |= {"llama.expert_count": u32(8), "llama.expert_used_count": u32(2)}
    shape = model.shape()
    expert, router = 64 * 128 // 32 * 18, 64 * 8 * 4
    assert shape.expert_bytes == 8 * expert
    assert shape.streamed_bytes - dense.streamed_bytes == 2 * expert + expert + router


def test_layers_for_multi_token_prediction_are_not_streamed() -> None:
    """They are no layers that a token passes: not counted, not read, no KV."""
    plain, model = tiny(n_layers=2).shape(), tiny(n_layers=3)
    model.metadata["llama.nextn_predict_layers"] = u32(1)
    shape = model.shape()
    assert shape.n_layers == len(shape.n_kv_heads) == len(shape.layer_bytes) == 2
    assert shape.nextn_bytes == plain.layer_bytes[0]
    assert shape.streamed_bytes == plain.streamed_bytes
    assert shape.kv_bytes_per_token("f16") == plain.kv_bytes_per_token("f16")


def test_recurrent_layers_have_no_kv_cache() -> None:
    """Whether the file says so by a head count of 0 (as LFM2 does) or only by its tensors (as Qwen3.5 does)."""
    by_count = tiny(n_layers=3)
    by_count.metadata["llama.attention.head_count_kv"] = u32s(2, 0, 2)
    assert by_count.shape().n_kv_heads == (2, 0, 2)
    by_tensor = tiny(n_layers=3)
    by_tensor.tensors = [t for t in by_tensor.tensors if t[0] != "blk.1.attn_k.weight"]
    by_tensor.tensors.append(("blk.1.ssm_a", (64,), F32))
    assert by_tensor.shape().n_kv_heads == (2, 0, 2)
    assert by_tensor.shape().kv_bytes_per_token("f16") == 2 * tiny(n_layers=1).shape().kv_bytes_per_token("f16")


def test_latent_attention_caches_keys_only() -> None:
    """MLA keeps one row of 576 values per layer, whatever value length the file gives."""
    model = tiny("deepseek2")
    model.metadata |= {
        "deepseek2.attention.head_count_kv": u32(1),
        "deepseek2.attention.key_length": u32(576),
        "deepseek2.attention.value_length": u32(512),
        "deepseek2.attention.key_length_mla": u32(192),
        "deepseek2.attention.value_length_mla": u32(128),
    }
    assert model.shape().kv_bytes_per_token("f16") == 2 * 576 * 2


def test_windowed_layers_may_have_smaller_heads_and_last_layers_share() -> None:
    """As in Gemma 4: the head size depends on the layer, and the last layers reuse another one's cache."""
    model = tiny("gemma4", n_layers=4)
    model.metadata |= {
        "gemma4.attention.sliding_window": u32(512),
        "gemma4.attention.sliding_window_pattern": u32s(1, 0, 1, 0),
        "gemma4.attention.key_length": u32(32),
        "gemma4.attention.value_length": u32(32),
        "gemma4.attention.key_length_swa": u32(8),
        "gemma4.attention.value_length_swa": u32(8),
        "gemma4.attention.shared_kv_layers": u32(1),
    }
    shape = model.shape()
    assert shape.sliding_window == 512
    assert shape.n_kv_heads == (2, 2, 2, 0)
    assert shape.kv_values == (2 * 16, 2 * 64, 2 * 16, 0)


def test_a_file_without_file_type_is_named_after_most_of_its_bytes() -> None:
    """The quantisation is then the type that holds the most bytes."""
    model = tiny(n_layers=1, n_vocab=4096)
    del model.metadata["general.file_type"]
    assert model.shape().quantisation == "Q8_0"


def test_a_name_cannot_steer_a_terminal() -> None:
    """Escape characters and line breaks in names are replaced."""
    model = tiny()
    model.metadata["general.name"] = text("evil\x1b]0;title\x07\nname")
    assert model.shape().name.isprintable()


def test_what_llama_cpp_itself_writes_is_accepted() -> None:
    """Its own writer puts in every key that any architecture has: unused epsilons are 0, absent bounds infinite."""
    model = tiny()
    model.metadata |= {"llama.attention.layer_norm_epsilon": f32(0), "llama.kda.gate_lower_bound": f32(-math.inf)}
    assert model.shape().streamed_bytes == tiny().shape().streamed_bytes


# --- refusals ---------------------------------------------------------------------------------------------------

Change = Callable[[Gguf], object]


def _set(key: str, value: bytes) -> Change:
    return lambda model: model.metadata.__setitem__(key, value)


def _drop(key: str) -> Change:
    return lambda model: model.metadata.pop(key)


def _tensor(name: str, dims: tuple[int, ...], kind: int = F32) -> Change:
    return lambda model: model.tensors.append((name, dims, kind))


def _knob(name: str, value: object) -> Change:
    return lambda model: setattr(model, name, value)


HOSTILE: dict[str, tuple[Change, str]] = {
    "other magic": (_knob("magic", b"GGML"), "is not a GGUF file"),
    "version 1": (_knob("version", 1), "GGUF version 1"),
    "version of the future": (_knob("version", 4), "GGUF version 4"),
    "byte order": (_knob("version", 3 << 24), "big-endian"),
    "2^40 tensors": (_knob("n_tensors", 2**40), "1,099,511,627,776 tensors"),
    "2^40 keys": (_knob("n_keys", 2**40), "1,099,511,627,776 metadata keys"),
    "a tensor that is not there": (_knob("n_tensors", 13), "0 dimensions"),
    "key twice": (_knob("twice", {"general.name": text("again")}), "'general.name' comes twice"),
    "empty key": (_set("", u32(1)), "is empty"),
    "unknown value type": (_set("some.key", struct.pack("<IQ", 13, 0)), "unknown type 13"),
    "nested array": (_set("some.key", struct.pack("<IIQIQ", 9, 9, 1, 9, 1)), "array of the unknown type 9"),
    "endless array": (_set("some.key", struct.pack("<IIQ", 9, 8, 2**40)), "claims 1,099,511,627,776 items"),
    "endless text": (_set("some.key", struct.pack("<IQ", 8, 2**60)), "a text of"),
    "endless text in an array": (_set("some.key", struct.pack("<IIQQ", 9, 8, 1, 2**63)), "cut short|longer than"),
    "not UTF-8": (_set("general.name", text(b"\xff\xfe")), "not UTF-8"),
    "key not UTF-8": (_set("\udcff", u32(1)), "not UTF-8"),  # the helper writes it as the byte FF
    "alignment 0": (_set("general.alignment", u32(0)), "power of two"),
    "alignment 48": (_set("general.alignment", u32(48)), "power of two"),
    "alignment a text": (_set("general.alignment", text("32")), "power of two"),
    "no architecture": (_drop("general.architecture"), "architecture"),
    "architecture of control characters": (_set("general.architecture", text("\x1b[31mllama")), "architecture"),
    "encoder of texts": (_set("general.architecture", text("bert")), "is a bert model, which cannot write text"),
    "encoder of images": (_set("general.architecture", text("clip")), "is a clip model, which cannot write text"),
    "0 layers": (_set("llama.block_count", u32(0)), "block_count is 0"),
    "600 layers": (_set("llama.block_count", u32(600)), "block_count is 600"),
    "4e9 layers": (_set("llama.block_count", u32(4_000_000_000)), "block_count is 4,000,000,000"),
    "layers a text": (_set("llama.block_count", text("two")), "not a whole number"),
    "no layer count": (_drop("llama.block_count"), "does not say its llama.block_count"),
    "a layer too many": (_set("llama.block_count", u32(1)), "claims 1 layers but holds"),
    "a layer too few": (_set("llama.block_count", u32(3)), "no tensor of layer 2"),
    "all layers for prediction": (_set("llama.nextn_predict_layers", u32(2)), "nextn_predict_layers is 2"),
    "context 0": (_set("llama.context_length", u32(0)), "context_length is 0"),
    "context 2^32-1": (_set("llama.context_length", u32(2**32 - 1)), "context_length is 4,294,967,295"),
    "NaN": (_set("llama.attention.layer_norm_rms_epsilon", f32(math.nan)), "epsilon' is nan"),
    "infinite": (_set("llama.rope.freq_base", f32(math.inf)), "freq_base' is inf"),
    "epsilon below 0": (_set("llama.attention.layer_norm_rms_epsilon", f32(-1e-5)), "outside 0 to 1"),
    "escape sequence in a key": (_set("\x1b[31m_epsilon", text("\x1b]0;x\x07")), "outside 0 to 1"),
    "unknown rope scaling": (_set("llama.rope.scaling.type", text("other")), "RoPE scaling"),
    "empty rope scaling": (_set("llama.rope.scaling.type", text("")), "RoPE scaling"),
    "rope scaling of a number": (_set("llama.rope.scaling.type", u32(1)), "RoPE scaling"),
    "0 heads": (_set("llama.attention.head_count", u32(0)), "attention heads"),
    "3 heads": (_set("llama.attention.head_count", u32(3)), "heads"),
    "indivisible": (_set("llama.attention.head_count", u32(6)), "64 values among 6 heads"),
    "KV heads do not divide": (_set("llama.attention.head_count_kv", u32(3)), "3 KV heads between 4"),
    "KV heads for other layers": (_set("llama.attention.head_count_kv", u32s(2, 2, 2)), "3 values .* 2 layers"),
    "no value rotated": (_set("llama.rope.dimension_count", u32(0)), "rotates 0 of 16"),
    "more values rotated than there are": (_set("llama.rope.dimension_count", u32(18)), "rotates 18 of 16"),
    "half a pair rotated": (_set("llama.rope.dimension_count_swa", u32(15)), "rotates 15 of 16"),
    "key length 0": (_set("llama.attention.key_length", u32(0)), "key_length is 0"),
    "width 0": (_set("llama.embedding_length", u32(0)), "embedding_length is 0"),
    "other width": (_set("llama.embedding_length", u32(128)), "embeddings of 128 values but"),
    "bos beyond the vocabulary": (_set("tokenizer.ggml.bos_token_id", u32(48)), "bos_token_id is 48"),
    "eos beyond the vocabulary": (_set("tokenizer.ggml.eos_token_id", u32(2**32 - 1)), "eos_token_id is"),
    "vocab_size": (_set("llama.vocab_size", u32(49)), "49 declared"),
    "a token too few": (_set("tokenizer.ggml.tokens", texts(*"abc")), "3 tokens"),
    "token types": (_set("tokenizer.ggml.token_type", u32s(1, 1)), "48 tokens but 2"),
    "experts used of none": (_set("llama.expert_used_count", u32(2)), "uses 2 of 0 experts"),
    "no expert used": (_set("llama.expert_count", u32(8)), "uses 0 of 8 experts"),
    "too many experts": (_set("llama.expert_count", u32(1025)), "expert_count is 1,025"),
    "expert groups": (_set("llama.expert_group_count", u32(2)), "0 experts into 2 groups"),
    "tensor twice": (_tensor("output_norm.weight", (64,)), "comes twice"),
    "dimension 0": (_tensor("x", (0, 4)), "impossible shape"),
    "dimension 2^62": (_tensor("x", (2**62, 4)), "impossible shape"),
    "no dimension": (_tensor("x", ()), "0 dimensions"),
    "5 dimensions": (_tensor("x", (1, 1, 1, 1, 1)), "5 dimensions"),
    "row of half a block": (_tensor("x", (48,), Q4_0), "impossible shape"),
    "unknown tensor type": (_tensor("x", (64,), 99), "type 99, which is unknown"),
    "withdrawn tensor type": (_tensor("x", (64,), 4), "type 4, which is unknown"),
    "quantised norm": (_tensor("blk.0.ffn_norm.weight", (64,), Q8_0), "can only be F32"),
    "half a norm": (_tensor("blk.0.ffn_norm.weight", (64,), F16), "can only be F32"),
    "scale of whole numbers": (_tensor("blk.0.ffn_up.scale", (1,), I32), "can only be F32"),
    "weights of whole numbers": (_tensor("blk.0.ffn_gate.weight", (64, 128), I32), "no type for weights"),
    "long tensor name": (_tensor("x" * 64, (64,)), "a text of 64 bytes"),
    "offset between": (_knob("offset_error", 16), "begins at byte"),
    "offset outside": (_knob("offset_error", 2**40), "begins at byte"),
}


@pytest.mark.parametrize(("change", "reason"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_metadata_is_refused(change: Change, reason: str, tmp_path: Path) -> None:
    """Each of these either takes llama.cpp down or misleads it; here it is one line that names the file."""
    model = tiny()
    change(model)
    model.write(tmp_path / "hostile.gguf")
    with pytest.raises(ModelFileError, match=reason) as caught:
        read_header(tmp_path / "hostile.gguf")
    assert "hostile.gguf" in caught.value.message
    assert caught.value.message.isprintable()
    assert caught.value.hint


def test_what_is_no_model_file(tmp_path: Path) -> None:
    """Each kind of wrong file has its own one line."""
    (tmp_path / "text.gguf").write_text("# My notes\n")
    (tmp_path / "empty.gguf").touch()
    os.mkfifo(tmp_path / "pipe.gguf")
    expected = {
        "text.gguf": r"is not a GGUF file: it begins with b'# My'",
        "empty.gguf": "is empty",
        "pipe.gguf": "is not a regular file",
        ".": "is a directory",
        "missing.gguf": "No such file",
        "zero\0byte.gguf": "cannot be read",
        "x" * 300: "cannot be read",
        "text.gguf/below": "cannot be read",
    }
    for name, reason in expected.items():
        with pytest.raises(ModelFileError, match=reason):
            read_header(tmp_path / name)


def test_an_unreadable_file(tmp_path: Path) -> None:
    """A file without read permission is refused by the program with the system's reason."""
    path = tiny().write(tmp_path / "private.gguf")
    path.chmod(0)
    command = as_a_user(sys.executable, "-m", "localllm", "show", str(path))
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (finished.returncode, finished.stdout) == (4, "")
    assert "private.gguf cannot be read: Permission denied" in finished.stderr


def test_missing_bytes_are_counted(tmp_path: Path) -> None:
    """A download that broke off is named so, with the number of bytes that are missing."""
    data = tiny().file()
    path = tmp_path / "part.gguf"
    path.write_bytes(data[:-1000])
    with pytest.raises(ModelFileError, match=f"cut short: 1,000 of {len(data):,} bytes are missing"):
        read_header(path)


def test_every_truncation_is_refused() -> None:
    """However many bytes are left of a file, it is refused; the whole file is read."""
    data = tiny(n_layers=1, n_vocab=8).file()
    assert _accepts(data)
    assert not any(_accepts(data[:length]) for length in range(len(data)))


def _accepts(data: bytes) -> ModelShape | None:
    try:
        return parse_header(io.BytesIO(data), len(data))
    except ModelFileError:
        return None


def test_every_flipped_bit_gives_a_shape_or_a_refusal() -> None:
    """Not one bit of a header can make the reader fail in another way, or claim more bytes than there are."""
    data = bytearray(tiny(n_vocab=8).file())
    outcomes = []
    for index in range(len(tiny(n_vocab=8).header())):
        for bit in range(8):
            data[index] ^= 1 << bit
            outcomes.append(_accepts(bytes(data)))
            data[index] ^= 1 << bit
    accepted = [shape for shape in outcomes if shape]
    assert 0 < len(accepted) < len(outcomes)
    assert all(shape.tensor_bytes <= shape.file_bytes == len(data) for shape in accepted)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_damage_gives_a_shape_or_a_refusal(data: st.DataObject) -> None:
    """Runs of bytes overwritten, inserted or removed anywhere: a ModelShape or a ModelFileError, nothing else."""
    damaged = bytearray(tiny(n_vocab=8).file())
    header_bytes = len(tiny(n_vocab=8).header())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, header_bytes))
        end = start + data.draw(st.integers(0, 16))
        damaged[start:end] = data.draw(st.binary(max_size=16) | st.sampled_from([b"\xff" * 8, bytes(8)]))
    _accepts(bytes(damaged))


class _Endless(io.RawIOBase):
    """A source that begins as a header and never ends."""

    def __init__(self, beginning: bytes) -> None:
        self._beginning = io.BytesIO(beginning)
        self.given_bytes = 0

    def read(self, size: int = -1) -> bytes:
        chunk = self._beginning.read(size)
        chunk += bytes(size - len(chunk))
        self.given_bytes += len(chunk)
        return chunk


def test_an_endless_header_is_given_up() -> None:
    """A header that goes on and on is read up to the bound and not beyond."""
    endless_text = string("key") + struct.pack("<IIQQ", 9, 8, 1, 2**40)
    source = _Endless(Gguf({}, [], n_keys=1).header() + endless_text)
    with pytest.raises(ModelFileError, match="longer than"):
        read_container(source)  # type: ignore[arg-type]
    assert source.given_bytes < MAX_HEADER_BYTES + 2**21


def test_a_header_alone_is_enough() -> None:
    """The reader never asks for a weight: a header without its file gives the same shape."""
    header, file = tiny().header(), tiny().file()
    assert parse_header(io.BytesIO(header), len(file)) == parse_header(io.BytesIO(file), len(file))
