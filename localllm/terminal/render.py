"""Events -> what stands on the terminal, in the pipe or in the JSON object.

The answer goes to stdout and nothing else does; progress goes to stderr. A renderer never computes and never
asks the engine anything.
"""

import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TextIO, assert_never

from localllm.sizes import counted
from localllm.terminal.hyperlinks import opens_links
from localllm.terminal.reading import ReadingLine
from localllm.terminal.safe import one_line, safe
from localllm.values import (
    Begun,
    Color,
    ContextReason,
    Event,
    FinishReason,
    ModelInfo,
    Progress,
    Reasoning,
    Text,
    TurnEnd,
    TurnStats,
    percentile,
)

_DIM, _RESET = "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class View:
    """How to show an answer. ``stream`` False writes it in one piece at its end.

    ``pager``: what is written goes through a pipe, where nothing can be redrawn. ``anew`` is why all of a conversation
    has to be read anew, if it has; told where that takes long.
    """

    out: TextIO
    status: TextIO
    stream: bool = True
    reasoning: bool = False
    color: bool = False
    progress: bool = False
    markdown: bool = False
    pager: bool = False
    anew: str = ""

    @classmethod
    def of_terminal(
        cls,
        *,
        stream: bool = True,
        reasoning: bool = True,
        quiet: bool = False,
        markdown: bool = True,
        color: Color = "auto",
    ) -> "View":
        """What suits the standard streams: reasoning, colour and Markdown only where a person reads them.

        Whoever wants colours in a pipe has a pager behind it, and gets Markdown too.
        """
        interactive = sys.stdout.isatty()
        return cls(
            out=sys.stdout,
            status=sys.stderr,
            stream=stream,
            reasoning=reasoning and interactive,
            color=wants_color(color),
            progress=sys.stderr.isatty() and not quiet,
            markdown=markdown and (color == "always" or (interactive and os.environ.get("TERM") != "dumb")),
            pager=not interactive,
        )

    def load_ahead(self) -> None:
        """Load what showing Markdown takes (0.1 s) while there is something else to wait for."""
        if self.markdown:
            threading.Thread(target=import_module, args=("localllm.terminal.live",), daemon=True).start()


def wants_color(color: Color = "auto") -> bool:
    """Whether stdout gets colours: as said, or else where it is a terminal with colours, but for $NO_COLOR."""
    if color != "auto":
        return color == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of the terminal behind ``stream``; 80 and 24 where there is none, or it does not tell."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except OSError:
        columns = rows = 0
    return columns or 80, rows or 24


def columns(stream: TextIO) -> int:
    """The width in characters of the terminal behind ``stream``; 80 where there is none, or it does not tell."""
    return size(stream)[0]


def show(events: Iterator[Event], view: View) -> TurnEnd:
    """Write an answer as it comes; returns the event that ended it."""
    writer: _Writer | None = None  # until there is something to write: what it takes may still be loading
    begun = Begun("")
    progress = _reading_line(view)
    try:
        for event in events:
            match event:
                case Begun():
                    begun = event
                case Progress():
                    progress.show(event)
                case Reasoning(text):
                    if view.reasoning:
                        progress.clear()
                        writer = writer or _new_writer(view, begun)
                        writer.write(text, dim=True)
                case Text(text):
                    progress.clear()
                    writer = writer or _new_writer(view, begun)
                    writer.write(text)
                case TurnEnd():
                    progress.clear()
                    if writer:
                        writer.finish()
                    return event
                case _:
                    assert_never(event)
    finally:
        progress.clear()
        if writer:
            writer.reset()
    raise RuntimeError("a turn must end with TurnEnd")


def collect(events: Iterator[Event], view: View) -> TurnEnd:
    """Show progress only; returns the event that ended the turn, which holds the whole answer."""
    progress = _reading_line(view)
    try:
        for event in events:
            if isinstance(event, Progress):
                progress.show(event)
            else:
                progress.clear()
            if isinstance(event, TurnEnd):
                return event
    finally:
        progress.clear()
    raise RuntimeError("a turn must end with TurnEnd")


def _reading_line(view: View) -> ReadingLine:
    return ReadingLine(view.status, view.progress, lambda: columns(view.status), view.anew)


def put(text: str, view: View) -> None:
    """Write a finished text as it is, with one line break at its end."""
    writer = _PlainWriter(view)
    writer.write(text)
    writer.finish()


class _Writer(Protocol):
    def write(self, text: str, dim: bool = False) -> None:
        """Take a piece of the answer, or of the reasoning (``dim``)."""

    def finish(self) -> None:
        """Write what is held back, and end the line."""

    def reset(self) -> None:
        """Leave the terminal as it was, whatever happened."""


def _new_writer(view: View, begun: Begun) -> _Writer:
    if not view.markdown:
        return _PlainWriter(view)
    from localllm.terminal.live import MarkdownWriter, Pages, Screen

    if view.pager:
        return MarkdownWriter(Pages(view.out), view.color, view.stream, begun)
    screen = Screen(view.out, lambda: size(view.out))
    return MarkdownWriter(screen, view.color, view.stream, begun, links=opens_links(os.environ))


