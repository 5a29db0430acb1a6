"""Template cmd: one command is printed, never run, and what it would destroy is said."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminals import PROGRAM

from localllm.cli.answers import Form, report
from localllm.session import templates
from localllm.session.extract import code_block
from localllm.session.shell import destroys, first_command
from localllm.terminal.render import View
from localllm.values import Message, Sampling, TurnEnd, TurnStats

COMMANDS = [
    "ls -la",
    "find . -name '*.log' \\\n  -size +100M",
    "for file in *; do\n  for line in $file; do\n    echo $line\n  done\ndone",
    "if test -f a\nthen\n  cat a\nelse\n  cat b\nfi",
    "cat <<'END' > notes\nI don't know.\nEND",
    "awk '{\n  print $1 # the first\n}' \"a file\"",
    "ps aux |\n  grep python",
    "make &&\n  make install",
    'case "$1" in\n  a) echo a ;;\n  *) echo b ;;\nesac',
    "echo ${#name} done",
]


@given(st.sampled_from(COMMANDS), st.lists(st.sampled_from(COMMANDS), max_size=3), st.sampled_from(["", "\n", "# a\n"]))
def test_the_first_command_is_whole_and_alone(command, others, before):
    """Whatever follows it, with the lines that belong to it and no others."""
    assert first_command(before + "\n".join([command, *others])) == command


@pytest.mark.parametrize("command", COMMANDS)
def test_bash_takes_these_for_commands(command):
    """The commands of these tests are what a shell accepts (bash -n reads, and runs nothing)."""
    assert subprocess.run(["bash", "-n", "-c", command], capture_output=True, timeout=10).returncode == 0


@given(st.text(st.sampled_from("a \n\\'\"|&;#<E(){}$"), max_size=40))
def test_any_text_gives_lines_of_it(text):
    """No text is an error, and what comes out was there (without a prompt and blanks at its ends)."""
    assert first_command(text).strip() in text


def test_a_command_that_has_no_end_takes_no_prose_with_it():
    """A quote that a model forgot to close, and then what it says about its command."""
    assert first_command('grep -r "a" "b\n\nThis command looks for b.\nIn all files.') == 'grep -r "a" "b'
    assert first_command('git commit -m "one\n\ntwo"\n\nThis commits.') == 'git commit -m "one\n\ntwo"'


def test_a_prompt_is_no_part_of_a_command():
    """Models like to write one."""
    assert first_command("$ ls\nfile") == "ls"


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf build",
        "find . -name x -exec rm {} +",
        "find . | xargs rm",
        "sudo /bin/rm x",
        "find . -delete",
        "dd if=a of=/dev/sda",
        "mkfs.ext4 /dev/sdb1",
        "cat image > /dev/nvme0n1",
        "git reset --hard HEAD~1",
        "git clean -fdx",
        "git checkout -- .",
        "git push -f origin main",
        "rsync -a --delete a/ b/",
        "sed -i s/a/b/ file",
        "psql -c 'DROP TABLE a'",
        "docker system prune -a",
    ],
)
def test_what_destroys_is_told(command):
    """Each of the short list, wherever in the command it stands."""
    assert destroys(command)


@pytest.mark.parametrize(
    "command",
    [
        "ls -la",
        "docker run --rm image",
        "grep -r form .",
        "git status",
        "sed s/a/b/ file",
        "git push",
        "ls > list",
        "dd if=/dev/zero bs=1M count=1 | wc",
        "git log --oneline > /dev/null",
        "git checkout main",
    ],
)
def test_what_only_looks_like_it_is_not(command):
    """A warning about everything is read by nobody."""
    assert not destroys(command)


ANSWER = "Sure!\n\n```bash\n# remove them\nrm -r build\nls\n```\n\n```bash\nls\n```\n"


@pytest.mark.parametrize("text", ["'\n", "a|\n", "for\n", "x \\\n", "<<E\n", "git checkout ", "git push clean ", "dd "])
def test_a_long_answer_is_looked_at_in_no_time(text):
    """A model may repeat itself without end: as much as a command can have is looked at, and not in all ways."""
    assert len(first_command(30_000 * text).split("\n")) <= 100
    assert destroys(30_000 * text) == []


def test_of_the_answer_to_cmd_one_command_is_left(capsys):
    """The first of its first block; and a line on stderr says that it removes something."""
    which = templates.load("cmd").extract
    assert code_block(ANSWER, which).code == "rm -r build"
    assert code_block("ls -l\n\nThis lists files.", which).code == "ls -l"
    end = TurnEnd("stop", Message("assistant", ANSWER), TurnStats(*[0] * 9))
    report(end, Form(View.of_terminal(), extract=which), None, usage=False, extract=None)
    assert capsys.readouterr().err == "localllm: it removes or overwrites (rm): read it before you run it\n"


def test_a_model_that_reasons_has_room_for_it():
    """The 200 tokens are for the command; a limit of the user's own, and no limit, stay what they are."""
    filled, chosen = templates.load("cmd").filled({}), Sampling(max_tokens=200)
    assert filled.with_room_to_reason(chosen, "none") == chosen
    assert filled.with_room_to_reason(chosen, "possible").max_tokens > 2000
    assert templates.Template().filled({}).with_room_to_reason(Sampling(max_tokens=5), "open").max_tokens == 5
    assert templates.Template().filled({}).with_room_to_reason(Sampling(), "open") == Sampling()


@pytest.mark.model
def test_a_weak_model_prints_one_command_and_stops(home, smollm2):
    """Of whatever the smallest model writes, after 200 tokens at most; what it is told to remove is still there."""
    (home / "precious").write_text("")
    done = subprocess.run(
        [PROGRAM, "ask", "-m", str(smollm2), "-u", "-t", "cmd", "list files larger than 100 MB"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=home,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0 and first_command(done.stdout) == done.stdout.rstrip("\n"), done
    assert templates.load("cmd").settings["max_tokens"] == 200
    assert Path(home / "precious").exists()
