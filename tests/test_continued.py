"""An answer that goes on: what is shown of it then, and what was shown of it before, make the whole.

The oracle is the whole document, as rich renders it at once; pyte is the terminal.
"""

import pytest
from fakes import FakeDecoder, fake_engine, says
from hypothesis import given, settings
from hypothesis import strategies as st
from terminals import STATUS
from test_markdown import CODE, DOCUMENTS, Player, seen, streams, whole

from localllm import Message, Sampling
from localllm.terminal.safe import safe
from localllm.values import Begun, Reasoning, Text, TurnEnd


@st.composite
def cut_answers(draw, texts=DOCUMENTS):
    """What there was of an answer, and the pieces with which it goes on."""
    pieces = draw(streams(texts))
    at = draw(st.integers(0, len(pieces)))
    return "".join(pieces[:at]), pieces[at:]


def is_continued(shown, before, ends):
    """Whether what is shown is the end of the whole, from the first row that is not as it was shown before."""
    same = next((at for at, (a, b) in enumerate(zip(before, ends, strict=False)) if a != b), len(before))
    return shown == ends[min(same, len(ends)) :]


@settings(max_examples=300)
@given(cut_answers(), st.integers(20, 100), st.sampled_from([3, 10, 24]))
def test_a_continued_answer_ends_as_the_whole_document_looks(answer, columns, rows):
    """Any Markdown, cut anywhere: from the first row that was not shown so before, it is the whole's end."""
    begun, pieces = answer
    ends = whole(begun + "".join(pieces), columns, rows)
    shown = Player(columns, rows, begun=Begun(begun)).play(pieces).finish()
    assert is_continued(shown, whole(begun, columns, rows), ends), (shown, ends)


@settings(max_examples=100)
@given(cut_answers(CODE), st.sampled_from(["python", "c", "", "bash"]), st.integers(20, 60))
def test_code_goes_on_as_code(answer, language, columns):
    """With its colours, also where it was cut in the middle of a string over many lines."""
    begun, pieces = answer
    begun = f"So:\n\n```{language}\n{begun}"
    ends = whole(begun + "".join(pieces), columns, 6)
    shown = Player(columns, 6, begun=Begun(begun)).play(pieces).finish()
    assert is_continued(shown, whole(begun, columns, 6), ends)


def test_the_fence_of_continued_code_closes_it():
    """What comes behind it is prose; the code that was shown is not shown again."""
    begun = "Look:\n\n```python\ndef double(x):\n    return"
    player = Player(begun=Begun(begun)).play([" 2 * x\n", "```\n", "\nIt *doubles*.\n"])
    assert seen(player.finish()) == "    return 2 * x\n───\n\nIt doubles."
    assert {cell[1] for cell in player.screen.all()[0] if cell[0] in "return"} == {"magenta"}


def test_a_list_goes_on_with_its_numbers():
    """The row on which it was cut is written once more, whole."""
    player = Player(begun=Begun("1. one\n2. tw")).play(["o\n", "3. three\n"])
    assert seen(player.finish()) == "2. two\n3. three"


@given(st.text("ab \n", max_size=200), st.text("ab \n", min_size=1, max_size=200), st.integers(20, 40))
def test_reasoning_goes_on_on_its_line(begun, more, columns):
    """What is shown is the end of all of it; empty rows at its beginning aside."""
    shown = Player(columns, begun=Begun("", begun)).play([*more], dim=True).finish()
    ends = Player(columns).play([begun + more], dim=True).finish()
    while shown and not shown[0]:
        shown.pop(0)
    assert shown == ends[len(ends) - len(shown) :]
    assert len(shown) <= 1 + len(Player(columns).play(["x" + more], dim=True).finish())


def test_reasoning_that_goes_on_is_folded_as_more_of_it():
    """The time and the words are those of now."""
    player = Player(begun=Begun("", "Well, I th")).play(["ink", " so."], dim=True)
    assert player.screen.display[0].strip() == "Well, I think so."
    assert seen(player.play(["So."]).finish()) == "thought for 2.0 s more, 2 words\nSo."


@given(st.integers(1, 17))
def test_the_engine_tells_what_there_was(tokens):
    """Of a cut answer that goes on, what was given out before comes first, and all together is the whole."""
    answer = "<think>hm é</think>Ja, ö!".encode()
    engine = fake_engine(FakeDecoder(says(answer)))
    question = [Message("user", "So?")]
    *_, cut = engine.reply(question, Sampling(temperature=0, max_tokens=tokens))
    events = list(engine.reply(question, Sampling(temperature=0), begun=cut.ids))
    begun, end = events[0], events[-1]
    assert isinstance(begun, Begun) and isinstance(end, TurnEnd)
    parts = [("".join(e.text for e in events if isinstance(e, kind))) for kind in (Text, Reasoning)]
    assert (begun.text + parts[0], begun.reasoning + parts[1]) == (end.message.text, end.message.reasoning)
    assert safe(end.message.text) == "Ja, ö!"


@pytest.mark.model
def test_continue_inside_code_goes_on_with_the_code(terminal):
    """Cut in the middle of a line of it: that line comes whole, the fence ends the code, and prose is prose."""
    chat = terminal("--temp", "0", "--max-tokens", "12")
    assert "─── python" in chat.asks("Write a Python function that doubles a number.")
    chat.ready()
    chat.types("/continue\r")
    chat.sees(STATUS)
    chat.shows(r"> /continue\n    return num \* 2\n───\n\nThis function uses the\n12 tokens")
