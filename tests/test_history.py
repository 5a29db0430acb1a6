"""Going on with a conversation, and ``localllm history``, as their users run them."""

import json
import re
import subprocess

import pytest
from test_ask import PROGRAM

from localllm import Message
from localllm.session import portable
from localllm.session.transcripts import FILE_NAME, Edit, Transcripts
from localllm.terminal.history_view import recap

EVIL = "\x1b]0;owned\x07\u202e 50 %"


@pytest.fixture
def folder(home):
    return home / ".local/share/localllm"


@pytest.fixture
def run(home, smollm2, monkeypatch):
    """The installed program with the default model and an empty home."""
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))

    def start(*arguments, **options):
        options = {"input": ""} | options
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120, **options)

    return start


@pytest.fixture
def kept(folder):
    """Two conversations: about rivers, with an evil answer, a dropped turn and a system prompt; and about bread."""
    with Transcripts.open(folder) as transcripts:
        said = [Message("user", "Which rivers?\nName two."), Message("assistant", f"The Rhine {EVIL}", (1, 2), "Hm.\n")]
        rivers = transcripts.begin("Which rivers", "smollm2-135m", "Be brief.", [*said, Message("user", "And?")])
        transcripts.change(rivers.summary, Edit(dropped=(rivers.rows[0].key, rivers.rows[1].key)))
        bread = transcripts.begin(
            "Bread", "smollm2-135m", "", [Message("user", "Bread?"), Message("assistant", "Rye.")]
        )
    return rivers.summary.id, bread.summary.id


def test_list(run, kept):
    """The last one first, as a table or as JSON; ``ls`` and nothing at all mean the same."""
    listed = run("history", "list")
    assert listed.returncode == 0 and listed.stderr == ""
    rows = [line.split(maxsplit=4) for line in listed.stdout.splitlines()]
    assert rows[0] == ["ID", "LAST", "MESSAGES", "TITLE"]
    assert [(row[0], row[3], row[4]) for row in rows[1:]] == [(kept[1], "2", "Bread"), (kept[0], "3", "Which rivers")]
    assert listed.stdout == run("history").stdout == run("history", "ls").stdout
    objects = json.loads(run("history", "list", "--json").stdout)
    assert [(one["id"], one["title"], one["messages"]) for one in objects] == [
        (kept[1], "Bread", 2),
        (kept[0], "Which rivers", 3),
    ]
    limited = run("history", "list", "--limit", "1")
    assert kept[0] not in limited.stdout and "1 older ones; --limit" in limited.stderr


@pytest.mark.model
def test_the_title_of_what_a_template_asked_is_the_users_own(run, tmp_path):
    """What was said; else the names of the files; else the piped text: never the template's wording."""
    (tmp_path / "rivers.txt").write_text("The Rhine and the Elbe.")
    template = tmp_path / "own.yaml"
    template.write_text("prompt: Translate this into French, please.\n")
    options = ("ask", "--max-tokens", "2", "-t", str(template))
    for arguments, piped, title in (
        (("good morning",), "", "good morning"),
        (("-f", str(tmp_path / "rivers.txt")), "", "rivers.txt"),
        (("-f", str(tmp_path / "rivers.txt"), "-f", str(template)), "", "rivers.txt, own.yaml"),
        ((), "The Elbe and the Oder.", "The Elbe and the Oder"),
    ):
        assert run(*options, *arguments, input=piped).returncode == 0
        (newest, *_) = json.loads(run("history", "list", "--json").stdout)
        assert newest["title"] == title


def test_an_empty_history(run, home):
    """Nothing is made by looking."""
    for command, code in ((("list",), 0), (("search", "x"), 1), (("rm", "--all", "--yes"), 0)):
        assert run("history", *command).returncode == code
    assert json.loads(run("history", "list", "--json").stdout) == []
    assert "no conversation" in run("history", "show", "abc").stderr
    assert not list(home.rglob("*.db"))


