"""Chat templates: the Jinja program in a model file that lays out a conversation as one text.

Rendered in Jinja's immutable sandbox with bounds on output, on intermediate values and on the arguments of
calls; the time bound is the caller's (``worker``). A model without a template gets FALLBACK. Knows no tokens.
"""

import datetime
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
import jinja2.compiler
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from localllm.errors import OutOfMemory, TemplateError
from localllm.values import Role

# The filters that templates use; of the others some make huge values out of small ones.
_FILTERS = (
    *("abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int"),
    *("items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "round"),
    *("safe", "select", "selectattr", "sort", "string", "striptags", "title", "trim", "unique", "upper"),
)
_HUGE_METHODS = ("encode", "expandtabs", "format", "format_map", "translate")  # the same, as methods of text
MAX_SOURCE_CHARS = 1_000_000
MAX_CHARS = 100_000_000  # in the output, and again in all values on the way to it

_HINT = "use another file of this model"

# A plain transcript: what a base model continues most naturally. The answer ends where a new turn would begin, of
# whichever side: such models go on with both. A blank line before it is no part of the answer.
FALLBACK = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}{{ 'User: ' ~ message.content }}"
    "{% elif message.role == 'assistant' %}"
    "{{ 'Assistant:' ~ (' ' if message.content[:1].isalnum() else '') ~ message.content }}"  # it begins with its space
    "{% else %}{{ message.content }}{% endif %}"
    "{{ '\n\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
FALLBACK_STOPS = ("\n\nUser:", "\n\nAssistant:", "\nUser:", "\nAssistant:")


class _Refused(jinja2.TemplateError):
    """The template called ``raise_exception``: it does not want this conversation."""


class _Concatenation(jinja2.compiler.CodeGenerator):
    """Compiles ``a ~ b`` to a call of the sandbox, which bounds it."""

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Any) -> None:  # noqa: N802
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's text for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a budget: all values that one rendering makes may hold so many characters in all."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _Concatenation
    spent_chars = 0.0

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse ``'x' * 10**9``, ``10 ** 10 ** 9``, ``'%999999999d'`` and text that grows without end."""
        match operator:
            case "+":
                self.spend(_size(left) + _size(right))
            case "*":
                self.spend(_factor(left) * _factor(right))
            case "**":
                self.spend(_factor(left) ** _factor(right))
            case "%" if isinstance(left, str):
                raise jinja2.exceptions.SecurityError("it formats with '%'")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse ``'x'.ljust(10**9)`` and the like."""
        self._charge(function, (*args, *kwargs.values()))
        return super().call(context, function, *args, **kwargs)

    def replaced(self, text: Any, old: str, new: str) -> str:
        """The filter ``replace``."""
        self._charge(str(text).replace, (old, new))
        return str(text).replace(old, new)

    def united(self, items: Sequence[Any], between: str = "") -> str:
        """The filter ``join``."""
        texts = [str(item) for item in items]
        self._charge(between.join, (texts,))
        return between.join(texts)

    def _charge(self, function: Any, values: Sequence[Any]) -> None:
        self.spend(max((_factor(value) for value in values if isinstance(value, int | float)), default=0))
        text = getattr(function, "__self__", None)
        if isinstance(text, str) and function.__name__ in _HUGE_METHODS:
            raise jinja2.exceptions.SecurityError(f"it calls {function.__name__}")
        if isinstance(text, str) and function.__name__ in ("replace", "join"):
            self.spend((1 + len(text)) * max(map(_size, values), default=1))

    def joined(self, parts: Sequence[Any]) -> str:
        """``a ~ b ~ c``."""
        texts = [str(part) for part in parts]
        self.spend(sum(map(len, texts)))
        return "".join(texts)

    def spend(self, chars: float) -> None:
        """Take from the budget what an operation is about to make."""
        self.spent_chars += abs(chars)
        if not self.spent_chars <= MAX_CHARS:
            raise jinja2.exceptions.SecurityError("it makes values that are too large")


def _factor(value: Any) -> float:
    return abs(float(value)) if isinstance(value, int | float) else _size(value)


def _size(value: Any) -> int:
    """Characters in a value; numbers and the like count as one."""
    if isinstance(value, list | tuple):
        return len(value) + sum(len(item) for item in value if isinstance(item, str))
    return len(value) if isinstance(value, str) else 1


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """One model's template. ``stop`` are strings that end an answer besides the model's own end tokens."""

    source: str
    bos: str = ""
    eos: str = ""
    stop: tuple[str, ...] = ()

    @classmethod
    def of_model(cls, source: str, bos: str, eos: str) -> "ChatTemplate":
        """The template in the model's file, or the documented fallback where it has none."""
        return cls(source, bos, eos) if source.strip() else cls(FALLBACK, bos, eos, FALLBACK_STOPS)

    def render(self, roles: Sequence[Role], contents: Sequence[str], reasonings: Sequence[str]) -> str:
        """The conversation as one text that ends where the answer begins.

        A template that knows no system role gets the system message in front of the first user message.
        Raises TemplateError for one that fails or goes beyond its bounds.
        """
        messages = [_fields(*row) for row in zip(roles, contents, reasonings, strict=True)]
        try:
            try:
                return self._rendered(messages)
            except _Refused:
                if not roles or roles[0] != "system":
                    raise
                return self._rendered(_without_system(messages))
        except RecursionError as error:
            raise TemplateError("the model's chat template needs too much memory", _HINT) from error
        except MemoryError as error:
            raise OutOfMemory("there is not enough memory for a prompt of this size", "give less text") from error
        except Exception as error:  # a stranger's program: it can fail in any way that Python can
            reason = " ".join(str(error).split())[:200]
            raise TemplateError(f"the model's chat template fails: {reason}", _HINT) from error

    def _rendered(self, messages: list[dict[str, str]]) -> str:
        if len(self.source) > MAX_SOURCE_CHARS:
            raise jinja2.exceptions.SecurityError("it is too long")
        _environment().spent_chars = 0
        values = {"messages": messages, "bos_token": self.bos, "eos_token": self.eos}
        parts, written_chars = [], 0
        for part in _compiled(self.source).generate(**values, add_generation_prompt=True):
            written_chars += len(part)
            if written_chars > MAX_CHARS:
                raise jinja2.exceptions.SecurityError("it writes without end")
            parts.append(part)
        return "".join(parts)


@functools.lru_cache(maxsize=4)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


@functools.cache
def _environment() -> _Sandbox:
    """The dialect that model publishers write for: Hugging Face's ``apply_chat_template``."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation])
    environment.filters = {name: environment.filters[name] for name in _FILTERS} | {
        "tojson": _tojson,
        "indent": _indent,
        "replace": environment.replaced,
        "join": environment.united,
    }
    environment.globals = {name: environment.globals[name] for name in ("range", "dict", "namespace")} | {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    }
    return environment


def _fields(role: Role, content: str, reasoning: str) -> dict[str, str]:
    fields = {"role": role, "content": content}
    return fields | {"reasoning_content": reasoning} if reasoning else fields


def _without_system(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    system, rest = messages[0]["content"], messages[1:]
    if not rest:
        return [{"role": "user", "content": system}]
    return [rest[0] | {"content": f"{system}\n\n{rest[0]['content']}"}, *rest[1:]]


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=None if indent is None else min(indent, 8))


def _indent(text: str, width: int = 4, first: bool = False) -> str:
    pad = " " * min(int(width), 80)
    body = text.replace("\n", "\n" + pad)
    return pad + body if first else body


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(message)
