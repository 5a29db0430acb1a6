"""What fills the context, as rows with bars. Pure: knows neither model nor terminal."""

from localllm.session.room import Filled
from localllm.sizes import turns_text
from localllm.terminal.safe import one_line
from localllm.values import Message

_WHO = {"system": "system", "user": "you", "assistant": "answer"}
_MOST_ROWS = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def context_view(filled: Filled, forgotten_turns: int, columns: int, turns_before: int = 0) -> str:
    """A row for each message that the model is given, the oldest together in one where there are many."""
    rows = [(f"{_WHO[message.role]:8}", tokens, _beginning(message)) for message, tokens in filled.messages]
    if len(rows) > _MOST_ROWS:
        earlier = rows[: len(rows) - _MOST_ROWS]
        tokens = sum(tokens for _, tokens, _ in earlier)
        rows = [("earlier ", tokens, f"{len(earlier)} messages"), *rows[len(earlier) :]]
    if filled.layout_tokens:
        thought = any(message.reasoning for message, _ in filled.messages[-1:])
        text = "what the model's chat template adds" + (", and the last reasoning" if thought else "")
        rows.append(("layout  ", filled.layout_tokens, text))
    free = max(0, filled.n_ctx - filled.total_tokens)
    rows.append(("free    ", free, ""))
    width = max(8, min(24, columns - 50))
    lines = [
        f"{name} {tokens:>8,}  {bar(tokens / filled.n_ctx, width)}  {text}".rstrip() for name, tokens, text in rows
    ]
    lines = [line[: columns - 1] for line in lines]
    share = 100 * filled.total_tokens / filled.n_ctx
    head = f"context: {filled.total_tokens:,} of {filled.n_ctx:,} tokens ({share:.0f} %)"
    if forgotten_turns:
        head += f"; the model is no longer given the oldest {turns_text(forgotten_turns)}"
    elif turns_before:
        head += f"; no room was left for the {turns_text(turns_before)} before this conversation"
    return "\n".join([head, *lines])


def bar(share: float, width: int) -> str:
    """A bar of ``width`` cells, filled to ``share`` in eighths of a cell; something shows where there is something."""
    eighths = max(1 if share > 0 else 0, round(8 * width * min(1.0, share)))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def _beginning(message: Message) -> str:
    text = one_line(message.text[:200])
    return text if len(text) <= 40 else text[:39] + "…"
