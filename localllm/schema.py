"""JSON schemas (draft 2020-12, and what older drafts write otherwise) -> the part of them that can be enforced.

Knows which keywords there are, and where in a schema each problem is (as a JSON pointer). Every reference is resolved
here, within the schema; nothing is ever fetched. What is left speaks of no annotations and names its definitions
plainly, so that whatever enforces it has nothing to ignore. Pure; knows no grammars and no models.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import NoReturn, TypeAlias
from urllib.parse import unquote

from localllm.errors import UsageError

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

MAX_CHARS = 2**20  # of a schema
MAX_DEPTH = 150  # schemas within schemas, references followed; what compiles them recurses
_MAX_PARTS = 20_000  # schemas in all
_MAX_COUNT = 2**31 - 1
_MAX_INTEGER = 2**53  # beyond it, numbers in JSON are not exact
_MAX_DIGITS, _MAX_DECIMALS = 15, 15  # of a number: these are exact, whoever reads them
_MAX_FACTOR_DIGITS = 4  # of multipleOf: what follows it needs up to so many states, to the power of ten
_MOST_MULTIPLIED = 2**32  # what follows multiples computes with so many bits
_NAME_DEPTH = 20  # characters of a name that are looked at to tell it from others
_FINEST = 9  # decimals of the step that keeps a number away from an exclusive bound

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPE = r"\\(?:x\{[^}]*\}|x..|u\{[^}]*\}|u....|[pP]\{[^}]*\}|[cpP].|.)"
_PIECE = re.compile(rf"{_ESCAPE}|\[(?:{_ESCAPE}|[^\]\\])*\]?", re.DOTALL)  # of a pattern: an escape, a class
_SET_SYNTAX = re.compile(r"\[|&&|--|~~")  # within a class it has another meaning than in ECMAScript
_CONTROL_ESCAPE = re.compile(r"\\(?:c|0|[xu]\{?0*[01]?[0-9a-fA-F]\}?$)")

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
# What changes which values are valid, and cannot be enforced while an answer is written from left to right.
_UNSUPPORTED = (
    *("not", "if", "dependencies", "dependentRequired", "dependentSchemas", "propertyNames", "contains"),
    *(
        "uniqueItems",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$recursiveRef",
        "extends",
        "disallow",
    ),
)
_HARMLESS: dict[str, Json] = {"uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}


def normalised(text: str) -> "Schema":
    """The schema in ``text``. Raises UsageError, with the pointer to what cannot be enforced."""
    if len(text) > MAX_CHARS:
        raise UsageError(f"the schema has more than {MAX_CHARS:,} characters", "give a smaller one")
    try:
        root: Json = json.loads(text, parse_constant=_no_number)
        text.encode()
        json.dumps(root, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"the schema is not JSON: {reason}", "check the file") from error
    return Schema(root)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


class Schema:
    """A schema of which every part can be enforced, as far as that can be told by looking at each part alone.

    ``whole`` is the schema, ``parts`` are its schemas by their pointers in the original; all of them refer to
    ``definitions``, which each needs as its ``$defs``.
    """

    def __init__(self, root: Json) -> None:
        self._root = root
        self.factors: set[Decimal] = set()  # of all multipleOf
        self._names: dict[str, str] = {}  # of definitions, by their pointers
        self.definitions: dict[str, Json] = {}
        self.parts: dict[str, Json] = {}
        self.whole = self._schema(root, "#", 0)

    def _schema(self, node: Json, at: str, depth: int) -> Json:
        if depth > MAX_DEPTH:
            _refuse(at, "schemas are nested too deeply", f"use at most {MAX_DEPTH} levels")
        if len(self.parts) >= _MAX_PARTS:
            _refuse(at, "the schema has too many parts", f"use at most {_MAX_PARTS:,}")
        if isinstance(node, bool):
            self.parts[at] = node
        elif isinstance(node, dict):
            self._check_keywords(node, at)
            part = {
                name: read(self, node[name], f"{at}/{_escaped(name)}", depth + 1)
                for name, read in _KEYWORDS.items()
                if name in node
            }
            self.parts[at] = _with_named_properties(_with_closed_bounds(_with_new_items(part)))
        else:
            _refuse(at, f"{_brief(node)} is no schema", "a schema is an object, true or false")
        return self.parts[at]

    def _check_keywords(self, node: dict[str, Json], at: str) -> None:
        for name, value in node.items():
            if name in _UNSUPPORTED and (name not in _HARMLESS or value is not _HARMLESS[name]):
                _refuse(at, f"'{name}' is not supported", "remove it: the answer cannot be held to it")
        if at != "#" and isinstance(node.get("$id"), str):
            _refuse(at, "'$id' is supported only at the top", "remove it, and refer with #/…")
        formatted = node.get("format")
        texts = "string" in _as_list(node.get("type", "string"))
        if formatted is not None and texts and formatted not in FORMATS:
            _refuse(at, f"the format {_brief(formatted)} is not supported", f"use one of {', '.join(FORMATS)}, or none")
        least, required = node.get("minProperties", 0), node.get("required", [])
        if isinstance(least, int | float) and isinstance(required, list) and least > len(required) + 1:
            # Names that the schema does not list may come twice, and a reader counts those once.
            _refuse(at, f"'minProperties' {least} is not supported", "name more properties in 'required'")

    def _schemas(self, value: Json, at: str, depth: int) -> Json:
        if not isinstance(value, list) or not value:
            _refuse(at, "this has to be a list of schemas, and not an empty one")
        return [self._schema(item, f"{at}/{index}", depth) for index, item in enumerate(value)]

    def _named(self, value: Json, at: str, depth: int) -> Json:
        if not isinstance(value, dict):
            _refuse(at, "this has to be an object that holds schemas")
        for name in value:
            _check_name(name, at)
        return {name: self._schema(item, f"{at}/{_escaped(name)}", depth) for name, item in value.items()}

    def _by_pattern(self, value: Json, at: str, depth: int) -> Json:
        named = self._named(value, at, depth)
        return {_portable(name, at): item for name, item in named.items()} if isinstance(named, dict) else named

    def _items(self, value: Json, at: str, depth: int) -> Json:
        return self._schemas(value, at, depth) if isinstance(value, list) else self._schema(value, at, depth)

    def _reference(self, value: Json, at: str, depth: int) -> Json:
        """The plain name of what is referred to, which is looked at when it is first met."""
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            _refuse(at, f"the reference {_brief(value)} is not supported", "refer to a part of the same file, with #/…")
        target, pointer = self._root, "#"
        for step in unquote(value).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            pointer += "/" + _escaped(key)
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                _refuse(at, f"the reference {_brief(value)} leads nowhere", "check the names in it")
        if pointer not in self._names:
            self._names[pointer] = name = str(len(self._names))
            self.definitions[name] = self._schema(target, pointer, depth)
        return f"#/$defs/{self._names[pointer]}"


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _as_list(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else [value]


def _brief(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _refuse(at: str, problem: str, hint: str = "") -> NoReturn:
    raise UsageError(f"the schema at {at}: {problem}", hint)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_name(name: Json, at: str) -> None:
    """Control characters can be written in two ways, so such names are not told from others for certain."""
    if not isinstance(name, str) or _CONTROL.search(name):
        _refuse(at, f"the name {_brief(name)} has control characters", "leave them out")


def _number(_: Schema, value: Json, at: str, _depth: int) -> Json:
    if not _is_number(value):
        _refuse(at, f"{_brief(value)} is no number")
    return _literal(_, value, at, _depth)


def _with_new_items(part: dict[str, Json]) -> dict[str, Json]:
    """The same with arrays described as since draft 2020-12, whatever the draft."""
    rest = part.pop("additionalItems", True)
    return part | {"prefixItems": part["items"], "items": rest} if isinstance(part.get("items"), list) else part


def _with_closed_bounds(part: dict[str, Json]) -> dict[str, Json]:
    """The same with bounds that belong to the range, a small step inside of those which do not.

    What lies closer to an exclusive bound could be read as the bound itself, since readers round to a binary number.
    """
    closed = {name: value for name, value in part.items() if not name.startswith("exclusive")}
    for name, opened, sign, tighter in (
        ("minimum", "exclusiveMinimum", 1, max),
        ("maximum", "exclusiveMaximum", -1, min),
    ):
        bound, given = part.get(opened), part.get(name)
        if bound is True:  # draft 4
            bound, given = given, None
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            exact = Decimal(str(bound))
            decimals = min(_FINEST, _MAX_DIGITS - max(0, exact.adjusted() + 1))
            inside = exact + sign * Decimal(1).scaleb(-max(0, decimals))
            closed[name] = float(inside if given is None else tighter(inside, Decimal(str(given))))
    return closed


def _with_named_properties(part: dict[str, Json]) -> dict[str, Json]:
    """The same with properties that the schema does not name among ``patternProperties``, or without them.

    As additional properties llguidance lets them be written with escapes, and so be names that are named after all.
    """
    named, required, patterns = (part.get(key) for key in ("properties", "required", "patternProperties"))
    others = part.get("additionalProperties", True)
    if others is False or not (named or required or patterns):
        return part
    if not patterns:
        names = list(named) if isinstance(named, dict) else []
        patterns = {"": True} if others in (True, {}) else {f"^{_other_than(names)}$": others}
    objects: dict[str, Json] = {"patternProperties": patterns, "additionalProperties": False}
    return (
        ({"properties": named} if named else {})
        | objects
        | {k: v for k, v in part.items() if k not in (*objects, "properties")}
    )


def _other_than(names: Sequence[str], depth: int = 0) -> str:
    """A pattern for texts other than ``names``: for all of them, unless they have a long beginning in common."""
    rests: dict[str, list[str]] = {}
    for name in filter(None, names):
        rests.setdefault(f"\\x{{{ord(name[0]):x}}}", []).append(name[1:])
    options = [f"[^{''.join(rests)}\\x00-\\x1f][^\\x00-\\x1f]*"]
    if depth < _NAME_DEPTH:
        options += [first + _other_than(more, depth + 1) for first, more in rests.items()]
    return f"(?:{'|'.join(options)})" + ("" if "" in names else "?")


def _exclusive(schema: Schema, value: Json, at: str, depth: int) -> Json:
    """A bound; in draft 4, whether the other bound is one."""
    return value if isinstance(value, bool) else _number(schema, value, at, depth)


def _multiple(schema: Schema, value: Json, at: str, depth: int) -> Json:
    number = Decimal(str(_number(schema, value, at, depth)))
    if number <= 0:
        _refuse(at, f"{_brief(value)} is not above 0")
    schema.factors.add(number)
    scale = max(-min(0, int(factor.normalize().as_tuple().exponent)) for factor in schema.factors)
    scaled = [int(factor.scaleb(scale)) for factor in schema.factors]
    if math.lcm(*scaled) * max(scaled) > _MOST_MULTIPLIED:
        _refuse(at, "this and others in the schema are too large together", "use fewer and smaller ones")
    _, digits, exponent = number.normalize().as_tuple()
    if not isinstance(exponent, int) or len(digits) - min(0, exponent) > _MAX_FACTOR_DIGITS + 1:
        _refuse(at, f"{_brief(value)} has too many digits", f"use at most {_MAX_FACTOR_DIGITS}")
    return value


def _count(_: Schema, value: Json, at: str, _depth: int) -> Json:
    if not (isinstance(value, int | float) and _is_number(value) and value >= 0 and value % 1 == 0):
        _refuse(at, f"{_brief(value)} is not a whole number from 0 on")
    if value > _MAX_COUNT:
        _refuse(at, f"{_brief(value)} is too large", f"use at most {_MAX_COUNT:,}")
    return int(value)


def _pattern(schema: Schema, value: Json, at: str, depth: int) -> Json:
    return _portable(str(_text(schema, value, at, depth)), at)


def _portable(pattern: str, at: str) -> str:
    """A pattern that means the same to llguidance as to ECMAScript, but for one control character.

    A class of characters with all control characters in it is taken by llguidance to hold the quote and the backslash
    too. So every class does without one of them.
    """

    def ported(found: re.Match[str]) -> str:
        piece = found[0]
        body = piece[1:-1].removeprefix("^") if piece[0] == "[" else ""
        if piece[0] == "[" and (not body or piece[-1] != "]" or _SET_SYNTAX.search(re.sub(_ESCAPE, "", body))):
            _refuse(at, f"the class {_brief(piece)} in the pattern is not supported", "escape the brackets in it")
        if _CONTROL_ESCAPE.match(piece):
            _refuse(at, f"{_brief(piece)} in the pattern is not supported", "leave control characters out")
        return f"[{piece}--\\x01]" if piece[0] == "[" or piece[1] in "pP" else piece

    if re.search("[\\x00-\\x08\\x0b-\\x1f]", pattern):
        _refuse(at, "the pattern holds control characters", "leave them out")
    return _PIECE.sub(ported, pattern)


def _text(_: Schema, value: Json, at: str, _depth: int) -> Json:
    if not isinstance(value, str):
        _refuse(at, f"{_brief(value)} is no text")
    return value


def _texts(_: Schema, value: Json, at: str, _depth: int) -> Json:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        _refuse(at, "this has to be a list of names")
    for name in value:
        _check_name(name, at)
    return value


def _type(_: Schema, value: Json, at: str, _depth: int) -> Json:
    wrong = [item for item in _as_list(value) if item not in TYPES]
    if wrong or value == []:
        _refuse(at, f"{_brief(wrong[0] if wrong else value)} is no type", f"the types are {', '.join(TYPES)}")
    return value


def _literals(schema: Schema, value: Json, at: str, depth: int) -> Json:
    if not isinstance(value, list) or not value:
        _refuse(at, "this has to be a list of values, and not an empty one")
    return [_literal(schema, item, f"{at}/{index}", depth) for index, item in enumerate(value)]


def _literal(schema: Schema, value: Json, at: str, depth: int) -> Json:
    """A value as it is, if every number in it can be told from all others."""
    if depth > MAX_DEPTH:
        _refuse(at, "values are nested too deeply", f"use at most {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {name: _literal(schema, item, f"{at}/{_escaped(name)}", depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_literal(schema, item, f"{at}/{index}", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, int | float) and not (math.isfinite(value) and abs(value) <= _MAX_INTEGER):
        _refuse(at, f"{_brief(value)} is too large to be exact in JSON", f"use at most {_MAX_INTEGER:,}")
    if isinstance(value, float) and (
        float(f"{value:.{_MAX_DIGITS}g}") != value or round(value, _MAX_DECIMALS) != value
    ):
        _refuse(at, f"{_brief(value)} has too many digits to be exact", f"use at most {_MAX_DIGITS}")
    return value


_KEYWORDS: dict[str, Callable[[Schema, Json, str, int], Json]] = {
    "$ref": Schema._reference,
    "type": _type,
    "const": _literal,
    "enum": _literals,
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), Schema._schemas),
    "properties": Schema._named,
    "patternProperties": Schema._by_pattern,
    **dict.fromkeys(("additionalProperties", "additionalItems"), Schema._schema),
    "items": Schema._items,
    "required": _texts,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
    "pattern": _pattern,
    "format": _text,
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _exclusive),
    "multipleOf": _multiple,
}