def test_show_and_export(run, kept):
    """All messages in their order, what left the context said so; nothing that steers a terminal; JSON has it all."""
    shown = run("history", "show", kept[0][:5]).stdout
    assert re.search(
        r"^Which rivers\n\w{6} · smollm2-135m · [\d :-]+ · 3 messages\n\nsystem: Be brief\.\n\n\(made room.*\)\n"
        r"> Which rivers\?\n> Name two\.\n\n\(made room.*\)\nHm\.\n\nThe Rhine \]0;owned 50 %\n\n> And\?\n$",
        shown,
    ), shown
    exported = run("history", "export", kept[0]).stdout
    assert exported.startswith("# Which rivers\n\n") and "\n## System\n\nBe brief.\n" in exported
    assert exported.count("## Question") == 2 and "\n> Hm.\n\nThe Rhine ]0;owned 50 %\n" in exported
    assert exported == run("history", "export", kept[0], "--md").stdout
    found = json.loads(run("history", "export", kept[0], "--json").stdout)
    assert found == json.loads(run("history", "show", kept[0], "--json").stdout)
    assert found["messages"][1] == {
        "role": "assistant",
        "text": f"The Rhine {EVIL}",
        "reasoning": "Hm.\n",
        "in_context": False,
    }
    assert run("history", "export", kept[0], "--md", "--json").returncode == 2


def test_what_is_exported_can_be_loaded(run, folder, tmp_path):
    """It is what /save would have written, and the chat stands where it stood."""
    said = [Message(role, f"{role} {turn} {EVIL}") for turn in range(2) for role in ("user", "assistant")]
    with Transcripts.open(folder) as transcripts:
        kept = transcripts.begin("Talk", "smollm2-135m", "Be brief.", said)
        transcripts.change(kept.summary, Edit(dropped=(kept.rows[0].key, kept.rows[1].key)))
    exported = run("history", "export", "--json", kept.summary.id).stdout
    assert portable.from_json(exported) == portable.Document(said[2:], said[:2], "Be brief.")


def test_show_without_an_id_shows_the_last(run, kept, home):
    """The one that ``history list`` has on top; where nothing was kept, a line says so."""
    top = run("history", "list").stdout.splitlines()[1].split()[0]
    assert run("history", "show").stdout == run("history", "show", top).stdout != ""
    assert run("history", "show", "--json").stdout == run("history", "show", top, "--json").stdout
    assert run("history", "rm", "--all", "--yes").returncode == 0
    nothing = run("history", "show")
    assert (nothing.returncode, nothing.stderr.count("\n")) == (2, 1) and "nothing was kept yet" in nothing.stderr


def test_search(run, kept, terminal):
    """Each conversation with the place; bold in a terminal, one plain line in a pipe; exit code 1 where none is."""
    found = run("history", "search", "RHINE")
    assert found.returncode == 0 and found.stdout.startswith(kept[0])
    assert found.stdout.endswith("\tThe Rhine ]0;owned 50 %\n") and found.stdout.count("\n") == 1
    assert "\tThe \x1b[1mRhine\x1b[0m ]0;owned" in run("history", "search", "RHINE", "--color", "always").stdout
    (one,) = json.loads(run("history", "search", "rhi", "--json").stdout)
    assert one["id"] == kept[0] and one["snippet"] == "The Rhine ]0;owned 50 %"
    missed = run("history", "search", "Elbe")
    assert (missed.returncode, missed.stdout, missed.stderr) == (1, "", "localllm: nothing was found\n")
    seen = terminal(command=[PROGRAM, "history", "search", "rhine"]).child.read()
    assert "The \x1b[1mRhine\x1b[0m ]0;owned" in seen


def test_rm(run, kept, terminal, folder):
    """Asks in a terminal, refuses in a pipe without --yes, removes what was named and no more."""
    refused = run("history", "rm", kept[0])
    assert refused.returncode == 2 and "--yes" in refused.stderr
    asked = terminal(command=[PROGRAM, "history", "rm", kept[0][:5]])
    asked.sees(r"Which rivers[\s\S]*remove these\? \[y/N\]")
    asked.types("n\r")
    assert asked.leaves() == 0 and kept[0] in run("history").stdout
    asked = terminal(command=[PROGRAM, "history", "rm", kept[0][:5]])
    asked.sees(r"remove these\? \[y/N\]")
    asked.types("y\r")
    asked.sees("1 conversation removed")
    assert kept[0] not in run("history").stdout and kept[1] in run("history").stdout
    assert b"Rhine" not in b"".join(path.read_bytes() for path in folder.glob(f"{FILE_NAME}*"))
    for wrong in ((), (kept[1], "--all"), (kept[1], "nosuch", "--yes")):
        assert run("history", "rm", *wrong).returncode == 2
    assert run("history", "rm", "--all", "--yes").stdout == "1 conversation removed\n"
    assert run("history").stdout == ""


