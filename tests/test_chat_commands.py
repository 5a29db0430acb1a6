"""Each slash command of a chat: through a real pseudo-terminal, and the pure parts by themselves."""

import base64
import io
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import threading
import types
from contextlib import nullcontext
from dataclasses import replace

import pytest
from fakes import FakeDecoder, fake_engine, says
from hypothesis import given
from hypothesis import strategies as st
from terminals import ENDLESS, STATUS

from localllm import Message, Sampling
from localllm.cancel import Cancel
from localllm.ceiling.hardware import given as device
from localllm.ceiling.machine import Machine
from localllm.ceiling.roofline import Workload
from localllm.errors import Cancelled, UsageError
from localllm.here import Bound, Question, Subject
from localllm.session.chat import Chat
from localllm.session.room import Filled
from localllm.sizes import counted, size_text, turns_text
from localllm.terminal import attachments, clipboard, commands, render, stats_view
from localllm.terminal.chat_ceiling import ChatCeiling
from localllm.terminal.context_view import bar, context_view
from localllm.terminal.folding import folded
from localllm.terminal.toolbar import toolbar
from localllm.terminal.why import why
from localllm.values import ModelInfo, TurnStats

INFO = ModelInfo("model", 8192, "default", "f16", True, 2, 0, 31, True)
STATS = TurnStats(
    prompt_tokens=200,
    cached_tokens=150,
    read_tokens=50,
    prefill_s=0.5,
    ttft_s=0.52,
    output_tokens=101,
    decode_s=2.0,
    context_tokens=300,
    seed=1,
    steps=50,
    drafted=80,
    accepted=50,
    step_tokens=100,
)


@pytest.mark.model
def test_the_last_turn_can_be_changed(terminal, tmp_path):
    """/regen and /edit read next to nothing anew, /undo takes back, /continue goes on; each says what it did."""
    chat = terminal("--max-tokens", "12", *ENDLESS)
    cut = chat.asks("Tell me about rivers. " + "They flow. " * 60)
    assert "12 tokens (cut at max_tokens; /continue goes on) ·" in cut
    chat.ready()
    chat.types("/regen\r")
    again = chat.sees(STATUS)
    assert int(re.search(r"prefill ([\d,]+) tokens?", again)[1]) <= 8, again
    chat.ready()
    chat.types("/continue\r")
    assert re.search(r"prefill [01] tokens?", chat.sees(STATUS))
    chat.ready()
    chat.types("/edit\r")
    chat.sees(r"They flow\.[\s\S]*> .*Tell me about rivers|Tell me about rivers")
    chat.types(" Why?\r")
    edited = chat.sees(STATUS)
    assert int(re.search(r"prefill ([\d,]+) tokens?", edited)[1]) <= 120 and "cached" in edited
    chat.ready()
    chat.types("/undo\r")
    chat.sees(r"taken back: Tell me about rivers.*\n?.*the\s+conversation\s+is\s+empty")
    chat.ready()
    chat.types("/regen\r")
    chat.sees("nothing was asked yet")


@pytest.mark.model
def test_a_finished_answer_has_nothing_to_go_on_with(terminal):
    """/continue says so at once and reads nothing; in a later chat, which cannot know, the model is asked."""
    chat = terminal("--temp", "0")
    chat.asks("Name three colours, as a markdown list.")
    chat.ready()
    chat.types("/continue\r")
    said = chat.sees("the answer is finished: the model ended it; ask for more, or /regen answers anew")
    assert "prefill" not in said
    chat.ready()
    chat.types("/context\r")
    chat.sees("answer +[1-9]")
    chat.ready()
    chat.types("/exit\r")
    chat.leaves()
    later = terminal("--temp", "0", "-c")
    later.ready()
    later.types("/continue\r")
    later.sees("the model has nothing to add: its answer is finished")


@pytest.mark.model
def test_what_is_typed_while_a_command_works_is_the_next_line(terminal):
    """Enter sends it, as it does at the prompt: it is neither shown between our lines nor a part of what comes then."""
    chat = terminal("--max-tokens", "2")
    chat.asks("one")
    chat.ready()
    chat.types("/why\r")  # measures memory: a third of a second
    chat.sees("first token after|/why")
    chat.types("/context\r")
    chat.ready()
    chat.types("/stats\r")
    chat.sees("free +[0-9,]+[\\s\\S]*TTFT")


