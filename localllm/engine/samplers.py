"""Choosing a token out of llama.cpp's logits: the arg-max, or a chain of its samplers. See the Sampler protocol."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from localllm.engine.bindings import lib
from localllm.engine.decoder import Sampler, TokenFilter
from localllm.engine.vocabulary import LlamaVocabulary
from localllm.errors import DecodeError
from localllm.values import Sampling

if TYPE_CHECKING:
    import numpy as np

_PENALTY_LAST_N = 64  # llama.cpp's default


def new_sampler(
    ctx: Any,
    vocab: LlamaVocabulary,
    sampling: Sampling,
    seed: int,
    past: Sequence[int],
    only: TokenFilter | None = None,
) -> Sampler:
    """A sampler for one turn, behind the tokens of ``past``, that chooses ``only`` what it may."""
    sampler = _unfiltered(ctx, vocab, sampling, seed, past)
    return _Filtered(ctx, vocab.n_tokens, sampler, only) if only else sampler


def _unfiltered(ctx: Any, vocab: LlamaVocabulary, sampling: Sampling, seed: int, past: Sequence[int]) -> Sampler:
    """Greedy needs no chain."""
    suppressed = vocab.suppressed
    if sampling.greedy and sampling.repeat_penalty == 1 and not suppressed:
        return _Greedy(ctx, vocab.n_tokens)
    chain = _new_chain(sampling, seed, vocab.n_tokens, suppressed)
    if sampling.repeat_penalty != 1:
        for token in past[-_PENALTY_LAST_N:]:
            lib.llama_sampler_accept(chain, token)
    return _Chain(ctx, chain)


def likeliest(ctx: Any, n_tokens: int) -> tuple[int, float]:
    """The arg-max behind the last token and its probability. Raises DecodeError where there are no numbers."""
    import numpy as np

    logits = _logits(ctx, -1, n_tokens)
    token = int(logits.argmax())
    _checked(token, logits[token])
    return token, 1 / float(np.exp(logits - logits[token]).sum())


def _logits(ctx: Any, index: int, n_tokens: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """llama.cpp's own memory, not copied. NumPy takes longer to load than llama.cpp, and many a call needs none."""
    import numpy as np

    return np.ctypeslib.as_array(lib.llama_get_logits_ith(ctx, index), (n_tokens,))


def _checked(token: int, logit: float) -> int:
    """The token, if the model has computed numbers: out of NaN any sampler chooses something."""
    if math.isnan(logit):
        raise DecodeError("the model computes no numbers (NaN)", "its file is damaged; try another")
    return token


class _Greedy:
    """The arg-max: no chain, no candidates, no random numbers."""

    def __init__(self, ctx: Any, n_tokens: int) -> None:
        self._ctx, self._n_tokens = ctx, n_tokens

    def sample(self, index: int = -1) -> int:
        logits = _logits(self._ctx, index, self._n_tokens)
        token = int(logits.argmax())
        return _checked(token, logits[token])

    def close(self) -> None:
        """Nothing to free."""


class _Chain:
    """A llama.cpp sampler chain."""

    def __init__(self, ctx: Any, chain: Any) -> None:
        self._ctx, self._chain = ctx, chain

    def sample(self, index: int = -1) -> int:
        token = int(lib.llama_sampler_sample(self._chain, self._ctx, index))
        return _checked(token, lib.llama_get_logits_ith(self._ctx, index)[token])

    def close(self) -> None:
        lib.llama_sampler_free(self._chain)


class _Filtered:
    """Another sampler, from whose sight the tokens that must not come are removed first: in the logits themselves."""

    def __init__(self, ctx: Any, n_tokens: int, sampler: Sampler, only: TokenFilter) -> None:
        self._ctx, self._n_tokens, self._sampler, self._only = ctx, n_tokens, sampler, only

    def sample(self, index: int = -1) -> int:
        import numpy as np

        logits = _logits(self._ctx, index, self._n_tokens)
        allowed = self._only.allowed()
        if allowed is not None:
            np.putmask(logits, np.frombuffer(allowed, np.uint8, self._n_tokens) == 0, -np.inf)
        while True:
            token = self._sampler.sample(index)
            if logits[token] == -math.inf:
                raise DecodeError("the model has no token with which the answer could go on as it must")
            if self._only.take(token):
                return token
            logits[token] = -math.inf

    def close(self) -> None:
        self._sampler.close()


def _new_chain(sampling: Sampling, seed: int, n_tokens: int, suppressed: Sequence[int]) -> Any:
    """llama.cpp's own order: bias, penalties, top-k, top-p, min-p, temperature, then the draw."""
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    steps = []
    if suppressed:
        biases = (lib.llama_logit_bias * len(suppressed))(*((token, float("-inf")) for token in suppressed))
        steps.append(lib.llama_sampler_init_logit_bias(n_tokens, len(suppressed), biases))
    if sampling.repeat_penalty != 1:
        steps.append(lib.llama_sampler_init_penalties(n_tokens, _PENALTY_LAST_N, sampling.repeat_penalty, 0.0, 0.0))
    if sampling.greedy:
        steps.append(lib.llama_sampler_init_greedy())
    else:
        steps += [
            lib.llama_sampler_init_top_k(sampling.top_k),
            lib.llama_sampler_init_top_p(sampling.top_p, 1),
            lib.llama_sampler_init_min_p(sampling.min_p, 1),
            lib.llama_sampler_init_temp(sampling.temperature),
            lib.llama_sampler_init_dist(seed),
        ]
    for step in steps:
        lib.llama_sampler_chain_add(chain, step)
    return chain
