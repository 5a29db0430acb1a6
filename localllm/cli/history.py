"""``localllm history``: the conversations that were kept: listing, reading, searching, exporting, removing them."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from localllm.cli import options
from localllm.cli.group import Commands
from localllm.cli.models import Json, table
from localllm.errors import UsageError
from localllm.terminal.safe import safe

if TYPE_CHECKING:
    from localllm.session.transcripts import Conversation, Summary, Transcripts

_HEADER = ("ID", "LAST", "MESSAGES", "TITLE")
_LIMIT = 20

Id = Annotated[str, typer.Argument(metavar="ID", help="Of `localllm history list`; its beginning is enough.")]
LastId = Annotated[
    str | None,
    typer.Argument(metavar="[ID]", help="As of `history list`; without one, the last.", show_default=False),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", help="At most so many.", min=1)]

app = typer.Typer(
    name="history",
    cls=Commands,
    help="The conversations that were kept: list, show, search, export and remove them.",
    rich_markup_mode=None,
    no_args_is_help=False,
    invoke_without_command=True,
)


@app.callback()
def history(context: typer.Context) -> None:
    """List the last conversations; or what a command says."""
    if not context.invoked_subcommand:
        list_conversations()


@app.command("list")
def list_conversations(limit: Limit = _LIMIT, as_json: Json = False) -> None:
    """List the conversations, the last one first."""
    with _stored() as transcripts:
        found, total = transcripts.newest(limit), transcripts.count()
    if as_json:
        _print_json([_as_object(summary) for summary in found])
        return
    for line in table([_HEADER, *map(_row, found)]) if found else ():
        sys.stdout.write(line + "\n")
    if total > len(found):
        print(f"localllm: {total - len(found):,} older ones; --limit N shows more", file=sys.stderr)
    elif not total:
        print("localllm: nothing was kept yet", file=sys.stderr)


app.command("ls", hidden=True)(list_conversations)


@app.command(cls=options.SettingsCommand)
def show(id: LastId = None, as_json: Json = False, color: options.Color = "auto") -> None:
    """Show a conversation: the last one, or another."""
    from localllm.session import portable
    from localllm.terminal.history_view import as_text
    from localllm.terminal.render import wants_color

    document = portable.of_stored(_found(id))
    if as_json:
        sys.stdout.write(portable.as_json(document))
    else:
        sys.stdout.writelines(as_text(document, wants_color(color)))


@app.command(cls=options.SettingsCommand)
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS...", help="All of them, in any case and order.")],
    limit: Limit = _LIMIT,
    as_json: Json = False,
    color: options.Color = "auto",
) -> int:
    """Search the conversations, the best first. Exit code 1 where nothing is found.

    Of each word the beginning is enough. Found are messages that have all the words. A pipe gets each conversation on
    one line, with a tab before what was found.
    """
    from localllm.terminal.history_view import highlighted
    from localllm.terminal.render import wants_color

    with _stored() as transcripts:
        found = transcripts.search(words, limit)
    if as_json:
        _print_json([_as_object(one) | {"snippet": highlighted(place, color=False)} for one, place in found])
        return 0 if found else 1
    between = "\n    " if sys.stdout.isatty() else "\t"
    for one, place in found:
        (line,) = table([_row(one)])
        sys.stdout.write(f"{line}{between}{highlighted(place, wants_color(color))}\n")
    if not found:
        print("localllm: nothing was found", file=sys.stderr)
    return 0 if found else 1


@app.command()
def export(
    id: Id,
    markdown: Annotated[bool, typer.Option("--md", help="As Markdown; the default.")] = False,
    as_json: Json = False,
) -> None:
    """Write a conversation to stdout, as Markdown or JSON, as /save does; /load reads the JSON."""
    from localllm.session import portable

    if markdown and as_json:
        raise UsageError("--md and --json exclude each other", "give one of them")
    document = portable.of_stored(_found(id))
    sys.stdout.write(portable.as_json(document) if as_json else safe(portable.as_markdown(document)))


@app.command()
def rm(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...", help="Of `localllm history list`; their beginnings are enough.", show_default=False
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every conversation.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove conversations; no trace of their text stays in the file.

    What was typed in chats is also in their input history (the file chat_history beside it), and what was read in the
    prefix cache: `localllm cache clear` removes that.
    """
    from localllm import config
    from localllm.session.transcripts import Transcripts

    if bool(ids) == every:
        raise UsageError("what is to be removed is not clear", "give IDs of `localllm history list`, or --all")
    with _stored() as stored:
        chosen = stored.newest() if every else [stored.find(id).summary for id in ids or ()]
    if chosen and not (yes or _agreed(chosen)):
        return
    if chosen:
        with Transcripts.open(config.data_dir()) as transcripts:
            transcripts.remove(one.id for one in chosen)
    count = len({one.id for one in chosen})
    sys.stdout.write("1 conversation removed\n" if count == 1 else f"{count:,} conversations removed\n")


def _agreed(chosen: "Sequence[Summary]") -> bool:
    """Ask whether these are to go. Raises UsageError where nobody can answer."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("removing asks first, and nobody can answer here", "give --yes")
    for line in table([_row(one) for one in chosen[:_LIMIT]]):
        print(line, file=sys.stderr)
    more = f" ({len(chosen) - _LIMIT:,} more)" if len(chosen) > _LIMIT else ""
    print(f"localllm: remove these{more}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _row(summary: "Summary") -> tuple[str, ...]:
    from localllm.session.portable import when

    return summary.id, when(summary.updated_s), f"{summary.messages:,}", summary.title


def _as_object(summary: "Summary") -> dict[str, object]:
    from localllm.session.portable import about

    return about(summary) | {"messages": summary.messages}


def _found(id: str | None) -> "Conversation":
    with _stored() as transcripts:
        if id is not None:
            return transcripts.find(id)
        if newest := transcripts.newest(1):
            return transcripts.load(newest[0].id)
    raise UsageError("nothing was kept yet", "begin a conversation: localllm chat")


def _stored() -> "Transcripts":
    from localllm import config
    from localllm.session.transcripts import Transcripts

    return Transcripts.open_to_read(config.data_dir())


def _print_json(value: object) -> None:
    import json

    sys.stdout.write(json.dumps(value, indent=2) + "\n")
