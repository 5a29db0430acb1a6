"""YAML that people write by hand: bounded, without aliases, read as nodes so that every mistake has its line.

Knows neither what a file is for nor where it lies: who reads one says which keys there are, and which error to raise.
"""

import difflib
import re
import stat
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import NoReturn

import yaml

from localllm.errors import LocalLLMError

_SHOWN = 60  # characters of a value that an error quotes
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml: 4 ms for the catalog instead of 41


class YamlReader:
    """Turns the nodes of one file into checked values; what is wrong is raised as ``error``, with file and line."""

    def __init__(self, path: Path, error: type[LocalLLMError], max_bytes: int) -> None:
        self.path = path
        self._error = error
        self._max_bytes = max_bytes

    def root(self, text: str | None = None) -> yaml.Node | None:
        """The outermost node of the file, or of ``text`` in its place; None where there is nothing but comments."""
        text = self.file_text() if text is None else text
        try:
            root = yaml.compose(text, Loader=_Loader)
        except yaml.reader.ReaderError as error:
            line = text.encode()[: error.position].count(b"\n") + 1
            raise self._error(f"{self.path}, line {line}: {error.reason}") from None
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            reason = " ".join(filter(None, (error.context, error.problem)))
            raise self._error(f"{self.path}, line {line}: {reason}") from None
        except RecursionError:  # without libyaml; with it, its own limit is a YAMLError
            raise self._error(f"{self.path}: nested too deeply") from None
        if root is None or root.tag == "tag:yaml.org,2002:null":  # nothing but comments, or a "---" above them
            return None
        self._refuse_aliases(root)
        return root

    def file_text(self) -> str:
        """The whole file, checked for its size and for being text."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):  # opening a pipe would wait for a writer
                raise unreadable(self.path, "a file is needed here, not a folder or a device", self._error)
            with self.path.open("rb") as file:
                data = file.read(self._max_bytes + 1)
            if len(data) > self._max_bytes:
                raise self._error(f"{self.path}: longer than {self._max_bytes:,} bytes")
            return data.decode("utf-8")
        except OSError as error:
            raise unreadable(self.path, error.strerror, self._error) from None
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise self._error(f"{self.path}, line {line}: not UTF-8") from None

    def fields(
        self, node: yaml.Node, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, yaml.Node]:
        """The values of a mapping that must have the required keys and may have the optional ones."""
        known = required + optional
        fields: dict[str, yaml.Node] = {}
        for key, value in self.entries(node):
            if key.value not in known:
                self.fail(key, f"unknown key {quoted(key.value)}", key.value, known, tell_all=True)
            fields[key.value] = value
        for name in required:
            if name not in fields:
                self.fail(node, f"the key {name!r} is missing")
        return fields

    def entries(self, node: yaml.Node) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        """The keys and values of a mapping, in their order; no key twice."""
        if not isinstance(node, yaml.MappingNode):
            self.fail(node, "a mapping (key: value) is needed here")
        names: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.fail(key, "a key must be a text")
            if key.value in names:
                self.fail(key, f"{quoted(key.value)} comes twice")
            names.add(key.value)
        return list(node.value)

    def items(self, node: yaml.Node) -> list[yaml.Node]:
        """The items of a list that must not be empty."""
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self.fail(node, "a list with at least one item is needed here")
        return list(node.value)

    def text(self, node: yaml.Node) -> str:
        """A text that is not blank."""
        return self.scalar(node, "a text", "str")

    def matching(self, node: yaml.Node, pattern: re.Pattern[str], wanted: str) -> str:
        """A text that the whole ``pattern`` matches; ``wanted`` says in words what that is."""
        text = self.scalar(node, wanted, "str")
        if not pattern.fullmatch(text):
            self.fail(node, f"{quoted(text)} is not {wanted}")
        return text

    def boolean(self, node: yaml.Node) -> bool:
        """True or false, in the words of YAML."""
        return self.scalar(node, "true or false", "bool").lower() in ("true", "yes", "on")

    def integer(self, node: yaml.Node) -> int:
        """A whole number that is not negative."""
        text = self.scalar(node, "a whole number", "int")
        if not text.isdecimal() or len(text) > 18:  # YAML 1.1 also has octal, sexagesimal and more
            self.fail(node, f"{quoted(text)} is not a plain whole number")
        return int(text)

    def number(self, node: yaml.Node) -> float:
        """A number."""
        try:
            return float(self.scalar(node, "a number", "int", "float"))
        except ValueError:
            self.fail(node, "not a plain number")

    def scalar(self, node: yaml.Node, wanted: str, *kinds: str) -> str:
        """A value as it is written, whose YAML type is among ``kinds``."""
        if not isinstance(node, yaml.ScalarNode):
            self.fail(node, f"{wanted} is needed here")
        if node.tag.removeprefix("tag:yaml.org,2002:") not in kinds or not node.value.strip():
            quotes = " (a text that looks like something else goes in quotes)" if kinds == ("str",) else ""
            self.fail(node, f"{quoted(node.value)} is not {wanted}{quotes}")
        return str(node.value)

    def fail(
        self,
        node: yaml.Node,
        reason: str,
        given: str | None = None,
        known: Iterable[str] = (),
        below: int | None = None,
        tell_all: bool = False,
    ) -> NoReturn:
        """Raise the error for this place, or for the line of a text, counted from 0, that lies ``below`` a ``|``.

        Where ``given`` resembles one of the ``known`` names, that is the hint; and all of them where ``tell_all``.
        """
        nearest = difflib.get_close_matches(given, known, n=1, cutoff=0.5) if given else []
        line = node.start_mark.line + 1
        if below is not None and isinstance(node, yaml.ScalarNode) and node.style == "|":
            line += 1 + below
        hints = [f"did you mean {nearest[0]!r}?"] if nearest else []
        hints += [f"there are: {', '.join(known)}"] if tell_all else []
        raise self._error(f"{self.path}, line {line}: {reason}", " ".join(hints))

    def _refuse_aliases(self, root: yaml.Node) -> None:
        """With aliases a small file can describe an enormous catalog, so none are allowed."""
        seen: set[int] = set()
        stack = [root]
        while stack:
            node = stack.pop()
            if id(node) in seen:
                self.fail(node, "anchors and aliases are not allowed")
            seen.add(id(node))
            if isinstance(node, yaml.MappingNode):
                stack.extend(chain.from_iterable(node.value))
            elif isinstance(node, yaml.SequenceNode):
                stack.extend(node.value)


def unreadable(path: Path, reason: str | None, error: type[LocalLLMError]) -> LocalLLMError:
    """The error for a file that cannot be opened or read."""
    return error(f"{path}: cannot be read: {reason}", "make it a readable file, or move it away")


def quoted(text: str) -> str:
    """For an error, which is to be one clear line."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
