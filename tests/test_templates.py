"""Prompt templates: what is filled in, which files are refused and where, whose word counts, and editing them."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import as_a_user
from hypothesis import given
from hypothesis import strategies as st
from terminals import run_at_terminal

from localllm import config
from localllm.errors import UsageError
from localllm.session import templates
from localllm.session.templates import Parameter, Template

PROGRAM = str(Path(sys.executable).with_name("localllm"))
SHIPPED = ["cmd", "commit", "explain", "review", "summarise"]
TRANSLATE = """\
description: A translation
system: You translate into $language.
prompt: |
  $input

  Translate this into ${language} for $$5.
parameters:
  language:
    description: the language to translate into
  tone: {default: plain}
"""
ANY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20) | st.sampled_from(
    ["$input", "$a $$", "${b}"]
)


@pytest.fixture
def own(home) -> Path:
    """The folder of a user's own templates."""
    folder = config.config_dir() / "templates"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def run(home):
    """Runs ``localllm``; returns the finished process."""

    def run(*arguments, command=(), **options):
        options = {"input": ""} | options
        return subprocess.run([*command, PROGRAM, *arguments], capture_output=True, text=True, timeout=120, **options)

    return run


def read(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return templates.read(path)


# Filling in


@given(values=st.fixed_dictionaries({"a": ANY, "b": ANY}), attached=ANY, request=ANY)
def test_what_is_put_in_is_put_in_as_it_is(values, attached, request):
    """However it looks: a value or a text with ``$name`` in it is no placeholder, and comes out unchanged."""
    parameters = {"a": Parameter(), "b": Parameter()}
    filled = Template("t", system="$a!", prompt="[$a] $$a $input ${b}s", parameters=parameters).filled(values)
    assert filled.question(attached, request) == f"[{values['a']}] $a {attached}\n\n{request} {values['b']}s"
    assert filled.system == f"{values['a']}!"


@given(attached=ANY | st.just(""), request=ANY | st.just(""))
def test_without_input_the_text_goes_before_the_prompt_and_the_words_behind(attached, request):
    """So a document is read first, whatever is asked; the empty template changes nothing."""
    asked = Template("t", prompt="Why?").filled({}).question(attached, request)
    assert asked == "\n\n".join(part for part in (attached, "Why?", request) if part)
    assert Template().filled({}).question(attached, request) == "\n\n".join(filter(None, (attached, request)))


def test_defaults_and_given_values(tmp_path):
    """A given value comes before the default."""
    template = read(tmp_path, "prompt: $a $b\nparameters:\n  a: {default: 1}\n  b: {default: ''}\n")
    assert template.filled({}).question("", "") == "1 "
    assert template.filled({"b": "two"}).question("", "") == "1 two"


@pytest.mark.parametrize(
    ("given", "says", "hint"),
    [
        ({"langauge": "fr"}, "no parameter 'langauge'", "did you mean 'language'? its parameters: language, tone"),
        ({"x": "y", "language": "fr"}, "no parameter 'x'", "its parameters: language, tone"),
        ({"tone": "rude"}, "needs a value for 'language'", "add -p language VALUE (the language to translate into)"),
    ],
)
def test_a_wrong_or_a_missing_parameter_is_told_with_those_there_are(tmp_path, given, says, hint):
    """The nearest name first."""
    with pytest.raises(UsageError) as caught:
        read(tmp_path, TRANSLATE.replace("for $$5", "in a $tone way")).filled(given)
    assert says in caught.value.message and hint in caught.value.hint


# Files


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_template_is_whole(name, home):
    """It says what it is for, asks for a text and can be used without any parameter."""
    template = templates.load(name)
    assert (
        template.description and template.name == name and all(own.description for own in template.parameters.values())
    )
    filled = template.filled({})
    assert filled.needs_input and "the text" in filled.question("the text", "") and "$" not in filled.system


def test_the_shipped_templates_are_these(home):
    """Each is in the list above, and so under test."""
    assert [*templates.known_templates()] == SHIPPED


def test_a_users_own_template_replaces_a_shipped_one(own):
    """And others stand beside them; files that are called otherwise do not."""
    (own / "commit.yaml").write_text("prompt: mine $input\n")
    (own / "other.yaml").write_text("prompt: other\n")
    (own / "draft.yaml.draft").write_text("nothing")
    (own / ".hidden.yaml").write_text("nothing")
    assert [*templates.known_templates()] == sorted([*SHIPPED, "other"])
    assert templates.load("commit").prompt == "mine $input"


@pytest.mark.parametrize("kind", ["no folder", "too long", "locked"])
def test_a_folder_of_templates_that_cannot_be_looked_at_has_none(kind, home, run, monkeypatch):
    """The shipped ones are there all the same."""
    place = home / ("x" * 300 if kind == "too long" else "there")
    if kind == "no folder":
        place.write_text("")
    elif kind == "locked":
        place.mkdir(mode=0)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place))
    done = run("template", "list", command=as_a_user())
    assert done.returncode == 0 and "commit" in done.stdout and not done.stderr