def test_a_damaged_history_is_told_in_one_line(run, kept, folder):
    (folder / FILE_NAME).write_bytes(b"damaged" * 1000)
    for command in (("list",), ("show", "a"), ("search", "x"), ("export", "a"), ("rm", "--all", "--yes")):
        done = run("history", *command)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr.count("\n") == 1 and "is damaged" in done.stderr and "move it away" in done.stderr


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_there_must_be_something_to_go_on_with(run, home, command, terminal):
    """Said before anything is loaded."""
    question = ["hi"] if command == "ask" else []
    for flags, expected in ((["-c"], "no conversation to go on with"), (["--cid", "abc"], "there is no conversation")):
        one = terminal(*question, *flags, command=[PROGRAM, command])
        one.sees(expected)
        assert one.leaves() == 2


def test_the_recap_of_a_long_conversation_is_short():
    """The last two exchanges, in a line each."""
    from localllm.session.transcripts import Conversation, Row, Summary

    rows = [Row(n, n, Message("assistant" if n % 2 else "user", f"text {n}\n" + "x" * 1000)) for n in range(20)]
    lines = recap(Conversation(Summary("abcdef", "Title", "m", "", 0, 0, 1, 20), tuple(rows)))
    assert lines[0].startswith("going on with abcdef: Title (10 questions, last 1970") and lines[1] == "…"
    assert [line[:9].rstrip() for line in lines[2:]] == ["> text 16", "text 17 x", "> text 18", "text 19 x"]
    assert all(len(line) <= 210 and "\n" not in line for line in lines)


def test_the_benchmark_finds_what_it_stored(monkeypatch, capsys, home):
    """In small: a row for each kind of search, with what was found, its time and the ratio to a scan."""
    import bench_history

    monkeypatch.setattr("sys.argv", ["bench_history", "--megabytes", "1", "--runs", "2"])
    bench_history.main()
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if " ≤ 200 " in line]
    assert len(rows) == 7 and rows[0][2].strip() == "20" and rows[-1][2].strip() == "0"
    assert all(float(row[3]) > 0 and float(row[6]) > 0 for row in rows)


# --- with a model ------------------------------------------------------------------------------------------------

FLAGS = ("--temp", "0", "--max-tokens", "8", "--threads", "2", "--draft", "off")


@pytest.mark.model
def test_a_question_goes_on_with_the_last_conversation(run, kept):
    """In another process: the model knows what was said, and what was read and generated is in the prefix cache."""
    first = json.loads(run("ask", "--json", *FLAGS, "-s", "You know rivers.", "Name three rivers.").stdout)
    assert re.fullmatch("[a-z2-9]{6}", first["conversation"])
    second = json.loads(run("ask", "-c", "--json", *FLAGS, "What did I ask?").stdout)
    assert second["conversation"] == first["conversation"]
    stats = second["stats"]
    assert stats["cached_tokens"] > first["stats"]["prompt_tokens"] + first["stats"]["output_tokens"] - 8
    assert stats["prompt_tokens"] - stats["cached_tokens"] < 30
    named = run("ask", "--cid", first["conversation"][:4], *FLAGS, input="piped").stdout
    shown = json.loads(run("history", "show", first["conversation"], "--json").stdout)
    assert [m["text"] for m in shown["messages"]] == [
        *(
            "Name three rivers.",
            first["answer"],
            "What did I ask?",
            second["answer"],
            "piped",
            named.removesuffix("\n"),
        ),
    ]
    assert (shown["title"], shown["system"]) == ("Name three rivers", "You know rivers.")


@pytest.mark.model
@pytest.mark.slow
def test_going_on_is_the_same_as_never_having_left(run, engine):
    """The answer to the second question is that of one process which had both, and -s changes the system prompt."""
    from localllm import Sampling

    said, sampling = [], Sampling(temperature=0, max_tokens=8)
    for question in ("Name three rivers.", "And one more?"):
        *_, end = engine.reply([Message("system", "Be brief."), *said, Message("user", question)], sampling)
        said += [Message("user", question), end.message]
    run("ask", *FLAGS, "--exact", "-s", "Be brief.", "Name three rivers.")
    assert run("ask", *FLAGS, "--exact", "-c", "And one more?").stdout == said[-1].text + "\n"
    run("ask", *FLAGS, "-c", "-s", "Be long.", "Why?")
    assert json.loads(run("history", "list", "--json").stdout)[0]["system"] == "Be long."


