"""The first command in what a model wrote for a shell, and whether it destroys something.

Pure, and by the text alone: nothing is run, looked up or expanded. Knows the usual words of POSIX shells, git and a few
other tools; that nothing is found means no more than that.
"""

import itertools
import re
import shlex
from collections.abc import Iterator

_MOST_CHARS, _MOST_LINES = 8000, 100  # of one command: what is longer is none
_PROMPT = re.compile(r"^\s*[$%>] (?=\S)")
_GOES_ON = re.compile(r"(?:(?<!\\)(?:\\\\)*\\|\||&&|[({]|\b(?:do|then|else))\s*$")
_HERE = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
_ENDS = {"for": "done", "while": "done", "until": "done", "select": "done", "if": "fi", "case": "esac"}
_WORD = r"(?:^|[\s;|&(`'\"/])"  # what may stand before the name of a program
_END = r"(?:\s|$)"
_DESTROYS = {
    "rm": rf"{_WORD}rm{_END}",
    "rmdir": rf"{_WORD}rmdir{_END}",
    "unlink": rf"{_WORD}unlink{_END}",
    "shred": rf"{_WORD}shred{_END}",
    "truncate": rf"{_WORD}truncate{_END}",
    "dd": rf"{_WORD}dd\s.{{0,80}}\bof=",
    "mkfs": rf"{_WORD}mkfs[.\w]*\s",
    "wipefs": rf"{_WORD}wipefs{_END}",
    "writing to a device": r">\s*/dev/(?:sd|hd|vd|nvme|mmcblk|disk|mapper|dm-|md|loop)",
    "-delete": r"\s--?delete\b",
    "sed -i": rf"{_WORD}sed\s(?:.{{0,80}}\s)?(?:-[a-zA-Z]*i|--in-place)",
    "git reset --hard": r"\bgit\s.{0,80}\breset\s.{0,80}--hard\b",
    "git clean": r"\bgit\s(?:.{0,80}\s)?clean\s.{0,80}-\w*f",
    "git checkout of files": r"\bgit\s(?:.{0,80}\s)?(?:checkout\s(?:.{0,80}\s)?(?:--|\.)(?:\s|$)|restore\s)",
    "git branch -D": r"\bgit\s(?:.{0,80}\s)?branch\s(?:.{0,80}\s)?-D\b",
    "git push --force": r"\bgit\s(?:.{0,80}\s)?push\s(?:.{0,80}\s)?(?:--force\b|-f\b)",
    "git stash drop": r"\bgit\s(?:.{0,80}\s)?stash\s+(?:drop|clear)\b",
    "prune": r"\b(?:docker|podman)\s.{0,80}\bprune\b",
    "DROP": r"(?i:\bdrop\s+(?:table|database|schema)\b)",
}


def first_command(text: str) -> str:
    """The first command of a text, with the lines that belong to it; "" where there are only comments.

    A line goes on behind a backslash, an operator or an open quote, to the end of a here-document, and to the word that
    closes a loop or a condition; where that never comes, to the next empty line. A prompt ("$ ") before it is no part
    of it.
    """
    lines = text.split("\n")
    begin = next((at for at, line in enumerate(lines) if line.strip() and not _is_comment(line)), len(lines))
    taken: list[str] = []
    for line in lines[begin:]:
        taken.append(line if taken else _PROMPT.sub("", line).strip())
        if _is_whole(taken):
            return "\n".join(taken).rstrip()
        if len(taken) == _MOST_LINES or sum(map(len, taken)) > _MOST_CHARS:
            break
    return "\n".join(itertools.takewhile(str.strip, taken))


def destroys(command: str) -> list[str]:
    """What in the command removes or overwrites something, in the words of a short list."""
    return [name for name, pattern in _DESTROYS.items() if re.search(pattern, command[:_MOST_CHARS])]


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _is_whole(lines: list[str]) -> bool:
    text = "\n".join(lines)
    if here := _HERE.search(text):
        return lines[-1].strip() == here[2]
    if _GOES_ON.search(text):
        return False
    try:
        words = list(_words(text))
    except ValueError:  # a quote is open
        return False
    end = _ENDS.get(words[0]) if words else None
    return end is None or words.count(end) >= sum(_ENDS.get(word) == end for word in words)


def _words(text: str) -> Iterator[str]:
    """The words as a shell would see them. Raises ValueError where a quote is not closed."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters = "#"
    yield from lexer
