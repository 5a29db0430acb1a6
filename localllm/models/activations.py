"""How much scratch memory llama.cpp needs to compute a model: an estimate from the shapes of its matrices.

llama.cpp plans where each intermediate result lies, and reuses the place of those that nobody needs any more. So what
counts is not the sum of all results but the moment when most of them are alive: inside attention, inside the
feed-forward part, inside a recurrent layer, or at the logits. Here the results that are alive at each of these moments
are added up. What is not known: the holes that the planner leaves, which make up for most of the error.

Knows the order of computation as llama.cpp has it. Knows no KV cache. Compared with llama.cpp on processors only: a
model that lies on a GPU in part has such memory on both, and how much on each was not measured.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from localllm.models.cache import BLOCK, Blocks
from localllm.models.container import Tensor
from localllm.models.facts import Facts

_FLOAT = 4  # bytes; intermediate results are F32
_MASK = {True: 2, False: 4}  # bytes; F16 for flash attention, else F32
_INPUTS = 24  # bytes per token: its id, its position, its cells in the caches of keys and of values
_OUTPUTS = 32  # rows of logits that engine/llama.py makes room for
_HOLES = 3  # rows of embedding width beside a feed-forward part: 2 to 4 were seen, as the planner found room
_RWKV_ROWS = {True: 18, False: 14}  # of embedding width, alive in the time mix of RWKV 7, and of those before
_NO_FLASH_ATTENTION = ("grok",)  # switched off by llama.cpp


@dataclass(frozen=True, slots=True)
class Activations:
    """What a token needs while it is computed, in numbers per token (F32), of the layer that needs most.

    ``widest`` is the largest moment outside attention, ``attention`` the largest inside. Without flash attention each
    of the ``heads`` has a score for each cell of the cache, and ``beside_scores`` is alive at the same time;
    ``value_width`` is how many numbers a token leaves in a cache of values. ``kept`` stays alive through all layers.
    """

    widest: int
    attention: int
    beside_scores: int
    heads: int
    value_width: int
    kept: int
    can_flash: bool  # False: llama.cpp does without flash attention here, whatever is asked for

    @classmethod
    def read(cls, facts: Facts, tensors: Iterable[Tensor], blocks: Blocks, n_embd: int, dim_v: int) -> "Activations":
        """Raises ModelFileError where the metadata cannot be right."""
        n_blocks = len(blocks)
        heads = facts.per_layer("attention.head_count", n_blocks, (0,) * n_blocks)
        kv_heads = facts.per_layer("attention.head_count_kv", n_blocks, heads)
        used = facts.per_layer("expert_used_count", n_blocks, (0,) * n_blocks)
        layers = [_Layer.of(block, n_embd) for block in blocks]
        last_dims = {tensor.name: tensor.dims[-1] for tensor in tensors}
        per_layer_inputs = last_dims.get("per_layer_model_proj.weight", 0)
        streams = last_dims.get("altup_proj.weight", 0)  # which Gemma 3n has beside the main one
        moments = [
            moment
            for layer, n_used in zip(layers, used, strict=True)
            for moment in (
                *(layer.feed_forward(), layer.experts(n_used), layer.shared_experts()),
                *(layer.state_space(), layer.convolution(), layer.time_mix()),
            )
        ]
        latent = facts.integer("attention.key_length_mla", 0)
        if latent:  # queries as wide as the compressed keys, results as the compressed values, and plain queries
            compressed = facts.integer("attention.key_length", 0) + facts.integer("attention.value_length", 0)
            beside_scores = 2 * n_embd + max(heads) * compressed
            attention = beside_scores + max(heads) * 2 * latent
        else:
            beside_scores = attention = max(layer.attention() for layer in layers)
        return cls(
            widest=max(*moments, 3 * per_layer_inputs, n_embd),
            attention=attention,
            beside_scores=beside_scores,
            heads=max(heads),
            value_width=max(kv_heads) * dim_v,
            kept=per_layer_inputs + 2 * streams * n_embd,  # what streams hold, and what is predicted of them
            can_flash=facts.architecture not in _NO_FLASH_ATTENTION,
        )

    def bytes_for(
        self, n_tokens: int, masked_cells: int, scored_cells: int, n_vocab: int, state_bytes: int, flash_attention: bool
    ) -> int:
        """Bytes for ``n_tokens`` computed at once.

        ``masked_cells`` is the sum of the lengths of all kinds of caches, ``scored_cells`` the length of the longest.
        ``state_bytes`` is the recurrent state of the layer that has most.
        """
        flash_attention = flash_attention and self.can_flash
        attention = self.attention
        inputs = _INPUTS * n_tokens
        if not flash_attention and scored_cells:
            attention = max(attention, self.beside_scores + self.heads * scored_cells)
            inputs += 8 * self.value_width * n_tokens  # values are stored one by one
        masks = _MASK[flash_attention] * masked_cells * n_tokens
        layers = _FLOAT * (max(self.widest, attention) + self.kept) * n_tokens + 2 * state_bytes
        logits = _FLOAT * n_vocab * min(_OUTPUTS, n_tokens)
        return inputs + max(masks + layers, logits)  # nobody needs a mask any more when logits are computed


@dataclass(frozen=True, slots=True)
class _Layer:
    """The matrices of a layer: their names without number, and their dimensions, input first."""

    dims: dict[str, tuple[int, ...]]
    n_embd: int

    @classmethod
    def of(cls, block: list[Tensor], n_embd: int) -> "_Layer":
        matches = ((BLOCK.fullmatch(tensor.name), tensor.dims) for tensor in block)
        return cls({match[2].removesuffix(".weight"): dims for match, dims in matches if match}, n_embd)

    def attention(self) -> int:
        """The layer's input, plain and normed; queries, keys and values; and the result beside the queries."""
        projected = sum(self._out(f"attn_{name}") for name in ("q", "k", "v", "qkv"))
        return 2 * self.n_embd + projected + self._in("attn_output") if "attn_output" in self.dims else 0

    def feed_forward(self) -> int:
        """Both halves of the hidden layer and their product, or all of one that has no halves."""
        hidden = self._out("ffn_gate") + self._out("ffn_up")
        if not hidden:
            return 0
        product = self._in("ffn_down")
        if product < hidden:
            return hidden + product + _HOLES * self.n_embd
        return hidden + (_HOLES + 1) * self.n_embd

    def experts(self, n_used: int) -> int:
        """The same for each expert that a token uses; their results find room where the halves were, if they fit."""
        hidden = sum(self._out(f"ffn_{name}_exps") for name in ("gate", "up", "gate_up"))
        if not hidden:
            return 0
        own_room = self.n_embd if self.n_embd > hidden else 0
        return n_used * (hidden + self._in("ffn_down_exps") + own_room) + _HOLES * self.n_embd

    def shared_experts(self) -> int:
        """The same for the experts that every token passes, while the result of the others waits."""
        hidden = self._out("ffn_gate_shexp") + self._out("ffn_up_shexp")
        return hidden + self._in("ffn_down_shexp") + (_HOLES + 1) * self.n_embd if hidden else 0

    def state_space(self) -> int:
        """What goes into a convolution and comes out of it, and what the scan reads and writes."""
        if "ssm_conv1d" not in self.dims:
            return 0
        convolved = self.dims["ssm_conv1d"][-1]
        if "ssm_in" not in self.dims:  # a gated delta rule
            return self.n_embd + 3 * convolved
        return self.n_embd + self._out("ssm_in") + convolved + 3 * self._in("ssm_out")

    def convolution(self) -> int:
        """A short convolution: its three inputs, and four more rows of the embedding's width."""
        inputs = self._out("shortconv.in_proj")
        return inputs + 4 * self.n_embd if inputs else 0

    def time_mix(self) -> int:
        """The time mix of RWKV."""
        return _RWKV_ROWS["time_mix_a1" in self.dims] * self.n_embd if "time_mix_w1" in self.dims else 0

    def _out(self, name: str) -> int:
        dims = self.dims.get(name, ())
        return dims[1] if len(dims) > 1 else 0

    def _in(self, name: str) -> int:
        return self.dims[name][0] if name in self.dims else 0
