"""``localllm help``: topics, whose texts are in data/help, and the help of commands.

What a text lists from the program itself (exit codes, settings, keys, paths) is put in when it is shown, so that it
stays true: see ``_PARTS``.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import click
import typer

from localllm import config, settings
from localllm.errors import CUT_FORM, ENDINGS, EXIT_CODES, Cancelled, LocalLLMError, UsageError
from localllm.terminal.safe import safe

_FOLDER = Path(__file__).parent.parent / "data" / "help"
_COLUMNS = 80

VARIABLES: Final = {
    "LOCALLLM_BACKEND": "the backend that `scripts/localllm` compiles llama.cpp for",
    "PYTHON": "the Python that `scripts/localllm` makes its environment with",
    "HF_TOKEN HF_HOME HF_ENDPOINT HF_HUB_OFFLINE": "as in every program that fetches from the Hugging Face hub",
    "HTTPS_PROXY HTTP_PROXY NO_PROXY": "as in every program that uses the network",
    "XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME": "where settings, the cache and data lie",
    "VISUAL EDITOR": "the editor of Ctrl-G in a chat and of `config edit` and `template edit`; vi if neither is set",
    "NO_COLOR": "no colours, unless --color says otherwise",
}


class ExitRow(NamedTuple):
    """A way to end: its exit code, and in ``--json`` the key and value that tell it."""

    exit_code: int
    key: str
    value: str
    meaning: str


app = typer.Typer(rich_markup_mode=None)


@app.command("help")
def show_help(
    context: typer.Context,
    topic: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="A topic, or a command.", show_default=False),
    ] = None,
) -> None:
    """Explain a topic or a command; without one, list the topics."""
    program, words = context.find_root(), topic or []
    texts = [] if words else ["localllm help TOPIC explains:\n\n" + _columns(topics().items())]
    if len(words) == 1 and words[0] in topics():
        texts.append(_text(words[0]))
    if usage := _usage(program, words):
        texts.append(usage)
    if not texts:
        raise _unknown(" ".join(words), program.command)
    sys.stdout.write("\n\n".join(safe(text.rstrip("\n")) for text in texts) + "\n")


def topics() -> dict[str, str]:
    """The topics by name, each with its title."""
    return {file.stem: file.read_text("utf-8").partition("\n")[0] for file in sorted(_FOLDER.glob("*.txt"))}


def exit_rows() -> list[ExitRow]:
    """Every way to end, by exit code."""
    rows = [ExitRow(code, "finish_reason", reason, ENDINGS[reason]) for reason, code in EXIT_CODES.items()]
    rows.append(ExitRow(EXIT_CODES["context"], "finish_reason", "length", CUT_FORM))
    errors: list[type[LocalLLMError]] = [LocalLLMError, *_descendants(LocalLLMError)]
    for error in errors:
        known_by = ["timeout", "interrupted"] if error is Cancelled else [error.code]  # only instances of it have one
        meaning = (error.__doc__ or "").partition("\n")[0]
        rows += (ExitRow(EXIT_CODES.get(code, error.exit_code), "error.code", code, meaning) for code in known_by)
    return sorted(rows)


def _descendants(error: type[LocalLLMError]) -> Iterator[type[LocalLLMError]]:
    for child in error.__subclasses__():
        yield child
        yield from _descendants(child)


def _usage(context: click.Context, words: Sequence[str]) -> str:
    """What ``--help`` says of the command that the words call; "" where there is none."""
    for word in words:
        group = context.command
        command = group.commands.get(word) if isinstance(group, click.Group) else None
        if command is None:
            return ""
        context = click.Context(command, context, word)
    return context.get_help()


def _unknown(name: str, program: click.Command) -> UsageError:
    commands = program.commands if isinstance(program, click.Group) else {}
    near = settings.nearest(name, {**topics(), **commands})
    hint = f"did you mean {near!r}?" if near else "see: localllm help"
    return UsageError(f"there is no topic and no command {name!r}", hint)


def _text(topic: str) -> str:
    text = (_FOLDER / f"{topic}.txt").read_text("utf-8")
    for name, part in _PARTS.items():
        if f"{{{{{name}}}}}" in text:
            text = text.replace(f"{{{{{name}}}}}", part())
    return text


def _columns(rows: Iterable[tuple[str, str]]) -> str:
    """Two columns; what is too long for the second goes on below it."""
    import textwrap

    rows = list(rows)
    width = max(len(left) for left, _ in rows) + 4
    lines: list[str] = []
    for left, right in rows:
        first, *more = textwrap.wrap(right, _COLUMNS - width)
        lines += [f"  {left}".ljust(width) + first, *(" " * width + line for line in more)]
    return "\n".join(lines) + "\n"


def _exit_codes() -> str:
    rows = exit_rows()
    return _columns((f"{row.exit_code:3}  {row.key.partition('.')[0]} {row.value}", row.meaning) for row in rows)


def _settings() -> str:
    return _columns((one.name, f"{one.help} ({one.takes})") for one in settings.TABLE)


def _variables() -> str:
    return _columns((names.replace(" ", ", "), text.replace("`", "")) for names, text in VARIABLES.items())


def _keys() -> str:
    from localllm.terminal.commands import help_text

    return help_text()


_PARTS: "Final[dict[str, Callable[[], str]]]" = {
    "exit-codes": _exit_codes,
    "settings": _settings,
    "variables": _variables,
    "keys": _keys,
    "config": lambda: str(settings.path()),
    "cache": lambda: str(config.cache_dir()),
    "templates": lambda: str(config.config_dir() / "templates"),
    "data": lambda: str(config.data_dir()),
    "prefix": lambda: str(config.prefix_dir()),
}