@pytest.mark.model
def test_an_edit_can_be_given_up(terminal):
    """Ctrl-C leaves the question as it was, and the next message is a new one."""
    chat = terminal("--max-tokens", "4", *ENDLESS)
    chat.asks("one")
    chat.ready()
    chat.types("/edit\r")
    chat.sees("> one")
    chat.types("\x03")
    chat.sees("the question stays as it was")
    chat.asks("two")
    chat.ready()
    chat.types("/context\r")
    assert len(re.findall(r"you +\d", chat.sees("free +[0-9,]+"))) == 2


@pytest.mark.model
def test_files_go_with_a_message(terminal, tmp_path, monkeypatch):
    """Size and tokens are told first; binary data, a folder and a missing file are refused; @nothing stays text."""
    (tmp_path / "notes.txt").write_text("The secret word is heliotrope. " * 20)
    (tmp_path / "image.png").write_bytes(b"\x89PNG\x00\x00")
    monkeypatch.chdir(tmp_path)
    chat = terminal("--max-tokens", "4", *ENDLESS)
    for typed, expected in [
        ("/file image.png", "binary data"),
        ("/file .", "is a folder"),
        ("/file nosuch.txt", "cannot read"),
        ("/file notes.txt", r"notes\.txt: 620 bytes, \d+ tokens \(\d+ % of the context\); goes with"),
        ("/file", r"with your next message: notes\.txt"),
    ]:
        chat.ready()
        chat.types(typed + "\r")
        chat.sees(expected)
    first = chat.asks("What is the word?")
    assert int(re.search(r"prefill ([\d,]+) tokens?", first)[1]) > 100
    second = chat.asks("And in @notes.txt, see @missing.txt?")
    assert "notes.txt: 620 bytes" in second and "@missing.txt is no file here" in second
    chat.ready()
    chat.types("/edit\r")
    chat.sees(r"> And in @notes\.txt, see @missing\.txt\?")


@pytest.mark.model
def test_a_conversation_is_saved_and_read_back(terminal, tmp_path, monkeypatch):
    """As Markdown and as JSON; an existing file is not overwritten."""
    monkeypatch.chdir(tmp_path)
    chat = terminal("--max-tokens", "4", "-s", "Be kind.", *ENDLESS)
    chat.asks("Hello")
    for typed, expected in [
        ("/save", "needs the name of a file"),
        ("/save talk.json", "saved 1 question with its answer"),
        ("/save talk.json", r"talk\.json is there already"),
        ("/save talk.md", "saved 1"),
        ("/save nosuch/talk.md", "cannot write nosuch/talk.md"),
        ("/clear", "a new conversation begins"),
        ("/load talk.md", "holds no conversation"),
        ("/load talk.json", "1 question with its answer from talk.json"),
        ("/system", r"Be kind\."),
    ]:
        chat.ready()
        chat.types(typed + "\r")
        chat.sees(expected)
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert saved["system"] == "Be kind." and [entry["role"] for entry in saved["messages"]] == ["user", "assistant"]
    markdown = (tmp_path / "talk.md").read_text()
    assert markdown.startswith("# Hello\n\n") and "## Question\n\nHello\n" in markdown


@pytest.mark.model
def test_numbers_are_explained(terminal):
    """/context, /stats with the whole session, /why against what memory allows."""
    chat = terminal("--max-tokens", "24", *ENDLESS)
    chat.ready()
    chat.types("/why\r")
    chat.sees("no answer yet")
    chat.asks("Hello")
    chat.asks("And?")
    for typed, expected in [
        ("/context", r"you +\d+[\s\S]*answer +24[\s\S]*free +[\d,]+"),
        ("/stats", r"TTFT[\s\S]*all turns +2[\s\S]*inter-token p99 +[\d.]+ ms"),
        ("/why", r"decode [\d.]+ tok/s[\s\S]*passes per second[\s\S]*of\s+that\s+ceiling"),
    ]:
        chat.ready()
        chat.types(typed + "\r")
        chat.sees(expected)


