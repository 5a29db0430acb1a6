"""Settings: the table of what a user can choose for good, and what config.yaml and the environment choose.

A setting is called as its option: ``--ctx-size`` is ``ctx_size`` in config.yaml and ``LOCALLLM_CTX_SIZE`` in the
environment. The environment comes before the file, an option before both. Knows names, types and ranges, and where a
value was written; what a setting does, only those know that get its value.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from localllm import config, sizes
from localllm.errors import UsageError
from localllm.values import MAX_INT, RANGES, Sampling, check_range

if TYPE_CHECKING:
    import yaml

Value = str | int | float | bool | tuple[str, ...]
Kind = Literal["text", "model", "number", "integer", "switch", "choice", "texts", "size"]

MAX_FILE_BYTES = 2**16
_PREFIX = "LOCALLLM_"
_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. ``default`` holds where nothing is chosen; where that depends on something, ``otherwise`` says so.

    ``limits`` are the lowest and the highest value, in ``unit``. A "model" is a name or one of ``choices``.
    """

    name: str
    kind: Kind
    help: str
    default: Value | None = None
    otherwise: str = ""
    limits: tuple[float, float] | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The environment's name for it."""
        return _PREFIX + self.name.upper()

    @property
    def takes(self) -> str:
        """Which values it takes, in a few words."""
        if self.limits:
            low, high = self.limits
            return (f"{low:,} or more" if high == MAX_INT else f"{low:,} to {high:,} {self.unit}").rstrip()
        words = {
            "model": ("a model",),
            "switch": ("true", "false"),
            "texts": ("a text", "a JSON list of texts"),
            "size": ("bytes: 2GB, 500MiB, 0",),
            "text": ("a text",),
        }
        *others, last = (*words.get(self.kind, ()), *self.choices)
        return " or ".join(filter(None, (", ".join(others), last)))

    @property
    def words(self) -> tuple[str, ...]:
        """The values that are words of ours."""
        return ("true", "false") if self.kind == "switch" else self.choices

    @property
    def default_text(self) -> str:
        """What holds where nothing is chosen, for a person."""
        return self.otherwise or self.shown(self.default)

    def shown(self, value: Value | None) -> str:
        """A value as a person would write it, on one line."""
        match value:
            case bool():
                return "true" if value else "false"
            case tuple():
                import json

                return json.dumps(value, ensure_ascii=False)
            case int() if self.kind == "size":
                units = ((10**9, "GB"), (10**6, "MB"), (1, ""))
                return next(f"{value // unit}{name}" for unit, name in units if value % unit == 0)
            case _:
                return str(value).removesuffix(".0")

    def parse(self, text: str) -> Value:
        """The value that ``text`` stands for. Raises UsageError for one that makes no sense here."""
        value = self._read(text)
        self.check(value)
        return value

    def check(self, value: Value | None, named: str = "") -> None:
        """Raise UsageError for a value out of range; None is no choice, and always right.

        ``named`` is how the user calls it, where that is not its name.
        """
        if self.limits and isinstance(value, int | float):
            check_range(named or self.name, value, *self.limits, self.unit)
        if isinstance(value, tuple):
            Sampling(stop=value)

    def _read(self, text: str) -> Value:
        match self.kind:
            case "number":
                return self._number(text, float, "a number")
            case "integer":
                return self._number(text, int, "a whole number")
            case "switch":
                if text.strip().lower() not in _SWITCH:
                    raise self._wrong(text, "true or false")
                return _SWITCH[text.strip().lower()]
            case "choice":
                if text not in self.choices:
                    raise self._wrong(text, f"one of {', '.join(self.choices)}")
                return text
            case "texts":
                return self._texts(text)
            case "size":
                return sizes.cache_bytes(text)
            case "text" | "model":
                return text

    def _number(self, text: str, of: "type[int] | type[float]", wanted: str) -> float:
        try:
            return of(text)
        except ValueError:
            raise self._wrong(text, wanted) from None

    def _texts(self, text: str) -> tuple[str, ...]:
        if not text.startswith("["):
            return (text,)
        import json

        try:
            texts = json.loads(text)
        except ValueError:
            texts = None
        if not (isinstance(texts, list) and all(isinstance(item, str) for item in texts)):
            raise self._wrong(text, 'one text, or a JSON list of texts: ["END", "\\n\\n"]')
        return tuple(texts)

    def _wrong(self, text: str, wanted: str) -> UsageError:
        return UsageError(f"{self.name} is {text!r}", f"give {wanted}")


