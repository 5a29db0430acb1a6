"""Checks of what lies on disk: the prompt-prefix cache, the folders, and room for models."""

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localllm import config
from localllm.doctor.finding import Finding, ok, problem, warning
from localllm.models import hub
from localllm.settings import prefix_budget_bytes
from localllm.sizes import size_text

if TYPE_CHECKING:
    from localllm.engine.prefix_store import Entry

_SAMPLE_BYTES = 128 * 10**6  # of blocks that are checked, which takes a tenth of a second
_LITTLE_BYTES = 5 * 10**9  # a model of 8 billion parameters takes as much
_NOTHING_BYTES = 2 * 10**8  # not even the default model goes in


def prefix_cache() -> Iterator[Finding]:
    """Whether the cache of prompts is used, private, and whole as far as a sample tells. Raises UsageError."""
    from localllm.engine import prefix_store

    folder, budget_bytes = config.prefix_dir(), prefix_budget_bytes()
    if not budget_bytes:
        yield ok("prefix cache", "off: LOCALLLM_CACHE_SIZE is 0, or the disk has no room")
        return
    if not folder.exists():
        yield ok("prefix cache", f"empty; at most {size_text(budget_bytes)}")
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        text = f"others may look into {folder} (mode {mode:o}), and it holds what was typed"
        yield problem("prefix cache", text, f"chmod 700 {folder}")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield warning(
            "prefix cache", f"{folder} cannot be used, so nothing is kept", "give it to this user (chown), or remove it"
        )
        return
    blocks = [entry for _, entry in prefix_store.entries(folder) if entry.key]
    looked_at = _sample(blocks)
    damaged = sum(not prefix_store.intact(block) for block in looked_at)
    used_bytes = sum(block.file_bytes for block in blocks)
    text = f"{size_text(used_bytes)} of at most {size_text(budget_bytes)} in {len(blocks):,} blocks"
    checked = f"{len(looked_at):,} of them checked"
    if damaged:
        advice = "they are never used; to remove them: localllm cache verify"
        yield problem("prefix cache", f"{text}; {checked}, {damaged:,} damaged", advice)
    else:
        yield ok(
            "prefix cache", f"{text}; {checked}, all whole" if blocks else f"empty; at most {size_text(budget_bytes)}"
        )


def _sample(blocks: "Sequence[Entry]") -> "list[Entry]":
    """The blocks that were used last, as many as can be checked in no time."""
    taken: list[Entry] = []
    size_bytes = 0
    for block in sorted(blocks, key=lambda block: -block.used_s):
        size_bytes += block.file_bytes
        if size_bytes > _SAMPLE_BYTES and taken:
            break
        taken.append(block)
    return taken


def folders() -> Iterator[Finding]:
    """Whether localllm may write where it keeps things."""
    places = (config.cache_dir(), config.data_dir(), config.config_dir())
    refused = [str(place) for place in places if not _writable(place)]
    if refused:
        advice = "give them to this user, or set XDG_CACHE_HOME, XDG_DATA_HOME and XDG_CONFIG_HOME"
        yield problem("folders", f"cannot be written: {', '.join(refused)}", advice)
    else:
        yield ok("folders", ", ".join(map(str, places)))


def _writable(place: Path) -> bool:
    """Also for a folder that is not there yet: then where it would be made."""
    there = next((path for path in (place, *place.parents) if os.path.lexists(path)), place)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def disk() -> Iterator[Finding]:
    """Whether there is room for another model, where models are fetched to."""
    for place in dict.fromkeys(map(_there, (config.cache_dir(), hub.cache_folder()))):
        yield room(str(place), shutil.disk_usage(place).free)


def _there(place: Path) -> Path:
    return next(path for path in (place, *place.parents) if path.exists())


def room(place: str, free_bytes: int) -> Finding:
    """The free bytes of the disk that holds ``place``."""
    text = f"{size_text(free_bytes)} are free in {place}"
    advice = "to make room: localllm rm NAME, localllm cache clear"
    if free_bytes < _NOTHING_BYTES:
        return problem("disk", text, advice)
    return (
        warning("disk", f"{text}, less than many models take", advice)
        if free_bytes < _LITTLE_BYTES
        else ok("disk", text)
    )
