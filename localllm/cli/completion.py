"""``localllm completion``: scripts that let a shell complete our command lines, and the answers that they ask for.

A script runs the program with $_LOCALLLM_COMPLETE set to its shell and the words so far as arguments; what fits is
printed, one on each line. Where nothing is, the shell offers files; an empty line says that there are to be none. What
a parameter takes is known by its metavar, so a command that calls it as the others do has its completion already.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Literal

import click
import typer
from click.utils import make_default_short_help

from localllm.cli.main import COMPLETION_VARIABLE, OWN_OPTIONS
from localllm.config import data_dir
from localllm.errors import LocalLLMError
from localllm.settings import SETTINGS, TABLE
from localllm.terminal.safe import one_line

_FILES = ("PATH", "FILE", "MODEL", "TEMPLATE")  # in metavars of options that take the name of a file
_NO_FILES = "nothing"  # the type of the item that says so
_WHOLE = 1000  # characters: no sentence is cut
_UNSAFE_IN_BASH = " \t\"'`$&|;<>()[]{}*?!#\\"

Candidate = tuple[str, str]  # the word, and what it is
NO_FILES: Candidate = ("", "no file either")

_SCRIPTS = {
    "bash": f"""\
# Completion for localllm in bash. Put this where bash-completion looks for it:
#   localllm completion bash > ~/.local/share/bash-completion/completions/localllm
_localllm_completion() {{
    local word
    COMPREPLY=()
    while IFS= read -r word; do
        [[ $word ]] && COMPREPLY+=("$word") || compopt +o bashdefault +o default 2>/dev/null
    done < <({COMPLETION_VARIABLE}=bash command "$1" "${{COMP_LINE:0:COMP_POINT}}" "$COMP_WORDBREAKS" 2>/dev/null)
}}
complete -o bashdefault -o default -o nosort -F _localllm_completion localllm 2>/dev/null ||
    complete -o bashdefault -o default -F _localllm_completion localllm  # bash before 4.4
""",
    "zsh": f"""\
