"""JSON schemas as constraints: what is written satisfies them, says another implementation; what cannot is refused."""

import json
import math
import random
import re
from decimal import Decimal

import jsonschema
import pytest
from fakes import END, FakeVocabulary
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from localllm.constraints import json_schema
from localllm.engine.grammar import GrammarFilter, GrammarTokens
from localllm.errors import UsageError

TOKENS = GrammarTokens(FakeVocabulary(), {})
NAMES = ("a", "ab", "Key", "with space", 'quo"te', "back\\slash", "é", "😀", "", "a/b~", "\u2028", "\x85")
PATTERNS = (
    "^[a-z]+$",
    r"^\d{3}-\d{4}$",
    "bc",
    '^[^"]{2}$',
    r'^[^"\\]*$',
    r"^[\x00-\x21]+$",
    r"[^\\]x",
    "^.{3}$",
    r"^\s*x",
    "a|b$",
    "é+",
)
VALUES = (
    None,
    True,
    False,
    0,
    1,
    -0.0,
    1.5,
    2**53,
    "a",
    'x"y\\z\n😀',
    "\x1b\x85\u202e",
    [],
    [1, "2"],
    {"a": 1},
    {"k": [{}]},
)
DEFINITIONS = {
    "list": {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}},
        "required": ["v", "next"],
    },
    "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
}
small = st.integers(0, 4)
decimals = st.builds(lambda digits, scale: digits / 10**scale, st.integers(-(10**7), 10**7), st.integers(0, 6))


@st.composite
def limits(draw, values, names):
    """Some of a lower and an upper limit, the lower one first."""
    low, high = sorted((draw(values), draw(values)))
    return {name: value for name, value in zip(draw(names), (low, high), strict=True) if draw(st.booleans())}


def bounds(values):
    low, high = st.sampled_from(("minimum", "exclusiveMinimum")), st.sampled_from(("maximum", "exclusiveMaximum"))
    return limits(values, st.tuples(low, high))


def described(kind, *parts):
    """A schema of one type, with keywords that are there or not."""
    return st.tuples(*parts).map(lambda found: {"type": kind} | {k: v for part in found for k, v in part.items()})


def maybe(name, values):
    return st.one_of(st.just({}), st.fixed_dictionaries({name: values}))


numbers = described("number", bounds(decimals))
integers = described(
    "integer", bounds(st.integers(-1000, 2**52)), maybe("multipleOf", st.sampled_from((1, 3, 10, 250)))
)
texts = described(
    "string", limits(small, st.just(("minLength", "maxLength"))), maybe("pattern", st.sampled_from(PATTERNS))
)
literals = st.one_of(
    st.fixed_dictionaries({"const": st.sampled_from(VALUES)}),
    st.fixed_dictionaries({"enum": st.lists(st.sampled_from(VALUES), min_size=1, max_size=3)}),
)
others = st.sampled_from(
    (
        {"type": "null"},
        {"type": ["boolean", "string"], "minLength": 2},
        {"$ref": "#/$defs/list"},
        {"$ref": "#/$defs/tree"},
        True,
        {},
    )
)


def nested(inner):
    arrays = described(
        "array",
        st.fixed_dictionaries({"items": inner}),
        limits(small, st.just(("minItems", "maxItems"))),
        maybe("prefixItems", st.lists(inner, min_size=1, max_size=2)),
    )
    objects = described(
        "object",
        st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)}),
        maybe("required", st.lists(st.sampled_from((*NAMES, "other")), max_size=3, unique=True)),
        maybe("additionalProperties", st.one_of(st.just(False), inner)),
        maybe("patternProperties", st.dictionaries(st.sampled_from(("^x", "[0-9]", "a", '^[^"]')), inner, max_size=1)),
        maybe("minProperties", st.integers(0, 2)),
    )
    joined = st.sampled_from(("anyOf", "oneOf", "allOf")).flatmap(
        lambda name: st.fixed_dictionaries({name: st.lists(inner, min_size=1, max_size=3)})
    )
    return st.one_of(arrays, objects, objects, joined)


schemas = st.recursive(st.one_of(numbers, integers, texts, literals, others), nested, max_leaves=8)


