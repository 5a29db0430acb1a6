"""Stored conversations: what is kept is what was said, whatever happens to the process, the disk or the file."""

import multiprocessing
import os
import random
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from conftest import as_a_user
from fakes import FakeDecoder, fake_engine, says
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm import Message, Sampling, TurnEnd
from localllm.cancel import Cancel
from localllm.errors import TranscriptError, UsageError
from localllm.session.chat import Chat
from localllm.session.recording import Recorder, title_of
from localllm.session.searching import CLOSE, OPEN, _around
from localllm.session.transcripts import FILE_NAME, Transcripts


def greedy(_engine):
    return Sampling(temperature=0)


class Talk:
    """A chat with a fake model whose transcript is kept in ``folder``; ``told`` is what its user was told."""

    def __init__(self, folder, resumed=None, answer=b"fine"):
        self.told = []
        self.recorder = Recorder(folder, self.told.append, resumed)
        engine = fake_engine(FakeDecoder(says(answer), n_ctx=100_000))
        system, said = (resumed.summary.system, engine.believed(resumed.messages)) if resumed else ("", ())
        self.chat = Chat(engine, greedy, system, said, self.recorder)

    def asks(self, text, how="turn"):
        arguments = [Cancel()] if how in ("again", "go_on") else [text, Cancel()]
        *_, end = getattr(self.chat, how)(*arguments)
        assert isinstance(end, TurnEnd)


def stored(folder):
    """Every stored conversation as (system, [(text, in_context)]), the oldest first."""
    with Transcripts.open_to_read(folder) as transcripts:
        found = [transcripts.load(one.id) for one in transcripts.newest()]
    return [(one.summary.system, [(r.message.text, r.in_context) for r in one.rows]) for one in reversed(found)]


def last(folder):
    with Transcripts.open_to_read(folder) as transcripts:
        return transcripts.load(transcripts.newest(1)[0].id)


# --- what is stored is what was said -----------------------------------------------------------------------------

STEPS = st.sampled_from(
    [
        *["turn"] * 8,
        *("undo", "again", "instead", "clear", "resume", "resume", "system"),
        *(("drop", 1), ("drop", 1), ("drop", 2), ("summarise", 0), ("summarise", 1), ("summarise", 2)),
    ]
)


