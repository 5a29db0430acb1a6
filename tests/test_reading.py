"""What is told while a long prompt is read: it goes on between slices, never ahead of them and never back."""

import io
import re
import time
from dataclasses import replace

import pytest
from fakes import END, FakeDecoder, fake_engine, says
from hypothesis import given
from hypothesis import strategies as st

from localllm.cancel import Cancel
from localllm.cli import going_on
from localllm.engine.pace import Pace
from localllm.session.chat import Chat
from localllm.session.recording import Recorder
from localllm.session.transcripts import Transcripts
from localllm.terminal.reading import done_by, told
from localllm.terminal.render import View, collect, show
from localllm.values import Message, Progress, Prompt, Text, TurnEnd, TurnStats

LAST = TurnEnd("stop", Message("assistant", "so"), TurnStats(9, 0, 9, 0.1, None, 0, 0.0, 1, 7))
TOLD = re.compile(r"reading the prompt: ([\d,]+) of 2,000 tokens \((\d+) %\)(?:, (\d+) s left)?")
SECONDS = st.floats(0, 1e4)


@st.composite
def progress(draw):
    done, size, rest = (draw(st.integers(0, 5000)) for _ in range(3))
    rate = draw(st.none() | st.floats(0.1, 1e5))
    return Progress(done, done + size + rest, draw(st.integers(0, done)), done + size, rate)


@given(progress(), SECONDS, SECONDS)
def test_it_goes_on_by_the_rate_but_not_beyond_the_slice(event, first_s, then_s):
    """More with time, by the rate at first, and at most what the slice ends with; the time left never grows."""
    sooner, later = sorted((first_s, then_s))
    before, after = done_by(event, sooner), done_by(event, later)
    assert event.done <= before <= after <= event.until
    if event.tok_s and event.until > event.done and sooner * event.tok_s < 0.7 * (event.until - event.done):
        assert before == pytest.approx(event.done + sooner * event.tok_s)
    left = [re.search(r"(\d+) s left", told(event, done, 0.0)) for done in (before, after)]
    if all(left):
        assert int(left[0][1]) >= int(left[1][1])


def shown_while(watched, run=show):
    """What stderr gets of a prompt of 2,000 tokens whose first slices end when ``watched`` has seen enough."""
    status = io.StringIO()

    def events():
        for start in (0, 512):
            yield Progress(start, 2000, 0, start + 512, 250.0)
            end_s = time.monotonic() + 20
            while not watched(status.getvalue(), start) and time.monotonic() < end_s:
                time.sleep(0.02)
        yield Progress(2000, 2000, 0, 2000, 250.0)
        yield Text("so")
        yield LAST

    run(events(), View(io.StringIO(), status, progress=True))
    return status.getvalue()


