"""What a GGUF file says about its model: shape, sizes, template. Read from the header, no weights touched.

Knows which tensors are read for each token, and which metadata would crash or mislead llama.cpp: such files are
refused here, before llama.cpp sees it. The bytes of the format are container.py's business.
Knows nothing of catalogs, downloads or running a model.
"""

import math
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from localllm.errors import ModelFileError
from localllm.models.activations import Activations
from localllm.models.cache import BLOCK, Caches
from localllm.models.container import Container, Tensor, Value, read_container
from localllm.models.facts import Facts
from localllm.models.split import parts
from localllm.values import KvType

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS: one more aborts the process
MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
MAX_CONTEXT = 2**30
MAX_VOCABULARY = 2**24
SLICE_TOKENS = 512  # n_ubatch: as many tokens are computed at once
CACHE_STEP = 256  # llama.cpp pads a cache to this many tokens

_KV_BYTES_PER_VALUE: Final[dict[KvType, tuple[int, int]]] = {
    "f16": (2, 1),
    "q8_0": (34, 32),
    "q4_0": (18, 32),
}

# general.file_type (llama_ftype), by the names that people use
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0",
    37: "TQ2_0", 38: "MXFP4", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
_LOOK_UP_TABLES = ("token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight")
_NO_MATRIX = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")
_TABLE = "tid2eid"  # DeepSeek 4 routes by a table of expert numbers


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Everything known from a GGUF header. All ``*_bytes`` are bytes; tuples have one entry per layer.

    ``n_layers`` counts the layers that every token passes; those for multi-token prediction, which plain
    decoding does not touch, are left out and summed in ``nextn_bytes``. ``n_kv_heads`` is 0 for a layer that
    has no KV cache of its own; ``kv_values`` says how many numbers a token leaves in each layer's cache, and
    ``kv_read_values`` how many the layer reads of each earlier token: some layers read another one's cache.
    """

    architecture: str
    name: str
    n_layers: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_kv_heads: tuple[int, ...]
    head_dim_k: int
    head_dim_v: int
    kv_values: tuple[int, ...]
    kv_read_values: tuple[int, ...]
    sliding_window: int  # in tokens; 0: none
    window_layers: tuple[bool, ...]  # which layers look at the window only
    window_layers_known: bool  # False: there is a window, and it is not known where; no layer is marked
    state_bytes: tuple[int, ...]  # recurrent state of one sequence
    caches_known: bool  # False: this architecture keeps more than is counted here
    activations: Activations
    n_experts: int  # 0: a dense model
    n_experts_used: int
    quantisation: str  # as the file calls itself ("Q4_K_M"), or the type that holds most of its bytes
    licence: str
    chat_template: str  # "" where there is none
    file_bytes: int
    tensor_bytes: int
    layer_bytes: tuple[int, ...]
    expert_bytes: int  # the routed experts' share of layer_bytes
    nextn_bytes: int
    embedding_bytes: int  # tables of which a token reads one row
    embedding_row_bytes: int  # one row of each of these tables
    token_embd_bytes: int  # the largest of them, which is also the output matrix where embeddings are tied
    output_bytes: int  # output.weight; 0 where embeddings are tied

    @property
    def tied_embeddings(self) -> bool:
        """True where the table of token embeddings is also the output matrix."""
        return self.output_bytes == 0

    @property
    def loaded_bytes(self) -> int:
        """Bytes of weights that stay in memory: all but those for multi-token prediction, which nobody asks for.

        Kernels for processors may keep some of them a second time, in another order; those copies are not counted.
        """
        return self.tensor_bytes - self.nextn_bytes

    @property
    def streamed_bytes(self) -> int:
        """Bytes of weights read for one decoded token at depth 0; KV cache not included.

        All tensors, except: of look-up tables one row (a tied table is read whole, as the output matrix), of
        the routed experts the share that is used, of layers for multi-token prediction nothing.
        """
        streamed = self.tensor_bytes - self.nextn_bytes - self.embedding_bytes + self.embedding_row_bytes
        if self.tied_embeddings:
            streamed += self.token_embd_bytes
        if self.n_experts:
            streamed -= self.expert_bytes * (self.n_experts - self.n_experts_used) // self.n_experts
        return streamed

    @property
    def recurrent(self) -> bool:
        """True where some layers keep a state instead of, or beside, keys and values."""
        return any(self.state_bytes)

    @property
    def latent(self) -> bool:
        """True where compressed keys are kept, and no values (MLA)."""
        keys = tuple(n_heads * self.head_dim_k for n_heads in self.n_kv_heads)
        return any(keys) and self.kv_values == keys

    def kv_bytes_per_token(self, kv: KvType) -> int:
        """Bytes that one token takes in the KV caches of all layers, sliding windows not considered."""
        return sum(cached_bytes(values, kv) for values in self.kv_values)

    def kv_bytes(self, n_ctx: int, kv: KvType) -> int:
        """Bytes of memory that llama.cpp allocates for the past tokens of a context of ``n_ctx`` tokens.

        Exact for a context as engine/llama.py makes it, with flash attention: KV caches in steps of 256 tokens, in
        layers with a sliding window only as long as the window needs, and recurrent states. An upper bound where
        ``window_layers_known`` is False; where ``caches_known`` is False, llama.cpp takes more.
        """
        if n_ctx <= 0:
            return 0
        cells, window_cells = self._cells(n_ctx)
        cached = sum(
            cached_bytes(values, kv) * (window_cells if windowed else cells)
            for values, windowed in zip(self.kv_values, self.window_layers, strict=True)
        )
        return cached + sum(self.state_bytes) * self.sequences

    def kv_read_bytes(self, depth: int, kv: KvType) -> int:
        """Bytes of past tokens that are moved to decode one token behind ``depth`` others.

        Keys and values are read, in layers with a sliding window those of the window; a recurrent state is read and
        written. With the same reservations as ``kv_bytes``.
        """
        read = sum(
            cached_bytes(values, kv) * (min(depth, self.sliding_window) if windowed else depth)
            for values, windowed in zip(self.kv_read_values, self.window_layers, strict=True)
        )
        return read + 2 * sum(self.state_bytes)

    def compute_bytes(self, n_ctx: int, flash_attention: bool = True) -> int:
        """Bytes of scratch memory that llama.cpp reserves for a context of ``n_ctx`` tokens: an estimate.

        Within a quarter of the truth on a processor, mostly within a tenth; see activations.py. Weights and KV cache
        are not in it, nor is the room for logits that llama.cpp hands out.
        """
        cells, window_cells = self._cells(n_ctx)
        attending = [
            windowed for windowed, values in zip(self.window_layers, self.kv_read_values, strict=True) if values
        ]
        kinds = [window_cells if windowed else cells for windowed in set(attending)]
        return self.activations.bytes_for(
            n_tokens=min(SLICE_TOKENS, n_ctx),
            masked_cells=sum(kinds),
            scored_cells=max(kinds, default=0),
            n_vocab=self.n_vocab,
            state_bytes=max(self.state_bytes),
            flash_attention=flash_attention,
        )

    def _cells(self, n_ctx: int) -> tuple[int, int]:
        """How many tokens a full cache has room for, and one with a sliding window."""
        cells = _padded(n_ctx)
        return cells, _padded(min(cells, self.sliding_window * self.sequences + min(SLICE_TOKENS, n_ctx)))

    @property
    def sequences(self) -> int:
        """For how many sequences engine/llama.py makes a context: the second one serves for saving and restoring."""
        return 1 if self.recurrent else 2


def cached_bytes(values: int, kv: KvType) -> int:
    """Bytes that so many numbers take in a cache of this type; q8_0 keeps 34 for 32 numbers, q4_0 18."""
    numerator, denominator = _KV_BYTES_PER_VALUE[kv]
    return -(-values * numerator // denominator)


def _padded(n_tokens: int) -> int:
    return -(-n_tokens // CACHE_STEP) * CACHE_STEP


def read_header(path: Path) -> ModelShape:
    """Read and check the header of a GGUF file; of a split model (``path`` is its first part) those of all parts.

    Raises ModelFileError where a file is missing, unreadable, not a GGUF, shorter than its header promises,
    or says something about itself that cannot be true.
    """
    paths = parts(path)
    files = [_read_part(part, number, len(paths)) for number, part in enumerate(paths)]
    try:
        return _shape_of_parts(files)
    except ModelFileError as error:
        raise _about(path, error) from None


def read_metadata(path: Path) -> dict[str, Value]:
    """The metadata of a GGUF file (of a split model, its first part) as it stands there. Raises ModelFileError."""
    return _read_part(path, 0, len(parts(path)))[0].metadata


def _read_part(path: Path, number: int, count: int) -> tuple[Container, int]:
    """The header of one of ``count`` files, and the file's size in bytes."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError("is a directory, not a GGUF file", "name the file inside it")
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError("is not a regular file")
        with path.open("rb") as source:
            container = _read_whole(source, status.st_size)
        _check_part(container, number, count)
    except ModelFileError as error:
        raise _about(path, error) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"{path} cannot be read: {reason}", "check the path and its permissions") from None
    return container, status.st_size