@settings(max_examples=60)
@given(steps=st.lists(STEPS, max_size=20))
def test_a_conversation_is_what_it_is_now(tmp_path_factory, steps):
    """After any steps: what is given to the model is what is stored as such; what was forgotten stays, what was taken
    back does not, and a conversation that was cleared, or forgotten whole, stays as it was. The oracle: lists.
    """
    folder = tmp_path_factory.mktemp("talk")
    talk, system = Talk(folder), ""
    wanted, current = [], []  # finished conversations; [text, in_context] of the present one
    summary = []  # those entries of it that stand for others
    for number, step in enumerate(steps):
        seen = [entry for entry in current if entry[1] and not any(entry is one for one in summary)]
        match step:
            case "turn":
                talk.asks(f"q{number}")
                current += [[f"q{number}", True], ["fine", True]]
            case "undo" if seen:
                talk.chat.undo()
                current = [entry for entry in current if not any(entry is gone for gone in seen[-2:])]
            case "again" | "instead" if seen:
                talk.asks(f"q{number}", step)
                if step == "instead":
                    seen[-2][0] = f"q{number}"
            case "clear":
                talk.chat.clear()
                wanted += [(system, current)] if current else []
                current, summary = [], []
            case "resume" if current:
                talk.recorder.close()
                talk, summary = Talk(folder, last(folder)), []
            case "system":
                talk.chat.system = system = f"s{number}"
            case ("drop", turns) if seen:
                talk.chat.forget(turns)
                if 2 * turns >= len(seen):
                    wanted.append((system, current))
                    current = summary = [[*entry] for entry in summary]
                else:
                    for entry in seen[: 2 * turns]:
                        entry[1] = False
            case ("summarise", kept) if len(seen) > 2 * kept:
                talk.chat.forget(len(seen) // 2 - kept, f"sum{number}")
                before, summary = summary, [["What have we talked about so far?", True], [f"sum{number}", True]]
                if kept:
                    for entry in [*before, *seen[: len(seen) - 2 * kept]]:
                        entry[1] = False
                    at = len(current) - 2 * kept
                    current[at:at] = summary
                else:
                    wanted.append((system, current))
                    current = [*summary]
        system_now = talk.chat.system
        now = [*wanted, *([(system_now, current)] if current else [])]
        assert [texts for _, texts in stored(folder)] == [[tuple(entry) for entry in texts] for _, texts in now]
        if current:
            assert last(folder).messages == list(talk.chat.given) and last(folder).summary.system == system_now
    talk.recorder.close()
    assert talk.told == []
    sound(folder)


def sound(folder):
    """SQLite and its full-text index find nothing wrong."""
    if (folder / FILE_NAME).exists():
        with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            connection.execute("INSERT INTO found (found, rank) VALUES ('integrity-check', 1)")


def test_a_message_comes_back_as_it_was(tmp_path):
    """Text of any kind, reasoning, and the very ids that were generated."""
    text = "Grüße\n\n日本 \x1b[31m\0 end\ufffd\U0001f600"
    said = [Message("user", text), Message("assistant", text, (0, 260, 2**31 - 1), "because\n")]
    with Transcripts.open(tmp_path) as transcripts:
        id = transcripts.begin("title", "model", "system", said).summary.id
    with Transcripts.open_to_read(tmp_path) as transcripts:
        found = transcripts.find(id)
    assert found.messages == said and (found.summary.title, found.summary.system) == ("title", "system")


@given(ids=st.lists(st.integers(-5, 300), max_size=8), text=st.sampled_from(["fine", "ab", ""]))
def test_ids_that_do_not_spell_the_text_are_not_believed(ids, text):
    """Of another model, or damaged: the text is what counts, and no id outside of the vocabulary reaches the model."""
    (found,) = fake_engine(FakeDecoder(says(b"x"))).believed([Message("assistant", text, tuple(ids), "why")])
    spelled = all(0 <= id < 261 for id in ids) and bytes(id for id in ids if id < 256) == text.encode()
    assert found == Message("assistant", text, tuple(ids) if spelled else (), "why")


def test_a_resumed_conversation_feeds_the_ids_that_were_generated(tmp_path):
    """A model that spells its answer in its own way: the next prompt holds those ids, in another process too."""
    first = Talk(tmp_path)
    first.asks("hello")
    answer = first.chat.said[-1]
    again = Talk(tmp_path, last(tmp_path))
    assert answer.token_ids and again.chat.said[-1].token_ids == answer.token_ids


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Name three colours.", "Name three colours"),
        ("Hi! Please could you\nexplain   TCP?", "explain TCP?"),
        ("hello", "hello"),
        ("word " * 30, "word word word word word word word word word…"),
        ("日" * 100, "日" * 47 + "…"),
        ("==> notes.txt <==\nOne.\n\nTwo.\n\n==> b <==\nThree.\n\nPlease compare these", "compare these"),
        ("x" * 10**7, "x" * 47 + "…"),
    ],
)
def test_a_title_is_the_beginning_of_the_question(text, title):
    """Without courtesies, in one line, cut between words where there are any."""
    assert title_of(text) == title and len(title) <= 48


def test_a_title_follows_the_first_question_and_no_other(tmp_path):
    """Also where it is another one now; one that was only dropped has given the conversation its title for good."""
    talk = Talk(tmp_path)
    for text, how, title in (
        ("one", "turn", "one"),
        ("two", "instead", "two"),
        ("three", "turn", "two"),
        ("four", "instead", "two"),
        ("five", "again", "two"),
    ):
        talk.asks(text, how)
        assert last(tmp_path).summary.title == title
    talk.chat.forget(1)
    talk.asks("six", "instead")
    assert last(tmp_path).summary.title == "two" and talk.chat.said[-2].text == "six"


