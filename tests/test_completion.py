"""Completion as shells ask for it: real bash, and zsh and fish where they are installed."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import click
import pexpect
import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminals import PROGRAM

from localllm import Message
from localllm.cli.completion import NO_FILES, answer, candidates
from localllm.cli.main import COMPLETION_VARIABLE, program
from localllm.models.catalog import DEFAULT_CATALOG, load_catalog
from localllm.models.store import all_local
from localllm.session.transcripts import Transcripts
from localllm.settings import SETTINGS

DATA = DEFAULT_CATALOG.parent
PATH = os.pathsep.join((str(Path(PROGRAM).parent), os.environ["PATH"]))


def tree(command: click.Command, *words: str):
    """Each command with the words that call it."""
    yield words, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            if not child.hidden:
                yield from tree(child, *words, name)


COMMANDS = dict(tree(program()))


@pytest.fixture
def model_with_a_colon(home) -> str:
    """A model of Ollama, whose names hold what bash takes for the end of a word."""
    root = home / ".ollama" / "models"
    blob = root / "blobs" / f"sha256-{'0' * 64}"
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "3b"
    for file in (blob, manifest):
        file.parent.mkdir(parents=True)
    blob.write_bytes(b"GGUF" + bytes(100))
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'0' * 64}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    return "tiny:3b"


def words(before: list[str], current: str) -> set[str]:
    return {word for word, _ in candidates(program(), before, current)}


def bash(line: str, **environment) -> list[str]:
    """What bash would offer for the last word of the line, as it puts it there."""
    script = (
        'source <(localllm completion bash); COMP_LINE=$1; COMP_POINT=${#1}; _localllm_completion "$2"; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": PATH, **environment}
    done = subprocess.run(
        ["bash", "-c", script, "-", line, PROGRAM], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1] if done.stdout != "\n" else []


# --- what fits


@pytest.mark.parametrize("called", COMMANDS, ids=" ".join)
def test_every_command_completes_its_options_and_its_commands(called, home):
    """All that help shows and nothing else; where no command is named, those of chat, which is meant then."""
    command = COMMANDS[called]
    shown = [command] if called else [command, COMMANDS["chat",]]
    options = {
        name
        for one in shown
        for option in one.params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    } | {"--help", "-h"}
    assert words([*called], "-") == options
    if isinstance(command, click.Group):
        assert words([*called], "") == {name for name, child in command.commands.items() if not child.hidden}


@given(st.sampled_from([*COMMANDS]), st.text(st.sampled_from("-abcmqs03.:/=")))
def test_what_is_offered_begins_with_what_is_there(called, current):
    """Whatever was typed, a candidate goes on with it."""
    assert all(word.startswith(current) for word in words([*called], current))


def test_values(home):
    """Models, choices and settings, each where it is taken; files are left to the shell."""
    catalog = {*load_catalog()}
    for before in (
        ["ask", "-m"],
        ["chat", "--model"],
        ["-m"],
        ["show"],
        ["pull"],
        ["ceiling"],
        ["cache", "warm", "-m"],
    ):
        assert words(before, "") == catalog
    assert words(["ask", "--draft"], "") == catalog | {"auto", "ngram", "off"}
    assert words(["rm"], "") == set()  # there is nothing to remove
    assert words(["ask", "--kv"], "q") == {"q8_0", "q4_0"} == words(["config", "set", "kv"], "q")
    assert words(["ask"], "--kv=q") == {"--kv=q8_0", "--kv=q4_0"}
    assert words(["config", "set"], "") == {*SETTINGS} == words(["config", "unset"], "")
    assert words(["config", "set", "exact"], "") == {"true", "false"}
    assert words(["config", "set", "model"], "") == catalog
    assert words(["completion"], "") == {"bash", "zsh", "fish"}
    assert words(["ask", "--file"], "") == words(["ask", "hello"], "") == words(["--version"], "") == set()


def test_conversations(home, capsys):
    """The ids of those that were kept, wherever one is taken, the last one first and with their titles."""
    taken = (
        ["history", "show"],
        ["history", "export"],
        ["history", "rm"],
        ["ask", "--cid"],
        ["chat", "--cid"],
        ["--cid"],
    )
    assert all(words(before, "") == set() for before in taken)
    with Transcripts.open(home / ".local/share/localllm") as transcripts:
        ids = [
            transcripts.begin(title, "m", "", [Message("user", title)]).summary.id
            for title in ("Rivers", "Bread\x1b[31m\n")
        ]
    assert all(words(before, "") == {*ids} and words(before, ids[0]) == {ids[0]} for before in taken)
    assert words(["history", "rm", ids[0]], ids[1][:3]) >= {ids[1]}
    assert words(["history", "show", ids[0]], "") == words(["history", "search"], "") == set()
    answer(program(), "fish", ["localllm", "history", "show", ""])
    first, second = capsys.readouterr().out.splitlines()
    assert second == f"{ids[0]}\tRivers" and first.startswith(f"{ids[1]}\tBread") and "\x1b" not in first


def test_templates_say_what_they_are_for(home):
    """Each has its own description; one that cannot be used says why."""
    folder = home / ".config" / "localllm" / "templates"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("description: What is mine\nprompt: hello\n")
    (folder / "broken.yaml").write_text("promt: hello\n")
    found = dict(candidates(program(), ["ask", "-t"], ""))
    assert found["mine"] == "What is mine" and "never run" in found["cmd"]
    assert "unknown key 'promt'" in found["broken"]


def test_a_description_is_one_sentence(home, capsys):
    """Also where a docstring goes on for paragraphs."""
    answer(program(), "zsh", ["localllm", "help", ""])
    told = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert told["ask"] == "Answer one prompt and leave." and told["help"] and told["pipes"]
    assert all(len(text) < 120 and ". " not in text for text in told.values())


@pytest.mark.parametrize("option", ["--choice", "--temp", "--stop", "--system", "--timeout"])
def test_what_is_no_file_is_completed_with_none(home, option):
    """Neither is anything of ours known there; where a file may stand, the shell offers files."""
    assert candidates(program(), ["ask", option], "a") == [NO_FILES]
    for other in ("--file", "--schema"):
        assert candidates(program(), ["ask", other], "a") == []


def test_templates(home, capsys):
    """The names of the user's own and of those that are shipped, where there are any; none that is no one line."""
    folder = home / ".config" / "localllm" / "templates"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").touch()
    (folder / "notes.txt").touch()
    (folder / "new\nline.yaml").touch()
    shipped = {file.stem for file in (DATA / "templates").glob("*.yaml")}
    command = click.Command("one", params=[click.Option(["-t", "--template"], metavar="NAME|PATH")])
    answer(click.Group("all", commands=[command]), "zsh", ["localllm", "one", "-t", ""])
    assert {line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()} == {"mine"} | shipped


