"""The time of an answer in words: which phase took how long, what bounds it on this machine, what would help. Pure.

Computes no ceiling and measures nothing: both come in.
"""

from collections.abc import Iterator

from localllm.here import Bound
from localllm.sizes import counted
from localllm.terminal.ceiling_view import gb
from localllm.values import ModelInfo, TurnStats

_MOST_ADVICE = 3
_MANY_TOKENS = 16  # that a prefill reads: of fewer, memory is what bounds it, as in decoding
_MOSTLY_MEMORY = 0.5  # of the time; where it is less, something else is what takes it


def why(stats: TurnStats, info: ModelInfo, bound: Bound, overload: float | None = None) -> str:
    """What took the time of the last answer, a paragraph for each phase. ``overload``: see ``cores``."""
    return "\n".join([*_prefill(stats), *_decode(stats, info, bound), *_help(stats, bound, overload)])


def _prefill(stats: TurnStats) -> Iterator[str]:
    first = f"{stats.ttft_s:.2f} s" if stats.ttft_s is not None else "no time that could be measured"
    cached = f"; {stats.cached_tokens:,} more were in the KV cache" if stats.cached_tokens else ""
    many = stats.read_tokens >= _MANY_TOKENS
    rate = f" at {stats.prefill_tok_s:,.0f} tok/s, bound by compute" if stats.prefill_tok_s and many else ""
    yield f"first token after {first}: prefill read {counted(stats.read_tokens, 'token')}{rate}{cached}"


def _decode(stats: TurnStats, info: ModelInfo, bound: Bound) -> Iterator[str]:
    if stats.decode_tok_s is None or stats.passes_s is None:
        yield "one token or none: there was nothing to decode"
        return
    others = f"the other {counted(stats.output_tokens - 1, 'token')} took {stats.decode_s:.2f} s"
    yield f"{others}: decode {stats.decode_tok_s:,.1f} tok/s"
    depth, passes_s = stats.decode_depth, stats.passes_s
    workload = bound.subject.workload
    kv = f" and {gb(workload.kv_read(depth))} of KV cache ({info.kv})" if workload.kv_read(depth) else ""
    ceiling = bound.ceiling_tok_s(depth)
    origin = " or ".join(dict.fromkeys(card.origin for card in bound.machine.cards))
    yield (
        f"each pass reads {gb(workload.streamed_bytes)} of weights{kv}: memory ({bound.machine.name}, "
        f"{bound.machine.first.bandwidth_gb_s:,.1f} GB/s, {origin}) allows {ceiling:,.1f} passes per second"
    )
    weights, cache = bound.shares(passes_s, depth)
    each = f", {stats.tokens_per_step:.2f} tokens each" if stats.drafted and stats.tokens_per_step else ""
    yield f"there were {passes_s:,.1f} passes per second{each}: {100 * passes_s / ceiling:.0f} % of that ceiling"
    if weights + cache <= 1:
        yield (
            f"of a pass, memory needs {100 * weights:.0f} % for the weights and {100 * cache:.0f} % for the KV cache; "
            f"{100 * (1 - weights - cache):.0f} % is computing, starting kernels and waiting"
        )
    else:
        yield "that is more than memory alone would give: part of the model stays in the processor's cache"


def _help(stats: TurnStats, bound: Bound, overload: float | None) -> Iterator[str]:
    if stats.prefill_s > stats.decode_s:
        yield "most of the time went into reading: what was read once is kept, so that more about it is read alone"
    if stats.passes_s is None:
        return
    if overload and sum(bound.shares(stats.passes_s, stats.decode_depth)) < _MOSTLY_MEMORY:
        yield f"the load of this machine is {overload:.1f}, more than its cores: other programs take their time (top)"
    for line in bound.advice(stats.passes_s, stats.decode_depth)[:_MOST_ADVICE]:
        yield f"would help: {line}"
