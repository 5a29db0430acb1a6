"""A Markdown text that comes in pieces -> its finished blocks, each once, and the one that is still open.

A block is finished when nothing that can still come changes how it looks: when, in whole lines, another one has begun
after it. An item of a list is a block of its own here, and so is a part of a long piece of code. Knows Markdown's
tokens and neither rows nor terminals. Pure.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

from markdown_it.token import Token

from localllm.terminal.markdown import code_lines, code_parts, language, parse

# What a block may grow to before it is ended by force: the worst text of this length takes the parser 0.4 s.
MAX_BLOCK_CHARS = 16_000


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens that make one block, and what it takes to parse the text from here on.

    ``line`` is where it begins in what was parsed. ``joined``: it goes on with the list or the code of the one before,
    so that no empty line comes between them. To parse it by itself it needs a line before it, ``opening``: the one that
    opened the code, or another item. ``number`` is its own where it is an item of an ordered list.
    """

    tokens: list[Token]
    line: int
    joined: bool = False
    opening: str = ""
    number: int | None = None

    @property
    def is_open_code(self) -> bool:
        """True for code that goes on after this block."""
        return self.tokens[0].type == "fence" and not self.tokens[0].meta["ends"]


_BEGINNING = Block([], 0)


class Blocks:
    """``feed`` it pieces, cut anywhere; ``finished`` gives each block once, ``rest`` what would end the text now.

    A block that grows beyond ``max_block_chars`` is ended by force, so that the time for a piece stays bounded.
    """

    def __init__(self, max_block_chars: int = MAX_BLOCK_CHARS) -> None:
        self._max_block_chars = max_block_chars
        self._text = ""  # what is not finished
        self._first = _BEGINNING  # of the blocks in it
        self._searched_chars = 0

    def feed(self, text: str) -> None:
        """Take a piece of the text."""
        self._text += text

    def finished(self) -> list[Block]:
        """The blocks that have been finished since the last call."""
        found: list[Block] = []
        while (blocks := self._take()) is not None:
            found += blocks
        return found

    def rest(self) -> list[Block]:
        """What is not finished, as if the text ended here."""
        return self._blocks(self._text)

    def _take(self) -> list[Block] | None:
        """The blocks that end in the next stretch of the text; None where none does."""
        is_full = len(self._text) > self._max_block_chars
        window = self._text[: self._max_block_chars]
        text = window[: window.rfind("\n") + 1] or (window if is_full else "")
        if len(text) == self._searched_chars and not is_full:
            return None
        self._searched_chars = len(text)
        blocks = self._blocks(text, goes_on=True)
        if len(blocks) > 1:
            parsed = self._opening + text
            chars = sum(len(line) + 1 for line in parsed.split("\n")[: blocks[-1].line])
            self._go_on(chars - len(self._opening), blocks[-1])
            return blocks[:-1]
        if not is_full:
            return None
        last = blocks[-1] if blocks else _BEGINNING
        self._go_on(len(text), Block([], 0, True, last.opening) if blocks and last.is_open_code else _BEGINNING)
        return blocks

    def _go_on(self, chars: int, first: Block) -> None:
        self._text, self._first, self._searched_chars = self._text[chars:], first, 0

    @property
    def _opening(self) -> str:
        return self._first.opening if self._first.joined else ""

    def _blocks(self, text: str, goes_on: bool = False) -> list[Block]:
        if not text:
            return []
        parsed = self._opening + text
        lines = parsed.split("\n")
        found: list[Block] = []
        for tokens in _groups(parse(parsed)):
            first = self._first if not found else _BEGINNING
            if tokens[0].type == "fence":
                found += _parts(tokens[0], lines, first, goes_on)
            elif tokens[0].type in ("bullet_list_open", "ordered_list_open"):
                found += _items(tokens, first)
            else:
                found.append(Block(tokens, _line(tokens[0])))
        return found


def _groups(tokens: list[Token]) -> Iterator[list[Token]]:
    """One list of tokens for each element on the uppermost level of ``tokens``."""
    group: list[Token] = []
    for token in tokens:
        group.append(token)
        if token.level == tokens[0].level and token.nesting <= 0:
            yield group
            group = []


def _items(tokens: list[Token], first: Block) -> Iterator[Block]:
    """A list, item by item; ``first`` is the item with which it goes on."""
    head, *inside, closing = tokens
    items = list(_groups(inside))[first.joined :]
    start = None
    if head.type == "ordered_list_open":
        start = first.number if first.number is not None else int(head.attrs.get("start", 1))
    for index, item in enumerate(items):
        head = copy(head)
        number = None if start is None else start + index
        head.attrs = {} if number is None else {"start": number}
        opening = (
            f"{'' if number is None else 1}{head.markup}    x\n"  # so wide that an indented item is none inside it
        )
        yield Block([head, *item, closing], _line(item[0]), index > 0 or first.joined, opening, number)


def _parts(token: Token, lines: list[str], first: Block, goes_on: bool) -> Iterator[Block]:
    """Fenced code, part by part; ``first`` is the part with which it goes on, ``lines`` is the text in lines."""
    begin = _line(token)
    opening = lines[begin] + "\n"
    is_closed = token.map is not None and token.map[1] - begin == token.content.count("\n") + 2
    parts = list(code_parts(code_lines(token.content), language(token)))
    done = 0
    for index, part in enumerate(parts):
        is_joined = index > 0 or first.joined
        piece = copy(token)
        piece.content = "".join(f"{line}\n" for line in part)
        piece.meta = {"begins": not is_joined, "ends": index == len(parts) - 1 and (is_closed or not goes_on)}
        yield Block([piece], begin + 1 + done if is_joined else begin, is_joined, opening)
        done += len(part)


def _line(token: Token) -> int:
    return token.map[0] if token.map else 0
