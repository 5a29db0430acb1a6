"""Whether a terminal can open addresses that a program marks as such (OSC 8). Pure.

No terminal can be asked, so those are named that are known to: old ones would write the marks out. Sources: the list at
github.com/Alhadis/OSC8-Adoption, and the changes of tmux 3.4.
"""

import re
from collections.abc import Mapping

_PROGRAMS = ("iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper", "rio", "Tabby", "WarpTerminal")
_TERMS = ("xterm-kitty", "xterm-ghostty", "foot", "alacritty", "wezterm", "contour")
_VTE, _KONSOLE = 5000, 201200  # the first versions that can, as they number themselves
_TMUX = (3, 4)


def opens_links(environ: Mapping[str, str]) -> bool:
    """True where the variables that terminals set name one that can."""
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if environ.get("TMUX"):  # what it runs in is its own affair: it passes on what that can take
        return program == "tmux" and _version(environ.get("TERM_PROGRAM_VERSION", "")) >= _TMUX
    if environ.get("STY") or term.startswith(("screen", "dumb", "linux")) or "XTERM_VERSION" in environ:
        return False
    return (
        program in _PROGRAMS
        or term.startswith(_TERMS)
        or bool(environ.get("WT_SESSION"))
        or _version(environ.get("VTE_VERSION", "")) >= (_VTE,)
        or _version(environ.get("KONSOLE_VERSION", "")) >= (_KONSOLE,)
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]{1,9}", text))
