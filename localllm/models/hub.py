"""The Hugging Face hub, and its cache on this disk, which other programs share.

Knows the layout of that cache, which of its files we have put there ourselves, and why a download may fail. Alone in
importing huggingface_hub, and that in a child process only: the library takes half a second to load, and cannot be
stopped in the middle of a connection. Knows nothing of catalogs, nor of what a model file holds: where its header
ends it asks container.py.
"""

import errno
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn

from localllm import config
from localllm.cancel import Cancel
from localllm.errors import DownloadError, LocalLLMError
from localllm.models.reference import is_model
from localllm.models.split import first_part, parts

OnBytes = Callable[[int, int | None], None]  # bytes done, bytes in all (None: not known)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ETAG = re.compile(r"[0-9a-f]{16,64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CHUNK_BYTES = 2**20
_MAX_FILES = 10_000  # of the cache, looked at for a list
_TRIES = 3  # in a row without a single byte
_HEADER_STEPS_BYTES = (2**20, 4 * 2**20, 16 * 2**20, 64 * 2**20)  # most headers take 1 to 16 MiB
_REACH_S = 2.0
_HTTP_LIMIT_BYTES = 50 * 10**9  # the hub serves larger files through its Xet protocol only


# --- the cache ---------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where the hub's cache is, by the same variables as huggingface_hub itself."""
    environment = os.environ
    home = environment.get("HF_HOME") or str(Path(environment.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expanduser(os.path.expandvars(cache)))  # noqa: PTH111  # Path.expanduser may raise


def snapshots(repository: str) -> list[Path]:
    """The revisions of a repository that are in the cache, what "main" means first. Newest first otherwise."""
    folder = _repository_folder(repository)
    main = ""
    found: list[Path] = []
    with suppress(OSError, ValueError):
        found = sorted((folder / "snapshots").iterdir(), key=lambda path: path.lstat().st_mtime, reverse=True)
        main = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    return sorted(found, key=lambda path: path.name != main)


def cached(repository: str, file_name: str) -> Path | None:
    """The whole file, with all its parts, in the first revision that has it. Dangling links are no files."""
    paths = (snapshot / file_name for snapshot in snapshots(repository))
    return next((path for path in paths if all(map(is_file, parts(path)))), None)


def cached_files(snapshot: Path) -> list[str]:
    """The names of the whole GGUF models in one revision; of a split model that of its first part."""
    found: list[str] = []
    for index, (folder, _, names) in enumerate(os.walk(snapshot)):  # follows no links, and skips what it may not read
        if index > _MAX_FILES:
            break
        paths = (Path(folder) / name for name in sorted(names) if is_model(name) and first_part(name) == name)
        found += [path.relative_to(snapshot).as_posix() for path in paths if all(map(is_file, parts(path)))]
    return found


def cached_repositories() -> Iterator[tuple[str, Path, list[str]]]:
    """For each revision in the cache: the repository, the folder, and the models that no earlier revision has."""
    with suppress(OSError):
        for folder in sorted(cache_folder().glob("models--*--*")):
            repository = folder.name.removeprefix("models--").replace("--", "/", 1)
            seen: set[str] = set()
            for snapshot in snapshots(repository):
                files = [file for file in cached_files(snapshot) if file not in seen]
                seen.update(files)
                yield repository, snapshot, files


def is_file(path: Path) -> bool:
    """True for a file that is there; False also where we may not look."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _repository_folder(repository: str) -> Path:
    return cache_folder() / f"models--{repository.replace('/', '--')}"


# --- what is ours ------------------------------------------------------------------------------------------------
#
# For every file that we begin to fetch, a mark with the same path is put into our own data folder. It holds the name
# under which the hub's library keeps the bytes (their checksum). So `remove` frees what we have brought, whole or not,
# and nothing that another program has.


def _marks_folder() -> Path:
    return config.data_dir() / "fetched"


def _mark(snapshot_file: Path) -> Path:
    return _marks_folder() / snapshot_file.relative_to(cache_folder())


def _marks(repository: str, file_name: str) -> list[Path]:
    folder = _marks_folder() / _repository_folder(repository).name / "snapshots"
    return [path for name in parts(Path(file_name)) for path in folder.glob(f"*/{name}") if is_file(path)]


def our_files(repository: str) -> list[str]:
    """The files (of a split one, the first part) that we have fetched from a repository, or begun to."""
    folder = _marks_folder() / _repository_folder(repository).name / "snapshots"
    marks = [path.relative_to(folder) for path in folder.glob("*/**/*.gguf")]
    return sorted({first_part(Path(*mark.parts[1:]).as_posix()) for mark in marks})


def remove(repository: str, file_name: str) -> int:
    """Delete what we have fetched of a file, in all revisions; return the number of bytes that this frees.

    Bytes that another revision links to stay, as does what another program has fetched. May raise OSError.
    """
    freed_bytes = 0
    folder = _repository_folder(repository)
    for mark in _marks(repository, file_name):
        link = cache_folder() / mark.relative_to(_marks_folder())
        etag = mark.read_text(encoding="utf-8", errors="replace")
        if not _ETAG.fullmatch(etag):
            raise LocalLLMError(f"{mark} is damaged", "delete it, and the model with: hf cache rm")
        blob = folder / "blobs" / etag
        freed_bytes += _unlink(link) if not link.is_symlink() else 0
        link.unlink(missing_ok=True)
        if not any(_points_to(path, blob) for path in (folder / "snapshots").rglob("*")):
            freed_bytes += _unlink(blob) + _unlink(blob.with_name(blob.name + ".incomplete"))
        mark.unlink()
        _remove_empty(link.parent, folder)
        _remove_empty(mark.parent, config.data_dir())
    return freed_bytes


def _points_to(path: Path, blob: Path) -> bool:
    return path.is_symlink() and path.resolve() == blob.resolve()


def _unlink(path: Path) -> int:
    """Delete a file that may be there; return its size in bytes."""
    size = path.stat().st_size if path.is_file() else 0
    path.unlink(missing_ok=True)
    return size


def _remove_empty(folder: Path, end: Path) -> None:
    """Remove ``folder`` and the folders above it, up to ``end``, as far as they are empty."""
    with suppress(OSError):
        while folder != end:
            folder.rmdir()
            folder = folder.parent


# --- downloads, seen from this process ---------------------------------------------------------------------------


def list_files(repository: str, cancel: Cancel) -> list[str]:
    """The names of all files of a repository, as the hub tells them. Raises DownloadError, Cancelled."""
    names: list[str] = json.loads(_child(["list", repository], lambda *_: None, cancel))
    return names[:_MAX_FILES]


def fetch(
    repository: str,
    file_name: str,
    file_bytes: int | None,
    sha256: str | None,
    phase: Callable[[Literal["fetch", "verify"]], OnBytes],
    cancel: Cancel,
) -> Path:
    """Put a file into the hub's cache and compare its checksum: the given one, or the one that the hub tells.

    A download that was broken off goes on where it ended. Raises DownloadError, Cancelled.
    """
    use_xet = (file_bytes or 0) > _HTTP_LIMIT_BYTES  # which cannot go on with a broken download
    environment = {"HF_HUB_DISABLE_XET": "0" if use_xet else "1"}
    place, etag = json.loads(_child(["fetch", repository, file_name], phase("fetch"), cancel, environment))
    path = Path(place)
    expected = sha256 or (etag if _SHA256.fullmatch(etag) else None)
    if expected:
        _verify(path, expected, phase("verify"), cancel)
    return path


def fetch_header(repository: str, file_name: str, target: Path, most_bytes: int, cancel: Cancel) -> int:
    """Put the beginning of a file, as much as its GGUF header needs, into ``target``; return the size of the whole.

    That is up to 64 MiB, or ``most_bytes`` where these are fewer; it may be too little. Nothing comes into the cache.
    Raises DownloadError, Cancelled.
    """
    arguments = ["header", repository, file_name, str(target), str(most_bytes)]
    size: int = json.loads(_child(arguments, lambda *_: None, cancel))
    return size


def is_offline() -> bool:
    """Whether the user wants the hub not to be asked, by the same variables as huggingface_hub."""
    chosen = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE", "")
    return chosen.upper() in ("1", "ON", "YES", "TRUE")


def reach(cancel: Cancel) -> None:
    """Return if the hub answers. Raises DownloadError with the reason where it does not, Cancelled."""
    _child(["reach", ""], lambda *_: None, cancel)


def _child(arguments: list[str], on_bytes: OnBytes, cancel: Cancel, extra: dict[str, str] | None = None) -> str:
    """Run ``hub_child`` and return the last line that it writes: its result, or the reason of its failure."""
    from localllm import child

    command, environment = child.python(hub_child, *arguments)
    environment |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"} | (extra or {})
    finished = child.run(command, environment, on_bytes, cancel)
    last_line = finished.output.rstrip("\n").rpartition("\n")[2]
    if not finished.ok:
        reason = last_line or "huggingface_hub failed and did not say why"
        raise DownloadError(reason, next((hint for start, hint in _HINTS.items() if reason.startswith(start)), ""))
    return last_line


def _verify(path: Path, sha256: str, on_bytes: OnBytes, cancel: Cancel) -> None:
    """Compare the checksum. A file that differs, or was not compared to its end, is removed: nobody may find it."""
    digest = hashlib.sha256()
    total = path.stat().st_size
    verified = False
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                cancel.check()
                digest.update(chunk)
                on_bytes(file.tell(), total)
        verified = digest.hexdigest() == sha256
    finally:
        if not verified:
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            _mark(path).unlink(missing_ok=True)
    if not verified:
        raise DownloadError("the file is not the one that was promised (its checksum differs)")


# --- downloads, in the child -------------------------------------------------------------------------------------

_GATED = "its publisher wants the licence to be accepted first"
_OFFLINE = "HF_HUB_OFFLINE is set"
_REFUSED = "it refuses the token"
_NO_PROXY = "it cannot be reached through the proxy"
_HINTS = {
    _GATED: "accept it on the model's page, then set HF_TOKEN",
    _OFFLINE: "unset it, or give the path of a GGUF file",
    _REFUSED: "check HF_TOKEN, or unset it: most models need none",
    _NO_PROXY: "check HTTPS_PROXY and HTTP_PROXY",
}


def hub_child() -> None:
    """Ask the hub for one thing: the child process of ``reach``, ``list_files``, ``fetch`` and ``fetch_header``."""
    task, repository, *rest = sys.argv[1:]
    try:
        tasks: dict[str, Callable[..., str]] = {
            "list": _names,
            "fetch": _download,
            "header": _header,
            "reach": _reach,
        }
        result = tasks[task](repository, *rest)
    except Exception as error:  # of many libraries; all that a user needs to know of it is one line
        _leave(_reason(error, repository, *rest[:1]), code=1)
    _leave(result, code=0)


def _leave(last_line: str, code: int) -> NoReturn:
    sys.stdout.write(f"\n{last_line}")
    sys.stdout.flush()
    os._exit(code)  # what the library's threads still do is of no interest


def _reach(_repository: str) -> str:
    from huggingface_hub import constants, get_session, hf_raise_for_status

    response = get_session().head(constants.ENDPOINT, timeout=_REACH_S)
    if response.status_code >= 500:  # it is there, but not well; any other answer will do
        hf_raise_for_status(response)
    return "null"


def _names(repository: str) -> str:
    from huggingface_hub import HfApi

    return json.dumps([file.rfilename for file in HfApi().model_info(repository).siblings or []])


def _download(repository: str, file_name: str) -> str:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils.tqdm import tqdm

    class Lines(tqdm):
        arrived = 0.0  # bytes, in all tries

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            Lines.arrived += n or 0
            sys.stdout.write(f"Progress {int(self.n)} of {int(self.total or 0)}\n")
            sys.stdout.flush()

    # Fails at once where something is wrong; the download itself would retry for 23 s.
    metadata = get_hf_file_metadata(hf_hub_url(repository, file_name))
    commit, etag = metadata.commit_hash or "", metadata.etag or ""
    target = _repository_folder(repository) / "snapshots" / commit / file_name
    if _COMMIT.fullmatch(commit) and _ETAG.fullmatch(etag) and not is_file(target):
        mark = _mark(target)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(etag, encoding="ascii")
    tries = _TRIES
    while True:
        before = Lines.arrived
        try:
            return json.dumps((hf_hub_download(repository, file_name, tqdm_class=Lines), etag))
        except Exception as error:
            tries = _TRIES if Lines.arrived > before else tries - 1
            if not tries or "TransportError" not in _kinds(error):
                raise
            time.sleep(1)  # and go on with what has come


def _header(repository: str, file_name: str, target: str, most_bytes: str) -> str:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    from localllm.models.container import holds_header

    url = hf_hub_url(repository, file_name)
    size = get_hf_file_metadata(url).size
    if not size:
        raise ValueError("it does not tell how large the file is")
    with Path(target).open("w+b") as file:
        for step in _HEADER_STEPS_BYTES:
            end = min(step, size, int(most_bytes))
            _append(file, url, end)
            file.seek(0)
            if end < step or holds_header(file):
                break
    return json.dumps(size)


def _append(file: BinaryIO, url: str, end: int) -> None:
    """Read on from where the file ends to the byte ``end``, and not a byte beyond, whatever is sent."""
    from huggingface_hub import constants, get_session, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented as being there

    start = file.seek(0, os.SEEK_END)
    headers = build_hf_headers() | {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=timeout_s) as response:
        hf_raise_for_status(response)
        if response.status_code != 206:  # it sends the whole file, from its beginning
            start = file.seek(0)
            file.truncate()
        for chunk in response.iter_raw(_CHUNK_BYTES):
            file.write(chunk[: end - start])
            start += len(chunk)
            if start >= end:
                break


def _reason(error: Exception, repository: str, file_name: str = "") -> str:
    """Why it failed, in one line that holds neither a token nor a proxy's password."""
    from huggingface_hub import errors

    match error:
        case errors.OfflineModeIsEnabled():
            return _OFFLINE
        case errors.GatedRepoError():
            return _GATED
        case errors.RepositoryNotFoundError():
            return f"there is no repository {repository}, or it is private (then set HF_TOKEN)"
        case errors.EntryNotFoundError():
            return f"there is no file {file_name} in {repository}"
        case errors.HfHubHTTPError():
            status = error.response.status_code
            return _REFUSED if status in (401, 403) else f"it answers with status {status}"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return "the disk is full"
        case OSError(strerror=str(reason), filename=str(path)):
            return f"{path}: {reason}"
    kinds = _kinds(error)
    if kinds & {"ConnectError", "ConnectTimeout", "ProxyError"}:
        return _NO_PROXY if _uses_proxy() else "it cannot be reached"
    if "TransportError" in kinds:
        return "the connection broke off"
    return _without_secrets(f"{type(error).__name__}: {error}".split("\n")[0])


def _kinds(error: Exception) -> set[str]:
    """The names of its classes: those of httpx, which is the library's affair, need not be imported here."""
    return {kind.__name__ for kind in type(error).__mro__}


def _uses_proxy() -> bool:
    names = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
    return any(os.environ.get(name) or os.environ.get(name.lower()) for name in names)


def _without_secrets(text: str) -> str:
    for secret in filter(None, (os.environ.get("HF_TOKEN"), os.environ.get("HUGGING_FACE_HUB_TOKEN"))):
        text = text.replace(secret.strip(), "…")
    return re.sub(r"(?<=Bearer )[^'\"]+|(?<=://)[^/@\s]+(?=@)|hf_\w+", "…", text)
