"""Prompt templates: a system prompt, a prompt with parameters and how to answer, kept in a YAML file under a name.

Knows the shipped ones, the user's own and their rules; a file that breaks one is refused with its line. Filling one in
puts texts in the place of ``$name`` and does nothing else. Knows no model and no terminal.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template as Text
from typing import TypedDict, cast

import yaml

from localllm import config
from localllm.errors import UsageError
from localllm.session.extract import Which
from localllm.values import Sampling
from localllm.yamlfile import YamlReader, nearest, quoted

BUILT_IN = Path(__file__).parent.parent / "data" / "templates"
INPUT = "input"  # the piped text, the files and the words of a call, where a prompt wants them
MAX_FILE_BYTES = 2**18

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_KEYS = ("description", "system", "prompt", "parameters", "sampling", "extract", "model")
_WHOLE = ("top_k", "seed", "max_tokens")
_EXTRACT: dict[str, Which | None] = {"first": "first", "last": "last", "none": None}


class SamplingChoices(TypedDict, total=False):
    """Some of the fields of Sampling."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    seed: int
    max_tokens: int
    stop: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a template asks for. ``default`` None means that a value must be given."""

    description: str = ""
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """One template. ``sampling``, ``extract`` and ``model`` stand in for options that were not given.

    The empty one leaves what is asked as it is.
    """

    name: str = ""
    description: str = ""
    system: str = ""
    prompt: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    sampling: SamplingChoices = field(default_factory=SamplingChoices)
    extract: Which | None = None
    model: str | None = None

    def filled(self, given: Mapping[str, str]) -> "Filled":
        """With the values that were given, and else the defaults.

        Raises UsageError for a parameter that does not exist, and for one that has neither.
        """
        known = f"its parameters: {', '.join(self.parameters) or 'none'}"
        for name in given:
            if name not in self.parameters:
                hint = _did_you_mean(name, self.parameters) + known
                raise UsageError(f"template {self.name!r} has no parameter {quoted(name)}", hint)
        defaults = {name: own.default for name, own in self.parameters.items() if own.default is not None}
        values = {**defaults, **given}
        for name, parameter in self.parameters.items():
            if name not in values:
                meaning = f" ({parameter.description})" if parameter.description else ""
                hint = f"add -p {name} VALUE{meaning}; {known}"
                raise UsageError(f"template {self.name!r} needs a value for {name!r}", hint)
        return Filled(self, values)


@dataclass(frozen=True, slots=True)
class Filled:
    """A template, and a value for each of its parameters."""

    template: Template
    values: Mapping[str, str]

    @property
    def system(self) -> str:
        """The system prompt; "" is none."""
        return Text(self.template.system).substitute(self.values)

    @property
    def needs_input(self) -> bool:
        """Whether there is nothing to ask without piped text, a file or a request."""
        return not self.template.prompt or INPUT in _names_in(self.template.prompt)

    def question(self, attached: str, request: str) -> str:
        """What is asked: the attached text, the prompt, the request; or the prompt with both in place of ``$input``."""
        if INPUT in _names_in(self.template.prompt):
            return Text(self.template.prompt).substitute({**self.values, INPUT: _joined(attached, request)})
        return _joined(attached, Text(self.template.prompt).substitute(self.values), request)


def user_dir() -> Path:
    """Where a user keeps templates of their own, each as NAME.yaml."""
    return config.config_dir() / "templates"


def known_templates() -> dict[str, Path]:
    """The files of all templates by name; one of the user's replaces a shipped one of the same name."""
    files = [*BUILT_IN.glob("*.yaml"), *user_dir().glob("*.yaml")]
    return {name: path for name, path in sorted((file.stem, file) for file in files) if _NAME.fullmatch(name)}


def find(reference: str) -> Path:
    """The file of a template: by its name, or by a path (with a slash or the ending .yaml).

    Raises UsageError where there is none.
    """
    if is_path(reference):
        if not os.path.lexists(reference):
            raise UsageError(f"there is no file {reference!r}", "check the path of the template")
        return Path(reference)
    known = known_templates()
    if reference not in known:
        hint = f"{_did_you_mean(reference, known)}there are: {', '.join(known)}"
        raise UsageError(f"there is no template {quoted(reference)}", hint)
    return known[reference]


