"""Answers that are held to something: in the engine, under speculation, on real models and through the program."""

import json
import os
import random
import subprocess
import sys
from itertools import product

import jsonschema
import pytest
from fakes import CHATML, END, THINK, UNTHINK, FakeDecoder, fake_engine, says
from hypothesis import given
from hypothesis import strategies as st

from localllm import Constraint, Message, Sampling, Settings, TurnEnd, json_schema, one_of, open_engine
from localllm.engine.costs import CostModel
from localllm.engine.stepper import Stepper
from localllm.errors import DecodeError, UsageError
from localllm.terminal.safe import escaped
from localllm.values import Prompt

PROMPT = Prompt((*b"assistant\n",))
YES_NO = one_of(["yes", "no"])


def ended(engine, prompt=PROMPT, **options) -> TurnEnd:
    *_, end = engine.reply(prompt, **options)
    return end


def thinking(reasoning):
    return Prompt(PROMPT.ids, reasoning=reasoning, stop=("e",))


def test_the_answer_is_one_of_the_choices_whatever_the_model_says():
    """A model that would say something else says what it may, to the end, and ends where it must."""
    choices = ["yes", "no", "no way", "nö 😀", 'say "no"\\', "two\nlines"]
    found = set()
    for seed in range(80):
        end = ended(fake_engine(FakeDecoder(says(b"Maybe."))), sampling=Sampling(seed=seed), constraint=one_of(choices))
        assert end.reason == "stop"
        found.add(end.message.text)
    assert found == set(choices)


def test_what_the_model_wants_is_kept_where_it_may():
    """The constraint takes no choice away that it allows; of two with the same beginning the model ends the shorter."""
    for wanted in ("no", "no way"):
        end = ended(fake_engine(FakeDecoder(says(wanted.encode()))), constraint=one_of(["yes", "no", "no way"]))
        assert (end.message.text, end.message.token_ids) == (wanted, tuple(wanted.encode()))


@pytest.mark.parametrize("reasoning", ["open", "possible", "none"])
def test_reasoning_comes_first_and_is_free(reasoning):
    """Opened by the template or by the model: it is not held to anything, and the answer behind it is."""
    said = [*([] if reasoning == "open" else [THINK]), *b"yes, e or {", UNTHINK, *b"\n\nMaybe"]
    end = ended(fake_engine(FakeDecoder(says(said))), thinking(reasoning), constraint=one_of(["no"]))
    assert (end.reason, end.message.text, end.message.reasoning) == ("stop", "no", "yes, e or {")


def test_an_answer_does_not_end_within_its_reasoning():
    """The model's end token closes no reasoning: without an answer the turn is not whole."""
    sampling = Sampling(temperature=0, max_tokens=30)
    end = ended(fake_engine(FakeDecoder(says(b"hm"))), thinking("open"), sampling=sampling, constraint=YES_NO)
    assert (end.reason, end.message.text) == ("length", "")


def test_a_tag_spelled_with_several_tokens_does_not_hide_the_beginning():
    """Reasoning closed letter by letter; and a tag within the answer is text like any other."""
    closed = says(b"hm</think>Maybe")
    assert ended(fake_engine(FakeDecoder(closed)), thinking("open"), constraint=YES_NO).message.text in ("yes", "no")
    tagged = one_of(["a </think> b"])
    end = ended(fake_engine(FakeDecoder(says(b"x"))), thinking("possible"), constraint=tagged)
    assert (end.message.text, end.message.reasoning) == ("a </think> b", "")


def test_control_tokens_stay_out_of_strings():
    """A model that wants control tokens within a string gets none: they stand for no text."""
    end = ended(
        fake_engine(FakeDecoder(says([*b'"a', THINK, UNTHINK, *b'b"']))),
        sampling=Sampling(temperature=0, max_tokens=100),
        constraint=json_schema({"type": "string", "maxLength": 8}),
    )
    assert end.reason == "stop" and not {THINK, UNTHINK} & {*end.ids}
    assert json.loads(end.message.text).startswith("a")