def test_a_template_by_its_path(own, tmp_path, monkeypatch):
    """A slash or the ending tells a path from a name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text("prompt: from the path\n")
    for reference in ("x.yaml", "./x.yaml", str(tmp_path / "x.yaml")):
        assert templates.load(reference).prompt == "from the path"
    with pytest.raises(UsageError, match="there is no template 'x'"):
        templates.load("x")
    with pytest.raises(UsageError, match=r"there is no file './y\.yaml'"):
        templates.load("./y.yaml")


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("description: A", "descripton: A", 1, "unknown key 'descripton'"),
        ("system: You", "system: 5 #", 2, "'5' is not a text"),
        ("into $language.", "into $langauge.", 2, "'$langauge' is not among the parameters ($$ stands for a dollar"),
        ("  $input", "  $input\n  echo $HOME", 5, "'$HOME' is not among the parameters"),
        ("for $$5", "for $5", 6, "'$5.' names no parameter"),
        ("  $input", "\n\n  ${input", 6, "'${input' names no parameter"),
        ("You translate", "$input", 2, "'$input' is not among the parameters"),
        ("    description: the", "    descr: the", 9, "unknown key 'descr'"),
        ("  tone: {", "  input: {", 10, "$input is what is piped"),
        ("  tone: {", "  a-b: {", 10, "'a-b' is not a name"),
        ("  tone: {", "  yes: {", 10, "'yes' is not a name"),
        ("{default: plain}", "plain", 10, "a mapping (key: value) is needed here"),
        ("{default: plain}", "{default: [1]}", 10, "a text is needed here"),
        ("{default: plain}", "{default: plain}\ntemp: 200", 11, "temp is 200"),
        ("{default: plain}", "{default: plain}\ntemp: warm", 11, "temp is 'warm'"),
        ("{default: plain}", "{default: plain}\nmax_tokens: 1.5", 11, "max_tokens is '1.5'"),
        ("{default: plain}", "{default: plain}\nextract: all", 11, "'all' is not first, last, command or none"),
        ("{default: plain}", "{default: plain}\nctx_size: 4096", 11, "unknown key 'ctx_size'"),
        ("{default: plain}", "{default: plain}\nstop: {a: b}", 11, "stop is not one value"),
        ("{default: plain}", "{default: plain}\n  tone:", 11, "'tone' comes twice"),
        ("{default: plain}", "{default: plain", 11, ""),
        ("$tone for", "for", 10, "parameter 'tone' stands nowhere: write $tone in prompt or system"),
    ],
)
def test_a_wrong_template_names_line_and_reason(tmp_path, old, new, line, reason):
    """In one line, of a length that can be read."""
    text = TRANSLATE.replace("for $$5", "$tone for $$5")
    assert old in text
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text.replace(old, new))
    assert caught.value.message.startswith(f"{tmp_path / 'mine.yaml'}, line {line}: {reason}")
    assert "\n" not in caught.value.message and len(caught.value.message) < 300


def test_a_misspelt_key_is_corrected(tmp_path):
    """Each has its nearest."""
    for wrong, right in {
        "promt": "prompt",
        "temperature": "temp",
        "parameter": "parameters",
        "max-tokens": "max_tokens",
    }.items():
        with pytest.raises(UsageError) as caught:
            read(tmp_path, f"{wrong}: 1\n")
        assert caught.value.hint.startswith(f"did you mean {right!r}? there are: ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", ": empty"),
        (b"# nothing\n", ": empty"),
        (b"prompt: " + b"x" * 2**16, ": longer than 65,536 bytes"),
        (b"prompt: a\nsystem: \xff", ", line 2: not UTF-8"),
        (b"[" * 60000, ""),
        (b"a: &a [1]\nb: &b [*a,*a]\nc: [*b,*b]", ", line 1: anchors and aliases are not allowed"),
        (b"!!python/object/apply:os.system ['true']", ", line 1: a mapping"),
        (b"prompt: !!python/name:os.system x", ", line 1: 'x' is not a text"),
    ],
    ids=["empty", "comment", "long", "bytes", "deep", "aliases", "object", "tag"],
)
def test_a_file_that_is_no_template(tmp_path, content, reason):
    """Nothing in it is run, and its size is bounded."""
    with pytest.raises(UsageError) as caught:
        read(tmp_path, content)
    assert caught.value.message.startswith(f"{tmp_path / 'mine.yaml'}{reason}")


@given(st.data())
def test_any_damage_gives_a_template_or_a_refusal(tmp_path_factory, data):
    """Characters removed, inserted or doubled anywhere: a Template that can be filled in or a UsageError, no more."""
    text = data.draw(st.sampled_from([TRANSLATE, *(path.read_text() for path in templates.BUILT_IN.iterdir())]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = (
            text[:at]
            + data.draw(st.sampled_from(["", "$", ":", "\n", " ", "{", "'", "\x00", "&a ", "é"]))
            + text[at + 1 :]
        )
    try:
        template = read(tmp_path_factory.getbasetemp(), text)
    except UsageError as error:
        assert "mine.yaml" in error.message
        return
    template.filled(dict.fromkeys(template.parameters, "x")).question("a", "b")


# The commands


def test_list_shows_all_and_says_what_is_wrong_with_one(run, own):
    """One broken file does not hide the others."""
    (own / "mine.yaml").write_text(TRANSLATE.replace("  tone: {default: plain}\n", ""))
    (own / "review.yaml").write_text("promt: x\n")
    done = run("template", "list")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert [*rows] == ["NAME", *sorted([*SHIPPED, "mine"])]
    assert rows["mine"].split()[1:3] == ["you", "language"] and rows["cmd"].split()[1:3] == ["localllm", "shell"]
    assert f"{own / 'review.yaml'}, line 1: unknown key 'promt'" in rows["review"]
    found = {one["name"]: one for one in json.loads(run("template", "list", "--json").stdout)}
    assert found["mine"]["parameters"] == ["language"] and found["mine"]["own"] and not found["cmd"]["own"]
    assert found["review"]["error"] and found["mine"]["error"] is None


def test_show_and_path(run, own):
    """The file as it is written, without what could steer a terminal, and where it is."""
    (own / "mine.yaml").write_text("# \x1b[31m note\nprompt: x\n")
    assert run("template", "show", "mine").stdout == "# [31m note\nprompt: x\n"
    assert run("template", "show", "commit").stdout == (templates.BUILT_IN / "commit.yaml").read_text()
    assert run("template", "path").stdout == f"{own}\n"
    assert run("template", "path", "mine").stdout == f"{own / 'mine.yaml'}\n"
    missing = run("template", "show", "comit")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "did you mean 'commit'? there are: cmd, commit" in missing.stderr


def editor(tmp_path, script):
    """An editor that runs ``script`` on its file."""
    path = tmp_path / "editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"env": {**os.environ, "EDITOR": shlex.quote(str(path)), "VISUAL": ""}}


def edit(name, **options):
    return run_at_terminal("template", "edit", name, **options)


def test_edit_copies_a_shipped_template_and_leaves_the_shipped_one(own, tmp_path):
    """The editor gets its text under a name that ends in .yaml; what is written is the user's own from then on."""
    done = edit("commit", **editor(tmp_path, 'cp "$1" seen.yaml; echo "seed: 7" >> "$1"'), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, f"localllm: it is in {own / 'commit.yaml'}\n")
    shipped = (templates.BUILT_IN / "commit.yaml").read_text()
    assert (tmp_path / "seen.yaml").read_text() == shipped
    assert (own / "commit.yaml").read_text() == shipped + "seed: 7\n"
    assert templates.load("commit").settings["seed"] == 7


