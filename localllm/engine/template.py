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

from localllm.errors import TemplateError
from localllm.values import Role

MAX_SOURCE_CHARS = 1_000_000
MAX_OUTPUT_CHARS = 100_000_000

# A plain transcript: what a base model continues most naturally. The answer ends where a new turn would begin.
FALLBACK = (
    "{% for message in messages %}"
    "{{ {'user': 'User: ', 'assistant': 'Assistant: '}.get(message.role, '') ~ message.content ~ '\n\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
FALLBACK_STOP = "\n\nUser:"


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
    """Jinja's sandbox, with operators and calls that cannot make huge values."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _Concatenation

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse ``'x' * 10**9``, ``10 ** 10 ** 9``, ``'%999999999d'`` and text that grows without end."""
        if operator == "%" and isinstance(left, str):
            raise jinja2.exceptions.SecurityError("it formats with '%'")
        if operator == "+":
            _bound(_size(left) + _size(right))
        elif operator in ("*", "**"):
            _bound(_size(left) * _size(right))
            _bound(*(value for value in (left, right) if isinstance(value, int | float)))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        _bound(*(value for value in (*args, *kwargs.values()) if isinstance(value, int | float)))
        if getattr(function, "__name__", "") == "replace" and args:
            _bound(_size(getattr(function, "__self__", "")) * _size(args[-1]))
        return super().call(context, function, *args, **kwargs)

    @staticmethod
    def joined(parts: Sequence[Any]) -> str:
        """``a ~ b ~ c``."""
        texts = [str(part) for part in parts]
        _bound(sum(map(len, texts)))
        return "".join(texts)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 1


def _bound(*numbers: float) -> None:
    if any(not abs(number) <= MAX_OUTPUT_CHARS for number in numbers):
        raise jinja2.exceptions.SecurityError("a value in it grows too large")


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
        return cls(source, bos, eos) if source.strip() else cls(FALLBACK, bos, eos, (FALLBACK_STOP,))

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
        except (
            jinja2.TemplateError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            reason = " ".join(str(error).split())[:200]
            raise TemplateError(
                f"the model's chat template fails: {reason}", "use --raw, or another file of this model"
            ) from error
        except (RecursionError, MemoryError) as error:
            raise TemplateError("the model's chat template needs too much memory", "use --raw") from error

    def _rendered(self, messages: list[dict[str, str]]) -> str:
        if len(self.source) > MAX_SOURCE_CHARS:
            raise _Refused("it is too long")
        parts, size = [], 0
        values = {"messages": messages, "bos_token": self.bos, "eos_token": self.eos}
        for part in _compiled(self.source).generate(**values, add_generation_prompt=True):
            size += len(part)
            if size > MAX_OUTPUT_CHARS:
                raise _Refused("it writes without end")
            parts.append(part)
        return "".join(parts)


@functools.lru_cache(maxsize=4)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


@functools.cache
def _environment() -> _Sandbox:
    """The dialect that model publishers write for: Hugging Face's ``apply_chat_template``."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    for name in ("center", "wordwrap", "format", "replace"):  # could make huge values from small ones
        environment.filters.pop(name, None)
    environment.filters["replace"] = _replace
    environment.filters["indent"] = _indent
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


def _replace(text: str, old: str, new: str) -> str:
    _bound(len(text) * len(new))
    return str(text).replace(old, new)


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(message)