@pytest.mark.model
def test_a_full_context_leaves_the_choice_to_the_user(terminal):
    """Told at 80 %; at the end a choice, that holds from then on: the oldest are dropped, and it says how many."""
    chat = terminal("--max-tokens", "30", "--ctx-size", "256", *ENDLESS)
    chat.asks("First question, with some words in it.")
    chat.asks("Second question, with some more words in it.")
    chat.asks("Third question" + ", with some other words in it" * 9)
    chat.sees(r"the context is \d+ % full")
    chat.ready()
    chat.types("Fourth question, " + "with many words in it " * 14 + "\r")
    chat.sees(r"\[d\]rop the oldest")
    chat.types("d\r")
    chat.sees(r"no\s+longer\s+given\s+the\s+oldest\s+\d\s+question")
    chat.sees(STATUS)
    chat.ready()
    chat.types("Fifth question, " + "with many words in it " * 18 + "\r")
    before = chat.sees(STATUS)
    assert "[d]rop" not in before and re.search(r"no\s+longer\s+given", before)


@pytest.mark.model
def test_a_context_that_one_answer_fills(terminal):
    """One number everywhere, what /continue needs, and that a new conversation begins where nothing old fits."""
    chat = terminal("--ctx-size", "256", "--when-full", "drop", *ENDLESS)
    chat.asks("Tell me of rivers.")
    chat.ready()
    chat.types("/context\r")
    chat.sees(r"context: 256 of 256 tokens \(100 %\)")
    chat.shows(r"context 256/256 \(100 %\)")
    chat.types("/continue\r")
    chat.sees("the context is full, so the answer cannot go on; /set ctx_size N gives more room, and /continue then")
    chat.ready()
    chat.types("Tell me" + " of rivers" * 100 + "\r")
    chat.sees(r"no longer given the oldest 1 question[\s\S]*a new conversation begins")
    chat.sees(STATUS)
    chat.ready()
    chat.types("/context\r")
    chat.sees("no room was left for the 1 question with its answer before this conversation")


@pytest.mark.model
def test_what_was_taken_back_fills_the_context_no_more(terminal):
    """After /undo of a long question nothing is asked and nothing is dropped."""
    chat = terminal("--max-tokens", "5", "--ctx-size", "256", *ENDLESS)
    chat.asks("First question.")
    chat.asks("Second question" + ", with some other words in it" * 24)
    chat.sees(r"the context is \d+ % full")
    chat.ready()
    chat.types("/undo\r")
    chat.sees("taken back")
    chat.ready()
    chat.types("Third question" + ", with some other words in it" * 8 + "\r")
    before = chat.sees(STATUS)
    assert "[d]rop" not in before and "no longer given" not in before


@pytest.mark.model
def test_the_model_can_summarise_what_no_longer_fits(terminal):
    """The summary is shown, and says for how many questions it stands; [n]either refuses the message."""
    for choice, expected in [("n", "the prompt has"), ("s", r"this stands for the oldest|there is no whole summary")]:
        chat = terminal("--max-tokens", "30", "--ctx-size", "512", "--temp", "0")
        for question in ("Name three rivers.", "Name three towns.", "Name three trees."):
            chat.asks(question + " Use few words." + " Please." * 40)
        chat.ready()
        chat.types("Name three birds." + " Please" * 220 + "\r")
        chat.sees(r"\[s\]ummarise")
        chat.types(choice + "\r")
        chat.sees(expected)


# --- pure parts --------------------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_terminal_gets_the_text_for_its_clipboard_whole(text):
    """What OSC 52 carries is the text in base64, inside tmux too, and nothing of it reaches the screen by itself."""
    for environ in ({}, {"TMUX": "/tmp/tmux"}):
        request = clipboard._osc52(text.encode(), environ)
        assert base64.b64decode(re.search(r"52;c;([A-Za-z0-9+/=]*)\x07", request)[1]).decode() == text
        assert request.startswith("\x1bP" if environ else "\x1b]52;c;")