def test_a_cut_answer_says_so_and_can_go_on():
    """--max-tokens leaves a part with the reason "length"; with it as ``begun`` the whole comes out."""
    decoder = FakeDecoder(says(b"no way"))
    choices = one_of(["yes", "no way"])
    cut = ended(fake_engine(decoder), sampling=Sampling(temperature=0, max_tokens=3), constraint=choices)
    assert (cut.reason, cut.message.text) == ("length", "no ")
    whole = ended(fake_engine(decoder), begun=cut.ids, constraint=choices)
    assert (whole.reason, whole.message.text) == ("stop", "no way")
    with pytest.raises(UsageError):
        ended(fake_engine(decoder), begun=[*b"no one"], constraint=choices)


def test_a_stop_string_is_refused_beside_a_constraint():
    """It would cut what is to be whole; those of a template without tokens of its own are left out silently."""
    engine = fake_engine(FakeDecoder(says(b"no")))
    with pytest.raises(UsageError, match="stop string"):
        ended(engine, sampling=Sampling(stop=("n",)), constraint=YES_NO)


def test_a_grammar_that_leads_nowhere_is_an_error():
    """Where no token can follow, the turn ends with a clear error and the next one works."""
    decoder = FakeDecoder(says(b"a"))
    engine = fake_engine(decoder)
    with pytest.raises(DecodeError, match="has to be"):
        ended(engine, constraint=Constraint('start: "a" b\nb: "c" b'))
        ended(engine, constraint=Constraint("start: /a/ /[^\\x00-\\x{10ffff}]/"))
    assert decoder.open_samplers == 0
    assert ended(engine, constraint=YES_NO).reason == "stop"


class Free(CostModel):
    """Costs that make every guess worth checking."""

    def relative(self, n: int) -> float:
        return 1 + n / 10_000


@given(st.integers(0, 2**32), st.booleans())
def test_guesses_do_not_change_a_constrained_answer(seed, exact):
    """Drafted out of a text full of the same, the same answer token by token: the state goes with what is chosen."""
    draw = random.Random(seed)
    text = "".join(draw.choice(['{"a": "b"}', "[1, 2]", '"b"', "yes"]) for _ in range(6)).encode()
    script = text[draw.randrange(len(text)) :]
    constraint = json_schema({"type": "array", "maxItems": 4, "items": {"enum": ["b", {"a": "b"}, 12, "yes"]}})
    prompt = Prompt((*text, END, *text, END, *b"assistant\n"))
    sampling = Sampling(temperature=draw.choice((0, 0.8)), seed=seed % 1000, max_tokens=300)
    answers = []
    for cost in (None, Free()):
        decoder = FakeDecoder(says(script), slice_tokens=16)
        engine = fake_engine(decoder, stepper=Stepper(decoder, cost, exact=exact))
        answers.append(ended(engine, prompt, sampling=sampling, constraint=constraint))
    assert [a.ids for a in answers] == [answers[0].ids] * 2 and answers[0].reason == answers[1].reason
    if answers[0].reason == "stop":
        assert len(json.loads(answers[0].message.text)) <= 4


@pytest.mark.parametrize(
    "choices", [[], [""], ["a "], ["a" * 2000], ["\x1b[2J"], ["<think>x"], [str(n) for n in range(2000)]]
)
def test_choices_that_cannot_be_are_refused(choices):
    """None, empty, blank at the border, endless, with control characters, or looking like reasoning."""
    with pytest.raises(UsageError):
        one_of(choices)


def test_what_a_terminal_must_not_get_is_escaped_and_means_the_same():
    """Control characters and bidi overrides in strings become escapes: other text, the same value."""
    value = {"a": "\x85\u202e\x7f \u2066 é"}
    text = json.dumps(value, ensure_ascii=False)
    assert escaped(text).isprintable() and json.loads(escaped(text)) == value


