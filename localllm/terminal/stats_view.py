"""What was measured of an answer, and how it ended: in words and as JSON. Pure."""

import itertools
from collections.abc import Sequence
from typing import Any

from localllm.sizes import counted
from localllm.values import ContextReason, FinishReason, ModelInfo, TurnEnd, TurnStats, percentile

CONTEXT_REASONS: dict[ContextReason, str] = {
    "chosen": "as chosen",
    "trained": "what the model was trained for",
    "default": "the default; the model allows more",
    "memory": "what fits in memory",
}
_ENDINGS: dict[FinishReason, str] = {
    "context": "the context is full",
    "timeout": "the time limit was reached",
    "interrupted": "interrupted",
}


def stats_line(end: TurnEnd, limit: str = "--max-tokens") -> str:
    """One line for people: how many tokens, and what ``limit`` ended them; how fast, in which phase."""
    stats = end.stats
    parts = [counted(stats.output_tokens, "token") + (f" ({limit})" if end.reason == "length" else "")]
    if stats.decode_tok_s is not None:
        parts.append(f"decode {stats.decode_tok_s:,.1f} tok/s")
    cached = f" ({stats.cached_tokens:,} cached)" if stats.cached_tokens else ""
    parts.append(f"prefill {counted(stats.read_tokens, 'token')}{cached}")
    if stats.ttft_s is not None:
        parts.append(f"TTFT {stats.ttft_s:.2f} s")
    if stats.drafted:
        parts.append(f"drafts {_drafts(stats)}")
    return " · ".join(parts)


def _drafts(stats: TurnStats) -> str:
    """How many of the guesses that were checked were right, and what that gave: an estimate against plain decoding."""
    parts = [f"{stats.accepted:,}/{stats.drafted:,}" + _percent(stats.acceptance_rate)]
    if stats.tokens_per_step is not None:
        parts.append(f"{stats.tokens_per_step:.2f} tokens/step")
    if stats.speedup is not None:
        parts.append(f"est. {stats.speedup:.2f} x")
    return ", ".join(parts)


def _percent(share: float | None) -> str:
    return "" if share is None else f" ({100 * share:.0f} %)"


def stats_summary(stats: TurnStats, n_ctx: int) -> str:
    """All that was measured of one turn, a line each."""
    rows = [
        (
            "prompt",
            f"{stats.prompt_tokens:,} tokens, {stats.cached_tokens:,} of them already in the KV cache",
        ),
        (
            "prefill",
            f"{stats.read_tokens:,} tokens in {stats.prefill_s:.3f} s" + _with_unit(stats.prefill_tok_s, "tok/s", ", "),
        ),
        ("TTFT", _with_unit(stats.ttft_s, "s")),
        (
            "decode",
            f"{stats.output_tokens:,} tokens in {stats.decode_s:.3f} s" + _with_unit(stats.decode_tok_s, "tok/s", ", "),
        ),
        ("inter-token p50", _milliseconds(stats.inter_token_percentile(50))),
        ("inter-token p99", _milliseconds(stats.inter_token_percentile(99))),
        ("accepted drafts", _drafts(stats)) if stats.drafted else ("drafts", stats.drafting),
        ("seed", str(stats.seed)),
        ("context", f"{stats.context_tokens:,} of {n_ctx:,} tokens ({100 * stats.context_tokens / n_ctx:.0f} %)"),
    ]
    return "\n".join(f"{name:16} {value}" for name, value in rows)


def session_summary(turns: Sequence[TurnStats]) -> str:
    """What all turns of a process cost together."""
    read, cached = sum(turn.read_tokens for turn in turns), sum(turn.cached_tokens for turn in turns)
    written = sum(turn.output_tokens for turn in turns)
    prefill_s, decode_s = sum(turn.prefill_s for turn in turns), sum(turn.decode_s for turn in turns)
    steps = sum(max(0, turn.output_tokens - 1) for turn in turns)
    drafted, accepted = sum(turn.drafted for turn in turns), sum(turn.accepted for turn in turns)
    between = tuple(itertools.chain.from_iterable(turn.inter_token_s for turn in turns))
    rows = [
        ("all turns", f"{len(turns):,}"),
        ("prompts", f"{read + cached:,} tokens, {cached:,} of them already in the KV cache"),
        ("prefill", f"{read:,} tokens in {prefill_s:.3f} s" + _with_unit(_rate(read, prefill_s), "tok/s", ", ")),
        ("decode", f"{written:,} tokens in {decode_s:.3f} s" + _with_unit(_rate(steps, decode_s), "tok/s", ", ")),
        ("inter-token p50", _milliseconds(percentile(between, 50))),
        ("inter-token p99", _milliseconds(percentile(between, 99))),
    ]
    if drafted:
        rows.append(("accepted drafts", f"{accepted:,}/{drafted:,}" + _percent(accepted / drafted)))
    return "\n".join(f"{name:16} {value}" for name, value in rows)


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def model_line(info: ModelInfo, stats: TurnStats) -> str:
    """One line for people: what is loaded, where, what bounds its context, what drafts, and the seed that was used."""
    parts = [
        info.name,
        f"{info.gpu_layers} of {info.layers} layers on the GPU" if info.gpu_layers else "CPU",
        "1 thread" if info.threads == 1 else f"{info.threads} threads",
        f"{info.kv} KV cache" + (", flash attention" if info.flash_attention else ""),
        f"context {stats.context_tokens:,} of {info.n_ctx:,} ({CONTEXT_REASONS[info.n_ctx_reason]})",
        f"drafts {stats.drafting}",
        f"seed {stats.seed}",
    ]
    return " · ".join(parts)


def ending(end: TurnEnd) -> str | None:
    """What must be said of an answer that did not come to its own end; None where it did."""
    if end.reason not in _ENDINGS:
        return None
    return f"{_ENDINGS[end.reason]}: " + ("the answer is cut" if end.stats.output_tokens else "there is no answer")


def as_json(end: TurnEnd, model: str, dropped_tokens: int = 0) -> dict[str, Any]:
    """The object that ``--json`` prints. Times are in seconds; what could not be measured is null."""
    return {
        "answer": end.message.text,
        "reasoning": end.message.reasoning,
        "model": model,
        "finish_reason": end.reason,
        "dropped_tokens": dropped_tokens,
        "seed": end.stats.seed,
        "stats": _stats_json(end.stats),
    }


def _stats_json(stats: TurnStats) -> dict[str, Any]:
    return {
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "prefill_s": stats.prefill_s,
        "ttft_s": stats.ttft_s,
        "output_tokens": stats.output_tokens,
        "decode_s": stats.decode_s,
        "decode_tok_s": stats.decode_tok_s,
        "itl_p50_s": stats.inter_token_percentile(50),
        "itl_p99_s": stats.inter_token_percentile(99),
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "acceptance_rate": stats.acceptance_rate,
        "steps": stats.steps,
        "tokens_per_step": stats.tokens_per_step,
        "speedup_estimate": stats.speedup,
        "drafting": stats.drafting,
    }


def _with_unit(value: float | None, unit: str, before: str = "") -> str:
    return ("" if before else "not measured") if value is None else f"{before}{value:,.3g} {unit}"


def _milliseconds(value_s: float | None) -> str:
    return "not measured" if value_s is None else f"{1000 * value_s:,.1f} ms"