def test_a_title_is_never_that_of_a_summary(tmp_path):
    """A conversation that begins with one has the title of what it goes on with: first the old one, then a question."""
    talk = Talk(tmp_path)
    talk.asks("one")
    talk.chat.forget(1, "They spoke of one.")
    assert last(tmp_path).summary.title == "one" and len(stored(tmp_path)) == 2
    for text, how, title in (("two", "turn", "two"), ("three", "instead", "three"), ("four", "turn", "three")):
        talk.asks(text, how)
        assert last(tmp_path).summary.title == title


def test_all_that_was_said_can_be_taken_back(tmp_path):
    """Also where another process has gone on with it: that stays, and the next question begins a new conversation."""
    Talk(tmp_path).asks("first")
    one, two = Talk(tmp_path, last(tmp_path)), Talk(tmp_path, last(tmp_path))
    one.asks("one")
    two.chat.undo()
    assert [[text for text, _ in rows] for _, rows in stored(tmp_path)] == [["first", "fine", "one", "fine"]]
    two.asks("two")
    assert [text for text, _ in stored(tmp_path)[1][1]] == ["two", "fine"] and two.told == []


# --- cost --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes as Linux does")
def test_a_turn_costs_the_same_however_long_the_conversation_is(tmp_path):
    """Over 300 turns: rows changed, and bytes given to the system to write (which an index lets grow a little)."""
    recorder, said, rows, sizes = Recorder(tmp_path, print), [], [], []
    for number in range(300):
        question = Message("user", f"question {number} about the weather in the valley")
        said += [question, Message("assistant", "fine, thank you " * 20, tuple(range(100)))]
        before, changed = written_bytes(), changes_of(recorder)
        recorder.keep(said, "Be brief.", "m")
        sizes.append(written_bytes() - before)
        rows.append(changes_of(recorder) - changed)
    assert statistics.median(sizes[-50:]) < 1.5 * statistics.median(sizes[50:100])
    assert statistics.median(rows[-50:]) <= statistics.median(rows[50:100]) < 25
    assert len(last(tmp_path).messages) == 600


def written_bytes():
    return int(Path("/proc/self/io").read_text().partition("wchar: ")[2].split()[0])


def changes_of(recorder):
    transcripts = recorder._transcripts
    return transcripts._connection.total_changes if transcripts else 0


def test_going_on_costs_what_its_messages_do(tmp_path):
    """Steps of SQLite's machine to load the last conversation: in proportion to it, and to nothing else stored."""

    def steps(turns, others):
        folder = tmp_path / f"{turns}-{others}"
        said = [Message("user", "why"), Message("assistant", "so")]
        with Transcripts.open(folder) as transcripts:
            for _ in range(others):
                transcripts.begin("other", "m", "", said * 10)
            transcripts.begin("this", "m", "", said * turns)
        count = 0

        def step():
            nonlocal count
            count += 1

        with Transcripts.open_to_read(folder) as transcripts:
            transcripts._connection.set_progress_handler(step, 1)
            assert len(transcripts.load(transcripts.newest(1)[0].id).messages) == 2 * turns
        return count

    assert steps(300, others=100) == steps(300, others=0) <= 10 * steps(30, others=0)


# --- killed, at once, in the way ---------------------------------------------------------------------------------


def write_turns(folder, seed, acknowledge):
    """A process that talks, takes back and asks anew until it is killed; tells of each turn after it was stored."""
    draw = random.Random(seed)
    talk = Talk(folder)
    for number in range(10**6):
        talk.asks(f"q{seed}-{number} " + "words " * draw.randrange(200))
        if draw.random() < 0.3:
            talk.asks(f"q{seed}-{number} other", "instead")
        acknowledge.send((talk.recorder.id, len(talk.chat.said)))


