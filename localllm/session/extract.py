"""The fenced code blocks of an answer, where CommonMark sees them. Pure; knows no model and no terminal."""

from dataclasses import dataclass
from typing import Literal

Which = Literal["first", "last", "command"]
"""A code block; or the first command in the first of them, and else in the whole text."""


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """``code`` is what stands between the fences, without the line break at its end.

    ``closed`` is False where the answer, or the list or quote around the block, ends before a closing fence.
    """

    code: str
    closed: bool


def code_blocks(text: str) -> list[CodeBlock]:
    """All fenced code blocks of ``text`` in their order, whatever their fences, info strings and containers."""
    from markdown_it import MarkdownIt  # 40 ms, which only those pay who extract

    whole_lines = text.removesuffix("\n") + "\n"  # so that each line of a block ends with its break
    blocks = MarkdownIt("commonmark").disable("inline").parse(whole_lines)
    return [_block(token.content, token.map or [0, 0]) for token in blocks if token.type == "fence"]


def code_block(text: str, which: Which) -> CodeBlock | None:
    """What is wanted of them; None where there is none."""
    blocks = code_blocks(text)
    if which == "command":
        from localllm.session.shell import first_command

        return CodeBlock(first_command(blocks[0].code if blocks else text), closed=True)
    return blocks[0 if which == "first" else -1] if blocks else None


def _block(content: str, lines: list[int]) -> CodeBlock:
    """``lines`` are the block's first line and the one after its last, fences included."""
    fences = lines[1] - lines[0] - content.count("\n")
    return CodeBlock(content.removesuffix("\n"), closed=fences == 2)
