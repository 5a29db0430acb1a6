"""Chat templates: the dialect, the fallback, and programs from strangers."""

import sys
import threading

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from localllm.cancel import Cancel
from localllm.engine.template import FALLBACK_STOPS, ChatTemplate
from localllm.engine.text import AnswerDecoder
from localllm.engine.worker import run_in_worker, wait_for_workers
from localllm.errors import Cancelled, TemplateError


def render(source, *messages, reasonings=None):
    roles, contents = zip(*messages, strict=True) if messages else ((), ())
    return ChatTemplate.of_model(source, "<s>", "</s>").render(roles, contents, reasonings or [""] * len(roles))


def test_the_fallback_is_a_transcript_that_ends_where_the_answer_begins():
    """A model without a template continues a dialogue; the next user turn is a stop string."""
    text = render("", ("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"))
    assert text == "Be brief.\n\nUser: Hi\n\nAssistant: Hello\n\nUser: Bye\n\nAssistant:"
    assert ChatTemplate.of_model(" ", "", "").stop == FALLBACK_STOPS
    generated = render("", ("user", "Hi"), ("assistant", " Hello"))  # as models write it behind "Assistant:"
    assert generated == "User: Hi\n\nAssistant: Hello\n\nAssistant:"
    assert FALLBACK_STOPS[0] in text


@given(
    st.text(st.sampled_from("Hi \n:User"), max_size=12),
    st.sampled_from(["User:", "Assistant:"]),
    st.sampled_from(["\n", "\n\n"]),
    st.integers(1, 5),
)
def test_without_a_template_an_answer_ends_where_a_new_turn_begins(answer, role, gap, size):
    """Of whichever side, at the beginning of a line and only there, however the text is cut; no blank line is left."""
    assume("\nUser:" not in answer and not answer.endswith("\n"))
    decoder = AnswerDecoder(ChatTemplate.of_model("", "", "").stop)
    text = f"{answer} {role} inline{gap}{role} and so on{gap}User: x".encode()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    events = [event for piece in pieces for event in decoder.decode(piece)]
    assert "".join(event.text for event in [*events, *decoder.flush()]) == f"{answer} {role} inline"
    assert decoder.stopped


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] | trim }}{{ eos_token }}", "<s>hi</s>"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}", ""),
        ("{%- set ns = namespace(n=0) -%}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": " hi "}]'),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ messages[0].content.split('i')[0] }}", " h"),
        ("{% if messages[0].reasoning_content is defined %}x{% else %}y{% endif %}", "y"),
        ("{{ 'ab' ~ 'cd' ~ 1 }}", "abcd1"),
        ("{{ 'a-b' | replace('-', '+') }}{{ ['a', 1] | join(', ') }}{{ 6 * 7 }}{{ 7 % 4 }}{{ 2 ** 3 }}", "a+ba, 14238"),
        ("{{ messages | map(attribute='role') | list | length }}{{ 'a\nb' | indent(2) }}{{ 'x' | upper }}", "1a\n  bX"),
        ("a\n    {%- if true %}\n    b\n    {% endif %}\n", "a    b\n"),
    ],
)
def test_the_dialect_that_publishers_write_for(source, expected):
    """What Hugging Face's renderer offers is there, with the same white space rules."""
    assert render(source, ("user", " hi ")) == expected


def test_a_template_that_refuses_the_system_role_gets_it_in_the_first_user_message():
    """The system prompt is not lost with models that know no such role."""
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "[{{ m.role }}: {{ m.content }}]{% endfor %}"
    )
    assert render(source, ("system", "S"), ("user", "U")) == "[user: S\n\nU]"
    with pytest.raises(TemplateError, match="no thanks"):
        render("{{ raise_exception('no thanks') }}", ("user", "U"))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**10 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ 'x' | center(10**9) }}",
        "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='x' * 9999) %}{{ ns.x.replace('x', ns.x) }}{{ ns.x | replace('x', ns.x ~ ns.x) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
        "{{ range(10**9) }}",
        "{{ (['x' * 10**7] * 15) | join }}",
        "{{ ''.join(['x' * 10**7] * 15) }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + ['x' * 10**6] %}{% endfor %}",
        "{{ [1] | batch(10**9, 'x') }}{{ [1] | slice(10**9) }}",
        "{{ lipsum(10**6) }}",
        "{{ (99999999 ** 9999999) > 1 }}",
        "{{ ([[0] * 1000] * 100000) | sum(start=[]) | length }}",
        "{{ '{:>2999999999}'.format(1) }}",
        "{{ 'x'.expandtabs(10**9) }}{{ ('x' * 10**6).encode() * 10**6 }}",
        "{% break %}",
        "{{ dict(a=1, a=1) }}",
        "{{ cycler() }}",
        "{{ 1e999 | int }}",
        "{% for a in messages %}" * 25 + "{% endfor %}" * 25,
        "{% if messages %}" * 120 + "{% endif %}" * 120,
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].content.format(messages[0].__class__) }}{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ undefined.attribute }}",
        "{{ 1 / 0 }}",
        "{{ 'broken' ",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ [].pop() }}",
        "x" * 1_000_001,
    ],
)
def test_a_hostile_or_broken_template_is_one_clear_error(source):
    """No template can take the process, its memory or its secrets; what fails is a TemplateError."""
    with pytest.raises(TemplateError) as caught:
        render(source, ("user", "hi"))
    assert "\n" not in caught.value.message and len(caught.value.message) < 400


ENDLESS = "{% set r = range(99999) | list %}" + "{% for a in r %}" * 4 + "{% endfor %}" * 4


def test_an_endless_template_is_stopped():
    """A loop that writes nothing ends at the time limit, and its thread ends too."""
    with pytest.raises(TimeoutError, match=r"more than 0\.2 s"):
        run_in_worker(lambda: render(ENDLESS, ("user", "hi")), Cancel(), limit_s=0.2)


def test_a_worker_listens_to_cancel():
    """Work without an end gives up when asked to, and says why."""
    with pytest.raises(Cancelled) as caught:
        run_in_worker(lambda: render(ENDLESS, ("user", "hi")), Cancel(timeout_s=0.1))
    assert caught.value.exit_code == 124
    wait_for_workers()
    assert threading.active_count() == 1


def test_a_worker_hands_on_results_errors_and_depth():
    """What was computed or raised comes back, and recursion has room that the main thread lacks."""
    assert run_in_worker(lambda: 42, Cancel()) == 42
    with pytest.raises(KeyError):
        run_in_worker(lambda: {}["x"], Cancel())

    def depth(levels):
        return 0 if levels == 0 else 1 + max([depth(levels - 1)])  # each level also takes a C frame

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    try:
        assert run_in_worker(lambda: depth(50_000), Cancel()) == 50_000
    finally:
        sys.setrecursionlimit(limit)
