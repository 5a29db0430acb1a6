"""The recipes of README.md: each block is run as it stands there, with the real model, in a folder of its own."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt

from localllm import config
from localllm.session import templates

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
HOOK = ".git/hooks/prepare-commit-msg"
pytestmark = pytest.mark.model


class Recipe(NamedTuple):
    language: str
    text: str

    @property
    def title(self) -> str:
        """Its first comment."""
        return next(line for line in self.text.splitlines() if line[0] in '#"' and line[1] == " ").lstrip('#" ')


def recipes() -> list[Recipe]:
    section = (ROOT / "README.md").read_text().partition("\n### Recipes\n")[2].partition("\n## ")[0]
    return [Recipe(token.info, token.content) for token in MarkdownIt().parse(section) if token.type == "fence"]


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def subject(folder: Path) -> str:
    return subprocess.run(
        ["git", "log", "-1", "--format=%s"], cwd=folder, capture_output=True, text=True
    ).stdout.strip()


def a_commit(folder: Path) -> None:
    assert subject(folder) not in ("", "begin")


def one_answer_for_each_word(folder: Path) -> None:
    """Three words, three lines: had the first call read stdin, there would be one."""
    assert len(lines_of(folder / "answers.txt")) == 3


def the_selected_lines_changed(folder: Path) -> None:
    *changed, last = lines_of(folder / "letter.txt")
    assert last == "Yours" and "".join(changed) not in ("", "Teh river runs to the see.")


# What each recipe leaves behind, by the first words of its title.
OUTCOMES: dict[str, Callable[[Path], None]] = {
    "Code into a file": lambda folder: compile((folder / "hello.py").read_text(), "hello.py", "exec"),
    "A commit message": a_commit,
    "Line by line": one_answer_for_each_word,
    "The same with xargs": one_answer_for_each_word,
    "Each file by itself": lambda folder: [lines_of(folder / f"{name}.txt.summary")[0] for name in ("notes", "letter")],
    "Several files": lambda folder: lines_of(folder / "answer.txt")[0],
    "Another way": lambda folder: lines_of(folder / "title.txt")[0],
    "The selected lines": the_selected_lines_changed,
    "A Makefile": lambda folder: lines_of(folder / "summary.txt")[0],
    ".git/hooks/prepare-commit-msg": a_commit,
    "crontab -e": lambda folder: lines_of(folder / "summary.txt")[0],
}


@pytest.fixture
def folder(home, smollm2, monkeypatch) -> Path:
    """A git repository with a change, some texts, and an environment in which localllm is on the PATH."""
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))
    for name, value in {
        "LOCALLLM_MAX_TOKENS": "24",
        "LOCALLLM_TEMP": "0",
        "LOCALLLM_CACHE_SIZE": "0",
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "GIT_EDITOR": "true",
        **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }.items():
        monkeypatch.setenv(name, value)
    own = config.config_dir() / "templates"  # the shipped ones, but that no answer becomes long
    own.mkdir(parents=True)
    for template in templates.BUILT_IN.iterdir():
        (own / template.name).write_text(re.sub("max_tokens: .*", "max_tokens: 12", template.read_text()))
    folder = home / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("The river runs to the sea, and the sea gives it back to the clouds.\n")
    (folder / "words.txt").write_text("hot\nhigh\nyoung\n")
    (folder / "letter.txt").write_text("Teh river runs to the see.\nYours\n")
    (folder / "mean.py").write_text("def mean(values):\n    return sum(values) / len(values)\n")
    for arguments in ("init -q", "add mean.py", "commit -q -m begin"):
        subprocess.run(["git", *arguments.split()], cwd=folder, check=True)
    (folder / "mean.py").write_text("def mean(values):\n    return sum(values) / len(values) if values else 0.0\n")
    return folder


def prepared(recipe: Recipe, folder: Path) -> list[str]:
    """The command that a person would give to use the recipe."""
    match recipe.language:
        case "vim":
            (command,) = [line for line in recipe.text.splitlines() if not line.startswith('"')]
            keys = ("1", "normal! V", 'exe "normal! \\<Esc>"', command, "wq")
            return ["vim", "-Nu", "NONE", "-n", "-es", "letter.txt", *(word for key in keys for word in ("-c", key))]
        case "make":
            (folder / "Makefile").write_text(recipe.text)
            return ["make", "-s"]
        case "crontab":
            when_and_what = recipe.text.splitlines()[1].split(None, 5)
            command = when_and_what[5].replace("/home/me", str(folder)).replace("/usr/local/bin", str(BIN))
            kept = [f"{name}={os.environ[name]}" for name in os.environ if name.startswith(("LOCALLLM_", "PYTHON"))]
            own = [f"XDG_{kind}_HOME={folder / kind}" for kind in ("CACHE", "CONFIG", "DATA")]
            return ["env", "-i", *kept, *own, "sh", "-c", command]
        case "sh" if HOOK in recipe.text:
            (folder / HOOK).write_text(recipe.text)
            (folder / HOOK).chmod(0o755)
            return ["git", "commit", "-q", "-a"]
    return ["sh", "-e", "-c", recipe.text]


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.title[:24])
def test_a_recipe_does_what_it_says(recipe, folder, monkeypatch):
    """It ends with exit code 0 and leaves what it promises."""
    if "answers.txt" in recipe.text:
        monkeypatch.setenv("LOCALLLM_STOP", "\n")  # one line for each answer
    if recipe.language == "vim" and not shutil.which("vim"):
        pytest.skip("there is no vim")
    (outcome,) = [outcome for begun, outcome in OUTCOMES.items() if recipe.title.startswith(begun)]
    command = prepared(recipe, folder)
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    outcome(folder)