def _about(path: Path, error: ModelFileError) -> ModelFileError:
    hint = error.hint or "download it again, or choose another: localllm list"
    return ModelFileError(f"{path} {error.message}", hint)


def parse_header(source: BinaryIO, file_bytes: int) -> ModelShape:
    """The shape of the model whose GGUF begins at ``source`` and is ``file_bytes`` long in all.

    ``source`` may hold only the header. Raises ModelFileError; its message completes the sentence "FILE …".
    """
    return _shape_of(_read_whole(source, file_bytes), file_bytes)


def parse_parts(sources: Iterable[tuple[BinaryIO, int]], count: int) -> ModelShape:
    """As ``parse_header``, for a model that is split over ``count`` files: each of them in order, with its size."""
    files: list[tuple[Container, int]] = []
    for number, (source, file_bytes) in enumerate(sources):
        files.append((_read_whole(source, file_bytes), file_bytes))
        _check_part(files[-1][0], number, count)
    return _shape_of_parts(files)


def _shape_of_parts(files: Sequence[tuple[Container, int]]) -> ModelShape:
    tensors = tuple(tensor for container, _ in files for tensor in container.tensors)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ModelFileError("holds a tensor that another part holds as well")
    return _shape_of(replace(files[0][0], tensors=tensors), sum(file_bytes for _, file_bytes in files))


