"""Renderers: what reaches stdout and stderr, and what never reaches a terminal."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.terminal.render import View, collect, dumps, show
from localllm.terminal.safe import one_line, safe
from localllm.terminal.stats_view import as_json, stats_line, stats_summary
from localllm.values import Message, Progress, Reasoning, Text, TurnEnd, TurnStats

STATS = TurnStats(30, 10, 20, 0.5, 0.6, 5, 0.4, 34, 7, (0.1, 0.1, 0.1, 0.1))
END = TurnEnd("stop", Message("assistant", "so"), STATS)


def shown(events, **options):
    out, status = io.StringIO(), io.StringIO()
    assert show(iter(events), View(out, status, **options)) is events[-1]
    return out.getvalue(), status.getvalue()


@given(st.text())
def test_no_control_character_survives(text):
    """Neither an escape sequence nor a bidirectional override can begin; all else is left as it is."""
    cleaned = safe(text)
    forbidden = {*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), *map(chr, range(0x202A, 0x202F))} - {"\n", "\t"}
    forbidden |= set(map(chr, range(0x2066, 0x206A)))
    assert not set(cleaned) & forbidden
    assert cleaned == "".join(character for character in text if character not in forbidden)
    assert "\n" not in one_line(text)


def test_the_answer_is_written_as_it_comes_and_ends_its_line():
    """Exactly one line break is added, and only where one is missing."""
    assert shown([Progress(0, 9, 0), Text("a"), Text("b"), END]) == ("ab\n", "")
    assert shown([Text("a\n"), END])[0] == "a\n"
    assert shown([END])[0] == ""


def test_reasoning_is_shown_only_where_it_is_wanted():
    """Dim and on lines of its own in a terminal, absent elsewhere."""
    events = [Reasoning("why"), Text("so"), END]
    assert shown(events)[0] == "so\n"
    assert shown(events, reasoning=True)[0] == "why\nso\n"
    assert shown(events, reasoning=True, color=True)[0] == "\x1b[2mwhy\n\x1b[0mso\n"


def test_colour_is_reset_whatever_happens():
    """A turn that fails in the middle of its reasoning leaves no dim terminal behind."""

    def failing():
        yield Reasoning("why")
        raise KeyError

    out = io.StringIO()
    with pytest.raises(KeyError):
        show(failing(), View(out, io.StringIO(), reasoning=True, color=True))
    assert out.getvalue().endswith("\x1b[0m")


def test_without_streaming_the_answer_comes_in_one_piece():
    """Nothing is written before the end."""
    writes = []

    class Recorder(io.StringIO):
        def write(self, text):
            writes.append(text)
            return super().write(text)

    show(iter([Text("a"), Text("b"), END]), View(Recorder(), io.StringIO(), stream=False))
    assert writes == ["ab\n"]


def test_json_escapes_every_control_character():
    """Also C1 controls, so that an object can be shown in a terminal; and it is the whole answer."""
    text = "\x1b]0;x\x07 \x9b2J \u202e ü"
    line = dumps(as_json(TurnEnd("stop", Message("assistant", text), STATS), "m"))
    assert safe(line) == line and line.isascii()
    assert json.loads(line)["answer"] == text


def test_collect_gives_the_end_and_writes_nothing():
    """What --json uses."""
    out = io.StringIO()
    assert collect(iter([Text("a"), END]), View(out, io.StringIO())) is END
    assert out.getvalue() == ""


def test_the_numbers_name_their_phase():
    """4 steps in 0.4 s are 10 tok/s of decode; 20 tokens were read in 0.5 s of prefill."""
    line = stats_line(END)
    assert line == "5 tokens · decode 10.0 tok/s · prefill 20 tokens (10 cached) · TTFT 0.60 s"
    assert "40 tok/s" in stats_summary(STATS, 8192)
    assert "not measured" in stats_summary(TurnStats(1, 0, 1, 0.1, None, 0, 0.0, 1, 7), 8192)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.floats(1, 100))
def test_percentiles_are_values_that_occurred(times, percent):
    """Nearest rank: at least that share of the times is no larger."""
    value = TurnStats(1, 0, 1, 0, 0, 1, 0, 1, 7, tuple(times)).inter_token_percentile(percent)
    assert value in times
    assert sum(time <= value for time in times) >= percent / 100 * len(times) - 1e-9