class _PlainWriter:
    """Writes pieces as they come, or keeps them to the end; ends with exactly one line break."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._held: list[str] = []
        self._dim = False
        self._last = "\n"

    def write(self, text: str, dim: bool = False) -> None:
        text = safe(text)
        if dim != self._dim:
            self._switch(dim)
        if text:
            self._last = text[-1]
            self._put(text)

    def finish(self) -> None:
        self.reset()
        if self._last != "\n":
            self._put("\n")
        if self._held:
            self._view.out.write("".join(self._held))
        self._view.out.flush()

    def reset(self) -> None:
        """Leave the terminal as it was, whatever happened."""
        if self._dim and self._view.color:
            self._put(_RESET)
        self._dim = False

    def _switch(self, dim: bool) -> None:
        if not dim and self._last != "\n":  # the answer begins on its own line
            self._put("\n")
        if self._view.color:
            self._put(_DIM if dim else _RESET)
        self._dim = dim

    def _put(self, text: str) -> None:
        if self._view.stream:
            self._view.out.write(text)
            self._view.out.flush()
        else:
            self._held.append(text)


def stats_line(end: TurnEnd, n_ctx: int, limit: str = "--max-tokens") -> str:
    """One line for people: how many tokens, and what ``limit`` ended them; how fast, in which phase."""
    stats = end.stats
    parts = [counted(stats.output_tokens, "token") + (f" ({limit})" if end.reason == "length" else "")]
    if stats.decode_tok_s is not None:
        parts.append(f"decode {stats.decode_tok_s:,.1f} tok/s")
    prefill = f"prefill {counted(stats.read_tokens, 'token')} in {stats.prefill_s:.2f} s"
    parts.append(prefill + (f" ({stats.cached_tokens:,} cached)" if stats.cached_tokens else ""))
    if stats.ttft_s is not None:
        parts.append(f"TTFT {stats.ttft_s:.2f} s")
    if stats.drafted:
        parts.append(_drafts(stats))
    parts.append(f"context {stats.context_tokens:,} of {n_ctx:,}")
    return " · ".join(parts)


def _drafts(stats: TurnStats) -> str:
    """How many guesses were checked and right, and what that gave."""
    parts = [f"drafted {stats.drafted:,}, accepted {stats.accepted:,}" + _percent(stats.acceptance_rate)]
    if stats.tokens_per_step is not None:
        parts.append(f"{stats.tokens_per_step:.2f} tokens per step")
    if stats.speedup is not None:
        parts.append(f"about {stats.speedup:.2f} x plain decoding")
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
        ("drafts", _drafts(stats) if stats.drafted else stats.drafting),
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
        rows.append(("drafts", f"drafted {drafted:,}, accepted {accepted:,}" + _percent(accepted / drafted)))
    return "\n".join(f"{name:16} {value}" for name, value in rows)


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def shortened(text: str, width: int = 60) -> str:
    """The beginning of a text, in one line."""
    line = one_line(text[: 4 * width])
    return line if len(line) <= width else line[: width - 1] + "…"


def _with_unit(value: float | None, unit: str, before: str = "") -> str:
    return ("" if before else "not measured") if value is None else f"{before}{value:,.3g} {unit}"


def _milliseconds(value_s: float | None) -> str:
    return "not measured" if value_s is None else f"{1000 * value_s:,.1f} ms"


CONTEXT_REASONS: dict[ContextReason, str] = {
    "chosen": "as chosen",
    "trained": "what the model was trained for",
    "default": "the default; the model allows more",
    "memory": "what fits in memory",
}


def model_line(info: ModelInfo, stats: TurnStats) -> str:
    """One line for people: what is loaded, where, what bounds its context, what drafts, and the seed that was used."""
    parts = [
        info.name,
        f"{info.gpu_layers} of {info.layers} layers on the GPU" if info.gpu_layers else "CPU",
        "1 thread" if info.threads == 1 else f"{info.threads} threads",
        f"{info.kv} KV cache" + (", flash attention" if info.flash_attention else ""),
        f"context {info.n_ctx:,} ({CONTEXT_REASONS[info.n_ctx_reason]})",
        f"drafts {stats.drafting}",
        f"seed {stats.seed}",
    ]
    return " · ".join(parts)


_ENDINGS: dict[FinishReason, str] = {
    "context": "the context is full",
    "timeout": "the time limit was reached",
    "interrupted": "interrupted",
}


def ending(end: TurnEnd) -> str | None:
    """What must be said of an answer that did not come to its own end; None where it did."""
    if end.reason not in _ENDINGS:
        return None
    return f"{_ENDINGS[end.reason]}: " + ("the answer is cut" if end.stats.output_tokens else "there is no answer")


NO_TEMPLATE = "this model has no chat template, so it is given a plain transcript; it may be a base model"


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


def dumps(value: object) -> str:
    """JSON in one line, every control character escaped (C1 too, which ``ensure_ascii=False`` lets through)."""
    return json.dumps(value, ensure_ascii=True)