def _read_whole(source: BinaryIO, file_bytes: int) -> Container:
    if file_bytes == 0:
        raise ModelFileError("is empty")
    container = read_container(source)
    missing = container.end_bytes - file_bytes
    if missing > 0:
        raise ModelFileError(f"is cut short: {missing:,} of {container.end_bytes:,} bytes are missing")
    return container


def _check_part(container: Container, number: int, count: int) -> None:
    """llama.cpp finds the other parts by the name of the first, so name and content have to agree."""
    said = container.metadata.get("split.count", 1) or 1
    if said != count:
        raise ModelFileError(
            f"says that it is one of {said!r} parts, which its name does not",
            f"the parts of a split model are called NAME-00001-of-{count:05d}.gguf and so on; give the first",
        )
    if count > 1 and container.metadata.get("split.no") != number:
        raise ModelFileError(f"is not part {number + 1} of {count}, as its name says")


def _shape_of(container: Container, file_bytes: int) -> ModelShape:
    facts = Facts(container)
    _check_numbers(facts)
    _check_experts(facts)
    _check_types(container.tensors)
    return _shape(facts, container.tensors, file_bytes)


def _check_numbers(facts: Facts) -> None:
    """Refuse the values that llama.cpp takes and stumbles over later: NaN, infinities, unknown names."""
    for key, value in facts.metadata.items():
        if isinstance(value, float) and not math.isfinite(value) and not key.endswith("_bound"):  # none: infinite
            raise ModelFileError(f"says {key!r} is {value}")
        if key.endswith("_epsilon") and not (isinstance(value, float) and 0 <= value < 1):  # 0: not used
            raise ModelFileError(f"says {key!r} is {value!r}, outside 0 to 1")
    scaling = facts.metadata.get(facts.key("rope.scaling.type"), "none")
    if scaling not in _ROPE_SCALINGS:
        raise ModelFileError(f"asks for the unknown RoPE scaling {scaling!r}")


