"""Composition: how fast this machine runs a model, measured now."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from localllm.app import Located, open_engine
from localllm.cancel import Cancel
from localllm.ceiling.quantisations import precision
from localllm.config import Settings
from localllm.cores import Watch, default_threads
from localllm.engine.engine import Engine
from localllm.errors import LocalLLMError
from localllm.measured import Measurement, keep
from localllm.subjects import of_local
from localllm.values import KvType, Prompt, Sampling, TurnEnd, TurnStats

DEPTHS = (32, 544, 1056)  # tokens of the prompts
TOKENS = 32  # decoded behind each
_LEAST_TOKENS = 8
_LEAST_READ = 256  # tokens of a prompt, for a rate of prefill
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

    It runs with as many threads as suit a quiet machine, whatever else runs: what others took of it is told then by
    how often they did, and not hidden by fewer threads.
    Raises what ``open_engine`` raises.
    """
    cancel, shape = cancel or Cancel(), located.shape
    depths = [depth for depth in depths if depth + TOKENS < shape.n_ctx_train]
    n_ctx = min(max(depths, default=0) + _ROOM_TOKENS, shape.n_ctx_train)
    tell(f"loading {located.model.name}")
    settings = Settings(ctx_size=n_ctx, kv=kv, threads=default_threads(), draft="off", cache=False)
    with open_engine(located, settings, cancel=cancel) as engine:
        decoded, prefill_tok_s, disturbed = _rates(engine, depths, cancel, tell)
        points = [(depth + TOKENS // 2, tok_s) for depth, tok_s in decoded.items()]
        params = of_local(located.model, 0, kv).params
        found = Measurement(
            model=located.model.name,
            precision=precision(shape.quantisation),
            threads=engine.info.threads,
            on_gpu=engine.info.gpu_layers > 0,
            when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            weights_bytes=shape.streamed_bytes,
            points=tuple(points),
            kv_bytes=tuple(shape.kv_read_bytes(depth, kv) for depth, _ in points),
            prefill_flops=2 * params * prefill_tok_s if params and prefill_tok_s else None,
            disturbed=disturbed,
        )
    keep(located.model.files, found)
    return found


def _rates(
    engine: Engine, depths: Sequence[int], cancel: Cancel, tell: Callable[[str], None]
) -> tuple[dict[int, float], float | None, bool]:
    """Tokens per second of decoding behind prompts of so many tokens, and of reading these; the best of some rounds.

    And whether other programs took cores away in each of them.

    A rate of decoding is the median of a round's tokens. A round goes through all depths, so that a machine that
    becomes slower or faster does so for all of them.
    Raises Cancelled, LocalLLMError.
    """
    ids = engine.encode_raw(_LETTERS * max(depths), cancel).ids
    best, prefill_tok_s, disturbed = dict.fromkeys(depths, 0.0), 0.0, True
    for number in range(_ROUNDS):
        watch = Watch()
        tell(f"decoding {TOKENS} tokens behind {', '.join(map(str, depths))}: {number + 1} of {_ROUNDS}")
        for depth in depths:
            turns = list(_tried(engine, ids[:depth], number, cancel))
            read = [turn.prefill_tok_s or 0.0 for turn in turns if turn.read_tokens >= _LEAST_READ]
            prefill_tok_s = max([prefill_tok_s, *read])
            times = turns[-1].inter_token_s
            best[depth] = max(best[depth], 1 / statistics.median(times) if len(times) >= _LEAST_TOKENS else 0.0)
        disturbed = disturbed and watch.disturbed
    if not all(best.values()):
        raise LocalLLMError("the model ended its answer at once, so that nothing could be measured", "try another one")
    return best, prefill_tok_s or None, disturbed


def _tried(engine: Engine, ids: tuple[int, ...], seed: int, cancel: Cancel) -> Iterator[TurnStats]:
    """What an answer behind ``ids`` took: greedily, and where the model ends it at once, at random."""
    for temperature in (0.0, 2.0):
        sampling = Sampling(temperature=temperature, seed=seed, max_tokens=TOKENS)
        for event in engine.reply(Prompt(ids), sampling, cancel):
            if isinstance(event, TurnEnd):
                cancel.check()
                yield event.stats
                if len(event.stats.inter_token_s) >= _LEAST_TOKENS:
                    return
