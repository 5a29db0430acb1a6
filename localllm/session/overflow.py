"""What to do when a prompt is larger than the context: drop a part of the attached text, and say how much.

Pure: it knows neither model nor tokenizer, only a function that makes a prompt out of the text.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from localllm.errors import PromptTooLong
from localllm.values import Prompt

Part = Literal["head", "tail", "middle"]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that fits, and how many tokens of the ``total_tokens`` it would have had were dropped.

    ``text`` is what it holds of the attached text.
    """

    prompt: Prompt
    total_tokens: int
    dropped_tokens: int
    text: str


def fit(text: str, encode: Callable[[str], Prompt], n_ctx: int, answer_tokens: int, drop: Part | None) -> Fitted:
    """Make ``encode(text)`` fit into ``n_ctx`` tokens, dropping the head, the tail or the middle of ``text``.

    A prompt that fits with one token to spare is left whole; one that has to be cut leaves ``answer_tokens``
    for the answer. Raises PromptTooLong where nothing may be dropped, or where the rest alone is too long.
    """
    prompt = encode(text)
    total, encode_s = len(prompt.ids), prompt.encode_s
    if total < n_ctx:
        return Fitted(prompt, total, 0, text)
    if drop is None:
        raise PromptTooLong(
            f"the prompt has {total:,} tokens, the context holds {n_ctx:,}",
            "shorten it, let --on-overflow drop its head, tail or middle, or give a larger --ctx-size if it can be",
        )
    limit = n_ctx - answer_tokens
    fixed = len(encode("").ids)
    if fixed > limit:
        raise PromptTooLong(
            f"even without the attached text the prompt has {fixed:,} tokens; the context holds {n_ctx:,}",
            "shorten the instruction or the system prompt, or choose a larger --ctx-size",
        )
    kept, kept_chars = text, len(text)
    while len(prompt.ids) > limit:
        share = (limit - fixed) / max(1, len(prompt.ids) - fixed)
        kept_chars = min(kept_chars - 1, int(kept_chars * share))  # always shrinks, so it ends
        kept = _without(text, kept_chars, drop)
        prompt = encode(kept)
        encode_s += prompt.encode_s
    return Fitted(dataclasses.replace(prompt, encode_s=encode_s), total, total - len(prompt.ids), kept)


def _without(text: str, kept_chars: int, drop: Part) -> str:
    match drop:
        case "head":
            return text[len(text) - kept_chars :]
        case "tail":
            return text[:kept_chars]
        case "middle":
            head_chars = kept_chars // 2
            return text[:head_chars] + text[len(text) - (kept_chars - head_chars) :]