_CHOSEN = config.Settings()


def _sampled(name: str, kind: Kind, help: str, field: str) -> Setting:
    """A setting that the publisher of a model may have advice about."""
    return Setting(name, kind, help, otherwise=f"the model's, else {getattr(Sampling(), field)}", limits=RANGES[field])


TABLE: Final = (
    Setting(
        "model",
        "model",
        "A name from `localllm list`, user/repo[:QUANT], or a GGUF file.",
        otherwise="what suits this machine and is on its disk",
    ),
    Setting("system", "text", "System prompt.", default="", otherwise="none"),
    _sampled("temp", "number", "Temperature; 0 always takes the likeliest token.", "temperature"),
    _sampled("top_p", "number", "Keep tokens up to this probability in all.", "top_p"),
    _sampled("top_k", "integer", "Keep the K likeliest tokens.", "top_k"),
    _sampled("min_p", "number", "Drop tokens below this share of the likeliest one.", "min_p"),
    _sampled("repeat_penalty", "number", "Above 1: avoid the last 64 tokens.", "repeat_penalty"),
    Setting("seed", "integer", "Same seed, same answer.", otherwise="a new one each time", limits=RANGES["seed"]),
    Setting(
        "max_tokens", "integer", "End the answer after N tokens.", otherwise="no limit", limits=RANGES["max_tokens"]
    ),
    Setting("stop", "texts", "End the answer before this text. Repeatable.", default=(), otherwise="none"),
    Setting(
        "timeout",
        "number",
        "Stop after this time, loading included.",
        otherwise="no limit",
        limits=(0.001, 10**7),
        unit="seconds",
    ),
    Setting(
        "on_overflow",
        "choice",
        "Part of the piped text and files to drop if the prompt is too long.",
        otherwise="none: it is refused",
        choices=("head", "tail", "middle"),
    ),
    Setting("hide_reasoning", "switch", "Do not show the model's reasoning.", default=False),
    Setting("markdown", "switch", "Show headings, code and tables as such where a person reads.", default=True),
    Setting(
        "color",
        "choice",
        "Colours: in a terminal unless NO_COLOR is set; also in pipes; or never.",
        default="auto",
        choices=("auto", "always", "never"),
    ),
    Setting("stream", "switch", "Print the answer while it is written, not in one piece at its end.", default=True),
    Setting("usage", "switch", "Show tokens, speed and settings on stderr.", default=False),
    Setting(
        "log",
        "switch",
        "Keep what is said, for --continue and `localllm history`; -n: nothing of it stays on this disk.",
        default=True,
    ),
    Setting(
        "when_full",
        "choice",
        "What a chat does where its context is full: ask, or drop or summarise the oldest turns.",
        default="ask",
        choices=("ask", "drop", "summarise", "stop"),
    ),
    Setting(
        "ctx_size", "integer", "Context size in tokens.", otherwise="what fits, at most 8,192", limits=(256, MAX_INT)
    ),
    Setting("kv", "choice", "Type of the KV cache.", default=_CHOSEN.kv, choices=("f16", "q8_0", "q4_0")),
    Setting(
        "gpu_layers",
        "integer",
        "Layers on the GPU; as many as fit by default.",
        otherwise="as many as fit",
        limits=(0, MAX_INT),
    ),
    Setting(
        "threads",
        "integer",
        "Threads; one per core by default.",
        otherwise="one per core",
        limits=(1, 512),  # more than llama.cpp can use
    ),
    Setting(
        "draft",
        "model",
        "Who guesses tokens ahead: a smaller model, or only the text so far.",
        default=_CHOSEN.draft,
        choices=("auto", "ngram", "off"),
    ),
    Setting(
        "exact",
        "switch",
        "Same seed, same answer, to the last bit: whatever is drafted, cached or running.",
        default=_CHOSEN.exact,
    ),
    Setting("cache", "switch", "Use prompts that were read before, and keep this one.", default=_CHOSEN.cache),
    Setting(
        "cache_size",
        "size",
        "Bytes that the prefix cache may take; 0 turns it off.",
        otherwise="8 GB, at most a tenth of the free disk",
    ),
)

SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in TABLE}
OTHER_VARIABLES: Final = ("LOCALLLM_BACKEND",)  # read by scripts/localllm


