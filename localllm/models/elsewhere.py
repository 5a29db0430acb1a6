"""Models that other programs keep on this disk: LM Studio, Ollama, and llama.cpp before it shared the hub's cache.

Knows where they keep them and how they name them. Reads only. Trusts nothing that it finds there: what is broken,
unreadable or endless is passed over without a word. Knows nothing of what a model file holds beyond its first bytes.
"""

import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from localllm.models.catalog import quantisation
from localllm.models.reference import is_model
from localllm.models.split import first_part, parts, unsplit

_MAX_ENTRIES = 10_000  # of files and folders looked at below one folder
_MAX_JSON_BYTES = 2**18  # a manifest or a settings file has a few thousand
_MAX_PATH_BYTES = 4096
_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Found:
    """A model of another program.

    ``name`` is how a user can call it ("user/repo:Q4_K_M", "llama3.2:3b"), one clean line and unique in its program.
    ``files`` are all parts in order; the first is what llama.cpp is given. ``repository`` is the one on the hub where
    known, and ``file_name`` what the (first) file is called there, or here where that is not known.
    """

    name: str
    program: str  # "LM Studio", "Ollama", "llama.cpp"
    files: tuple[Path, ...]
    repository: str | None
    file_name: str


def found() -> Iterator[Found]:
    """All whole models of other programs: every part is there and begins as a GGUF does."""
    seen: set[tuple[str, str]] = set()
    for model in chain(_of_lm_studio(), _of_ollama(), _of_llama_cpp()):
        key = (model.program, model.name)
        if model.name.isprintable() and key not in seen:
            seen.add(key)
            yield model


# --- LM Studio: <models>/<publisher>/<repository>/<file>.gguf, as on the hub ----------------------------------------


def _of_lm_studio() -> Iterator[Found]:
    for folder in dict.fromkeys(_lm_studio_folders()):
        repositories: dict[str, dict[str, Path]] = {}
        for path in _files(folder, depth=4):
            match path.relative_to(folder).parts:
                case (publisher, repository, *below) if below:
                    repositories.setdefault(f"{publisher}/{repository}", {})["/".join(below)] = path
        for name, files in repositories.items():
            yield from _of_repository("LM Studio", name, files)


def _lm_studio_folders() -> Iterator[Path]:
    """Where its settings say that models are, and where they are by default; as its own tool ``lms`` looks for them."""
    pointer = os.fsdecode(_head(_home(".lmstudio-home-pointer"), _MAX_PATH_BYTES)).strip()
    homes = [_home(".lmstudio"), _home(".cache/lm-studio")]
    for home in [Path(pointer), *homes] if pointer else homes:
        match _json(home / "settings.json"):
            case {"downloadsFolder": str(folder)}:
                yield Path(folder)
        yield home / "models"


# --- Ollama: manifests/<host>/<namespace>/<model>/<tag> names blobs/sha256-<digest> ---------------------------------

_OLLAMA_NAME = re.compile(r"(\w[\w.:-]*)/(\w[\w.-]*)/(\w[\w.-]*)/(\w[\w.-]*)", re.ASCII)
_OLLAMA_HOST = "registry.ollama.ai"
_HUB_HOSTS = ("hf.co", "huggingface.co")
_DIGEST = re.compile(r"sha256[:-][0-9a-fA-F]{64}")
_MODEL_LAYER = "application/vnd.ollama.image.model"
_ADAPTER_LAYER = "application/vnd.ollama.image.adapter"


def _of_ollama() -> Iterator[Found]:
    own = os.environ.get("OLLAMA_MODELS", "").strip().strip("\"'")  # as Ollama reads it
    service = Path("/usr/share/ollama/.ollama/models")  # of the user that its Linux service runs as
    for folder in dict.fromkeys((Path(own) if own else _home(".ollama/models"), service)):
        manifests = folder / "manifests"
        for path in _files(manifests, depth=4):
            name = _OLLAMA_NAME.fullmatch(path.relative_to(manifests).as_posix())
            blob = _ollama_blob(_json(path))
            if name and blob and _is_gguf(folder / "blobs" / blob):
                host, namespace, model, tag = name.groups()
                repository = f"{namespace}/{model}" if host in _HUB_HOSTS else None
                files = (folder / "blobs" / blob,)
                yield Found(_ollama_name(host, namespace, model, tag), "Ollama", files, repository, blob)


def _ollama_name(host: str, namespace: str, model: str, tag: str) -> str:
    """The name as Ollama itself lists it: without what goes without saying."""
    if host != _OLLAMA_HOST:
        return f"{host}/{namespace}/{model}:{tag}"
    return f"{model}:{tag}" if namespace == "library" else f"{namespace}/{model}:{tag}"


