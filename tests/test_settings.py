"""Settings: the table, config.yaml and its lines, the environment, which of them holds, and ``localllm config``."""

import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from terminals import PROGRAM, run_at_terminal

from localllm import settings_file
from localllm.cli.main import program
from localllm.default import default_model
from localllm.errors import UsageError
from localllm.settings import SETTINGS, TABLE, Setting, choices, in_file, unknown_variables

# Options of ask, chat and cache warm that are no settings, and why.
NO_SETTINGS = {
    "file": "what is asked about",
    "words": "what is asked",
    "json": "says who reads the answer",
    "raw": "belongs to the prompt",
    "template": "belongs to the prompt",
    "param": "belongs to the template",
    "extract": "belongs to the prompt; a template can choose it",
    "extract_last": "as extract",
    "schema": "belongs to the prompt",
    "choice": "belongs to the prompt",
    "continue_": "names a conversation",
    "cid": "names a conversation",
    "interactive": "says who reads the answer",
    "quiet": "would hide for good what must be known",
}


@pytest.fixture
def config(home) -> Path:
    """Where config.yaml would be; there is none yet."""
    path = home / ".config" / "localllm" / "config.yaml"
    path.parent.mkdir(parents=True)
    return path


def run(*arguments, **environment):
    return subprocess.run(
        [PROGRAM, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def refused(*arguments, **environment) -> str:
    result = run(*arguments, **environment)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result
    return result.stderr


def commands():
    group = program()
    return [group.commands["ask"], group.commands["chat"], group.commands["cache"].commands["warm"]]


# --- the table


def test_every_option_is_a_setting_or_has_a_reason_not_to_be():
    """A new option of ask or chat must be put into the table, or among those that are none."""
    options = {option.name for command in commands() for option in command.params} - {"help"}
    assert options == ({setting.name for setting in TABLE} - {"cache_size"}) | NO_SETTINGS.keys()


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_the_table_says_what_the_options_say(command):
    """Type, choices, default and help of each setting are those of the option of its name."""
    kinds = {"integer": "integer", "number": "float", "switch": "boolean", "choice": "choice"}
    for option in command.params:
        if setting := SETTINGS.get(option.name):
            assert f"--{setting.name.replace('_', '-')}" in option.opts
            assert option.type.name == kinds.get(setting.kind, "text")
            assert option.help == setting.help
            if setting.kind == "choice":
                assert tuple(option.type.choices) == setting.choices
            if setting.name not in ("model", "stop"):  # None there means: as the table says
                assert option.default == setting.default
            if setting.kind == "switch":
                assert option.secondary_opts, "what is chosen for good must be possible to take back"


values = {
    "integer": st.integers(),
    "number": st.floats(),
    "switch": st.booleans(),
    "texts": st.lists(st.text(), max_size=3).map(tuple),
    "size": st.integers(0, 10**15),
    "text": st.text(),
    "model": st.text(),
    "choice": st.text(),
}


@st.composite
def chosen(draw, among=TABLE) -> tuple[Setting, object]:
    """A setting and a value that it takes."""
    setting = draw(st.sampled_from(among))
    if (setting.choices and draw(st.booleans())) or setting.kind == "choice":
        return setting, draw(st.sampled_from(setting.choices))
    if setting.limits and setting.kind == "integer":
        return setting, draw(st.integers(*setting.limits))
    if setting.limits:
        return setting, draw(st.floats(*setting.limits))
    if setting.kind == "texts":
        return setting, draw(st.lists(st.text(min_size=1), max_size=3).map(tuple))
    return setting, draw(values[setting.kind])


@given(chosen())
def test_what_is_shown_can_be_typed(pair):
    """A value in the words that show it is that value again."""
    setting, value = pair
    assert setting.parse(setting.shown(value)) == value


@given(st.sampled_from(TABLE), st.text() | st.floats().map(str) | st.integers().map(str) | st.just("9" * 5000))
def test_any_text_is_a_value_in_range_or_refused_in_one_line(setting, text):
    """No text whatsoever ends in another exception, or in a value outside the range that the table gives."""
    try:
        value = setting.parse(text)
    except UsageError as error:
        assert error.hint
        return
    setting.check(value)
    if setting.limits:
        assert setting.limits[0] <= value <= setting.limits[1]


# --- where a value comes from


def test_an_option_comes_before_the_environment_and_that_before_the_file(config, monkeypatch):
    """Each of the eight combinations of a file, a variable and an option."""
    seen = []
    command = program().commands["ask"]
    monkeypatch.setattr(command, "callback", lambda **values: seen.append(values["threads"]))
    for n in range(8):
        config.write_text("threads: 1\n" if n & 1 else "")
        monkeypatch.setenv("LOCALLLM_THREADS", "2" if n & 2 else "")
        with command.make_context("ask", ["--threads", "3"] if n & 4 else []) as context:
            command.invoke(context)
    assert seen == [None, 1, 2, 2, 3, 3, 3, 3]


@pytest.mark.model
def test_settings_reach_the_model(config, smollm2):
    """A prompt with settings answers as the same prompt with options does; an option takes a switch back."""
    flags = ("--temp", "0", "--max-tokens", "4", "--system", "Be brief.", "--stop", ",", "--usage", "--no-cache")
    question = ("--exact", "--seed", "3", "Name three colours.")
    wanted = run("ask", "-m", str(smollm2), *flags, *question)
    config.write_text(
        f"model: {smollm2}\ntemp: 0\nmax_tokens: 4\nsystem: Be brief.\nstop: [',']\nusage: true\ncache: false\n"
    )
    got = run("ask", *question)
    assert (got.returncode, got.stdout) == (0, wanted.stdout) and got.stdout
    assert "context" in got.stderr and "seed 3" in got.stderr
    assert run("ask", "--no-usage", *question).stderr == ""


def test_the_default_model_is_a_setting_for_every_command(config, monkeypatch):
    """The file's, or the variable's; an empty variable is none."""
    assert default_model() == "smollm2-135m"
    config.write_text("model: one\n")
    monkeypatch.setenv("LOCALLLM_MODEL", "")
    assert default_model() == "one"
    monkeypatch.setenv("LOCALLLM_MODEL", "two")
    assert default_model() == "two"


# --- what makes no sense


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("temp: 0.5\nseed: 1\ntop_p: 2\n", "line 3: top_p is 2.0, which is out of range; choose a value from 0 to 1"),
        ("temp: hot", "line 1: temp is 'hot'; give a number"),
        ("# a\nseed: 1.5", "line 2: seed is '1.5'; give a whole number"),
        ("exact: maybe", "line 1: exact is 'maybe'; give true or false"),
        ("kv: q4", "line 1: kv is 'q4'; give one of f16, q8_0, q4_0"),
        ("temperature: 1", "line 1: there is no setting 'temperature'; did you mean 'temp'?"),
        ("top-p: 1", "line 1: there is no setting 'top-p'; did you mean 'top_p'?"),
        ("xyz: 1", "line 1: there is no setting 'xyz'; see: localllm config"),
        ("temp: 1\ntemp: 2", "line 2: 'temp' comes twice"),
        ("temp: [1]", "line 1: temp is not one value; give 0 to 100"),
        ("system: {a: b}", "line 1: system is not one value; give a text"),
        ("stop: ['']", "line 1: a stop string is empty"),
        ("stop: [[a]]", "line 1: stop is not one value"),
        ("cache_size: much", "line 1: 'much' is not a size of a cache"),
        ("- temp", "line 1: a mapping (key: value) is needed here"),
        ("temp: &a 1\nseed: *a", "line 1: anchors and aliases are not allowed"),
        ("temp: 'x", "line 1: while scanning a quoted scalar"),
        (b"temp: 1\n\xff", "line 2: not UTF-8"),
        (b"x" * 70_000, "longer than 65,536 bytes"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(config, content, says):
    """One line with file and line, exit 2, for whatever is wrong, before a model is looked for."""
    config.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert f"localllm: {config}" in (line := refused("ask", "hi", LOCALLLM_MODEL="/none")) and says in line
    assert line == refused("config")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("TEMP", "nan", "$LOCALLLM_TEMP: temp is nan, which is out of range; choose a value from 0 to 100"),
        ("THREADS", "0", "$LOCALLLM_THREADS: threads is 0, which is out of range; choose a value from 1 to 512"),
        ("SEED", "9" * 400, "$LOCALLLM_SEED: seed is 999"),
        ("EXACT", "2", "$LOCALLLM_EXACT: exact is '2'; give true or false"),
        ("ON_OVERFLOW", "front", "give one of head, tail, middle"),
        ("STOP", "[1]", "$LOCALLLM_STOP: stop is '[1]'; give one text, or a JSON list of texts"),
        ("CACHE_SIZE", "-1", "$LOCALLLM_CACHE_SIZE: '-1' is not a size of a cache; give 0 to 1 PB"),
    ],
)
def test_a_mistake_in_the_environment_is_told_with_its_variable(home, name, text, says):
    """As one in the file is."""
    assert says in refused("ask", "hi", **{f"LOCALLLM_{name}": text})


def test_what_turns_out_wrong_later_says_where_it_was_chosen(config):
    """A model that is not there: named by the option, nothing is added; by a setting, the place is."""
    assert "set in" not in run("ask", "-m", "nosuch", "hi").stderr
    config.write_text("seed: 1\nmodel: nosuch\n")
    assert run("ask", "hi").stderr.endswith(f"model is set in {config}, line 2\n")
    assert run("ask", "hi", LOCALLLM_MODEL="/none.gguf").stderr.endswith("model is set in $LOCALLLM_MODEL\n")


@pytest.mark.parametrize("command", [("ask", "--help"), ("list",), ("config", "path")])
def test_a_mistake_stops_only_what_uses_settings(config, command):
    """Help, and what has no settings, work whatever the file holds."""
    config.write_text("nonsense")
    assert run(*command).returncode == 0


# --- the environment


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), max_size=3))
def test_lists_come_whole_through_the_environment(stops):
    """As JSON, whatever the texts hold: spaces, line breaks, brackets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALLLM_STOP", json.dumps(stops, ensure_ascii=False))
        assert choices()["stop"].value == tuple(stops)


@pytest.mark.parametrize("word", ["true", "True", "yes", "on", "1"])
def test_switches_in_words(home, monkeypatch, word):
    monkeypatch.setenv("LOCALLLM_EXACT", word)
    assert choices()["exact"].value is True


def test_unknown_variables_are_listed(home, monkeypatch):
    """They may be slips: config names them, with what they may have meant; what others read is no slip."""
    monkeypatch.setenv("LOCALLLM_TMEP", "1")
    monkeypatch.setenv("LOCALLLM_BACKEND", "cuda")
    assert unknown_variables() == ["LOCALLLM_TMEP"]
    result = run("config")
    assert result.stdout.endswith("\n$LOCALLLM_TMEP is no setting; did you mean $LOCALLLM_TEMP?\n")
    assert json.loads(run("config", "--json").stdout)["unknown_variables"] == ["LOCALLLM_TMEP"]


# --- localllm config


def test_config_shows_values_and_origins(config):
    """As a table with columns, and as JSON with values of their own types."""
    config.write_text("# mine\nthreads: 3\nsystem: |\n  two\n  lines\n")
    environment = {"LOCALLLM_CACHE_SIZE": "2GB", "LOCALLLM_EXACT": "1"}
    rows = run("config", **environment).stdout.splitlines()
    assert {line.split()[0] for line in rows} == {"SETTING", *SETTINGS}
    column = rows[0].index("FROM")
    assert {line[column - 2 : column] for line in rows} == {"  "}
    cells = {line.split()[0]: (line[:column].split(maxsplit=1)[1].strip(), line[column:]) for line in rows}
    assert cells["threads"] == ("3", "config.yaml:2") and cells["system"] == ("two lines", "config.yaml:3")
    assert cells["cache_size"] == ("2GB", "$LOCALLLM_CACHE_SIZE") and cells["exact"] == ("true", "$LOCALLLM_EXACT")
    assert cells["kv"] == ("f16", "default") and cells["temp"] == ("the model's, else 0.8", "default")
    whole = json.loads(run("config", "--json", **environment).stdout)
    assert whole["path"] == str(config) and [*whole["settings"]] == [*SETTINGS]
    found = {name: (row["value"], row["from"], row["line"]) for name, row in whole["settings"].items()}
    assert found["threads"] == (3, "file", 2) and found["system"] == ("two\nlines\n", "file", 3)
    assert found["cache_size"] == (2_000_000_000, "environment", None) and found["stop"] == ([], "default", None)


def test_control_characters_of_the_file_reach_no_terminal(config):
    config.write_text('system: "\\e[31mred\\u202e"\n')
    assert "\x1b" not in run("config").stdout and "\u202e" not in run("config").stdout


def test_set_and_unset(config):
    """The value holds from then on; what comes before it is told."""
    config.parent.rmdir()  # there is not even a folder
    result = run("config", "set", "temp", "0.3")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "localllm: temp: 0.3 (config.yaml:1)\n")
    assert config.read_text() == "temp: 0.3\n"
    assert run("config", "set", "temp", "0.4", LOCALLLM_TEMP="1").stderr == "localllm: temp: 1 ($LOCALLLM_TEMP)\n"
    assert config.read_text() == "temp: 0.4\n"
    assert "(default)" in run("config", "unset", "temp").stderr and config.read_text() == ""
    assert run("config", "unset", "temp").returncode == 0
    for arguments in (("temp", "hot"), ("tmep", "1"), ("kv", "q3"), ("stop", "")):
        refused("config", "set", *arguments)
    assert config.read_text() == "" and [*config.parent.iterdir()] == [config]


def test_set_leaves_link_mode_and_a_file_with_a_mistake_alone(config, home):
    """A link into somebody's dotfiles stays one, permissions stay; nothing is written over what cannot be read."""
    real = home / "dotfiles.yaml"
    real.write_text("# mine\n")
    real.chmod(0o600)
    config.symlink_to(real)
    assert run("config", "set", "seed", "1").returncode == 0
    assert config.is_symlink() and real.read_text() == "# mine\nseed: 1\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    real.write_text("tmep: 1\n")
    assert f"{config}, line 1" in refused("config", "set", "seed", "2")
    assert real.read_text() == "tmep: 1\n"