@dataclass(frozen=True, slots=True)
class Choice:
    """What a user chose, and where: in this line of config.yaml, or (None) in the environment."""

    setting: Setting
    value: Value
    line: int | None = None

    @property
    def place(self) -> str:
        """Where it is written, for a person."""
        return f"{path()}, line {self.line}" if self.line else f"${self.setting.variable}"


def path() -> Path:
    """Where the settings of this user are. The file may not be there."""
    return config.config_dir() / "config.yaml"


def find(name: str) -> Setting:
    """The setting of this name. Raises UsageError with the nearest name there is."""
    if setting := SETTINGS.get(name):
        return setting
    near = nearest(name, SETTINGS)
    raise UsageError(f"there is no setting {name!r}", f"did you mean {near!r}?" if near else "see: localllm config")


def nearest(name: str, known: Mapping[str, object]) -> str:
    """The known name that resembles ``name`` most; "" where none does."""
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.5)), "")


def choices() -> dict[str, Choice]:
    """What is chosen, by name. Raises UsageError naming file and line, or the variable, of what makes no sense."""
    return {**in_file(), **_in_environment()}


def in_file(text: str | None = None) -> dict[str, Choice]:
    """What config.yaml chooses, or would if it held ``text``. Raises UsageError."""
    if text is None and not config.is_there(path(), UsageError):
        return {}
    return _read(path(), text)


def unknown_variables() -> list[str]:
    """The variables that look like settings, and are none."""
    known = {*OTHER_VARIABLES, *(setting.variable for setting in TABLE)}
    return sorted(name for name in os.environ if name.startswith(_PREFIX) and name not in known)


def chosen_model() -> str | None:
    """The model that the user has set for where none is named; None where none is. Raises UsageError as ``choices``."""
    chosen = choices().get("model")
    return str(chosen.value) if chosen else None


def prefix_budget_bytes() -> int:
    """How large the prefix cache may become: as chosen, or the smaller of 8 GB and a tenth of the free disk.

    Raises UsageError as ``choices`` does.
    """
    chosen = choices().get("cache_size")
    if chosen and isinstance(chosen.value, int):
        return chosen.value
    import shutil

    folder = config.prefix_dir()
    try:
        place = next(path for path in (folder, *folder.parents) if path.exists())
        return min(8 * 10**9, shutil.disk_usage(place).free // 10)
    except OSError:  # a disk of which nothing can be known: nothing is kept there
        return 0


def _in_environment() -> dict[str, Choice]:
    chosen: dict[str, Choice] = {}
    for setting in TABLE:
        if text := os.environ.get(setting.variable):  # an empty one is none, as everywhere
            with _at(f"${setting.variable}"):
                chosen[setting.name] = Choice(setting, setting.parse(text))
    return chosen


def _read(file: Path, text: str | None) -> dict[str, Choice]:
    from localllm.yamlfile import YamlReader

    reader = YamlReader(file, UsageError, MAX_FILE_BYTES)
    if text and len(text.encode("utf-8", "replace")) > MAX_FILE_BYTES:
        raise UsageError(f"{file}: longer than {MAX_FILE_BYTES:,} bytes")
    root = reader.root(text)
    chosen: dict[str, Choice] = {}
    for key, node in reader.entries(root) if root else ():
        line = key.start_mark.line + 1
        with _at(f"{file}, line {line}"):
            setting = find(key.value)
            value = of_node(setting, node)
        if value is not None:
            chosen[setting.name] = Choice(setting, value, line)
    return chosen


def of_node(setting: Setting, node: "yaml.Node") -> Value | None:
    """What a YAML value means: it is read as text typed elsewhere would be. None where there is none (null).

    Raises UsageError for one that makes no sense.
    """
    import yaml

    nodes = node.value if setting.kind == "texts" and isinstance(node, yaml.SequenceNode) else [node]
    if not all(isinstance(item, yaml.ScalarNode) for item in nodes):
        raise UsageError(f"{setting.name} is not one value", f"give {setting.takes}")
    if node.tag == "tag:yaml.org,2002:null":
        return None
    if setting.kind != "texts":
        return setting.parse(node.value)
    value = tuple(item.value for item in nodes)
    setting.check(value)
    return value


@contextmanager
def _at(place: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{place}: {error.message}", error.hint) from None
