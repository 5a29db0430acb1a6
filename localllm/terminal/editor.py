"""The input line in the editor of the user's choice: $VISUAL, else $EDITOR, else vi. Knows no keys."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from localllm.errors import UsageError


def edited(text: str, name: str = "prompt.txt") -> str:
    """``text`` as it is after editing, without the line break at its end; waits until the editor is left.

    ``name`` is that of the file, by which an editor knows what it holds.
    Raises UsageError where the editor cannot be started or reports a failure.
    """
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        with tempfile.TemporaryDirectory(prefix="localllm-") as folder:
            path = Path(folder) / name
            path.write_text(text, "utf-8", "replace")
            code = subprocess.call([*shlex.split(command), str(path)])
            if code == 0:
                return path.read_text("utf-8", "replace").removesuffix("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot edit with {command!r}: {reason}", "set EDITOR to a program that is there") from error
    raise UsageError(f"{command!r} failed with exit code {code}", "the text is as it was")