def test_the_systems_own_clipboard_is_preferred(tmp_path, monkeypatch):
    """A program that takes the text gets it; one that fails leaves it to the terminal; what is too much is refused."""
    program = tmp_path / "xclip"
    program.write_text('#!/bin/sh\ncat > "$COPIED"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    for variable in ("WAYLAND_DISPLAY", "WSL_DISTRO_NAME", "TMUX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("COPIED", str(tmp_path / "copied"))
    out = io.StringIO()
    assert clipboard.copy("Grüße", out) == "copied 5 characters with xclip" and not out.getvalue()
    assert (tmp_path / "copied").read_text() == "Grüße"
    monkeypatch.setenv("COPIED", str(tmp_path / "no" / "such"))
    assert "OSC 52" in clipboard.copy("Grüße", out) and out.getvalue().startswith("\x1b]52;c;")
    with pytest.raises(UsageError, match="more than a terminal takes"):
        clipboard.copy("x" * 100_000, out)


@pytest.mark.parametrize("knows_w", [True, False])
def test_tmux_gets_the_text_in_a_buffer(knows_w, tmp_path, monkeypatch):
    """Only of that can be said that it is copied; an old tmux does not pass it on, so the terminal is asked as well."""
    program = tmp_path / "tmux"
    refuses = "" if knows_w else '[ "$2" = -w ] && exit 1\n'
    program.write_text(f'#!/bin/sh\n{refuses}cat > "$COPIED"\n')
    program.chmod(0o755)
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TMUX", "/tmp/tmux-1000/default,1,0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("COPIED", str(tmp_path / "copied"))
    out = io.StringIO()
    said = clipboard.copy("Grüße", out)
    assert said.startswith("copied 5 characters to tmux") and "sent to the terminal" in said
    assert (tmp_path / "copied").read_text() == "Grüße" and bool(out.getvalue()) != knows_w
    assert clipboard.copy("x" * 100_000, out) == "copied 100,000 characters to tmux (prefix ] pastes them)"
    assert len((tmp_path / "copied").read_text()) == 100_000
    monkeypatch.setenv("COPIED", str(tmp_path / "no" / "such"))
    assert (
        clipboard.copy("Grüße", out).startswith("5 characters sent to the terminal") and "\x1bPtmux;" in out.getvalue()
    )


@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux")
def test_a_tmux_as_it_is_by_default_can_paste(tmp_path, monkeypatch):
    """The text is its newest buffer."""
    tmux = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null"]
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(variable, raising=False)
    subprocess.run([*tmux, "new-session", "-d", "sleep 60"], check=True, timeout=30)
    try:
        monkeypatch.setenv("TMUX", f"{tmp_path / 'socket'},1,0")
        assert clipboard.copy("Grüße\n-w", io.StringIO()).startswith("copied 8 characters to tmux")
        shown = subprocess.run([*tmux, "show-buffer"], capture_output=True, check=True, timeout=30)
        assert shown.stdout.decode() == "Grüße\n-w"
    finally:
        subprocess.run([*tmux, "kill-server"], check=True, timeout=30)


@pytest.mark.parametrize(
    ("text", "files", "others"),
    [
        ("what is in @a.txt?", ["a.txt"], []),
        ("@a.txt, @b c.txt", ["a.txt"], []),
        ('"@a.txt" is quoted, @"b c.txt" too', ["b c.txt"], []),
        ("write to me@a.txt", [], []),
        ("@someone said @no/such and @missing.py.", [], ["no/such", "missing.py"]),
        ("@a.txt @a.txt", ["a.txt"], []),
        ("@", [], []),
    ],
)
def test_what_is_a_file_in_a_message(text, files, others, tmp_path, monkeypatch):
    """A word that begins with @ and is a file; what only looks like a path is told; an address is neither."""
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b c.txt").write_text("b")
    monkeypatch.chdir(tmp_path)
    assert attachments.mentioned(text) == (files, others)


@given(share=st.floats(0, 2), width=st.integers(1, 40))
def test_a_bar_is_as_long_as_its_share(share, width):
    """To an eighth of a cell, always as wide as its column, never empty where there is something."""
    drawn = bar(share, width)
    assert len(drawn) == width
    cells = sum(" ▏▎▍▌▋▊▉█".index(char) for char in drawn) / 8
    assert abs(cells - width * min(1, share)) <= 1 / 8 and (cells > 0) == (share > 0)


@given(tokens=st.lists(st.integers(0, 400), max_size=40), columns=st.integers(20, 200))
def test_the_rows_of_a_context_add_up(tokens, columns):
    """To the size of the context, however many messages there are, in lines that fit the window."""
    messages = tuple((Message("user" if i % 2 else "assistant", "text\x1b[31m" * 30), n) for i, n in enumerate(tokens))
    found = Filled(messages, sum(tokens) + 20, 20_000)
    head, *rows = context_view(found, 0, columns).split("\n")
    assert f"{sum(tokens) + 20:,} of 20,000" in head and len(rows) <= 19
    if columns > 40:
        assert sum(int(re.match(r"\w+ +([\d,]+)", row)[1].replace(",", "")) for row in rows) == 20_000
    assert all(len(row) < columns and "\x1b" not in row for row in rows)


@given(tokens=st.lists(st.integers(1, 400), min_size=17, max_size=60))
def test_no_large_message_hides_among_the_others(tokens):
    """Of many messages the newest and the largest have rows of their own, in the order in which they were said."""
    messages = tuple((Message("user", f"m{i}"), n) for i, n in enumerate(tokens))
    _, others, *rows = context_view(Filled(messages, sum(tokens), 30_000), 0, 100).split("\n")
    shown = [int(found[1]) for row in rows if (found := re.search(r" m(\d+)$", row))]
    assert shown == sorted(shown) and len(shown) == 16 and shown[-8:] == list(range(len(tokens)))[-8:]
    hidden = [n for i, n in enumerate(tokens) if i not in shown]
    assert max(hidden) <= min(tokens[i] for i in shown[:-8])
    assert re.match(rf"others +{sum(hidden):,} .* {len(hidden)} smaller messages", others)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("| a | b |\n|---|:-:|\n| 1 | 2 |", "a b 1 2"),
        ("# Rivers\n\n---\n> They flow.", "Rivers They flow."),
        ("```python\nx = 1\n```\nSo.", "python x = 1 So."),
        ("cat a | grep b", "cat a | grep b"),
        ("word " * 30, "word word word word word word word word…"),
        ("\n" * 500 + "late", "…"),
    ],
)
def test_a_row_of_the_context_shows_the_first_words(text, shown):
    """Without the lines that Markdown draws with, and with a mark where the text goes on."""
    row = context_view(Filled(((Message("user", text), 5),), 5, 100), 0, 100).split("\n")[1]
    assert row.split("  ")[-1] == shown


