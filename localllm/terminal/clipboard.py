"""Putting text on the clipboard: with the system's own program, tmux's, or by asking the terminal (OSC 52).

A terminal at the other end of ssh has a clipboard that no program here can reach; it is asked for in the text itself.
"""

import base64
import os
import shutil
import subprocess
import sys
from typing import TextIO

from localllm.errors import UsageError

_MOST_OSC_BYTES = 74_994  # of text: xterm takes 100,000 characters of base64, others no more
_TIMEOUT_S = 3.0


def copy(text: str, out: TextIO) -> str:
    """Put ``text`` on every clipboard that can be reached; returns what was done.

    ``out`` is the terminal, which is asked where there is no other: it does not say whether it obeys. Raises UsageError
    where nothing takes the text.
    """
    data, size = text.encode("utf-8", "replace"), f"{len(text):,} characters"
    fits = len(data) <= _MOST_OSC_BYTES
    in_tmux, sent = _to_tmux(data, pass_on=fits)
    places = ["to tmux (prefix ] pastes them)"] if in_tmux else []
    if (command := _program()) and _given_to(command, data):
        return f"copied {size} {' and '.join([f'with {command[0]}', *places])}"
    if fits and not sent:
        out.write(_osc52(data, os.environ))
        out.flush()
    if not fits and not places:
        raise UsageError(
            f"{len(data):,} bytes are more than a terminal takes for its clipboard",
            "install wl-copy, xclip or xsel, or write them to a file with /save",
        )
    asked = ["sent to the terminal (OSC 52; some have to be told to allow it)"] if fits else []
    return " ".join(["copied" * bool(places), size, " and ".join([*places, *asked])]).lstrip()


def _to_tmux(data: bytes, pass_on: bool) -> tuple[bool, bool]:
    """Whether tmux, if we are in it, has the text in a buffer, and whether it asked the terminal outside as well.

    As tmux is set by default, it takes no such request from a program inside; its own (-w) it makes since 3.2.
    """
    if not os.environ.get("TMUX"):
        return False, False
    if pass_on and _given_to(["tmux", "load-buffer", "-w", "-"], data):
        return True, True
    return _given_to(["tmux", "load-buffer", "-"], data), False


def _program() -> list[str] | None:
    """The system's own program for its clipboard, where this session has one."""
    candidates: list[list[str]] = []
    if sys.platform == "darwin":
        candidates.append(["pbcopy"])
    if os.environ.get("WAYLAND_DISPLAY"):
        candidates.append(["wl-copy"])
    if os.environ.get("DISPLAY"):
        candidates += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    if os.environ.get("WSL_DISTRO_NAME"):
        candidates.append(["clip.exe"])
    return next((command for command in candidates if shutil.which(command[0])), None)


def _given_to(command: list[str], data: bytes) -> bool:
    try:
        # xclip stays in the background to serve the clipboard: it must hold no pipes of ours, nor get a Ctrl-C.
        done = subprocess.run(
            command,
            input=data,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _osc52(data: bytes, environ: "os._Environ[str] | dict[str, str]") -> str:
    """The request to the terminal (xterm's control sequences, "Manipulate Selection Data"); tmux passes it on."""
    request = f"\x1b]52;c;{base64.b64encode(data).decode()}\x07"
    if environ.get("TMUX"):
        doubled = request.replace("\x1b", "\x1b\x1b")
        return f"\x1bPtmux;{doubled}\x1b\\"
    return request