def is_path(reference: str) -> bool:
    """Whether a file is meant, and not a name."""
    return "/" in reference or reference.endswith((".yaml", ".yml"))


def load(reference: str) -> Template:
    """Read and check the template of this name or path. Raises UsageError naming file, line and reason."""
    return read(find(reference))


def read(path: Path) -> Template:
    """Read and check one file. Raises UsageError naming file, line and reason."""
    return _Reader(path, UsageError, MAX_FILE_BYTES).template()


class _Reader(YamlReader):
    """The template in one file."""

    def template(self) -> Template:
        root = self.root()
        if root is None:
            raise UsageError(f"{self.path}: empty", f"it may have: {', '.join(_KEYS)}")
        fields = self.fields(root, (), _KEYS)
        parameters = self._parameters(fields["parameters"]) if "parameters" in fields else {}
        system = self._placed(fields["system"], [*parameters]) if "system" in fields else ""
        prompt = self._placed(fields["prompt"], [*parameters, INPUT]) if "prompt" in fields else ""
        for name in [name for name in parameters if name not in _names_in(system) | _names_in(prompt)]:
            self.fail(fields["parameters"], f"parameter {name!r} stands nowhere: write ${name} in prompt or system")
        return Template(
            name=self.path.stem,
            description=self.text(fields["description"]) if "description" in fields else "",
            system=system,
            prompt=prompt,
            parameters=parameters,
            sampling=self._sampling(fields["sampling"]) if "sampling" in fields else {},
            extract=self._extract(fields["extract"]) if "extract" in fields else None,
            model=self.text(fields["model"]) if "model" in fields else None,
        )

    def _parameters(self, node: yaml.Node) -> dict[str, Parameter]:
        parameters: dict[str, Parameter] = {}
        for key, value in self.entries(node):
            name = self.matching(key, _PARAMETER, "a name of letters, digits and _")
            if name == INPUT:
                self.fail(key, f"${INPUT} is what is piped, attached or asked; a parameter needs another name")
            fields = {} if value.tag.endswith(":null") else self.fields(value, (), ("description", "default"))
            parameters[name] = Parameter(
                description=self.text(fields["description"]) if "description" in fields else "",
                default=self._value(fields["default"]) if "default" in fields else None,
            )
        return parameters

    def _placed(self, node: yaml.Node, known: list[str]) -> str:
        """A text in which each ``$`` is that of a known name, or doubled."""
        text = self.text(node)
        for found in Text.pattern.finditer(text):
            name = found["named"] or found["braced"]
            if found["escaped"] or name in known:
                continue
            written, dollar = quoted(text[found.start() :].split("\n")[0]), "$$ stands for a dollar sign"
            reason = f"{'$' + name!r} is not among the parameters" if name else f"{written} names no parameter"
            self.fail(node, f"{reason} ({dollar})", name, known, below=text.count("\n", 0, found.start()))
        return text.strip()

    def _sampling(self, node: yaml.Node) -> SamplingChoices:
        values: dict[str, float | tuple[str, ...]] = {}
        for name, value in self.fields(node, (), tuple(SamplingChoices.__annotations__)).items():
            if name == "stop":
                values[name] = tuple(self._value(item) for item in self.items(value))
            else:
                values[name] = self.integer(value) if name in _WHOLE else self.number(value)
        choices = cast(SamplingChoices, values)
        try:
            Sampling(**choices)  # which checks the ranges
        except UsageError as error:
            self.fail(node, f"{error.message} ({error.hint})")
        return choices

    def _extract(self, node: yaml.Node) -> Which | None:
        wanted = self.text(node)
        if wanted not in _EXTRACT:
            self.fail(node, f"{quoted(wanted)} is not first, last or none", wanted, _EXTRACT)
        return _EXTRACT[wanted]

    def _value(self, node: yaml.Node) -> str:
        """Any scalar as it is written, even an empty text."""
        if not isinstance(node, yaml.ScalarNode) or node.tag.endswith(":null"):
            self.fail(node, 'a text is needed here ("" is an empty one)')
        return str(node.value)


def _names_in(text: str) -> set[str]:
    return set(Text(text).get_identifiers())


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _did_you_mean(given: str, known: Iterable[str]) -> str:
    close = nearest(given, known)
    return f"did you mean {close!r}? " if close else ""