def test_a_broken_catalog_is_not_told_between_two_keys(home):
    """No candidates, no complaints."""
    (home / ".config" / "localllm").mkdir(parents=True)
    (home / ".config" / "localllm" / "models.yaml").write_text("- nonsense")
    done = subprocess.run(
        [PROGRAM, "localllm", "ask", "-m", ""],
        env={**os.environ, COMPLETION_VARIABLE: "fish"},
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_names_that_mean_something_to_a_shell_are_made_harmless(home):
    """A name in a folder that others fill is somebody else's text: bash gets it quoted."""
    for file in ("a b;$(id)'.Q4_0.gguf", "plain.Q4_0.gguf"):  # two of a kind: only their paths tell them apart
        path = home / ".lmstudio" / "models" / "user" / "repo" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF" + bytes(100))
    names = {model.name for model in all_local(load_catalog())}
    assert any("$(id)'" in name for name in names)
    typed = f"printf '%s\\n' {' '.join(bash('localllm rm '))}"
    assert {*subprocess.run(["bash", "-c", typed], capture_output=True, text=True).stdout.splitlines()} == names


# --- shells


def test_bash(model_with_a_colon):
    """A name with a colon, in quotes too; an assignment before the command; = before a value."""
    assert bash("localllm conf") == ["config"]
    assert bash("FOO=1 localllm ask -m tin") == ["tiny:3b"] == bash("localllm ask -m 'tin")
    assert bash("localllm ask -m tiny:") == ["3b"] and bash("localllm ask -m 'tiny:") == ["tiny:3b"]
    assert bash("localllm ask --kv=q8") == ["q8_0"] and bash("localllm ask --model=tiny:3") == ["3b"]
    assert bash("localllm ask -m nothing") == []


def test_bash_in_a_terminal(model_with_a_colon, home):
    """Tab puts the words there; where nothing of ours fits, files."""
    (home / "report.txt").touch()
    child = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile", "-i"],
        encoding="utf-8",
        cwd=home,
        dimensions=(24, 160),
        env={**os.environ, "PATH": PATH, "PS1": "READY ", "TERM": "dumb", "INPUTRC": os.devnull},
        timeout=30,
    )
    child.sendline("source <(localllm completion bash); bind 'set enable-bracketed-paste off'; alias localllm=echo")
    for typed, completed in (
        ("localllm conf\tset k\tq8\t", "config set kv q8_0 "),
        ("localllm ask -m tiny:\t", "ask -m tiny:3b "),
        ('localllm ask -m "tiny:\t', "ask -m tiny:3b "),
        ("localllm ask -f rep\t", "ask -f report.txt "),
        ("localllm ask --choice rep\t", "ask --choice rep"),
        ("localllm ask --choice a rep\t", "ask --choice a report.txt "),
    ):
        child.sendline(f"{typed}END")
        child.expect(rf"\n{completed}END\r")
    child.close(force=True)


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish(model_with_a_colon, home):
    """Each candidate with its description; files where there is none."""
    (home / "report.txt").touch()

    def fish(line: str) -> list[str]:
        code = f"localllm completion fish | source; complete -C {line!r}"
        env = {**os.environ, "PATH": PATH}
        done = subprocess.run(["fish", "-c", code], env=env, cwd=home, capture_output=True, text=True, timeout=60)
        return done.stdout.splitlines()

    assert [line.split("\t")[0] for line in fish("localllm conf")] == ["config"]
    assert fish("localllm ask -m tiny:") == ["tiny:3b\ton this disk"]
    assert fish("localllm ask --kv=q8") == ["--kv=q8_0"]
    assert [line.split("\t")[0] for line in fish("localllm ask -f rep")] == ["report.txt"]
    assert fish("localllm ask --choice rep") == fish("localllm ask --choice ") == []
    assert "cmd\tOne shell command for a task; it is printed, never run" in fish("localllm ask -t ")
    assert "ask\tAnswer one prompt and leave." in fish("localllm help ")


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh(model_with_a_colon, home):
    """Tab puts the words there, colons and all; where nothing of ours fits, files."""
    (home / "report.txt").touch()
    (home / ".zshrc").write_text("autoload -Uz compinit; compinit -u -D; PS1='READY '; unset zle_bracketed_paste\n")
    child = pexpect.spawn(
        "zsh",
        ["-i"],
        encoding="utf-8",
        cwd=home,
        dimensions=(24, 160),
        timeout=30,
        env={**os.environ, "PATH": PATH, "ZDOTDIR": str(home), "TERM": "xterm"},
    )
    child.expect("READY ")
    child.sendline("source <(localllm completion zsh); localllm() { echo SEEN $*; }")
    for typed, completed in (
        ("localllm ask --kv=q8\t", "ask --kv=q8_0"),
        ("localllm ask -m tiny:\t", "ask -m tiny:3b"),
        ("localllm ask -f rep\t", "ask -f report.txt"),
        ("localllm ask --choice rep\t", "ask --choice rep"),
    ):
        child.send(typed)
        child.expect(r"3b|8_0|ort\.txt|--choice rep")
        child.sendline(" END")
        child.expect(rf"SEEN {completed} END")
    child.close(force=True)


def test_completion_loads_no_heavy_library(home):
    """A key must not wait for the libraries that run models."""
    env = {**os.environ, COMPLETION_VARIABLE: "fish", "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run([PROGRAM, "localllm", "ask", "-m", ""], env=env, capture_output=True, text=True, timeout=60)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "localllm" in loaded and "smollm2-135m" in done.stdout
    assert not loaded & {"llama_cpp", "numpy", "huggingface_hub", "jinja2", "prompt_toolkit", "rich"}