def test_writers_that_are_killed_leave_whole_turns(tmp_path):
    """Two at a time, killed at random moments: the file opens, is sound, and has all turns that were acknowledged."""
    draw, acknowledged = random.Random(3), {}
    context = multiprocessing.get_context("fork")
    for round in range(8):
        writers = []
        for number in range(2):
            ours, theirs = context.Pipe(duplex=False)
            writer = context.Process(target=write_turns, args=(tmp_path, 2 * round + number, theirs))
            writer.start()
            theirs.close()
            writers.append((writer, ours))
        time.sleep(0.1 + 0.2 * draw.random())
        for writer, _ in writers:
            os.kill(writer.pid, signal.SIGKILL)
        for writer, ours in writers:
            with suppress(EOFError):
                while True:
                    id, messages = ours.recv()
                    acknowledged[id] = messages
            writer.join()
    sound(tmp_path)
    with Transcripts.open(tmp_path) as transcripts:
        found = {one.id: transcripts.load(one.id).messages for one in transcripts.newest()}
    assert len(acknowledged) >= 8
    for id, messages in found.items():
        assert [m.role for m in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert len(messages) - acknowledged.get(id, 0) in (0, 2)  # one more may have been stored, and not told


def test_two_that_go_on_with_the_same_conversation_do_not_mix(tmp_path):
    """The second to speak goes on under another id, with all that it knows; both are told in the history."""
    begun = Talk(tmp_path)
    begun.asks("first")
    one, two = Talk(tmp_path, last(tmp_path)), Talk(tmp_path, last(tmp_path))
    one.asks("one")
    two.asks("two")
    one.asks("one more")
    assert one.told == [] and len(two.told) == 1 and f"kept as {two.recorder.id}" in two.told[0]
    texts = sorted([text for text, _ in rows if text != "fine"] for _, rows in stored(tmp_path))
    assert texts == [["first", "one", "one more"], ["first", "two"]]


def test_what_was_removed_does_not_come_back(tmp_path):
    """A chat whose conversation is removed meanwhile says so once, and keeps nothing until it begins anew."""
    talk = Talk(tmp_path)
    talk.asks("first")
    with Transcripts.open(tmp_path) as transcripts:
        transcripts.remove([talk.recorder.id])
    talk.asks("second")
    talk.asks("third")
    assert stored(tmp_path) == [] and len(talk.told) == 1 and "removed" in talk.told[0]
    talk.chat.clear()
    talk.asks("fourth")
    assert [[text for text, _ in rows] for _, rows in stored(tmp_path)] == [["fourth", "fine"]]


BROKEN = {
    "no database": lambda path: path.write_bytes(b"no database" * 1000),
    "a damaged one": lambda path: _damage(path),
    "one of another program": lambda path: _other(path, application_id=7),
    "one of a newer version": lambda path: _other(path, user_version=99),
    "a folder": lambda path: path.mkdir(),
    "a loop": lambda path: path.symlink_to(path),
}


def _damage(path):
    with Transcripts.open(path.parent) as transcripts:
        for number in range(50):
            transcripts.begin("t", "m", "", [Message("user", f"text {number} " * 50)])
    data = bytearray(path.read_bytes())
    data[4096:] = random.Random(1).randbytes(len(data) - 4096)
    path.write_bytes(data)


def _other(path, **pragmas):
    with Transcripts.open(path.parent):
        pass
    with closing(sqlite3.connect(path)) as connection:
        for name, value in pragmas.items():
            connection.execute(f"PRAGMA {name} = {value}")


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_used_is_told_in_one_line_and_left_alone(tmp_path, kind):
    """The chat goes on without a transcript; reading says the same."""
    path = tmp_path / FILE_NAME
    BROKEN[kind](path)
    before = path.read_bytes() if path.is_file() else None
    talk = Talk(tmp_path)
    for text in ("one", "two", "three"):
        talk.asks(text)
    assert len(talk.chat.said) == 6 and len(talk.told) == 1 and "\n" not in talk.told[0]
    assert talk.told[0].startswith("this conversation is not kept: ") and str(path) in talk.told[0]
    if kind != "a loop":  # which does not exist
        with pytest.raises(TranscriptError) as raised, Transcripts.open_to_read(tmp_path) as transcripts:
            transcripts.newest()
        assert raised.value.message and raised.value.hint
    assert before is None or path.read_bytes() == before


@given(place=st.integers(0, 60_000), bits=st.integers(1, 255), length=st.sampled_from([1, 16, 4096]))
@settings(max_examples=40)
def test_a_file_damaged_anywhere_never_gives_a_traceback(tmp_path_factory, place, bits, length):
    """Bytes are changed somewhere: each use of it works, or says in a line what is wrong."""
    folder = tmp_path_factory.mktemp("damaged")
    talk = Talk(folder)
    for number in range(8):
        talk.asks(f"question {number} " * 100)
    talk.recorder.close()
    data = bytearray((folder / FILE_NAME).read_bytes())
    place %= len(data)
    data[place : place + length] = bytes(byte ^ bits for byte in data[place : place + length])
    (folder / FILE_NAME).write_bytes(data)
    with suppress(TranscriptError), Transcripts.open_to_read(folder) as transcripts:
        for one in transcripts.newest():
            transcripts.load(one.id)
        transcripts.search(["question"], 5)
    goes_on = Talk(folder)
    goes_on.asks("still there?")
    assert len(goes_on.told) <= 1
    with suppress(TranscriptError), Transcripts.open(folder) as transcripts:
        transcripts.remove([one.id for one in transcripts.newest()])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE conversation SET title = x'80'",
        "UPDATE conversation SET updated_s = 9e99",
        "UPDATE conversation SET created_s = 'yesterday'",
        "UPDATE message SET text = x'ff'",
        "UPDATE message SET text = CAST(x'ff' AS TEXT)",
        "PRAGMA ignore_check_constraints = 1; UPDATE message SET role = 'system'",
        "UPDATE message SET token_ids = 'text'",
    ],
)
def test_what_a_file_holds_is_not_trusted(tmp_path, change):
    """Values of other kinds than were stored are told as damage."""
    Talk(tmp_path).asks("one")
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.executescript(change)
    with pytest.raises(TranscriptError, match=r"damaged|UTF-8"):
        stored(tmp_path)