#compdef localllm
# Completion for localllm in zsh. Put this into a folder of your $fpath, before compinit runs:
#   localllm completion zsh > ~/.zfunc/_localllm
_localllm() {{
    local word help
    local -a words_found lines no_files
    while IFS=$'\\t' read -r word help; do
        [[ -n $word ]] || {{ no_files=1; continue }}
        words_found+=("$word")
        lines+=("$word${{help:+  -- $help}}")
    done < <({COMPLETION_VARIABLE}=zsh command "${{words[1]}}" "${{(@Q)words[1,CURRENT]}}" 2>/dev/null)
    if (( $#words_found )); then
        compadd -V localllm -l -d lines -a words_found
    elif (( ! $#no_files )); then
        _files
    fi
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _localllm "$@"
else
    compdef _localllm localllm
fi
""",
    "fish": f"""\
# Completion for localllm in fish:
#   localllm completion fish > ~/.config/fish/completions/localllm.fish
function __localllm_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (env {COMPLETION_VARIABLE}=fish $words[1] $words "$current" 2>/dev/null)
    if test "$found" = ""; and set -q found[1]
        return
    else if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete --command localllm --no-files --keep-order --arguments '(__localllm_complete)'
""",
}


app = typer.Typer(rich_markup_mode=None)


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script to complete commands, options, models, templates, conversations, files; it says where it goes."""
    sys.stdout.write(_SCRIPTS[shell])


def answer(program: click.Group, shell: str, arguments: list[str]) -> int:
    """Print what could stand in the place of the last word; see the scripts for the ``arguments``."""
    line = arguments[0] if shell == "bash" and arguments else ""
    words = _words(line) if shell == "bash" else arguments
    current = words[-1] if words else ""
    with suppress(LocalLLMError):  # a person who types gets no complaints between the keys
        found = candidates(program, words[1:-1], current)
        if found == [NO_FILES]:
            print()
            return 0
        for word, help_text in found:
            if word != one_line(word):  # a name from somebody's file that would mean something to the shell
                continue
            if shell == "bash":
                print(_for_bash(word, current, line, "".join(arguments[1:])))
            else:
                print(f"{word}\t{one_line(make_default_short_help(help_text, _WHOLE))}".rstrip("\t"))
    return 0


def candidates(program: click.Group, before: Sequence[str], current: str) -> list[Candidate]:
    """What could stand in the place of ``current``, behind the words ``before``; only NO_FILES where nothing is known.

    Raises what reading catalogs does.
    """
    from click.shell_completion import ShellComplete

    before, prefix = list(before), ""
    if current.startswith("--") and "=" in current:
        option, _, current = current.partition("=")
        before, prefix = [*before, option], f"{option}="
    _teach(program)
    shell = ShellComplete(program, {}, "localllm", COMPLETION_VARIABLE)
    found = [] if before[:1] and before[0] in OWN_OPTIONS else [before]
    if (before and before[0].startswith("-")) or (not before and current.startswith("-")):
        found = [["chat", *before], *([] if before else found)]  # what is meant where no command is named
    items = [item for words in found for item in shell.get_completions(words, current)]
    if items and all(item.type == _NO_FILES for item in items):
        return [NO_FILES]
    words = [(prefix + item.value, item.help or "") for item in items if item.value.startswith(current)]
    return list({word: (word, text) for word, text in words}.values())


def _teach(program: click.Command) -> None:
    """Let each parameter that takes one of our names complete it."""
    for parameter in program.params:
        source = _SOURCES.get(parameter.name or "") or _SOURCES.get((parameter.metavar or "").strip("[]."))
        if getattr(parameter, "is_flag", False) or isinstance(parameter.type, click.Choice | click.Tuple):
            continue
        takes_files = any(word in (parameter.metavar or "") for word in _FILES)
        if source or (isinstance(parameter, click.Option) and not takes_files):
            parameter.type = _Names(source)
    if isinstance(program, click.Group):
        for command in program.commands.values():
            _teach(command)


class _Names(click.ParamType):  # type: ignore[type-arg]
    """Takes any text, and completes what ``source`` knows; where there is none, nothing, and no files either."""

    name = "text"

    def __init__(self, source: "Callable[[click.Context], Iterable[Candidate]] | None") -> None:
        self._source = source

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> "list[click.shell_completion.CompletionItem[str]]":
        """What begins like the word does."""
        from click.shell_completion import CompletionItem

        if self._source is None:
            return [CompletionItem("", type=_NO_FILES)]
        return [CompletionItem(word, help=text) for word, text in self._source(ctx) if word.startswith(incomplete)]


def _models(context: click.Context) -> Iterator[Candidate]:
    """The models on this disk; and, except to remove them, those of the catalog."""
    from localllm.models.catalog import full_catalog
    from localllm.models.store import all_local

    catalog = full_catalog()
    here = dict.fromkeys(model.name for model in all_local(catalog))
    yield from ((name, "on this disk") for name in here)
    if context.info_name not in ("rm", "clear"):
        yield from ((spec.name, spec.description) for spec in catalog.values() if spec.name not in here)


def _drafts(context: click.Context) -> Iterator[Candidate]:
    yield from ((choice, "") for choice in SETTINGS["draft"].choices)
    yield from _models(context)


def _templates(_: click.Context) -> Iterator[Candidate]:
    from localllm.session import templates

    for name, path in templates.known_templates().items():
        try:
            yield name, templates.read(path).description
        except LocalLLMError as error:
            yield name, error.message


def _conversations(_: click.Context) -> Iterator[Candidate]:
    """Those that were kept, the last one first."""
    from localllm.session.transcripts import Transcripts

    with Transcripts.open_to_read(data_dir()) as transcripts:
        yield from ((one.id, one.title) for one in transcripts.newest())


def _settings(_: click.Context) -> Iterator[Candidate]:
    yield from ((setting.name, setting.help) for setting in TABLE)


def _values(context: click.Context) -> Iterator[Candidate]:
    """What the setting takes that stands before it, as in ``config set KEY VALUE``."""
    setting = SETTINGS.get(context.params.get("key") or "")
    if setting is None:
        return
    yield from ((word, "") for word in setting.words)
    if setting.kind == "model":
        yield from _models(context)


def _topics(context: click.Context) -> Iterator[Candidate]:
    from localllm.cli.help import topics

    yield from topics().items()
    program = context.find_root().command
    if isinstance(program, click.Group):
        yield from ((name, command.help or "") for name, command in program.commands.items() if not command.hidden)


_SOURCES: "dict[str, Callable[[click.Context], Iterable[Candidate]]]" = {  # by name, or else by metavar
    "template": _templates,
    "TEMPLATE": _templates,
    "NAME|PATH": _models,
    "MODEL": _models,
    "MODEL|auto|ngram|off": _drafts,
    "ID": _conversations,
    "KEY": _settings,
    "TOPIC": _topics,
    "VALUE": _values,
}


def _words(line: str) -> list[str]:
    """The words of a command line in bash, the last one unfinished; without the assignments before the command."""
    from click.shell_completion import split_arg_string

    words = split_arg_string(f"{line}.")  # so that there is a last word also behind a space
    words[-1] = words[-1].removesuffix(".")
    begin = next((index for index, word in enumerate(words) if "=" not in word), 0)
    return words[begin:]


def _for_bash(word: str, current: str, line: str, breaks: str) -> str:
    """What readline is to put in the place of what it takes for the current word, which begins behind a break."""
    if line.endswith(current) and line[: len(line) - len(current)].endswith(('"', "'")):
        return word  # inside quotes nothing breaks, and nothing needs a backslash
    begin = max((current.rfind(mark) for mark in breaks if not mark.isspace()), default=-1) + 1
    return "".join(f"\\{mark}" if mark in _UNSAFE_IN_BASH else mark for mark in word[begin:])