def test_a_layout_that_lines_cannot_change_is_left_alone(config):
    """Told, and what edits it as a whole."""
    for content, key in (
        ("{temp: 1}\n", "kv"),
        ("? temp\n: 1\n", "temp"),
        ("temp: 1\n...\n", "kv"),
        ("  temp: 1\n", "kv"),
    ):
        config.write_text(content)
        assert "use: localllm config edit" in refused("config", "set", key, "f16" if key == "kv" else "2")
        assert config.read_text() == content


comment = st.sampled_from(["", "# a comment: 1", " # indented", "#temp: 3", "# ü \U0001f600"])


def quoted(value) -> str:
    return yaml.dump(value, default_style='"', default_flow_style=True, width=float("inf")).strip()


LAID_OUT = [SETTINGS[name] for name in ("stop", "system", "model", "temp", "kv")]  # one of each way to write a value


@st.composite
def documents(draw) -> tuple[str, dict[str, object]]:
    """A file as people write them, and what it means; each setting in one of YAML's ways."""
    lines, meaning, newline = [], {}, draw(st.sampled_from(["\n", "\r\n"]))
    for setting, value in draw(st.lists(chosen(LAID_OUT), max_size=4, unique_by=lambda pair: pair[0].name)):
        lines += draw(st.lists(comment, max_size=2))
        behind = draw(st.sampled_from(["", "  # why"]))
        if isinstance(value, tuple) and value and draw(st.booleans()):
            items = [f"{draw(st.sampled_from(['', '  ']))}- {quoted(item)}" for item in value]
            indent = items[0][: items[0].index("-")]
            lines += [f"{setting.name}:{behind}", *(indent + item.strip() for item in items)]
        elif setting.kind == "text" and draw(st.booleans()):
            value = draw(st.sampled_from(["one", "one\ntwo", "a # no comment"]))
            lines += [f"{setting.name}: |-{behind}", *(f"  {line}" for line in value.splitlines())]
        elif setting.kind in ("text", "model", "texts"):
            lines.append(f"{setting.name}: {quoted(list(value) if isinstance(value, tuple) else value)}{behind}")
        else:
            lines.append(f"{setting.name}:   {setting.shown(value)}{behind}")
        meaning[setting.name] = value
    lines += draw(st.lists(comment, max_size=1))
    return newline.join([*lines, *draw(st.sampled_from([[""], []]))]), meaning


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=documents(), change=chosen(LAID_OUT), gone=st.booleans())
def test_changing_one_setting_changes_nothing_else(config, document, change, gone):
    """Whatever the layout: every comment and every other line is there byte for byte, and only that setting differs."""
    content, meaning = document
    config.write_bytes(content.encode())
    (setting, value), before = change, in_file()
    assert {name: choice.value for name, choice in before.items()} == meaning
    after = settings_file.changed(setting, None if gone else value)
    wanted = {**meaning, setting.name: value}
    if gone:
        del wanted[setting.name]
    assert {name: choice.value for name, choice in in_file(after).items()} == wanted
    for line in content.splitlines():
        if line.lstrip().startswith("#") or (line.partition(":")[0] in meaning.keys() - {setting.name}):
            assert after.count(line) == content.count(line)
    if not gone:
        assert after.count("# why") == content.count("# why") or setting.kind in ("text", "texts")
    elif setting.name not in meaning:
        assert after == content