@pytest.mark.model
def test_nothing_is_kept_that_shall_not_be(run, home, folder):
    """With -n, with --raw, and where there was no answer; -n with -c goes on and changes nothing."""
    run("ask", *FLAGS, "-n", "hi")
    run("ask", *FLAGS, "--raw", "one two")
    assert run("ask", *FLAGS, "--timeout", "0.001", "hi").returncode == 124
    assert not list(folder.glob("*"))
    run("ask", *FLAGS, "hi")
    before = json.loads(run("history", "list", "--json").stdout)
    assert json.loads(run("ask", *FLAGS, "--json", "-n", "-c", "and?").stdout)["conversation"] is None
    assert json.loads(run("history", "list", "--json").stdout) == before and len(before) == 1
    refused = run("ask", "--raw", "-c", "and?")
    assert refused.returncode == 2 and "--raw" in refused.stderr
    refused = run("ask", "-c", "--ctx-size", "256", "word " * 300)
    assert refused.returncode == 3 and "without -c" in refused.stderr


@pytest.mark.model
@pytest.mark.slow
def test_a_conversation_whose_model_is_gone(run, folder, smollm2, tmp_path):
    """Said in a line before anything is loaded, with what to do; another model goes on, and is remembered."""
    model = tmp_path / "mine.gguf"
    model.symlink_to(smollm2)
    run("ask", *FLAGS, "-m", str(model), "hi")
    assert json.loads(run("history", "list", "--json").stdout)[0]["model"] == str(model)
    assert run("ask", *FLAGS, "-c", "and?", cwd="/").returncode == 0
    model.unlink()
    refused = run("ask", *FLAGS, "-c", "and?")
    assert refused.returncode == 4 and refused.stderr.count("\n") == 1
    assert str(model) in refused.stderr and "-m NAME" in refused.stderr
    assert run("ask", *FLAGS, "-c", "-m", str(smollm2), "and?").returncode == 0
    assert run("ask", *FLAGS, "-c", "and?").returncode == 0


@pytest.mark.model
@pytest.mark.slow
def test_an_answer_is_given_though_it_cannot_be_kept(run, folder):
    """One line on stderr, none with -q; the answer and the exit code are as ever."""
    whole = run("ask", *FLAGS, "-n", "hi")
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_bytes(b"damaged" * 1000)
    told = run("ask", *FLAGS, "hi")
    assert (told.returncode, told.stdout) == (0, whole.stdout)
    assert told.stderr.count("\n") == 1 and "this conversation is not kept" in told.stderr
    assert run("ask", *FLAGS, "-q", "hi").stderr == ""


@pytest.mark.model
def test_a_chat_goes_on(terminal, run):
    """``ask``, then ``chat -c``: the recap, a turn that reads only what is new; /clear begins another conversation."""
    first = run("ask", *FLAGS, "Name three rivers.")
    chat = terminal("-c", *FLAGS)
    seen = chat.sees(r"going on with \w{6}: Name three rivers \(1 question, last [\s\S]*?> Name three rivers\.")
    assert "Ctrl-D leaves" in seen
    chat.sees(re.escape(first.stdout.split("\n")[0][:30]))
    assert int(re.search(r"prefill (\d+) tokens?", chat.asks("And one more?"))[1]) < 30
    chat.ready()
    chat.types("/clear\r")
    chat.sees("a new conversation begins")
    chat.asks("Name a fish.")
    chat.ready()
    chat.types("\x04")
    assert chat.leaves() == 0
    listed = json.loads(run("history", "list", "--json").stdout)
    assert [(one["title"], one["messages"]) for one in listed] == [("Name a fish", 2), ("Name three rivers", 4)]


@pytest.mark.model
@pytest.mark.slow
def test_a_chat_tells_that_it_is_not_kept(terminal, folder):
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_bytes(b"damaged" * 1000)
    chat = terminal(*FLAGS)
    chat.asks("Hi")
    chat.sees("this conversation is not kept")
    assert "not kept" not in chat.asks("Hi again")