def written(constraint, draw: random.Random, most=600) -> bytes | None:
    """An answer of a model that wants anything and is held to the constraint; None where it finds no end."""
    only, answer = GrammarFilter(TOKENS, constraint.grammar, "none"), bytearray()
    haste = draw.choice((0.05, 0.3, 0.7))
    for count in range(most):
        allowed = [id for id, one in enumerate(only.allowed()) if one]
        closing = [id for id in allowed if id == END or id in b'"]},:0']
        token = draw.choice(closing if closing and (draw.random() < haste or count > most // 2) else allowed)
        assert only.take(token)
        if token == END:
            return bytes(answer)
        answer.append(token)
    return None


def accepts(constraint, text: str) -> bool:
    only = GrammarFilter(TOKENS, constraint.grammar, "none")
    return all(only.allowed()[token] and only.take(token) for token in (*text.encode(), END))


def refused(schema) -> str:
    with pytest.raises(UsageError) as caught:
        json_schema(schema)
    assert "\n" not in caught.value.message
    return caught.value.message


@settings(max_examples=200)
@given(schemas, st.randoms(use_true_random=False))
def test_whatever_is_written_satisfies_the_schema(schema, draw):
    """Any schema of the supported subset, any choices of the model: jsonschema, another implementation, agrees.

    A schema may be refused instead, but not taken and then not kept to.
    """
    schema = schema | {"$defs": DEFINITIONS} if isinstance(schema, dict) else schema
    try:
        constraint = json_schema(schema)
    except UsageError:
        assume(False)
    for _ in range(3):
        answer = written(constraint, draw)
        if answer is not None:
            jsonschema.Draft202012Validator(schema).validate(json.loads(answer))


@st.composite
def described_values(draw):
    """A value, and a schema that describes it in one of many ways."""
    text = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from('"\\\n\t😀'), max_size=6)
    value = draw(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(10**6), 10**6)
            | decimals.map(lambda x: math.floor(x) + 0.25)
            | text,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
            max_leaves=6,
        )
    )

    def describe(value):
        exact, other = draw(st.sampled_from(("const", "enum", "type", "type", "type"))), draw(st.sampled_from(VALUES))
        if exact != "type":
            return {exact: value if exact == "const" else [other, value]}
        match value:
            case None:
                return {"type": ["null", "string"]}
            case bool():
                return {"type": "boolean"}
            case int() | float():
                kind = "integer" if isinstance(value, int) else "number"
                return {"type": kind, "minimum": value - draw(small), "maximum": value + draw(small)}
            case str():
                return {"type": "string", "minLength": max(0, len(value) - 1), "maxLength": len(value) + draw(small)}
            case list():
                items = [describe(item) for item in value]
                return draw(st.sampled_from(({"prefixItems": items}, {"items": {"anyOf": items}}))) if items else {}
            case _:
                fields = {name: describe(item) for name, item in value.items()}
                required = list(fields)[: draw(small)]  # these come first
                more = (
                    {"properties": fields}
                    if draw(st.booleans())
                    else {"additionalProperties": {"anyOf": [*fields.values(), False]}}
                )
                return {"type": "object", "required": required, **more}

    return value, describe(value)


@settings(max_examples=120)
@given(described_values(), st.sampled_from((None, 1, 4, "\t")))
def test_what_satisfies_a_schema_can_be_written(pair, indent):
    """A value that the schema describes is accepted in each usual layout: answers are not narrowed without need."""
    value, schema = pair
    jsonschema.Draft202012Validator(schema).validate(value)
    assert accepts(json_schema(schema), json.dumps(value, ensure_ascii=False, indent=indent))


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}


def test_common_values_are_accepted_and_wrong_ones_are_not():
    """Properties in the schema's order, others behind them; no missing, no wrong, no double ones."""
    person = json_schema(PERSON)
    for text in ('{"name": "Ann", "age": 3}', '{\n  "name": "Ünï \\"q\\" 😀"\n}', '{"name":"","extra":[1]}'):
        assert accepts(person, text)
    for text in (
        '{"age": 3}',
        '{"name": 1}',
        '{"name": "a", "age": -1}',
        '{"name": "a", "name": "b"}',
        '{"name": "a"',
        "[]",
    ):
        assert not accepts(person, text)
    assert not accepts(person, '{"name": "a", "n\\u0061me": 1}')  # the same name, written otherwise


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("date", r"\d{4}-\d\d-\d\d"),
        ("time", r"\d\d:\d\d:\d\d.*"),
        ("uuid", r"[0-9a-fA-F-]{36}"),
        *((kind, ".+") for kind in ("ipv4", "ipv6", "email")),
    ],
)
def test_formats_are_kept_to(kind, shape):
    """What comes out of a format has its shape; addresses are such that can be."""
    constraint = json_schema({"type": "string", "format": kind})
    checker = jsonschema.FormatChecker(
        [] if kind in ("date", "time") else [kind]
    )  # its years begin at 1, its Z is large
    for seed in range(40):
        if answer := written(constraint, random.Random(seed)):
            value = json.loads(answer)
            checker.check(value, kind)
            assert re.fullmatch(shape, value)


