"""Composition: how fast this machine runs a model, measured now."""

import statistics
from collections.abc import Callable, Sequence
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
_ROOM_TOKENS = 224  # in the context behind the deepest prompt
_ROUNDS = 3  # of which the fastest counts: other programs can only slow one down
_LETTERS = "a b c d "  # a token or two each; models go on with them for long


def measure(
    located: Located,
    kv: KvType = "f16",
    cancel: Cancel | None = None,
    tell: Callable[[str], None] = lambda _: None,
    depths: Sequence[int] = DEPTHS,
) -> Measurement:
    """Load a model, measure its decode rate behind so many tokens each, and remember it.

    Raises what ``open_engine`` raises.
    """
    cancel, shape = cancel or Cancel(), located.shape
    depths = [depth for depth in depths if depth + TOKENS < shape.n_ctx_train]
    n_ctx = min(max(depths, default=0) + _ROOM_TOKENS, shape.n_ctx_train)
    tell(f"loading {located.model.name}")
    with open_engine(located, Settings(ctx_size=n_ctx, kv=kv, draft="off", cache=False), cancel=cancel) as engine:
        points = [
            (depth + TOKENS // 2, tok_s)
            for depth, tok_s in zip(depths, _decode_tok_s(engine, depths, cancel, tell), strict=True)
        ]
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


def _decode_tok_s(
    engine: Engine, depths: Sequence[int], cancel: Cancel, tell: Callable[[str], None]
) -> tuple[float, ...]:
    """Tokens per second behind prompts of so many tokens: the best of some rounds, each the median of its tokens.

    A round goes through all depths, so that a machine that becomes slower or faster does so for all of them.
    Raises Cancelled, LocalLLMError.
    """
    ids = engine.encode_raw(_LETTERS * max(depths), cancel).ids
    best = dict.fromkeys(depths, 0.0)
    for number in range(_ROUNDS):
        tell(f"decoding {TOKENS} tokens behind {', '.join(map(str, depths))}: {number + 1} of {_ROUNDS}")
        for depth in depths:
            best[depth] = max(best[depth], _once(engine, ids[:depth], number, cancel))
    if not all(best.values()):
        raise LocalLLMError("the model ended its answer at once, so that nothing could be measured", "try another one")
    return tuple(best.values())


def _once(engine: Engine, ids: tuple[int, ...], seed: int, cancel: Cancel) -> float:
    """Tokens per second behind ``ids``; 0 where the model ends its answer at once."""
    for temperature in (0.0, 2.0):  # greedily, and where the model ends at once, at random
        *_, end = engine.reply(Prompt(ids), Sampling(temperature=temperature, seed=seed, max_tokens=TOKENS), cancel)
        cancel.check()
        times = end.stats.inter_token_s if isinstance(end, TurnEnd) else ()
        if len(times) >= _LEAST_TOKENS:
            return 1 / statistics.median(times)
    return 0.0