# --- localllm config edit


def editor(home: Path, code: str) -> str:
    """An editor that runs Python code with ``path``, the file to edit."""
    script = home / "editor.py"
    script.write_text(f"import pathlib, sys\npath = pathlib.Path(sys.argv[1])\n{code}\n")
    return f"{sys.executable} {script}"


def edit(editor: str) -> subprocess.CompletedProcess[str]:
    """``config edit`` in a terminal."""
    return run_at_terminal("config", "edit", env={**os.environ, "EDITOR": editor, "VISUAL": ""})


def edit_refused(editor: str) -> str:
    result = edit(editor)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result
    return result.stderr


def test_edit_begins_with_every_setting_as_a_comment(config, home):
    """Each line of it holds once its # is taken away; one that is left as it was writes nothing."""
    kept = home / "seen"
    code = f"pathlib.Path({str(kept)!r}).write_text(path.read_text())"
    assert edit(editor(home, code)).returncode == 0 and not config.exists()
    named = [line for line in kept.read_text().splitlines() if line.endswith(":")]
    assert [line.removeprefix("# ").removesuffix(":") for line in named] == [*SETTINGS]
    code = "path.write_text(path.read_text().replace('# seed:', 'seed: 4'))"
    assert edit(editor(home, code)).returncode == 0
    assert in_file()["seed"].value == 4


