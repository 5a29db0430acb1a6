"""The program: which commands there are, and what becomes of an error.

Loads only what every command needs; a command imports its own.
"""

import errno
import io
import os
import signal
import sys
from contextlib import suppress
from typing import Annotated, NoReturn

import click
import typer

from localllm.cli import ask, ceiling, chat, models, show
from localllm.errors import Cancelled, LocalLLMError, UsageError
from localllm.terminal.safe import one_line

_OWN_OPTIONS = ("-h", "--help", "--version")
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG)

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


@app.callback()
def _program(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that come before a command."""


app.command("ask")(ask.ask)
app.command("chat")(chat.chat)
app.command("list")(models.list_models)
app.command("ls", hidden=True)(models.list_models)
app.command("show")(show.show)
app.command("pull")(models.pull)
app.command("rm")(models.rm)
app.command("ceiling")(ceiling.ceiling)


def main() -> NoReturn:
    """Run the program and exit with its documented code (see ``errors``)."""
    arguments = sys.argv[1:]
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends us as Ctrl-C does, until a command knows better
    code = 0
    try:
        _check_streams()
        code = _guarded(arguments, as_json="--json" in options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has enough: that ends the work, and is no failure
        pass
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        code = _fail(LocalLLMError(f"the output cannot be written: {error.strerror}"), as_json=False)
    except LocalLLMError as error:
        code = _fail(error, as_json=False)
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)  # all is written; the system frees a model's memory faster than the interpreter would


def _guarded(arguments: list[str], as_json: bool) -> int:
    try:
        return _run(arguments)
    except LocalLLMError as error:
        return _fail(error, as_json)
    except KeyboardInterrupt:
        return _fail(Cancelled("interrupted"), as_json)


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in _OWN_OPTIONS):
        arguments = ["chat", *arguments]
    try:
        # Not through click's own main(), which turns a closed pipe into exit code 1.
        with command.make_context("localllm", arguments) as context:
            result = command.invoke(context)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        place = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "localllm"
        ask = ' (to ask something: localllm ask "…")' if place == "localllm" else ""
        raise UsageError(error.format_message().rstrip("."), f"see {place} --help{ask}") from error
    return result if isinstance(result, int) else 0


def _check_streams() -> None:
    """Without stdout there is nobody to answer; without stderr, complaints go nowhere."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  (lives as long as the process)
    if sys.stdout is None:
        raise LocalLLMError("stdout is closed", "redirect it to a file or to /dev/null instead")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale may lack a character


def _fail(error: LocalLLMError, as_json: bool) -> int:
    from localllm.terminal.render import dumps

    with suppress(OSError):
        print(one_line(f"localllm: {error.message}" + (f"; {error.hint}" if error.hint else "")), file=sys.stderr)
    if as_json:
        with suppress(BrokenPipeError):
            print(dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}}), flush=True)
    return error.exit_code