def _check_experts(facts: Facts) -> None:
    """The relations between expert counts that llama.cpp asserts."""
    n_experts = facts.integer("expert_count", 0, high=MAX_EXPERTS)
    groups = facts.integer("expert_group_count", 0)
    used_groups = facts.integer("expert_group_used_count", 0)
    if groups and groups >= n_experts:
        raise ModelFileError(f"divides {n_experts} experts into {groups} groups")
    if groups > 1 and (n_experts % groups or not 0 < used_groups < groups):
        raise ModelFileError(f"uses {used_groups} of {groups} groups of its {n_experts} experts")


def _check_types(tensors: tuple[Tensor, ...]) -> None:
    """Refuse the types that llama.cpp loads and then cannot compute with."""
    for tensor in tensors:
        is_vector = len(tensor.dims) == 1 and tensor.name.endswith((".weight", ".bias", "scale"))
        if (is_vector or tensor.name.endswith("_norm.weight")) and tensor.type_name != "F32":
            raise ModelFileError(f"holds {tensor.name!r} as {tensor.type_name}, which can only be F32")
        if tensor.type_name in _NO_MATRIX and tensor.name.endswith(".weight") and _TABLE not in tensor.name:
            raise ModelFileError(f"holds {tensor.name!r} as {tensor.type_name}, which is no type for weights")


