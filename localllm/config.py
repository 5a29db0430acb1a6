"""Where things live on disk, and the choices that shape a loaded model. Knows no model and no terminal."""

import os
from dataclasses import dataclass
from pathlib import Path

from localllm.errors import LocalLLMError
from localllm.values import KvType

APP = "localllm"
DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Settings:
    """The runtime choices that shape a loaded model. None means "choose for me".

    ``draft`` is "auto" (from the text, and with the catalog's draft model where it is on this disk), "ngram" (from
    the text only), "off", or a model. With ``exact`` an answer does not depend on drafts, on what was cached or on
    the machine's load in its last bits. ``cache`` is whether prompts that were read are used again, ``cache_writes``
    whether new ones are kept on disk for that.
    """

    ctx_size: int | None = None
    kv: KvType = "f16"
    gpu_layers: int | None = None
    threads: int | None = None
    draft: str = "auto"
    cache: bool = True
    exact: bool = False
    cache_writes: bool = True


def config_dir() -> Path:
    """What a user writes: settings, and a catalog of their own ($XDG_CONFIG_HOME/localllm)."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def cache_dir() -> Path:
    """Files that can be fetched or computed again ($XDG_CACHE_HOME/localllm)."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def data_dir() -> Path:
    """What would be missed if it were gone ($XDG_DATA_HOME/localllm)."""
    return _xdg("XDG_DATA_HOME", ".local/share")


def prefix_dir() -> Path:
    """The prompt-prefix cache. It holds what was typed, in effect: nobody else may read it."""
    return cache_dir() / "prefix"


def is_there(path: Path, error: type[LocalLLMError]) -> bool:
    """Whether a person has put a file there. Raises ``error`` for one that cannot be looked at."""
    try:
        path.parent.stat()
    except OSError:  # no such folder; or a home that we may not enter, as in a container of another user's
        return False
    try:
        path.lstat()  # of the link itself: one that leads nowhere is a mistake to tell, not a missing file
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as failure:
        from localllm.yamlfile import unreadable

        raise unreadable(path, failure.strerror, error) from None
    return True


def _xdg(variable: str, below_home: str) -> Path:
    value = os.environ.get(variable, "")
    if Path(value).is_absolute():  # the XDG specification: a relative path is to be ignored
        return Path(value) / APP
    try:
        return Path.home() / below_home / APP
    except RuntimeError:  # no HOME and no entry in the password database
        import tempfile

        return Path(tempfile.gettempdir()) / f"{APP}-{os.getuid()}" / below_home.lstrip(".")
