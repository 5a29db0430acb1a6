"""Makes text from a model, a file, the network or the command line harmless for a terminal and for a model. Pure.

Removed: C0 and C1 control characters except newline and tab (so no escape sequence can begin: no colours, no
window title, no clipboard), and the bidirectional overrides that make text read otherwise than it is.
"""

import os
import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_UNDECODED = re.compile("[\ud800-\udfff]")
_LINE_CHARS = 1000


def safe(text: str) -> str:
    """``text`` without what could steer a terminal. Works on any piece of a stream by itself."""
    return _UNSAFE.sub("", text)


def escaped(text: str) -> str:
    """JSON with what ``safe`` would remove written out as escapes, so that its values stay what they are."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """As ``safe``, for a line of its own: newlines and tabs become spaces, what is absurdly long loses its middle."""
    line = safe(" ".join(text.split()))
    if len(line) > _LINE_CHARS:
        return f"{line[: _LINE_CHARS // 2]} … {line[-_LINE_CHARS // 2 :]}"
    return line


def readable(text: str) -> str:
    """What was typed or given as an argument, as UTF-8; bytes that are none become U+FFFD.

    Python hides a byte that the locale cannot decode in a lone surrogate (PEP 383), which no tokenizer takes.
    """
    return os.fsencode(text).decode("utf-8", "replace") if _UNDECODED.search(text) else text