def _shape(facts: Facts, tensors: tuple[Tensor, ...], file_bytes: int) -> ModelShape:
    n_blocks = facts.integer("block_count", low=1, high=MAX_LAYERS)
    n_nextn = facts.integer("nextn_predict_layers", 0, high=n_blocks - 1)
    n_layers = n_blocks - n_nextn
    n_embd = facts.integer("embedding_length", low=1)
    n_vocab = _vocabulary(facts, tensors, n_embd)
    n_experts = facts.integer("expert_count", 0)
    blocks = _blocks(tensors, n_layers, n_blocks)
    caches = Caches.read(facts, blocks, n_layers, n_embd)
    sizes = {tensor.name: tensor.n_bytes for tensor in tensors}
    return ModelShape(
        architecture=facts.architecture,
        name=_one_line(facts.text("general.name")),
        n_layers=n_layers,
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_ctx_train=facts.integer("context_length", low=1, high=MAX_CONTEXT),
        n_kv_heads=caches.kv_heads,
        head_dim_k=caches.dim_k,
        head_dim_v=caches.dim_v,
        kv_values=caches.values,
        kv_read_values=caches.read_values,
        sliding_window=caches.windows.tokens,
        window_layers=caches.windows.layers,
        window_layers_known=caches.windows.known,
        state_bytes=caches.state_bytes,
        caches_known=caches.complete,
        activations=Activations.read(facts, tensors, blocks, n_embd, caches.dim_v),
        n_experts=n_experts,
        n_experts_used=_experts_used(facts, n_blocks, n_experts),
        quantisation=_quantisation(facts, tensors),
        licence=_one_line(facts.text("general.license")),
        chat_template=facts.text("tokenizer.chat_template"),
        file_bytes=file_bytes,
        tensor_bytes=sum(sizes.values()),
        layer_bytes=tuple(_total(block) for block in blocks[:n_layers]),
        expert_bytes=_total(t for block in blocks[:n_layers] for t in block if "_exps." in t.name),
        nextn_bytes=sum(_total(block) for block in blocks[n_layers:]),
        embedding_bytes=sum(sizes.get(table, 0) for table in _LOOK_UP_TABLES),
        embedding_row_bytes=sum(t.n_bytes // t.dims[-1] for t in tensors if t.name in _LOOK_UP_TABLES),
        token_embd_bytes=sizes.get("token_embd.weight", 0),
        output_bytes=sizes.get("output.weight", 0),
    )


def _total(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.n_bytes for tensor in tensors)


def _blocks(tensors: tuple[Tensor, ...], n_layers: int, n_blocks: int) -> tuple[list[Tensor], ...]:
    """The tensors of each block; refuses a file that holds more or fewer layers than it claims."""
    blocks: tuple[list[Tensor], ...] = tuple([] for _ in range(n_blocks))
    for tensor in tensors:
        if match := BLOCK.fullmatch(tensor.name):
            if int(match[1]) >= n_blocks:
                raise ModelFileError(f"claims {n_blocks} layers but holds the tensor {tensor.name!r}")
            blocks[int(match[1])].append(tensor)
    for index, block in enumerate(blocks[:n_layers]):
        if not block:
            raise ModelFileError(f"claims {n_blocks} layers but holds no tensor of layer {index}")
    return blocks


def _vocabulary(facts: Facts, tensors: tuple[Tensor, ...], n_embd: int) -> int:
    """The number of tokens, on which the token list, the declared size and the embedding table must agree."""
    table = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    n_tokens = facts.count("tokenizer.ggml.tokens")
    n_rows = math.prod(table.dims[1:]) if table else 0
    declared = facts.integer("vocab_size", n_tokens or n_rows, high=MAX_VOCABULARY)
    n_vocab = n_tokens or declared
    if not 0 < n_vocab <= MAX_VOCABULARY or declared != n_vocab or (table and n_rows != n_vocab):
        raise ModelFileError(
            f"disagrees about its vocabulary: {n_tokens:,} tokens, {declared:,} declared, {n_rows:,} embedded"
        )
    if table and table.dims[0] != n_embd:
        raise ModelFileError(f"claims embeddings of {n_embd:,} values but holds some of {table.dims[0]:,}")
    for name in ("token_type", "scores"):
        if facts.count(f"tokenizer.ggml.{name}") not in (0, n_vocab):
            raise ModelFileError(f"has {n_vocab:,} tokens but {facts.count(f'tokenizer.ggml.{name}'):,} token {name}s")
    for name in ("bos", "eos", "eot", "eom"):
        facts.integer(f"tokenizer.ggml.{name}_token_id", 0, high=n_vocab - 1)
    return n_vocab


def _experts_used(facts: Facts, n_blocks: int, n_experts: int) -> int:
    """How many experts a token passes in a layer; the largest number where layers differ."""
    used = max(facts.per_layer("expert_used_count", n_blocks, (0,)))
    if used > n_experts or (n_experts and not used):
        raise ModelFileError(f"uses {used} of {n_experts} experts")
    return used


def _quantisation(facts: Facts, tensors: tuple[Tensor, ...]) -> str:
    file_type = facts.metadata.get("general.file_type")
    if isinstance(file_type, int) and file_type in _FILE_TYPES:
        return _FILE_TYPES[file_type]
    per_type: Counter[str] = Counter()
    for tensor in tensors:
        per_type[tensor.type_name] += tensor.n_bytes
    return per_type.most_common(1)[0][0]


def _one_line(text: str) -> str:
    """Text from a file, fit to be shown: no control characters, no line breaks, at most 200 characters."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:200])