def test_a_row_that_a_narrow_window_cuts_says_so():
    """Its last cell is an ellipsis."""
    row = context_view(Filled(((Message("user", "word " * 9), 5),), 5, 100), 0, 45).split("\n")[1]
    assert len(row) == 44 and row.endswith("…")


@given(width=st.integers(1, 200), ceiling=st.none() | st.floats(1, 1e4), with_stats=st.booleans())
def test_the_toolbar_fits_its_line(width, ceiling, with_stats):
    """What there is no room for is left out, the least important first."""
    line = toolbar(INFO, 300, STATS if with_stats else None, ceiling, width)
    assert len(line) <= width and (width < 5 or "model".startswith(line[:5]))
    if width > 120 and with_stats:
        assert "context 300/8,192 (4 %) · 50.0 tok/s" in line and "62 % of drafts" in line
        assert ("of the ceiling" in line) == (ceiling is not None)


@given(
    name=st.text("ab-.", min_size=1, max_size=60),
    context=st.integers(1, 32_768),
    cached=st.integers(0, 32_768),
    decode_s=st.floats(0.05, 100),
)
def test_eighty_columns_hold_all_of_the_toolbar(name, context, cached, decode_s):
    """And sixty a share of it: words go before parts, and the middle of a long name before either."""
    info = replace(INFO, name=name, n_ctx=32_768)
    stats = replace(STATS, context_tokens=context, cached_tokens=cached, decode_s=decode_s)
    line = toolbar(info, context, stats, 4 * stats.passes_s, 79)
    assert len(line) <= 79 and line[0] == name[0] and line.split(" · ")[0][-1] == name[-1]
    for part in (r"tok/s\W+25 %", f"{cached:,} cached", "62 % drafts", rf"{context:,}/32,768"):
        assert re.search(part, line), line
    assert re.search(
        r" · [\d.,]+ tok/s( \(\d+ %\)|, \d+ % of ceiling)? · [\d,]+ cached", toolbar(info, context, stats, 100, 59)
    )


