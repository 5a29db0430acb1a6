"""``localllm help``: topics and commands, and that what they list is what the program does."""

import os
import re
import subprocess

import click
import pytest
from terminals import PROGRAM

from localllm import config, errors
from localllm.cli.help import exit_rows, topics
from localllm.cli.main import program
from localllm.session import transcripts
from localllm.settings import TABLE
from localllm.terminal import repl
from localllm.terminal.commands import COMMANDS, help_text

PROGRAMS = program()
NAMES = [
    "pipes",
    "exit-codes",
    "keys",
    "environment",
    "privacy",
    "speculation",
    "cache",
    "ceiling",
    "files",
    "templates",
]


def run(*arguments, code=0, **environment):
    env = {**os.environ, "COLUMNS": "100", **environment}
    done = subprocess.run([PROGRAM, *arguments], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_without_a_topic_all_of_them_are_listed(home):
    """With their titles; and the commands."""
    shown = run("help")
    assert {*topics()} == {*NAMES}
    for name, title in topics().items():
        assert re.search(rf"^  {name} +{re.escape(title)}$", shown, re.MULTILINE)
    assert run("--help") in shown


@pytest.mark.parametrize("topic", NAMES)
def test_a_topic_is_plain_text_with_nothing_left_to_fill_in(home, topic):
    """It fits a terminal, and is the same in one and in a pipe: it holds no escape sequence to begin with."""
    shown = run("help", topic)
    assert shown.startswith(f"{topics()[topic]}\n\n")
    text = shown.partition("\n\nUsage: ")[0]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]|\{\{|\}\}", shown)
    wide = [line for line in text.splitlines() if len(line) > 80 and str(home) not in line]
    assert topic == "keys" or not wide


@pytest.mark.parametrize("words", [("ask",), ("ls",), ("config", "set"), ("cache",)], ids=" ".join)
def test_of_a_command_it_says_what_its_help_says(home, words):
    assert run("help", *words).endswith(run(*words, "--help"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pipe"], "there is no topic and no command 'pipe'; did you mean 'pipes'?"),
        (["exitcodes"], "did you mean 'exit-codes'?"),
        (["aks"], "did you mean 'ask'?"),
        (["zzz"], "see: localllm help"),
        (["config", "sett"], "there is no topic and no command 'config sett'"),
    ],
)
def test_an_unknown_topic_is_told_with_the_nearest(home, words, says):
    line = run("help", *words, code=2)
    assert says in line and line.count("\n") == 1


def test_exit_codes_are_those_of_the_program(home):
    """Every error of the tree and every way an answer can end, each once."""
    classes = [errors.LocalLLMError]
    for error in classes:
        classes += error.__subclasses__()
    codes = {(error.exit_code, error.code) for error in classes if error is not errors.Cancelled}
    codes |= {(error.exit_code, error.code) for error in map(errors.Cancelled, ("timeout", "interrupted"))}
    assert {(row.exit_code, row.value) for row in exit_rows() if row.key == "error.code"} == codes
    ends = {(row.value, row.exit_code) for row in exit_rows() if row.key == "finish_reason"}
    assert ends == {*errors.EXIT_CODES.items(), ("length", 5)} and errors.ENDINGS.keys() == errors.EXIT_CODES.keys()
    shown = run("help", "exit-codes")
    for row in exit_rows():
        assert re.search(rf"^ +{row.exit_code}  {row.key.removesuffix('.code')} {row.value} ", shown, re.MULTILINE)


def test_settings_paths_and_keys_are_those_of_the_program(home):
    """Every setting is named; paths are those of this user; slash commands are those of the chat."""
    environment = run("help", "environment")
    assert all(re.search(rf"^  {setting.name} ", environment, re.MULTILINE) for setting in TABLE)
    assert f"{home}/.config/localllm/config.yaml" in environment
    assert f"{home}/elsewhere/localllm/prefix" in run("help", "privacy", XDG_CACHE_HOME=f"{home}/elsewhere")
    assert help_text() in run("help", "keys") and all(f"/{command.name}" in help_text() for command in COMMANDS)


@pytest.mark.parametrize("group", [[], *([name] for name in ("cache", "history", "config", "template"))])
def test_no_command_s_help_is_cut(group):
    """In 80 columns, too; what a near name may have meant is said once."""
    assert "..." not in run(*group, "--help", COLUMNS="80").partition("Commands:")[2]
    assert run(*group, "hlep" if not group else "shwo", code=2).count("Did you mean") <= 1


def test_what_is_kept_is_all_named(home):
    """Each file that the program writes is among those of ``help privacy``."""
    told = run("help", "privacy")
    data = f"{home}/.local/share/localllm"
    kept = [transcripts.FILE_NAME, repl.history_path(config.data_dir()).name, *("fetched", "default.json")]
    assert all(f"  {data}/{name}\n" in told for name in kept)


def invocations(text: str):
    """The calls of localllm that a text shows, in backquotes or in a line of their own."""
    for quoted, shown in re.findall(r"`localllm ([^`]+)`|^  (?:.*\| )?localllm ([^|\n]+)", text, re.MULTILINE):
        yield re.split(r"   ", quoted or shown)[0].split()


@pytest.mark.parametrize("topic", NAMES)
def test_the_commands_and_options_that_a_topic_names_exist(home, topic):
    """A text may not tell of what the program does not have."""
    text = run("help", topic).partition("\n\nUsage: ")[0]
    known = {
        name
        for command in every(PROGRAMS)
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
    }
    assert {*re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)} <= known
    for words in invocations(text):
        assert words[0] in PROGRAMS.commands, words
        if isinstance(group := PROGRAMS.commands[words[0]], click.Group) and len(words) > 1:
            assert words[1] in group.commands, words
        if words[:2] == ["config", "set"] and not words[2].isupper():
            assert words[2] in {setting.name for setting in TABLE}
        if words[0] == "help" and words[1].islower():
            assert words[1] in topics()


def every(command: click.Command):
    yield command
    for child in command.commands.values() if isinstance(command, click.Group) else ():
        yield from every(child)