WORD = {"type": "string", "maxLength": 12}
SCHEMAS = [
    {"type": "boolean"},
    {"type": "integer", "minimum": -5, "exclusiveMaximum": 120},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "multipleOf": 0.25},
    {"type": "string", "minLength": 3, "maxLength": 12},
    {"type": "string", "pattern": "^[A-Z][a-z]{1,9}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"enum": ["red", "dark red", 'a "quoted" one', "back\\slash", "zwei\nZeilen", "😀", 7, None]},
    {"const": {"a": [1, "b", None]}},
    {"type": "array", "items": WORD, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [WORD, {"type": "boolean"}], "minItems": 2, "items": False},
    {"type": "array", "items": {"type": "array", "items": {"enum": [0, 1]}, "maxItems": 2}, "maxItems": 2},
    {
        "type": "object",
        "properties": {"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"type": "object", "properties": {"a": WORD, "b": WORD}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {
        "type": "object",
        "properties": {'quo"te': WORD, "Ünï 😀": {"type": "null"}},
        "required": ['quo"te', "Ünï 😀"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "x": {
                "type": "object",
                "properties": {"y": {"enum": ["deep"]}},
                "required": ["y"],
                "additionalProperties": False,
            }
        },
        "required": ["x"],
        "additionalProperties": False,
    },
    {
        "anyOf": [
            {"type": "null"},
            {
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["n"],
                "additionalProperties": False,
            },
        ]
    },
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, WORD]},
    {"type": ["string", "null"], "maxLength": 5},
    {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {"type": "array", "maxItems": 1, "items": {"anyOf": [{"$ref": "#/$defs/tree"}, {"enum": ["leaf"]}]}}
        },
    },
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
]
QUESTION = [Message("user", "Invent something and answer in JSON.")]
CHOICES = ["yes", "no", "no way", "völlig egal", "😀", "a b c", 'it\'s "fine"']


@pytest.mark.model
@pytest.mark.parametrize(
    ("model", "schemas"), [("engine", SCHEMAS), pytest.param("gemma_engine", SCHEMAS[::3], marks=pytest.mark.slow)]
)
def test_real_models_keep_to_schemas_and_choices(model, schemas, request):
    """A byte-level vocabulary and a SentencePiece one, greedy and hot: answers are valid, nearly all of them whole."""
    engine, cut = request.getfixturevalue(model), 0
    for schema, temperature in product(schemas, (0, 2.0)):
        sampling = Sampling(temperature, seed=3, top_k=0, top_p=1, min_p=0, repeat_penalty=1.1, max_tokens=120)
        end = ended(engine, QUESTION, sampling=sampling, constraint=json_schema(schema))
        if end.reason == "stop":
            jsonschema.Draft202012Validator(schema).validate(json.loads(end.message.text))
        cut += end.reason == "length"
    assert cut <= 3
    for temperature, seed in ((0, 0), *((2.0, seed) for seed in range(4))):
        end = ended(engine, QUESTION, sampling=Sampling(temperature, seed=seed), constraint=one_of(CHOICES))
        assert end.message.text in CHOICES and end.reason == "stop"


@pytest.mark.model
@pytest.mark.parametrize("model", ["smollm2", pytest.param("gemma", marks=pytest.mark.slow)])
def test_guesses_from_the_text_change_no_constrained_answer(model, request):
    """With steps of one width, the same ids with guesses and without, greedy and sampled; guesses were right."""
    path, answers, accepted = str(request.getfixturevalue(model)), [], 0
    question = [Message("user", 'Copy: [{"name": "Ann", "age": 3}, {"name": "Bob", "age": 5}] and again')]
    people = {"type": "array", "items": SCHEMAS[12], "minItems": 2, "maxItems": 2}
    for draft in ("off", "ngram"):
        with open_engine(path, Settings(ctx_size=1024, threads=2, draft=draft, exact=True, cache=False)) as engine:
            for temperature in (0.0, 1.0):
                sampling = Sampling(temperature, seed=5, max_tokens=60)
                end = ended(engine, question, sampling=sampling, constraint=json_schema(people))
                answers.append(end.ids)
                accepted += end.stats.accepted
    assert answers[:2] == answers[2:] and accepted > 0