@pytest.mark.parametrize("columns", [40, 80])
def test_two_columns_stay_two_columns(columns):
    """What /help and /stats say fits the window, and no second row of an entry looks like the next one."""
    for text in (commands.help_text().partition("\n\n")[0], stats_view.stats_summary(STATS, 8192)):
        entries = text.split("\n")
        rows = "\n".join(folded(line, columns) for line in entries).split("\n")
        assert all(len(row) <= columns for row in rows)
        assert [row.split()[0] for row in rows if row[0] != " "] == [line.split()[0] for line in entries]
        if columns == 80:
            assert len({re.match(r" *", row)[0] for row in rows if row[0] == " "}) <= 1


@given(st.text("ab ", max_size=200), st.integers(20, 100))
def test_folding_loses_no_word(line, columns):
    """Whatever the columns."""
    assert "".join(folded(line, columns).split()) == "".join(line.split())


def test_why_adds_up():
    """The ceiling is bandwidth over bytes; shares of a pass are what its reading takes at that bandwidth."""
    workload = Workload(10**9, 10**9, kv_held=lambda n: n * 10**6, kv_read=lambda n: n * 10**6)
    bound = Bound(Subject("model", workload, "f16"), Machine((device(100, None),)), Question(ctx=8192))
    text = why(STATS, INFO, bound)
    assert "prefill read 50 tokens at 100 tok/s, bound by compute; 150 more" in text
    assert "prefill read 1 token; 150 more" in why(replace(STATS, read_tokens=1), INFO, bound)
    # 250 tokens deep: 1.25 GB a pass, 80 passes a second at 100 GB/s; there were 50 steps in 2 s.
    assert "allows 80.0 passes per second" in text
    assert "25.0 passes per second, 2.00 tokens each: 31 % of that ceiling" in text
    assert "25 % for the weights and 6 % for the KV cache; 69 %" in text
    assert "prefill read 50 tokens at 100 tok/s" in text and "150 more were in the KV cache" in text
    # One share everywhere: of the passes, which guesses do not make more.
    assert "(31 % of the ceiling)" in toolbar(INFO, 300, STATS, bound.ceiling_tok_s(STATS.decode_depth), 200)


@given(
    weights_bytes=st.integers(10**8, 10**10),
    per_token=st.integers(0, 10**6),
    passes_s=st.floats(0.1, 1000),
    depth=st.integers(0, 8192),
)
def test_no_advice_saves_more_than_it_can_touch(weights_bytes, per_token, passes_s, depth):
    """Amdahl's law: smaller weights save of the weights' share, a smaller cache of the cache's; under 3 % is none."""
    workload = Workload(weights_bytes, weights_bytes, lambda n: n * per_token, lambda n: n * per_token)
    subject = Subject("model", workload, "f16", quantisation="Q4_K_M")
    bound = Bound(subject, Machine((device(100, None),)), Question(ctx=8192))
    weights, cache = bound.shares(passes_s, depth)
    weights, cache = weights / max(1, weights + cache), cache / max(1, weights + cache)
    gains = []
    for line in bound.advice(passes_s, depth):
        touched = weights if "instead of" in line else cache
        gains.append(float(re.search(r"at most ([\d,.]+) ×", line)[1]))
        assert 1.03 <= gains[-1] <= 1 / (1 - touched + 1e-9) + 0.01
    assert gains == sorted(gains, reverse=True)


def test_why_says_that_other_programs_take_the_cores():
    """Where memory is less than half of the time, and only then; where it is next to nothing no saving is advised."""
    workload = Workload(10**9, 10**9, kv_held=lambda n: n * 10**4, kv_read=lambda n: n * 10**4)
    subject = Subject("model", workload, "f16", quantisation="Q4_K_M")

    def said(bandwidth_gb_s, overload):
        bound = Bound(subject, Machine((device(bandwidth_gb_s, None),)), Question(ctx=8192))
        return why(STATS, INFO, bound, overload)

    assert "load of this machine is 3.4" in said(200, 3.4)  # memory: 13 %
    assert "would help" not in said(1000, 3.4)
    assert "load of this machine" not in said(200, None)
    assert "load of this machine" not in said(30, 3.4) and "would help: Q" in said(30, 3.4)  # memory: 84 %