_MODULES = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "scripts")]  # of the tests themselves
CHILD = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_transcripts import Talk, last
talk = Talk(Path(sys.argv[1]))
for text in ("one", "two"):
    talk.asks(text)
assert len(talk.chat.said) == 4
print(*talk.told, sep="\\n")
"""


def child(folder, **options):
    command = [sys.executable, "-c", CHILD, str(folder), *_MODULES]
    command = as_a_user(*command) if options.pop("as_user", False) else command
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_folder_in_which_nothing_can_be_written_is_told_once_and_can_be_read(tmp_path):
    folder = tmp_path / "data"
    Talk(folder).asks("before")
    for path in (*folder.glob("*"), folder):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        told = child(folder, as_user=True)
        reader = f"from pathlib import Path; import sys; sys.path[:0] = {_MODULES!r}; "
        reader += f"from test_transcripts import stored; print(stored(Path({str(folder)!r})))"
        read = subprocess.run(as_a_user(sys.executable, "-c", reader), capture_output=True, text=True)
    finally:
        folder.chmod(0o700)
    assert len(told) == 1 and told[0].startswith("this conversation is not kept: "), told
    assert "before" in read.stdout, read.stderr


def test_a_full_disk_is_told_once(tmp_path):
    """Files may not grow beyond a limit, as on a disk that is full; what was stored before stays whole."""
    Talk(tmp_path).asks("before")

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))

    told = child(tmp_path, preexec_fn=full)
    assert len(told) == 1 and told[0].startswith("this conversation is not kept: "), told
    sound(tmp_path)
    assert [[text for text, _ in rows] for _, rows in stored(tmp_path)] == [["before", "fine"]]


def test_a_text_that_no_file_can_hold_is_told(tmp_path):
    """Half a surrogate pair; what comes later is kept again, together with the rest."""
    talk = Talk(tmp_path)
    talk.recorder.keep([Message("user", "\ud800")], "", "m")
    assert len(talk.told) == 1 and "characters" in talk.told[0]
    talk.asks("fine?")
    assert [[text for text, _ in rows] for _, rows in stored(tmp_path)] == [["fine?", "fine"]]


def test_nobody_else_can_read_it(tmp_path):
    """The folder and all files in it, also where they were there before with other rights, and under any umask."""
    folder = tmp_path / "deep" / "data"
    folder.mkdir(parents=True, mode=0o755)
    before = os.umask(0)
    try:
        talk = Talk(folder)
        talk.asks("secret")
    finally:
        os.umask(before)
    files = list(folder.iterdir())
    assert len(files) == 3  # the log and its index are beside it
    assert [path.stat().st_mode & 0o777 for path in (folder, *files)] == [0o700, 0o600, 0o600, 0o600]


def test_any_thread_may_speak(tmp_path):
    """A chat whose turns run in another thread than it began in is kept all the same."""
    talk = Talk(tmp_path)
    talk.asks("one")
    thread = threading.Thread(target=talk.asks, args=("two",))
    thread.start()
    thread.join()
    assert talk.told == [] and len(last(tmp_path).messages) == 4


def test_nothing_is_made_where_nothing_is_said(tmp_path):
    """Reading, beginning a chat or setting its system prompt leaves no file."""
    talk = Talk(tmp_path / "data")
    talk.chat.system = "Be brief."
    talk.chat.clear()
    assert stored(tmp_path / "data") == [] and not (tmp_path / "data").exists()


# --- finding and removing ----------------------------------------------------------------------------------------


def test_a_conversation_is_found_by_the_beginning_of_its_id(tmp_path):
    with Transcripts.open(tmp_path) as transcripts:
        ids = [transcripts.begin("t", "m", "", [Message("user", "x")]).summary.id for _ in range(60)]
        for id in ids:
            assert len(id) == 6 and id.isalnum() and id == id.lower()
            assert transcripts.find(id).summary.id == id == transcripts.find(f" {id.upper()}").summary.id
            same = [other for other in ids if other[0] == id[0]]
            if len(same) > 1:
                with pytest.raises(UsageError, match=f"'{id[0]}' may be {min(same)}, "):
                    transcripts.find(id[0])
            else:
                assert transcripts.find(id[0]).summary.id == id
        for wrong in ("", "0", "%", "_", "'", id + "x"):
            with pytest.raises(UsageError, match="there is no conversation"):
                transcripts.find(wrong)


WORDS = ["river", "rivers", "Rive", "sea", "SEA", "Grüße", "grusse", "go", "gone"]


@settings(max_examples=40)
@given(
    texts=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join), max_size=6),
    query=st.lists(st.sampled_from(["river", "se", "sea", "gruss", "grüße", "GO", "rive"]), min_size=1, max_size=2),
)
def test_search_finds_the_messages_that_have_all_words(tmp_path_factory, texts, query):
    """In any case, without accents, words of three and more letters by their beginning; by comparison with a loop."""

    def folded(word):
        return word.lower().replace("ü", "u")

    def has(text, wanted):
        words = [folded(word) for word in text.split()]
        return any(word.startswith(folded(wanted)) if len(wanted) > 2 else word == folded(wanted) for word in words)

    with Transcripts.open(tmp_path_factory.mktemp("search")) as transcripts:
        for number, text in enumerate(texts):
            transcripts.begin(str(number), "m", "", [Message("user", "nothing"), Message("assistant", text)])
        expected = {str(number) for number, text in enumerate(texts) if all(has(text, word) for word in query)}
        found = transcripts.search(query, 50)
        if expected:
            assert {one.title for one, _ in found} == expected
            assert all(OPEN in place and CLOSE in place for _, place in found)
            assert len(transcripts.search(query, 1)) == 1


@pytest.mark.parametrize("query", ["日本", "本語", "ning", "c++", "100%", "_x", 'say "hi"', "a\\b", "mor OR"])
def test_search_finds_what_is_no_word(tmp_path, query):
    """Parts of words, scripts without spaces, and signs that mean something to SQLite but not to people."""
    text = 'In the morning 日本語 costs 100% of_x in c++; they say "hi" a\\b, mor OR less.'
    with Transcripts.open(tmp_path) as transcripts:
        transcripts.begin("other", "m", "", [Message("user", "x" * 50)])
        transcripts.begin("this", "m", "", [Message("user", text)])
        ((one, place),) = transcripts.search([query], 5)
    assert one.title == "this" and OPEN in place


def test_search_in_a_script_without_spaces_finds_all(tmp_path):
    """Not only where a word seems to begin, because a sentence or a line does."""
    with Transcripts.open(tmp_path) as transcripts:
        for title, text in (("begins", "日本語です"), ("inside", "これは日本語です"), ("without", "これは英語です")):
            transcripts.begin(title, "m", "", [Message("user", text)])
        found = {one.title: place for one, place in transcripts.search(["日本語"], 5)}
    assert found == {"begins": f"{OPEN}日本語{CLOSE}です", "inside": f"これは{OPEN}日本語{CLOSE}です"}


@given(text=st.text(max_size=300), word=st.text(min_size=1, max_size=3))
def test_a_place_is_a_part_of_the_text(text, word):
    """Whatever the characters: the marks change nothing else, and stand around what was looked for."""
    place = _around(text.replace(OPEN, "").replace(CLOSE, ""), [word])
    plain = place.replace(OPEN, "").replace(CLOSE, "").strip("…")
    assert plain in text.replace(OPEN, "").replace(CLOSE, "") and len(plain) <= 120
    if word in plain and not {OPEN, CLOSE} & {*word}:
        assert OPEN in place


@given(st.lists(st.text(max_size=12), max_size=4))
def test_no_query_is_an_error(query):
    with Transcripts.open_to_read(Path("/nonexistent")) as transcripts:
        assert transcripts.search(query, 5) == []


def test_the_best_comes_first(tmp_path):
    """A short message about it before a long one that mentions it; each conversation once."""
    with Transcripts.open(tmp_path) as transcripts:
        transcripts.begin("mentions", "m", "", [Message("user", "other things " * 200 + "river")])
        transcripts.begin("about", "m", "", [Message("user", "the river"), Message("assistant", "river river river")])
        assert [one.title for one, _ in transcripts.search(["river"], 5)] == ["about", "mentions"]


def test_no_trace_of_a_removed_conversation_stays_in_the_files(tmp_path):
    """Neither of its text nor of its words in the index, nor of what was taken back before; the rest is still found."""
    talk = Talk(tmp_path)
    talk.asks("takenback " * 300)
    talk.chat.undo()
    for number in range(30):
        talk.asks(f"xylophone{number} keepsake " * 20)
    talk.chat.system = "saxophone"
    other = Talk(tmp_path)
    other.asks("something trombone")
    with Transcripts.open(tmp_path) as transcripts:
        transcripts.remove([talk.recorder.id])
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for trace in (b"xyloph", b"keepsake", b"saxophone", b"takenback", b"trombone"):
        assert (trace in data.lower()) == (trace == b"trombone"), trace
    sound(tmp_path)
    with Transcripts.open_to_read(tmp_path) as transcripts:
        assert [one.id for one, _ in transcripts.search(["trombone"], 5)] == [other.recorder.id]
        assert transcripts.search(["xylophone3"], 5) == []