@pytest.fixture
def ask(home, smollm2, monkeypatch):
    """``localllm ask`` with the default model, into a pipe."""
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))

    def run(*arguments, **options):
        fixed = ("--seed", "1", "--threads", "2", "--draft", "off", "--no-cache")
        command = [sys.executable, "-m", "localllm", "ask", *fixed, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, input="", **options)

    return run


@pytest.fixture
def person(tmp_path):
    file = tmp_path / "person.json"
    file.write_text(json.dumps(SCHEMAS[12]))
    return str(file)


@pytest.mark.model
def test_ask_writes_one_value_and_nothing_else(ask, person):
    """The value on stdout and nothing on stderr; with --json in ``answer``, as text."""
    result = ask("--schema", person, "Invent a person.")
    assert (result.returncode, result.stderr) == (0, "")
    jsonschema.Draft202012Validator(SCHEMAS[12]).validate(json.loads(result.stdout))
    found = json.loads(ask("--schema", person, "--json", "Invent a person.").stdout)
    assert found["finish_reason"] == "stop" and json.loads(found["answer"]) == json.loads(result.stdout)
    assert ask("--choice", "yes, no, no way", "Is water wet?").stdout in ("yes\n", "no\n", "no way\n")


@pytest.mark.model
def test_a_cut_answer_never_passes_for_a_whole_one(ask, person):
    """Exit code 5 and a line; into a pipe nothing of it, with --json what there is and ``length``."""
    result = ask("--schema", person, "--max-tokens", "4", "Invent a person.")
    assert (result.returncode, result.stdout) == (5, "")
    assert result.stderr == "localllm: --max-tokens came before the end: the answer is cut\n"
    result = ask("--schema", person, "--max-tokens", "4", "--json", "-q", "Invent a person.")
    assert (result.returncode, json.loads(result.stdout)["finish_reason"], result.stderr) == (5, "length", "")


def test_wrong_use_is_told_before_a_model_is_looked_for(ask, person, tmp_path):
    """Exit code 2 although there is no such model: the schema's fault with its pointer, the file's, the flags'."""
    bad, large = tmp_path / "bad.json", tmp_path / "large.json"
    bad.write_text('{"properties": {"a": {"not": {}}}}')
    large.write_text('"' + "x" * 10_000_000 + '"')
    cases = {
        ("--schema", str(bad)): "localllm: the schema at #/properties/a: 'not' is not supported",
        ("--schema", str(large)): "localllm: the schema has more than 1,048,576 characters",
        ("--schema", str(tmp_path / "none")): "No such file",
        ("--schema", os.devnull): "localllm: the schema is not JSON",
        ("--schema", person, "--choice", "a,b"): "exclude each other",
        ("--choice", "a,,b"): "is empty",
        ("--choice", "a,b", "--stop", "x"): "--stop",
    }
    for flags, said in cases.items():
        result = ask("-m", "no-such-model", *flags, "Hi")
        assert result.returncode == 2 and said in result.stderr and result.stderr.count("\n") == 1, result.stderr
        assert result.stdout == ""


def test_reasoning_templates_are_followed_by_the_engine():
    """The path of a conversation: rendered, its reasoning found open, the answer held to the choice behind it."""
    engine = fake_engine(FakeDecoder(says([*b"hm", UNTHINK, *b"?"], prompt_end=b"\n")), CHATML + "<think>{{ '\\n' }}")
    end = ended(engine, [Message("user", "hello")], constraint=YES_NO)
    assert end.message.text in ("yes", "no") and end.message.reasoning == "hm"
