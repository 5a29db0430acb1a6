"""Makes text from a model, a file or the network harmless for a terminal. Pure.

Removed: C0 and C1 control characters except newline and tab (so no escape sequence can begin: no colours, no
window title, no clipboard), and the bidirectional overrides that make text read otherwise than it is.
"""

import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """``text`` without what could steer a terminal. Works on any piece of a stream by itself."""
    return _UNSAFE.sub("", text)


def one_line(text: str) -> str:
    """As ``safe``, for a line of its own: newlines and tabs become spaces."""
    return safe(" ".join(text.split()))
