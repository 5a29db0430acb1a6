"""Text decoders: however the bytes are cut, the text that comes out is the same."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from proofs import examples, sample_size

from localllm.engine.text import (
    FRAMING,
    REASONING_TAGS,
    AnswerDecoder,
    ReasoningSplitter,
    StopStrings,
    reasoning_at_end,
)
from localllm.values import Reasoning, Text

TAGS = [tag for pair in REASONING_TAGS for tag in pair] + list(FRAMING)
# Text rich in what matters here: tags whole and in parts, white space, characters of several bytes.
tricky = st.lists(
    st.one_of(
        st.sampled_from([*TAGS, "\n", "\n\n", " ", "STOP", "ST", "ö", "世界", "🙂", "<", "</", "<thi", "x"]),
        st.text(max_size=4),
    ),
    max_size=12,
).map("".join)
starts = st.sampled_from(["none", "possible", "open"])


def cuts(data, sizes):
    """``data`` in pieces of the given sizes, the rest at the end."""
    position = 0
    for size in sizes:
        yield data[position : position + size]
        position += size
    yield data[position:]


def decoded(pieces, **options):
    decoder = AnswerDecoder(**options)
    events = [event for piece in pieces for event in decoder.decode(piece)] + list(decoder.flush())
    text = "".join(e.text for e in events if isinstance(e, Text))
    reasoning = "".join(e.text for e in events if isinstance(e, Reasoning))
    return text, reasoning, decoder.stopped, decoder.result()


@pytest.mark.proof("every-cut")
def test_any_cutting_of_the_bytes_gives_the_same_text(record_property):
    """The one property that streaming must have."""

    @examples(full=100_000, sample=400)
    @given(
        tricky,
        st.lists(st.integers(0, 6), max_size=60),
        starts,
        st.booleans(),
        st.sampled_from([(), ("STOP",), ("STOP", "TO", "OP\n")]),
    )
    @example("<think>a</think>\n\nb", [1] * 30, "none", False, ())
    @example("  <think>a", [3] * 9, "none", True, ())
    @example("STOP</think>", [3], "possible", True, ("STOP", "TO", "OP\n"))
    def holds(text, sizes, start, hold, stops):
        data = text.encode("utf-8", "surrogatepass")
        options = {"start": start, "hold": hold, "stops": stops}
        assert decoded(cuts(data, sizes), **options) == decoded([data], **options)

    holds()
    record_property("cases", sample_size(full=100_000, sample=400))


@given(st.binary(max_size=60), st.lists(st.integers(0, 4), max_size=30))
def test_any_bytes_give_what_python_decodes(data, sizes):
    """Broken UTF-8 becomes replacement characters, exactly as in one piece."""
    expected = data.decode("utf-8", "replace")
    if not any(tag in expected for tag in TAGS):
        assert decoded(cuts(data, sizes))[0] == expected


@given(tricky, st.lists(st.sampled_from(["STOP", "S", "\n\n", "世", "</think>"]), min_size=1, max_size=3))
def test_stop_strings_cut_at_the_first_of_them(text, stops):
    """The text ends before whichever stop string is complete first; none of it remains."""
    stopper = StopStrings(stops)
    out = "".join(stopper.decode(c) for c in text) + stopper.flush()
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert out == (text[: min(found)[1]] if found else text)
    assert stopper.stopped == bool(found)


def test_stop_strings_that_overlap():
    """Which of them counts does not depend on how the text is cut."""
    for pieces in (["abcd"], list("abcd"), ["ab", "cd"], ["abc", "d"]):
        stopper = StopStrings(["abcd", "bc"])
        assert "".join(map(stopper.decode, pieces)) + stopper.flush() == "a"


@given(tricky, tricky)
def test_nothing_is_lost_but_tags_and_white_space(reasoning, answer):
    """Every character that is no tag and no white space comes out, as reasoning or as answer."""
    splitter = ReasoningSplitter()
    text = "<think>" + reasoning + "</think>" + answer
    out = "".join(piece.text for piece in [*splitter.decode(text), *splitter.flush()])

    def kept(value):
        for tag in TAGS:
            value = value.replace(tag, "")
        return "".join(value.split())

    if not any(tag in reasoning or tag in answer for tag in TAGS):
        assert kept(out) == kept(reasoning + answer)


@pytest.mark.parametrize(
    ("start", "text", "reasoning", "answer"),
    [
        ("none", "<think>\nwhy\n</think>\n\nso", "why\n", "so"),
        ("none", "\n<think></think>so", "", "so"),
        ("none", "no <think>tag</think> here", "", "no <think>tag</think> here"),
        ("none", "a < b", "", "a < b"),
        ("none", "  indented", "", "  indented"),
        ("none", "<think>never closed", "never closed", ""),
        ("none", "[THINK]why[/THINK]so", "why", "so"),
        ("none", "<|channel>thought\nwhy<channel|>so", "why", "so"),
        (
            "none",
            "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so",
            "why",
            "so",
        ),
        ("open", "\nwhy</think>so", "why", "so"),
        ("open", "why</thinking>so", "why", "so"),
        ("none", "why</think>so", "", "why</think>so"),
    ],
)
def test_reasoning_blocks(start, text, reasoning, answer):
    """The ways in which models mark their reasoning."""
    assert decoded([text.encode()], start=start)[:2] == (answer, reasoning)


@pytest.mark.parametrize("closing", [closing for _, closing in REASONING_TAGS if closing != "<|end|>"])
def test_a_missing_opening_tag(closing):
    """Held back, it never comes out as text; not held, the finished message still knows it."""
    data = f"why{closing}\nso".encode()
    assert decoded([data], start="possible", hold=True)[:2] == ("so", "why")
    assert decoded([data], start="possible")[3] == ("why", "so")


@pytest.mark.parametrize(
    ("rendered", "source", "expected"),
    [
        ("…assistant\n<think>\n", "<think> </think>", "open"),
        ("…assistant\n<think>\n\n</think>\n\n", "</think>", "none"),
        ("…assistant\n", "content.split('</think>')", "possible"),
        ("…assistant\n", "plain", "none"),
        ("…<|assistant|>", "<|user|> <|end|> <|assistant|>", "none"),
    ],
)
def test_how_an_answer_begins(rendered, source, expected):
    """The end of the prompt tells, and otherwise what the template knows."""
    assert reasoning_at_end(rendered, source) == expected