def test_edit_begins_a_new_template_that_works(home, tmp_path):
    """The folder is made where it is not there; without a change there is no file."""
    untouched = edit("mine", **editor(tmp_path, "true"))
    assert (untouched.returncode, untouched.stderr) == (0, "localllm: nothing is changed\n")
    assert not templates.user_dir().exists()
    assert edit("mine", **editor(tmp_path, 'echo "# mine" >> "$1"')).returncode == 0
    assert "into English" in templates.load("mine").filled({}).question("Bonjour", "")


def test_a_mistake_changes_nothing_and_is_kept_to_go_on_with(own, tmp_path):
    """The line is told; the next edit begins with what was written, and once it is right there is no draft."""
    (own / "mine.yaml").write_text("prompt: before\n")
    wrong = edit("mine", **editor(tmp_path, 'echo "promt: x" >> "$1"'))
    assert wrong.returncode == 2 and "mine.yaml, line 2: unknown key 'promt'; did you mean 'prompt'?" in wrong.stderr
    assert (own / "mine.yaml").read_text() == "prompt: before\n"
    assert (own / "mine.yaml.draft").read_text() == "prompt: before\npromt: x\n"
    assert edit("mine", **editor(tmp_path, 'sed -i s/promt/system/ "$1"')).returncode == 0
    assert (own / "mine.yaml").read_text() == "prompt: before\nsystem: x\n"
    assert [path.name for path in own.iterdir()] == ["mine.yaml"]


