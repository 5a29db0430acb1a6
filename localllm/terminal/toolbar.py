"""The line under the input of a chat: the model, its context, and what the last answer had. Pure.

Measures nothing. Where the window is narrow it sheds words first, then letters of the model's name, then parts.
"""

from collections.abc import Iterator

from localllm.values import ModelInfo, TurnStats

_LEAST_NAME = (1000, 24, 16, 12, 8)  # characters that are left of the model's name, by how short the wording is


def toolbar(
    info: ModelInfo, context_tokens: int, stats: TurnStats | None, ceiling_tok_s: float | None, width: int
) -> str:
    """At most ``width`` characters."""
    wordings = [*zip(*_parts(info, context_tokens, stats, ceiling_tok_s), strict=True)]
    for parts, least in zip(wordings, _LEAST_NAME, strict=True):
        rest = "".join(f" · {part}" for part in parts)
        if width - len(rest) >= min(least, len(info.name)):
            return shortened_in_middle(info.name, width - len(rest)) + rest
    kept = list(wordings[-1])
    while kept and len(" · ".join(kept)) + _LEAST_NAME[-1] + 3 > width:
        kept.pop()
    rest = "".join(f" · {part}" for part in kept)
    return shortened_in_middle(info.name, width - len(rest)) + rest


def _parts(
    info: ModelInfo, context_tokens: int, stats: TurnStats | None, ceiling_tok_s: float | None
) -> Iterator[tuple[str, ...]]:
    """The parts behind the model's name, the most important first, each in all its wordings from long to short."""
    total, full = f"{info.n_ctx:,}", f"{100 * context_tokens / info.n_ctx:.0f} %"
    used = f"{context_tokens:,}/{total}"
    if context_tokens:
        yield f"context {used} ({full})", f"{used} ({full})", used, used, f"{full} full"
    else:
        yield f"context {total}", f"context {total}", f"context {total}", total, total
    if stats is None:
        return
    if (rate := stats.decode_tok_s) is not None:
        short = f"{rate:,.0f} tok/s" if rate >= 10 else f"{rate:.1f} tok/s"
        if ceiling_tok_s and stats.passes_s:
            share = f"{100 * stats.passes_s / ceiling_tok_s:.0f} %"
            of_ceiling = f"{short}, {share} of ceiling"
            yield f"{rate:,.1f} tok/s ({share} of the ceiling)", of_ceiling, of_ceiling, f"{short} ({share})", short
        else:
            yield f"{rate:,.1f} tok/s", short, short, short, short
    yield (f"{stats.cached_tokens:,} cached",) * 5
    if (accepted := stats.acceptance_rate) is not None:
        yield f"{100 * accepted:.0f} % of drafts accepted", *(f"{100 * accepted:.0f} % drafts",) * 4


def shortened_in_middle(text: str, width: int) -> str:
    """Its beginning and its end in at most ``width`` characters: of a file's name both tell something."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"[:width]
