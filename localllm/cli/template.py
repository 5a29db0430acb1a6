"""``-t`` and ``-p`` of ``ask``, and ``localllm template``: which templates there are, reading and editing them."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from localllm.cli.group import Commands
from localllm.cli.models import Json, table
from localllm.cli.options import given
from localllm.errors import UsageError
from localllm.terminal.safe import readable, safe

if TYPE_CHECKING:
    from localllm.session.templates import Filled

_HEADER = ("NAME", "FROM", "PARAMETERS", "WHAT IT IS FOR")
_NEW = """\
description: What it is for
# system: The system prompt.
# $input is what is piped, attached or asked; $name is a parameter, $$ a dollar sign.
prompt: |
  $input

  Translate the text above into $language.
parameters:
  language:
    description: the language to translate into
    default: English
# Settings, by their names in `localllm config`: model, temp, max_tokens, stop, …
temp: 0.2
# Print only the first or last fenced code block of the answer, or one shell command: first, last, command, none.
extract: none
"""

Template = Annotated[
    str | None,
    typer.Option("--template", "-t", metavar="TEMPLATE", help="A name from `localllm template list`, or a YAML file."),
]
Param = Annotated[
    list[str] | None,  # in truth pairs: typer has no lists of those
    typer.Option(
        "--param",
        "-p",
        metavar="NAME VALUE",
        click_type=click.Tuple([str, str]),
        help="Set a parameter of the template. Repeatable.",
    ),
]

Name = Annotated[str, typer.Argument(metavar="TEMPLATE", help="As for `ask -t`.")]

app = typer.Typer(
    name="template",
    cls=Commands,
    help="Templates for `ask -t`: list, show and edit them.",
    rich_markup_mode=None,
    invoke_without_command=True,
)


def filled_template(name: str | None, pairs: Sequence[Sequence[str]]) -> "Filled":
    """The template that ``ask`` is to use, with its parameters, but without what the command line says itself.

    Raises UsageError where it, or a parameter, is wrong or missing.
    """
    from localllm.session import templates

    if name is None:
        if pairs:
            raise UsageError("-p sets a parameter of a template, and there is none", "name one: -t NAME")
        return templates.Template().filled({})
    filled = templates.load(name).filled({readable(key): readable(value) for key, value in pairs})
    template = filled.template
    left = {key: value for key, value in template.settings.items() if not given(key)}
    system = "" if given("system") else template.system
    return dataclasses.replace(filled, template=dataclasses.replace(template, settings=left, system=system))


@app.callback()
def _list_by_default(context: typer.Context) -> None:
    if not context.invoked_subcommand:
        list_templates()


@app.command("list")
def list_templates(as_json: Json = False) -> None:
    """List the templates: localllm's, and your own, which replace them where they have the same name."""
    import json

    from localllm.session import templates

    found = [_described(name, path) for name, path in templates.known_templates().items()]
    if as_json:
        sys.stdout.write(json.dumps([dataclasses.asdict(one) for one in found], indent=2) + "\n")
        return
    for line in table([_HEADER, *(one.as_row() for one in found)]):
        sys.stdout.write(line + "\n")


@app.command()
def show(name: Name) -> None:
    """Print a template as it is written."""
    from localllm import settings_file
    from localllm.session import templates

    sys.stdout.write(safe(settings_file.text(templates.find(name))))


@app.command()
def path(
    name: Annotated[
        str | None, typer.Argument(metavar="[TEMPLATE]", help="As for `ask -t`.", show_default=False)
    ] = None,
) -> None:
    """Print where a template is, or the folder of your own."""
    from localllm.session import templates

    sys.stdout.write(f"{templates.find(name) if name else templates.user_dir()}\n")


@app.command()
def edit(name: Name) -> None:
    """Edit a template of your own with $EDITOR.

    It begins as the one of this name that localllm comes with. A text with a mistake changes nothing, and is kept to
    go on with.
    """
    from localllm.cli import editing
    from localllm.session import templates

    target = templates.own_path(name)
    editing.edit(target, _begun(name), partial(templates.read, target), f"localllm template edit {name}")


def _begun(name: str) -> str:
    """What a template that is not there yet begins as."""
    from localllm import settings_file
    from localllm.session import templates

    known = templates.known_templates()
    return settings_file.text(known[name]) if name in known else _NEW


@dataclass(frozen=True, slots=True)
class _Listed:
    """A template in the list. ``error`` says why it cannot be used; None where it can."""

    name: str
    path: str
    own: bool
    description: str
    parameters: list[str]
    error: str | None

    def as_row(self) -> tuple[str, ...]:
        origin = "you" if self.own else "localllm"
        return (self.name, origin, " ".join(self.parameters), self.error or self.description)


def _described(name: str, path: Path) -> _Listed:
    from localllm.session import templates

    own = path.parent != templates.BUILT_IN
    try:
        template = templates.read(path)
    except UsageError as error:
        return _Listed(name, str(path), own, "", [], error.message)
    return _Listed(name, str(path), own, template.description, [*template.parameters], None)
