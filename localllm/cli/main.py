"""The program: which commands there are, and what becomes of an error.

Loads only what every command needs; a command imports its own.
"""

import errno
import io
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Annotated, NoReturn

import click
import typer

from localllm.cli.group import Commands
from localllm.cli.signals import interrupt_on_signals
from localllm.errors import EXIT_CODES, Cancelled, LocalLLMError, OutOfMemory, UsageError
from localllm.terminal.safe import one_line

COMPLETION_VARIABLE = "_LOCALLLM_COMPLETE"
OWN_OPTIONS = ("-h", "--help", "--version")
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG)

_ABOUT = "A local assistant on your own machine: chat, one-shot prompts in pipes, and the speed your hardware allows."
_MODULES = {  # the commands, in the order of the help, and the module of each
    "ask": "ask",
    "chat": "chat",
    "list": "models",
    "ls": "models",
    "show": "show",
    "pull": "models",
    "rm": "models",
    "ceiling": "ceiling",
    "doctor": "doctor",
    "cache": "cache",
    "history": "history",
    "config": "config",
    "template": "template",
    "completion": "completion",
    "help": "help",
}


def program(command: str | None = None) -> click.Group:
    """The whole command line, or only what it takes for one command: all others cost a start 20 ms."""
    app = typer.Typer(
        name="localllm",
        cls=Commands,
        help=_ABOUT,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_program)
    alone = command in _MODULES and command != "help"  # which tells of the others
    modules = [_MODULES[command]] if alone and command else dict.fromkeys(_MODULES.values())
    for name in modules:
        app.add_typer(import_module(f"localllm.cli.{name}").app)
    return typer.main.get_group(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"localllm {version('localllm')}")
        raise typer.Exit


def _program(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that come before a command."""


class _Stderr(io.TextIOWrapper):
    """stderr may be full or have lost its reader: the answer goes on without it."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def main() -> NoReturn:
    """Run the program and exit with its documented code (see ``errors``)."""
    arguments = sys.argv[1:]
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    code = 0
    try:
        interrupt_on_signals()
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
    except KeyboardInterrupt:  # a second one, while the first is told
        code = EXIT_CODES["interrupted"]
    sys.stderr.flush()
    os._exit(code)  # all is written; the system frees a model's memory faster than the interpreter would


def _guarded(arguments: list[str], as_json: bool) -> int:
    try:
        return _run(arguments)
    except LocalLLMError as error:
        return _fail(error, as_json)
    except KeyboardInterrupt:
        return _fail(Cancelled("interrupted"), as_json)
    except MemoryError:
        return _fail(OutOfMemory("there is not enough memory", "close other programs, or give less text"), as_json)


def _run(arguments: list[str]) -> int:
    if shell := os.environ.get(COMPLETION_VARIABLE):
        from localllm.cli import completion

        return completion.answer(program(), shell, arguments)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in OWN_OPTIONS):
        arguments = ["chat", *arguments]
    try:
        # Not through click's own main(), which turns a closed pipe into exit code 1.
        group = program(arguments[0])
        with group.make_context("localllm", arguments) as context:
            result = group.invoke(context)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        known = arguments[0] in _MODULES
        place = f"localllm {arguments[0]}" if known else "localllm"
        message = error.format_message().rstrip(".?").replace("a valid float", "a number")
        message = message.replace("a valid integer", "a whole number")
        raise UsageError(message, f"see {place} --help{_advice(error, place)}") from error
    return result if isinstance(result, int) else 0


def _advice(error: click.ClickException, place: str) -> str:
    """What a person who got this error may have meant: a question that was taken for a command or an option."""
    if place == "localllm":
        return ' (to ask something: localllm ask "…")'
    if place == "localllm ask" and isinstance(error, click.NoSuchOption):
        return ' (a question that begins with a dash: localllm ask -- "-5 + 3?")'
    return ""


def _check_streams() -> None:
    """Without stdout there is nobody to answer; without stderr, complaints go nowhere."""
    complaints = sys.stderr.buffer if sys.stderr else open(os.devnull, "wb")  # noqa: SIM115, PTH123  (never closed)
    encoding = sys.stderr.encoding if sys.stderr else None
    sys.stderr = _Stderr(complaints, encoding, "replace", line_buffering=True)
    if sys.stdout is None:
        raise LocalLLMError("stdout is closed", "redirect it to a file or to /dev/null instead")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale may lack a character


def _fail(error: LocalLLMError, as_json: bool) -> int:
    from localllm.terminal.render import dumps

    print(one_line(f"localllm: {error.message}" + (f"; {error.hint}" if error.hint else "")), file=sys.stderr)
    if as_json:
        with suppress(BrokenPipeError):
            print(dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}}), flush=True)
    return error.exit_code
