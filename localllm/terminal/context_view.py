"""What fills the context, as rows with bars. Pure: knows neither model nor terminal."""

from localllm.session.room import Filled
from localllm.sizes import turns_text
from localllm.terminal.safe import one_line

_WHO = {"system": "system", "user": "you", "assistant": "answer"}
_NEWEST_ROWS, _LARGEST_ROWS = 8, 8
_TEXT_CHARS = 40
_Row = tuple[str, int, str]  # who, how many tokens, and how it begins
_MARKS = "|#>`~=:-*_ "  # a line of nothing else says nothing
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def context_view(filled: Filled, forgotten_turns: int, columns: int, turns_before: int = 0) -> str:
    """A row for each message that the model is given; of many, for the newest and the largest."""
    rows = [(f"{_WHO[message.role]:8}", tokens, _beginning(message.text)) for message, tokens in filled.messages]
    if filled.summarised:
        start = 1 if filled.messages[0][0].role == "system" else 0
        tokens = sum(tokens for _, tokens, _ in rows[start : start + 2])
        rows[start : start + 2] = [("summary ", tokens, f"of {filled.summarised:,} earlier messages")]
    if len(rows) > _NEWEST_ROWS + _LARGEST_ROWS:
        rows = [*_fewer(rows[:-_NEWEST_ROWS]), *rows[-_NEWEST_ROWS:]]
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
    lines = [_cut(line, columns - 1) for line in lines]
    share = 100 * filled.total_tokens / filled.n_ctx
    head = f"context: {filled.total_tokens:,} of {filled.n_ctx:,} tokens ({share:.0f} %)"
    if forgotten_turns:
        head += f"; the model is no longer given the oldest {turns_text(forgotten_turns)}"
    elif turns_before:
        head += f"; no room was left for the {turns_text(turns_before)} before this conversation"
    return "\n".join([head, *lines])


def _fewer(rows: list[_Row]) -> list[_Row]:
    """The largest of them as they are, behind one for all others."""
    largest = sorted(range(len(rows)), key=lambda index: -rows[index][1])[:_LARGEST_ROWS]
    others = [tokens for index, (_, tokens, _) in enumerate(rows) if index not in largest]
    in_all = ("others  ", sum(others), f"{len(others)} smaller messages before these")
    return [in_all, *(rows[index] for index in sorted(largest))]


def bar(share: float, width: int) -> str:
    """A bar of ``width`` cells, filled to ``share`` in eighths of a cell; something shows where there is something."""
    eighths = max(1 if share > 0 else 0, round(8 * width * min(1.0, share)))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def _beginning(text: str) -> str:
    """The first words of a message on one line, without what draws Markdown's headings, tables and code."""
    lines = (line.strip() for line in text[: 10 * _TEXT_CHARS].splitlines())
    words = " ".join(
        " ".join(line.replace("|", " ").split()) if line.startswith("|") else line.strip("#> ").removeprefix("```")
        for line in lines
        if line.strip(_MARKS)
    )
    more = "…" if len(text) > 10 * _TEXT_CHARS else ""
    return _cut(one_line(words) + more, _TEXT_CHARS)


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"
