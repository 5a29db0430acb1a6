"""Putting text on the clipboard: with the system's own program, or by asking the terminal (OSC 52).

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
    """Put ``text`` on the clipboard; returns how. ``out`` is the terminal. Raises UsageError where nothing can."""
    if (command := _program()) and _given_to(command, text):
        return f"with {command[0]}"
    data = text.encode("utf-8", "replace")
    if len(data) > _MOST_OSC_BYTES:
        raise UsageError(
            f"{len(data):,} bytes are more than a terminal takes for its clipboard",
            "install wl-copy, xclip or xsel, or write them to a file with /save",
        )
    out.write(_osc52(data, os.environ))
    out.flush()
    return "by way of the terminal (OSC 52; some have to be told to allow it)"


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


def _given_to(command: list[str], text: str) -> bool:
    try:
        # xclip stays in the background to serve the clipboard: it must hold no pipes of ours, nor get a Ctrl-C.
        done = subprocess.run(
            command,
            input=text.encode("utf-8", "replace"),
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