@pytest.mark.parametrize("run", [show, collect])
def test_the_line_goes_on_while_a_slice_is_read(run):
    """Tokens, percent and time left change between two events; they never go back, and the line is taken away."""

    def enough(written, start):
        within = [int(done.replace(",", "")) for done, _, _ in TOLD.findall(written)]
        return len({done for done in within if start < done < start + 512}) >= 2

    written = shown_while(enough, run)
    rows = [(int(done.replace(",", "")), int(percent), left) for done, percent, left in TOLD.findall(written)]
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert {done for done, _, _ in rows} >= {0, 2000} and rows[0] == (0, 0, "8")
    assert all(percent == 100 * done // 2000 for done, percent, _ in rows)
    assert written.endswith("\r\x1b[K")
    time.sleep(0.6)  # two ticks
    assert written.count("\n") == 0 and TOLD.findall(written)[-1][0] == "2,000"


def test_nothing_is_drawn_after_it_was_taken_away():
    """Whatever ends it: a failure, too."""
    status = io.StringIO()

    def failing():
        yield Progress(0, 2000, 0, 512, 250.0)
        raise KeyError

    with pytest.raises(KeyError):
        collect(failing(), View(io.StringIO(), status, progress=True))
    written = status.getvalue()
    time.sleep(0.6)  # two ticks
    assert status.getvalue() == written and written.endswith("\r\x1b[K")


def test_without_a_rate_the_time_so_far_is_told():
    """The first prompt that a model ever reads here has no time left, but it does not stand still."""
    event = Progress(0, 2000, 0, 512)
    assert told(event, done_by(event, 3.0), 3.0) == "reading the prompt: 0 of 2,000 tokens (0 %), 3 s so far"


# --- where the rate comes from -----------------------------------------------------------------------------------


def read(engine, count, token=65):
    """The Progress events of a prompt."""
    return [event for event in engine.reply(Prompt((token,) * count)) if isinstance(event, Progress)]


def test_an_event_tells_where_its_slice_ends_and_the_rate_of_those_before(tmp_path):
    """The next event is there; the first slice of all has no rate, that of a later turn and process has one."""
    path = tmp_path / "pace" / "model"

    def engine():
        return fake_engine(
            FakeDecoder(lambda tokens: END, slice_tokens=256, before_feed=lambda: time.sleep(0.001)), pace=Pace(path)
        )

    first = engine()
    events = read(first, 1000)
    assert [event.until for event in events[:-1]] == [event.done for event in events[1:]]
    assert events[0].tok_s is None and all(event.tok_s and event.tok_s > 0 for event in events[1:])
    first.keep()
    kept = float(path.read_text())
    assert read(engine(), 600)[0].tok_s == kept and read(first, 600, 66)[0].tok_s == pytest.approx(kept, rel=0.001)


@given(st.binary(max_size=120) | st.sampled_from([b"nan", b"inf", b"-1", b"0", b"1e300"]))
def test_a_bad_file_tells_no_rate(tmp_path_factory, content):
    """Neither does one that is not there; a folder that cannot be written remembers nothing."""
    path = tmp_path_factory.mktemp("pace") / "model"
    path.write_bytes(content)
    tok_s = Pace(path).tok_s
    assert tok_s is None or 0.01 < tok_s < 1e7
    pace = Pace(path / "no folder")
    pace.saw(512, 1.0)
    pace.keep()
    assert pace.tok_s == 512 and Pace(path / "no folder").tok_s is None


@given(st.lists(st.tuples(st.integers(1, 512), st.floats(0.001, 100)), max_size=20))
def test_a_rate_lies_between_those_of_the_wide_slices(slices):
    """A tail of few tokens takes longer for each, and would spoil it."""
    pace = Pace()
    for tokens, seconds in slices:
        pace.saw(tokens, seconds)
    rates = [tokens / seconds for tokens, seconds in slices if tokens >= 96]
    for _ in range(2):  # while a prompt is read, and at the beginning of the next one
        assert pace.tok_s is None if not rates else min(rates) * 0.999 <= pace.tok_s <= max(rates) * 1.001
        pace.begin()


# --- why all is read anew ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("anew", "cached", "told_it"),
    [("the system prompt was changed", 30, True), ("", 30, False), ("the system prompt was changed", 1500, False)],
)
def test_why_a_conversation_is_read_anew_is_told_where_that_takes_long(anew, cached, told_it):
    """After a second, once, in a line that stays; not where most of it is in the cache after all."""
    status = io.StringIO()

    def events():
        yield Progress(cached, 2000, cached, 2000, 100.0)
        assert "anew" not in status.getvalue()
        end_s = time.monotonic() + (20 if told_it else 1.6)
        while "anew" not in status.getvalue() and time.monotonic() < end_s:
            time.sleep(0.02)
        yield Progress(2000, 2000, cached, 2000, 100.0)
        yield LAST

    show(events(), View(io.StringIO(), status, progress=True, anew=anew))
    line = "\r\x1b[Kthe system prompt was changed: all of it is read anew\n"
    assert status.getvalue().count("anew") == status.getvalue().count(line) == told_it


def test_a_chat_knows_why_it_is_read_anew():
    """Another system prompt or model, where something was said; no longer when it was read."""

    def engine():
        return fake_engine(FakeDecoder(says(b"ok")))

    chat = Chat(engine(), lambda engine: engine.sampling)
    chat.system = "Be short."
    assert chat.anew == ""  # nothing was said
    list(chat.turn("Hi", Cancel()))
    chat.system = "Be short."
    assert chat.anew == ""  # as it was
    for change, why in [
        (lambda: setattr(chat, "system", "Be long."), "the system prompt was changed"),
        (lambda: chat.switch(engine, engine), "the model was changed"),
        (lambda: chat.switch(engine, engine, same_model=True), "the model was loaded anew"),
    ]:
        change()
        assert chat.anew == why
        list(chat.turn("And?", Cancel()))
        assert chat.anew == ""


def test_a_stored_conversation_tells_what_was_changed(tmp_path):
    """The system prompt or the model; neither where it goes on as it was, nor where nothing was said."""
    recorder = Recorder(tmp_path, pytest.fail)
    recorder.keep([Message("user", "a"), Message("assistant", "b")], "Be short.", "model")
    recorder.close()
    with Transcripts.open_to_read(tmp_path) as transcripts:
        before = transcripts.load(recorder.id)
    assert going_on.changed(before, "Be short.", "model") == ""
    assert going_on.changed(before, "", "model") == "the system prompt was changed"
    assert going_on.changed(before, "Be short.", "other") == "the model was changed"
    assert going_on.changed(replace(before, rows=()), "", "model") == going_on.changed(None, "", "model") == ""


@pytest.mark.model
@pytest.mark.slow
def test_a_resumed_chat_says_why_it_reads_all_anew(terminal):
    """As its user has it: the same question is asked of a conversation whose system prompt is another one."""
    chat = terminal("--max-tokens", "3", "--no-cache", "--threads", "1", "--system", "Be short.")
    chat.asks("the sea and the river and the clouds " * 150)
    chat.ready()
    chat.types("/exit\r")
    again = terminal("-c", "--max-tokens", "3", "--no-cache", "--threads", "1", "--system", "Be long.")
    assert "the system prompt was changed: all of it is read anew" in again.asks("And?")
