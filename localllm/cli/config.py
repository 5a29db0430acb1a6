"""``localllm config``: every setting, its value and where that comes from; setting, unsetting and editing them."""

import sys
from typing import Annotated

import typer

from localllm import settings
from localllm.cli.group import Commands
from localllm.cli.models import Json, table
from localllm.settings import OTHER_VARIABLES, TABLE, Choice, Setting
from localllm.terminal.safe import one_line, readable

_HEADER = ("SETTING", "VALUE", "FROM")
_SHOWN_CHARS = 60

app = typer.Typer(
    name="config",
    cls=Commands,
    help="What you chose for good: show it, set it, edit it.",
    rich_markup_mode=None,
    invoke_without_command=True,
)

Key = Annotated[str, typer.Argument(metavar="KEY", help="A setting, as `localllm config` lists them.")]


@app.callback()
def show(context: typer.Context, as_json: Json = False) -> None:
    """Show each setting with its value, and where that comes from; change them.

    They are in config.yaml, in $LOCALLLM_… variables, which come before it, and options come before both.
    """
    if context.invoked_subcommand:
        return
    chosen = settings.choices()
    unknown = settings.unknown_variables()
    if as_json:
        import json

        rows = {setting.name: _as_object(setting, chosen.get(setting.name)) for setting in TABLE}
        whole = {"path": str(settings.path()), "settings": rows, "unknown_variables": unknown}
        sys.stdout.write(json.dumps(whole, indent=2) + "\n")
        return
    for line in table([_HEADER, *(_as_row(setting, chosen.get(setting.name)) for setting in TABLE)]):
        sys.stdout.write(line + "\n")
    known = {setting.variable: setting.name for setting in TABLE} | dict.fromkeys(OTHER_VARIABLES, "")
    for name in unknown:
        near = settings.nearest(name, known)
        sys.stdout.write(f"${name} is no setting" + (f"; did you mean ${near}?\n" if near else "\n"))


@app.command()
def path() -> None:
    """Print where config.yaml is, or would be."""
    sys.stdout.write(f"{settings.path()}\n")


@app.command("set")
def set_(
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="As the option takes it; true or false for a switch.")],
) -> None:
    """Write a setting into config.yaml; all else in it stays as it is. A value with a dash goes behind --."""
    from localllm import settings_file

    setting, value = settings.find(key), readable(value)
    settings_file.write(settings_file.changed(setting, setting.parse(value), value))
    _tell_what_holds(setting)


@app.command()
def unset(key: Key) -> None:
    """Take a setting out of config.yaml."""
    from localllm import settings_file

    setting = settings.find(key)
    if setting.name in settings.in_file():
        settings_file.write(settings_file.changed(setting, None))
    _tell_what_holds(setting)


@app.command()
def edit() -> None:
    """Edit config.yaml with $EDITOR. A text with a mistake changes nothing, and is kept to go on with."""
    from localllm import settings_file
    from localllm.cli import editing

    editing.edit(settings.path(), settings_file.template(), settings.in_file, "localllm config edit")


def _tell_what_holds(setting: Setting) -> None:
    chosen = settings.choices().get(setting.name)
    value = setting.shown(chosen.value) if chosen else setting.default_text
    print(one_line(f"localllm: {setting.name}: {value} ({_origin(chosen)})"), file=sys.stderr)


def _origin(chosen: Choice | None) -> str:
    if chosen is None:
        return "default"
    return f"config.yaml:{chosen.line}" if chosen.line else f"${chosen.setting.variable}"


def _as_row(setting: Setting, chosen: Choice | None) -> tuple[str, str, str]:
    value = setting.shown(chosen.value) if chosen else setting.default_text
    value = one_line(readable(value))
    value = value if len(value) <= _SHOWN_CHARS else value[: _SHOWN_CHARS - 1] + "…"
    return setting.name, value, _origin(chosen)


def _as_object(setting: Setting, chosen: Choice | None) -> dict[str, object]:
    return {
        "value": chosen.value if chosen else setting.default,
        "from": "default" if chosen is None else "file" if chosen.line else "environment",
        "line": chosen.line if chosen else None,
        "variable": setting.variable,
        "takes": setting.takes,
        "default": setting.default_text,
        "help": setting.help,
    }
