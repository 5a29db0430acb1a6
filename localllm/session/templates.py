"""Prompt templates: a system prompt, a prompt with parameters and how to answer, kept in a YAML file under a name.

Knows the shipped ones, the user's own and their rules; a file that breaks one is refused with its line. Filling one in
puts texts in the place of ``$name`` and does nothing else. Knows no model and no terminal.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template as Text
from typing import cast

import yaml

from localllm import config, settings
from localllm.errors import UsageError
from localllm.session.extract import Which
from localllm.settings import SETTINGS, Setting, Value
from localllm.values import ReasoningStart, Sampling
from localllm.yamlfile import YamlReader, quoted

BUILT_IN = Path(__file__).parent.parent / "data" / "templates"
REASONING_TOKENS = 2000
INPUT = "input"  # the piped text, the files and the words of a call, where a prompt wants them

_NAME = re.compile(r"[^./\x00-\x1f][^/\x00-\x1f]{0,63}")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SETTINGS = ("model", "temp", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens", "stop")
_KEYS = ("description", "system", "prompt", "parameters", "extract", *_SETTINGS)
_EXTRACT: dict[str, Which | None] = {"first": "first", "last": "last", "command": "command", "none": None}


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a template asks for. ``default`` None means that a value must be given."""

    description: str = ""
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """One template. ``settings`` are by their names in config.yaml. The empty one leaves what is asked as it is."""

    name: str = ""
    description: str = ""
    system: str = ""
    prompt: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)
    extract: Which | None = None

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
    def model(self) -> str | None:
        """The model that it is meant for; None is any."""
        return cast("str | None", self.template.settings.get("model"))

    @property
    def sampling(self) -> dict[str, Value]:
        """What it says of the next token, by the names in Sampling."""
        return {
            "temperature" if name == "temp" else name: value
            for name, value in self.template.settings.items()
            if name != "model"
        }

    def with_room_to_reason(self, sampling: Sampling, reasoning: ReasoningStart) -> Sampling:
        """Its ``max_tokens`` bound the answer: a model that may reason first gets REASONING_TOKENS more for that."""
        most = self.template.settings.get("max_tokens")
        if reasoning == "none" or not isinstance(most, int):
            return sampling
        return replace(sampling, max_tokens=most + REASONING_TOKENS)

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
    files = {file.stem: file for file in BUILT_IN.glob("*.yaml")}
    with suppress(OSError):  # a home that we may not enter, or that cannot be
        files |= {file.stem: file for file in user_dir().glob("*.yaml")}
    return {name: files[name] for name in sorted(files) if _NAME.fullmatch(name)}


def find(reference: str) -> Path:
    """The file of a template: by its name, or by a path (with a slash or the ending .yaml).

    Raises UsageError where there is none.
    """
    if _is_path(reference):
        if not os.path.lexists(reference):
            raise UsageError(f"there is no file {reference!r}", "check the path of the template")
        return Path(reference)
    known = known_templates()
    if reference not in known:
        hint = f"{_did_you_mean(reference, known)}there are: {', '.join(known)}"
        raise UsageError(f"there is no template {quoted(reference)}", hint)
    return known[reference]


def own_path(reference: str) -> Path:
    """Where a user's template of this name is, or would be; a path is itself. Raises UsageError for a name of none."""
    if _is_path(reference) and Path(reference).name:
        return Path(reference)
    if not _NAME.fullmatch(reference):
        raise UsageError(
            f"{quoted(reference)} is no name for a template", "choose a short one that does not begin with a dot"
        )
    return user_dir() / f"{reference}.yaml"


def _is_path(reference: str) -> bool:
    return "/" in reference or reference.endswith((".yaml", ".yml"))


def load(reference: str) -> Template:
    """Read and check the template of this name or path. Raises UsageError naming file, line and reason."""
    return read(find(reference))


def read(path: Path, text: str | None = None) -> Template:
    """Read and check one file, or ``text`` as if it stood there. Raises UsageError naming file, line and reason."""
    return _Reader(path, UsageError, settings.MAX_FILE_BYTES).template(text)


class _Reader(YamlReader):
    """The template in one file."""

    def template(self, text: str | None) -> Template:
        root = self.root(text)
        if root is None:
            raise UsageError(f"{self.path}: empty", f"it may have: {', '.join(_KEYS)}")
        fields = self.fields(root, (), _KEYS)
        parameters = self._parameters(fields["parameters"]) if "parameters" in fields else {}
        system = self._placed(fields["system"], [*parameters]) if "system" in fields else ""
        prompt = self._placed(fields["prompt"], [*parameters, INPUT]) if "prompt" in fields else ""
        used = _names_in(system) | _names_in(prompt)
        for key, _ in self.entries(fields["parameters"]) if parameters else ():
            if key.value not in used:
                self.fail(key, f"parameter {key.value!r} stands nowhere: write ${key.value} in prompt or system")
        found = {name: self._setting(SETTINGS[name], fields[name]) for name in _SETTINGS if name in fields}
        return Template(
            name=self.path.stem,
            description=self.text(fields["description"]) if "description" in fields else "",
            system=system,
            prompt=prompt,
            parameters=parameters,
            settings={name: value for name, value in found.items() if value is not None},
            extract=self._extract(fields["extract"]) if "extract" in fields else None,
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

    def _setting(self, setting: Setting, node: yaml.Node) -> Value | None:
        try:
            return settings.of_node(setting, node)
        except UsageError as error:
            self.fail(node, f"{error.message} ({error.hint})")

    def _extract(self, node: yaml.Node) -> Which | None:
        wanted = self.text(node)
        if wanted not in _EXTRACT:
            self.fail(node, f"{quoted(wanted)} is not first, last, command or none", wanted, _EXTRACT)
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


def _did_you_mean(given: str, known: Mapping[str, object]) -> str:
    near = settings.nearest(given, known)
    return f"did you mean {near!r}? " if near else ""