def test_an_edited_text_with_a_mistake_changes_nothing_and_is_kept(config, home):
    """Its line is told, and the next edit goes on with it."""
    config.write_text("# mine\ntemp: 1\n")
    line = edit_refused(editor(home, "path.write_text('# new\\ntemp: 2\\nsed: 1\\n')"))
    assert f"{config}, line 3: there is no setting 'sed'; did you mean 'seed'?" in line
    assert config.read_text() == "# mine\ntemp: 1\n" and str(config.with_name("config.yaml.draft")) in line
    code = "path.write_text(path.read_text().replace('sed:', 'seed:'))"
    assert edit(editor(home, code)).returncode == 0
    assert config.read_text() == "# new\ntemp: 2\nseed: 1\n" and [*config.parent.iterdir()] == [config]


def test_edit_does_not_undo_what_somebody_else_changed_meanwhile(config, home):
    """Both are there: theirs in the file, ours in the draft."""
    config.write_text("temp: 1\n")
    code = f"path.write_text('temp: 2\\n'); pathlib.Path({str(config)!r}).write_text('temp: 3\\n')"
    assert "changed by somebody else" in edit_refused(editor(home, code))
    assert config.read_text() == "temp: 3\n"
    assert config.with_name("config.yaml.draft").read_text() == "temp: 2\n"


@pytest.mark.parametrize("end", ["stdin", "stdout"])
def test_without_a_terminal_no_editor_is_started(config, home, end):
    """One line with the file that a script can write itself; one end in a terminal is not enough."""
    ours, theirs = pty.openpty()
    ends = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL} | {end: theirs}
    environment = {**os.environ, "EDITOR": editor(home, "path.write_text('temp: 1')"), "VISUAL": ""}
    command = [PROGRAM, "config", "edit"]
    result = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=60, **ends)
    for descriptor in (ours, theirs):
        os.close(descriptor)
    told = f"localllm: an editor needs a terminal; in scripts write the file itself: {config}\n"
    assert (result.returncode, result.stderr) == (2, told) and not config.exists()


def test_a_file_that_may_not_be_written(config):
    """Told, exit 1; nothing half is left."""
    config.write_text("")
    config.unlink()
    config.parent.rmdir()
    config.parent.write_text("a file in the place of the folder")
    result = run("config", "set", "seed", "1")
    assert result.returncode == 1 and "cannot write" in result.stderr and result.stderr.count("\n") == 1
