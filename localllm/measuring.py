"""Composition: how fast this machine runs a model, measured now."""

import statistics
from collections.abc import Callable
from datetime import UTC, datetime

from localllm.app import Located, open_engine
from localllm.cancel import Cancel
from localllm.ceiling.quantisations import precision
from localllm.config import Settings
from localllm.engine.engine import Engine
from localllm.errors import LocalLLMError
from localllm.measured import Measurement, keep
from localllm.values import KvType, Prompt, Sampling, TurnEnd

DEPTHS = (32, 544, 1056)  # tokens of the prompts
TOKENS = 32  # decoded behind each
_LEAST_TOKENS = 8
_ROUNDS = 3  # of which the fastest counts: other programs can only slow one down
_LETTERS = "a b c d "  # a token or two each; models go on with them for long


def measure(
    located: Located, kv: KvType = "f16", cancel: Cancel | None = None, tell: Callable[[str], None] = lambda _: None
) -> Measurement:
    """Load a model, measure its decode rate at two depths, and remember it. Raises what ``open_engine`` raises."""
    cancel, shape = cancel or Cancel(), located.shape
    depths = [depth for depth in DEPTHS if depth + TOKENS < shape.n_ctx_train]
    settings = Settings(ctx_size=min(1280, shape.n_ctx_train), kv=kv, draft="off", cache=False)
    tell(f"loading {located.model.name}")
    with open_engine(located, settings, cancel=cancel) as engine:
        points = []
        for depth in depths:
            tell(f"decoding {TOKENS} tokens behind {depth}, {_ROUNDS} times")
            points.append((depth + TOKENS // 2, decode_tok_s(engine, depth, cancel)))
        found = Measurement(
            model=located.model.name,
            precision=precision(shape.quantisation),
            threads=engine.info.threads,
            on_gpu=engine.info.gpu_layers > 0,
            when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            weights_bytes=shape.streamed_bytes,
            points=tuple(points),
            kv_bytes=tuple(shape.kv_read_bytes(depth, kv) for depth, _ in points),
        )
    keep(located.model.files, found)
    return found


def decode_tok_s(engine: Engine, depth: int, cancel: Cancel) -> float:
    """Tokens per second behind a prompt of ``depth`` tokens: the best of some rounds, each the median of its tokens.

    Raises Cancelled, LocalLLMError.
    """
    ids = engine.encode_raw(_LETTERS * depth, cancel).ids[:depth]
    best = 0.0
    for number in range(_ROUNDS):
        for temperature in (0.0, 2.0):  # greedily, and where the model ends at once, at random
            sampling = Sampling(temperature=temperature, seed=number, max_tokens=TOKENS)
            *_, end = engine.reply(Prompt(ids), sampling, cancel)
            cancel.check()
            times = end.stats.inter_token_s if isinstance(end, TurnEnd) else ()
            if len(times) >= _LEAST_TOKENS:
                best = max(best, 1 / statistics.median(times))
                break
    if not best:
        raise LocalLLMError("the model ended its answer at once, so that nothing could be measured", "try another one")
    return best