def _ollama_blob(manifest: object) -> str | None:
    """The blob that a manifest's model is, if it is one file and no adapter changes what that file says."""
    match manifest:
        case {"layers": [*layers]}:
            kinds = (_MODEL_LAYER, _ADAPTER_LAYER)
            weights = [layer for layer in layers if isinstance(layer, dict) and layer.get("mediaType") in kinds]
        case _:
            return None
    match weights:
        case [{"mediaType": kind, "digest": str(digest)}] if kind == _MODEL_LAYER and _DIGEST.fullmatch(digest):
            return digest.replace(":", "-")
    return None


# --- llama.cpp: <user>_<repository>_<file>.gguf in one folder, and manifest=<user>=<repository>=<tag>.json ----------

_MANIFEST = re.compile(r"manifest=([^=]+)=([^=]+)=.*\.json", re.DOTALL)


def _of_llama_cpp() -> Iterator[Found]:
    files = _files(_llama_cpp_folder(), depth=1)
    manifests = filter(None, (_MANIFEST.fullmatch(path.name) for path in files))
    by_prefix = {
        f"{user}_{repository}_": f"{user}/{repository}" for user, repository in (m.groups() for m in manifests)
    }
    repositories: dict[str, dict[str, Path]] = {}
    loose: dict[str, Path] = {}
    for path in files:
        prefix = max(filter(path.name.startswith, by_prefix), key=len, default="")
        group = repositories.setdefault(by_prefix[prefix], {}) if prefix else loose
        group[path.name.removeprefix(prefix)] = path
    for repository, group in repositories.items():
        yield from _of_repository("llama.cpp", repository, group)
    for name, model in _whole_models(loose).items():
        yield Found(_stem(name), "llama.cpp", model, None, name)


def _llama_cpp_folder() -> Path:
    if chosen := os.environ.get("LLAMA_CACHE"):
        return Path(chosen)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or _home(".cache"))
    return (_home("Library/Caches") if sys.platform == "darwin" else caches) / "llama.cpp"


# --- what all of them need ------------------------------------------------------------------------------------------


def _of_repository(program: str, repository: str, files: Mapping[str, Path]) -> Iterator[Found]:
    """The models of one repository, called by their quantisation where that is enough, else by their file."""
    models = _whole_models(files)
    quantisations = [quantisation(name) for name in models]
    count = Counter(quantisations)
    for label, (name, model) in zip(quantisations, models.items(), strict=True):
        unique = label and count[label] == 1
        yield Found(f"{repository}:{label if unique else _stem(name)}", program, model, repository, name)


def _whole_models(files: Mapping[str, Path]) -> dict[str, tuple[Path, ...]]:
    """Of named files those that are models, each with all its parts; by the name of the first."""
    models = {name: parts(path) for name, path in files.items() if is_model(name) and name == first_part(name)}
    return {name: model for name, model in models.items() if all(map(_is_gguf, model))}


def _stem(name: str) -> str:
    return unsplit(name).removesuffix(".gguf")


def _home(below: str) -> Path:
    return Path(os.path.expanduser("~")) / below  # noqa: PTH111  # Path.home raises where there is none


def _files(root: Path, depth: int) -> list[Path]:
    """The files up to ``depth`` levels below ``root``, links followed and each folder seen once, in order.

    A relative root is that of another working folder, or of a user without a home: it has no files.
    """
    paths, files, left = [root] if root.is_absolute() else [], [], _MAX_ENTRIES
    seen: set[tuple[int, int]] = set()
    for level in range(depth + 1):
        folders: list[Path] = []
        for path in paths:
            try:
                status = path.stat()
            except (OSError, ValueError):  # dangling, in a loop, not ours to read, or no path at all
                continue
            identity = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode) and level > 0:
                files.append(path)
            elif stat.S_ISDIR(status.st_mode) and level < depth and identity not in seen:
                seen.add(identity)
                folders.append(path)
        paths = list(islice(chain.from_iterable(map(_entries, folders)), left))
        left -= len(paths)
    return sorted(files, key=str)


def _entries(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield Path(entry.path)
    except OSError:
        return


def _is_gguf(path: Path) -> bool:
    return _head(path, len(_MAGIC)) == _MAGIC


def _json(path: Path) -> object:
    """What a JSON file says; None where it is missing, too long (and so cut) or no JSON."""
    data = _head(path, _MAX_JSON_BYTES)
    if not data:
        return None
    import json

    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value


def _head(path: Path, n_bytes: int) -> bytes:
    """The first bytes of a regular file; none where it cannot be read. Anything else might never answer."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb", buffering=0) as file:
            return file.read(n_bytes)
    except OSError:
        return b""