def test_all_turns_are_summed_up():
    """Tokens and seconds add up; rates are those of the sums."""
    text = stats_view.session_summary([STATS, STATS])
    assert re.search(r"prefill +100 tokens in 1.000 s, 100 tok/s", text)
    assert re.search(r"decode +202 tokens in 4.000 s, 50 tok/s", text) and "100/160 (62 %)" in text


NAMES = ["", "-", ".", "~", "~nosuchuser/x", "x" * 300, "y/" * 3000, "a\0b", "\udcff", "/dev/zero", "/dev/tty"]


@pytest.mark.parametrize("name", [*NAMES, "/proc/self/mem", "pipe", "loop", "lost", "locked/x", "binary", "blank"])
def test_what_is_no_text_file_is_refused_at_once(name, tmp_path, monkeypatch):
    """In a line that says why, without waiting for anything; and none of these names breaks a message."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("nowhere")
    (tmp_path / "binary").write_bytes(b"\0\1")
    (tmp_path / "blank").write_text(" \n")
    (tmp_path / "locked").mkdir(mode=0)
    with pytest.raises(UsageError) as refused:
        attachments.read(name, Cancel(0.5))
    assert refused.value.hint
    attachments.mentioned(f'@"{name}" @{name}')


def test_a_name_cannot_write_lines_of_its_own(tmp_path):
    """Neither on the screen nor between the files of a prompt."""
    odd = tmp_path / "a\nb\x1b[31m.txt"
    odd.write_text("text")
    assert attachments.read(str(odd), Cancel()).name == "a b[31m.txt"


def test_counting_a_file_can_be_stopped(tmp_path):
    """Ctrl-C leaves the command that reads it, and nothing is attached."""
    (tmp_path / "a.txt").write_text("text")
    cancel = Cancel()
    cancel.set()
    chat = Chat(fake_engine(FakeDecoder(says(b"fine"))), lambda _: Sampling())
    view = render.View(io.StringIO(), io.StringIO())
    context = commands.Context(chat, view, None, None, None, stoppable=lambda: nullcontext(cancel))
    with pytest.raises(Cancelled):
        commands.run(f"/file {tmp_path / 'a.txt'}", context)
    assert not context.files


def test_a_path_may_be_typed_in_quotes(tmp_path):
    """As Tab writes it where it was begun so: /save, /load and /file mean the file without them."""
    said = [Message("user", "a"), Message("assistant", "b")]
    chat = Chat(fake_engine(FakeDecoder(says(b"fine"))), lambda _: Sampling(), said=said)
    context = commands.Context(chat, render.View(io.StringIO(), io.StringIO()), None, None, None)
    path = tmp_path / "my talk.json"
    commands.run(f'/save "{path}"', context)
    assert path.is_file() and "1 question" in commands.run(f'/load "{path}"', context)
    commands.run(f'/file "{path}"', context)
    assert [file.name for file in context.files] == ["my talk.json"]


@pytest.mark.parametrize("name", ["~nosuchuser/x.md", "x" * 300, "nosuch/x.json", ".", "a\0b"])
def test_a_conversation_is_not_saved_where_that_cannot_be(name, tmp_path, monkeypatch):
    """A line says so."""
    monkeypatch.chdir(tmp_path)
    said = [Message("user", "a"), Message("assistant", "b")]
    chat = Chat(fake_engine(FakeDecoder(says(b"fine"))), lambda _: Sampling(), said=said)
    context = commands.Context(chat, render.View(io.StringIO(), io.StringIO()), None, None, None)
    with pytest.raises(UsageError):
        commands.run(f"/save {name}", context)


def test_what_is_loaded_goes_on_as_it_stood_and_says_so(tmp_path):
    """What the model was not given any more it is not given now; and a saved text steers no terminal."""
    said = [Message(role, f"{role} {turn} \x1b[31m") for turn in range(3) for role in ("user", "assistant")]
    chat = Chat(fake_engine(FakeDecoder(says(b"fine"))), lambda _: Sampling(), "Be kind.", said)
    context = commands.Context(chat, render.View(io.StringIO(), io.StringIO()), None, None, None)
    chat.forget(1)
    before = chat.messages
    for name in ("talk.json", "talk.md"):
        commands.run(f"/save {tmp_path / name}", context)
        assert "\x1b" not in (tmp_path / name).read_text()
    chat.clear()
    chat.system = ""
    loaded = commands.run(f"/load {tmp_path / 'talk.json'}", context)
    assert loaded.startswith("3 questions with their answers from") and "not given the oldest 1" in loaded
    assert chat.messages == before and list(chat.said) == said


def test_the_ceiling_is_measured_in_quiet_and_once_for_each_model():
    """Not before there was an answer; not again while the model stays."""
    chat = Chat(fake_engine(FakeDecoder(says(b"fine"))), lambda _: Sampling(temperature=0))
    measured, told = [], threading.Event()

    def measure():
        measured.append(chat.engine)
        return types.SimpleNamespace(ceiling_tok_s=lambda depth: 50.0 - depth)

    ceiling = ChatCeiling(chat, measure, quiet_s=0)
    with ceiling.measured_when_quiet(told.set):
        assert not told.wait(0.1)
    list(chat.turn("hello", Cancel()))
    for _ in range(2):
        with ceiling.measured_when_quiet(told.set):
            assert told.wait(60)
    assert measured == [chat.engine] and ceiling.tok_s(10) == 40.0
    chat.switch(lambda: fake_engine(FakeDecoder(says(b"fine"))), lambda: None)
    assert ceiling.tok_s(10) is None and ceiling.bound() and ceiling.tok_s(10) == 40.0
    assert measured[1:] == [chat.engine]


ENDS_WHILE_MEASURING = """
import threading, time, types
from concurrent.futures import ThreadPoolExecutor
from localllm.terminal.chat_ceiling import ChatCeiling