def test_multiples_are_those_of_decimal_numbers():
    """0.14 is a multiple of 0.01, though not in binary floating point."""
    constraint = json_schema({"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 2})
    assert accepts(constraint, "0.14") and accepts(constraint, "1.5") and not accepts(constraint, "0.145")
    for seed in range(30):
        if answer := written(constraint, random.Random(seed)):
            assert Decimal(answer.decode()) % Decimal("0.01") == 0


def test_older_drafts_mean_the_same():
    """Lists of items, boolean bounds and ``definitions``, by the rules of their draft."""
    schema = {
        "definitions": {"a b/c": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1}},
        "items": [{"$ref": "#/definitions/a%20b~1c"}, {"type": "null"}],
        "additionalItems": False,
        "type": "array",
        "minItems": 1,
    }
    constraint = json_schema(schema)
    for seed in range(30):
        jsonschema.Draft4Validator(schema).validate(json.loads(written(constraint, random.Random(seed))))
    assert not accepts(constraint, "[0]") and not accepts(constraint, "[1,null,1]") and accepts(constraint, "[1,null]")


@pytest.mark.parametrize(
    ("schema", "pointer", "word"),
    [
        ({"properties": {"a/b": {"type": "array", "uniqueItems": True}}}, "#/properties/a~1b:", "uniqueItems"),
        ({"not": {}}, "#:", "not"),
        ({"anyOf": [{"type": "null"}, {"if": {}}]}, "#/anyOf/1:", "if"),
        ({"$ref": "http://127.0.0.1:9/x"}, "#/$ref:", "127.0.0.1"),
        ({"$ref": "#/$defs/none"}, "#/$ref:", "nowhere"),
        ({"$ref": "#"}, "#:", "nothing satisfies it"),
        ({"items": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}}, "#/items:", "oneOf"),
        ({"properties": {"p": {"pattern": "(?=a)"}}}, "#/properties/p:", "look-around"),
        ({"pattern": "[a"}, "#/pattern:", "class"),
        ({"pattern": r"a\x00b"}, "#/pattern:", "x00"),
        ({"type": "string", "format": "ipv9"}, "#:", "ipv9"),
        ({"type": "text"}, "#/type:", "text"),
        ({"enum": []}, "#/enum:", "empty"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "#:", "greater than maximum"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "#:", "greater than maxLength"),
        ({"properties": {"x": False}, "required": ["x"], "type": "object"}, "#:", "'x'"),
        (False, "#:", "false"),
        ({"minimum": "3"}, "#/minimum:", "no number"),
        ({"const": [2**60]}, "#/const/0:", "exact"),
        ({"maximum": 0.10486686019314173}, "#/maximum:", "digits"),
        ({"minLength": -1}, "#/minLength:", "-1"),
        ({"maxItems": 10**12}, "#/maxItems:", "large"),
        ({"multipleOf": 99999999}, "#/multipleOf:", "large"),
        ({"multipleOf": 0}, "#/multipleOf:", "above 0"),
        ({"minProperties": 3}, "#:", "minProperties"),
        ({"properties": {"a\nb": True}}, "#/properties:", "control"),
        ({"items": 3}, "#/items:", "no schema"),
        ({"allOf": []}, "#/allOf:", "empty"),
        ({"properties": {"a": {"$id": "x"}}}, "#/properties/a:", "$id"),
    ],
)
def test_what_is_not_supported_is_named_with_its_place(schema, pointer, word):
    """One line: a JSON pointer, and the keyword or value that cannot be held to."""
    message = refused(schema)
    assert message.startswith(f"the schema at {pointer}") and word in message


@pytest.mark.parametrize(
    "schema",
    [
        '{"type": "strin',
        "",
        "[" * 100_000,
        '{"a":' * 2000 + "1" + "}" * 2000,
        '{"minimum": NaN}',
        '"\\ud800"',
        "1" * 5000,
    ],
)
def test_what_is_no_json_is_refused(schema):
    """Truncated, too deep, with numbers or text that JSON does not have."""
    assert refused(schema).startswith("the schema is not JSON: ") or refused(schema).startswith("the schema at #:")


def chain(length, last):
    links = {str(n): {"properties": {"a": {"items": {"$ref": f"#/$defs/{n + 1}"}}}} for n in range(length)}
    return {"$ref": "#/$defs/0", "$defs": links | {str(length): last}}


HUGE = {
    "a chain": chain(5000, {}),
    "much": {"properties": {f"p{n}": {"type": "string", "pattern": "^[a-z]{3,9}$"} for n in range(1500)}},
    "long": {"type": "string", "minLength": 10**9, "maxLength": 2 * 10**9},
    "wide": {"type": "array", "minItems": 10**9, "items": {"type": "array", "minItems": 10**9}},
    "powers": {"type": "string", "pattern": "((a|b){1,100}c?){1,100}", "minLength": 5000, "maxLength": 6000},
    "states": {"type": "string", "pattern": "^(a|b)*a(a|b){300}$"},
    "doubling": {
        "$ref": "#/$defs/0",
        "$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)} | {"40": {}},
    },
    "brackets": {"type": "string", "pattern": "(" * 5000 + "a" + ")" * 5000},
    "literal": {"const": "x" * 500_000},
}


@pytest.mark.parametrize("name", HUGE)
def test_absurd_schemas_end_in_an_error_or_are_kept_to(name):
    """No crash and no hang: refused with a reason, or the first tokens can be chosen."""
    try:
        constraint = json_schema(HUGE[name])
    except UsageError as error:
        assert error.message.startswith("the schema at #")
        return
    only = GrammarFilter(TOKENS, constraint.grammar, "none")
    for _ in range(20):
        token = next(id for id, one in enumerate(only.allowed()) if one)
        assert only.take(token)
