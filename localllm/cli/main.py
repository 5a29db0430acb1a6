"""The program: which commands there are, and what becomes of an error.

Loads only what every command needs; a command imports its own.
"""

import io
import os
import sys
from typing import Annotated, NoReturn

import click
import typer

from localllm.cli import ask, ceiling, chat, models
from localllm.errors import LocalLLMError, UsageError
from localllm.terminal.safe import one_line

app = typer.Typer(
    name="localllm",
    help="A local assistant on your own machine: chat, one-shot prompts in pipes, and the speed your hardware allows.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"localllm {version('localllm')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _default(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> int:
    """Without a command: chat."""
    return context.invoke(chat.chat) if context.invoked_subcommand is None else 0


app.command("ask")(ask.ask)
app.command("chat")(chat.chat)
app.command("list")(models.list_models)
app.command("ls", hidden=True)(models.list_models)
app.command("pull")(models.pull)
app.command("ceiling")(ceiling.ceiling)


def main() -> NoReturn:
    """Run the program and exit with its documented code (see ``errors``)."""
    arguments = sys.argv[1:]
    code = 1
    try:
        _check_streams()
        code = _run(arguments)
        sys.stdout.flush()
    except LocalLLMError as error:
        code = _fail(error, as_json="--json" in arguments)
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except BrokenPipeError:  # the reader of our output has enough: that ends the work, and is no failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        # Not through click's own main(), which turns a closed pipe into exit code 1.
        with command.make_context("localllm", arguments) as context:
            result = command.invoke(context)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        place = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "localllm"
        raise UsageError(error.format_message().rstrip("."), f"see {place} --help") from error
    return result if isinstance(result, int) else 0


def _check_streams() -> None:
    """Without stdout there is nobody to answer; without stderr, complaints go nowhere."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  (lives as long as the process)
    if sys.stdout is None:
        sys.stdout = sys.stderr
        raise LocalLLMError("stdout is closed", "redirect it to a file or to /dev/null instead")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale may lack a character


def _fail(error: LocalLLMError, as_json: bool) -> int:
    from localllm.terminal.render import dumps

    if as_json:
        print(dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}}))  # noqa: T201
    print(one_line(f"localllm: {error.message}" + (f"; {error.hint}" if error.hint else "")), file=sys.stderr)  # noqa: T201
    return error.exit_code