def test_an_editor_that_fails_and_a_name_that_is_none(own, tmp_path):
    """Nothing is written."""
    assert edit("commit", **editor(tmp_path, "exit 1")).returncode == 2
    done = edit(".b", **editor(tmp_path, "true"))
    assert done.returncode == 2 and "'.b' is no name for a template" in done.stderr
    for name in ("/", "./"):
        done = edit(name, **editor(tmp_path, "true"))
        assert done.returncode == 2 and "is no name for a template" in done.stderr
    assert not [*own.iterdir()]


def test_a_link_into_a_repository_of_dotfiles_stays_one(own, tmp_path):
    """What it leads to is changed."""
    (tmp_path / "dotfile").write_text("prompt: before\n")
    (own / "mine.yaml").symlink_to(tmp_path / "dotfile")
    assert edit("mine", **editor(tmp_path, 'echo "temp: 0" >> "$1"')).returncode == 0
    assert (own / "mine.yaml").is_symlink() and (tmp_path / "dotfile").read_text() == "prompt: before\ntemp: 0\n"


def test_without_a_terminal_no_editor_is_started(run, own, tmp_path):
    """One line with the file that a script can write itself; a draft that is there stays."""
    (own / "mine.yaml.draft").write_text("promt: x\n")
    done = run("template", "edit", "mine", **editor(tmp_path, f"touch {tmp_path}/started"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr == f"localllm: an editor needs a terminal; in scripts write the file itself: {own}/mine.yaml\n"
    assert not (tmp_path / "started").exists() and [path.name for path in own.iterdir()] == ["mine.yaml.draft"]


# Asking by one


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-p", "a", "b", "hi"], "there is none; name one: -t NAME"),
        (["-t", "comit", "hi"], "did you mean 'commit'?"),
        (["-t", "commit"], "there is no text for template 'commit'; pipe it in"),
        (["-t", "commit", "-p", "a", "b", "hi"], "has no parameter 'a'; its parameters: none"),
        (["-t", "commit", "-p", "a"], "requires 2 arguments"),
        (["-t", "", "hi"], "there is no template ''"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(run, arguments, says):
    """Before anything is loaded."""
    done = run("ask", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.model
def test_a_template_asks_what_it_says(run, own, smollm2, monkeypatch):
    """The answer is that to the filled-in prompt; its settings come before config.yaml, and options before it."""
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))
    (own.parent / "config.yaml").write_text("max_tokens: 3\nthreads: 2\ndraft: off\nsystem: Be rude.\n")
    (own / "mine.yaml").write_text(TRANSLATE.replace("  tone: {default: plain}\n", "") + "max_tokens: 9\ntemp: 0\n")
    plain = ("-s", "You translate into French.", "--temp", "0", "--max-tokens", "9")
    wanted = run("ask", "The river\n\nhere\n\nTranslate this into French for $5.", *plain).stdout
    call = ("ask", "-t", "mine", "-p", "language", "French", "here", "--json")
    found = json.loads(run(*call, input="The river").stdout)
    assert found["answer"] + "\n" == wanted and found["stats"]["output_tokens"] == 9
    assert json.loads(run(*call, "--max-tokens", "4", input="The river").stdout)["stats"]["output_tokens"] == 4


@pytest.mark.model
def test_a_template_extracts_and_an_option_prevents_it(run, own, smollm2, monkeypatch):
    """Without a block its whole answer is printed, and that is no news; with --no-extract it always is."""
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))
    (own / "code.yaml").write_text(
        "prompt: $input\nextract: first\ntemp: 0\nmax_tokens: 30\nmodel: " + str(smollm2) + "\n"
    )
    hello = "Write a hello world program in Python"
    whole = run("ask", "-t", "code", "--no-extract", hello).stdout
    block = run("ask", "-t", "code", hello)
    assert (block.returncode, block.stderr) == (0, "") and whole.startswith(f"```python\n{block.stdout}```")
    none = run("ask", "-t", "code", "Name three colours.")
    assert (none.returncode, none.stderr) == (0, "") and none.stdout.startswith("1. Red")