measuring, tried = threading.Event(), threading.Event()

def measure():
    measuring.set()
    threading.main_thread().join()
    try:
        while True:  # until Python ends
            ThreadPoolExecutor().submit(time.sleep, 0)
    finally:
        tried.set()

threading.Thread(target=tried.wait).start()  # Python waits for it
with ChatCeiling(types.SimpleNamespace(stats=[1], engine=1), measure, quiet_s=0).measured_when_quiet(print):
    measuring.wait()
"""


def test_the_program_may_end_while_the_ceiling_is_measured():
    """Python begins no more threads then, which is no error of the measurement."""
    done = subprocess.run([sys.executable, "-c", ENDS_WHILE_MEASURING], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_full_disk_leaves_no_half_conversation(tmp_path):
    """What cannot be written whole is not there, so that it can be saved under the same name later."""
    said = [Message("user", "a"), Message("assistant", "b" * 100_000)]
    chat = Chat(fake_engine(FakeDecoder(says(b"fine"))), lambda _: Sampling(), said=said)
    context = commands.Context(chat, render.View(io.StringIO(), io.StringIO()), None, None, None)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(UsageError, match="too large"):
            commands.run(f"/save {tmp_path / 'a.json'}", context)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.iterdir()]
    assert "saved 1" in commands.run(f"/save {tmp_path / 'a.json'}", context)


def test_the_clipboard_outlives_the_next_ctrl_c(tmp_path, monkeypatch):
    """What serves it in the background is in a session of its own, where the terminal's signals do not come."""
    program = tmp_path / "xclip"
    program.write_text(f"#!{sys.executable}\nimport os, sys\nsys.exit(os.getsid(0) != os.getpid())\n")
    program.chmod(0o755)
    for variable in ("WAYLAND_DISPLAY", "WSL_DISTRO_NAME", "TMUX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert clipboard.copy("text", io.StringIO()) == "copied 4 characters with xclip"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (22, "22 bytes"), (1000, "1 kB"), (999_400, "999 kB"), (999_600, "1 MB")],
)
def test_a_small_size_is_not_none(size_bytes, text):
    """What is no thousand bytes is told in bytes; a thousand of a unit is one of the next."""
    assert size_text(size_bytes) == text


@given(st.integers(0, 10**9))
def test_one_is_no_plural(count):
    """And nothing else is singular."""
    assert (counted(count, "token") == "1 token") == (count == 1)
    assert turns_text(count).endswith("question with its answer" if count == 1 else "questions with their answers")
