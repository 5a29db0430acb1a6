"""What a model of the hub is like, when it is not on this disk: from its header, without the gigabytes behind it.

Knows how much may be read for that. Leaves nothing on this disk. The hub is hub.py's business, the header gguf.py's.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from localllm.cancel import Cancel
from localllm.errors import DownloadError, ModelFileError
from localllm.models import hub
from localllm.models.container import holds_header
from localllm.models.gguf import ModelShape, parse_parts
from localllm.models.reference import HubReference, choose, shortest_name
from localllm.models.split import parts

MOST_BYTES = 128 * 2**20  # for all parts of a model; the largest headers of today take 16 MiB


def read_shape(wanted: HubReference, cancel: Cancel | None = None) -> tuple[str, ModelShape]:
    """The shape of the model that is meant, and the shortest name for it. Takes a second or two.

    Raises ModelNotFound where the repository has no such model, DownloadError where the hub cannot be asked,
    ModelFileError where what it has is no usable GGUF, Cancelled.
    """
    cancel = cancel or Cancel()
    try:
        files = hub.list_files(wanted.repository, cancel)
        file = choose(files, wanted)
        name = shortest_name(wanted.repository, file, files) or f"{wanted.repository}:{file}"
        return name, _shape(wanted.repository, file, cancel)
    except DownloadError as error:
        raise DownloadError(
            f"{wanted.repository} is not on this disk, and cannot be read from the Hugging Face hub: {error.message}",
            error.hint or "check the network, or give the path of a GGUF file",
        ) from None


def _shape(repository: str, file: str, cancel: Cancel) -> ModelShape:
    names = [path.as_posix() for path in parts(Path(file))]
    try:
        with tempfile.TemporaryDirectory(prefix="localllm-") as folder:
            return parse_parts(_headers(repository, names, Path(folder) / "header", cancel), len(names))
    except ModelFileError as error:
        raise ModelFileError(f"{repository}/{file} {error.message}", error.hint or "choose another") from None
    except OSError as error:
        raise DownloadError(f"{error.filename}: {error.strerror}") from None


def _headers(repository: str, names: Sequence[str], target: Path, cancel: Cancel) -> Iterator[tuple[BinaryIO, int]]:
    """The beginning of each file, with the size of the whole file. One lies on this disk at a time."""
    left_bytes = MOST_BYTES
    for name in names:
        file_bytes = hub.fetch_header(repository, name, target, left_bytes, cancel)
        with target.open("rb") as source:
            fetched_bytes = target.stat().st_size
            if fetched_bytes < file_bytes and not holds_header(source):
                raise ModelFileError(f"has a header of more than {fetched_bytes:,} bytes, which is not read")
            source.seek(0)
            yield source, file_bytes
        left_bytes = max(1, left_bytes - fetched_bytes)
