"""``localllm cache``: what the prompt-prefix cache holds, reading something in ahead, and removing it again."""

import dataclasses
import datetime
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from localllm.cancel import Cancel
from localllm.cli import options
from localllm.cli.first_run import choose_default
from localllm.cli.group import Commands
from localllm.cli.models import Json, table
from localllm.cli.signals import cancelling
from localllm.errors import UsageError
from localllm.terminal.inputs import attached_text
from localllm.terminal.safe import one_line, readable
from localllm.values import Message, Sampling, TurnEnd

if TYPE_CHECKING:
    from localllm.engine.prefix_store import Entry

_HEADER = ("MODEL", "TOKENS", "SIZE", "HITS", "USED", "TEXT")
_PREVIEW_CHARS = 48

app = typer.Typer(
    name="cache",
    cls=Commands,
    help="What was read before and need not be read again: show it, warm it, verify it, clear it.",
    rich_markup_mode=None,
    invoke_without_command=True,
)


@app.callback()
def show(context: typer.Context, as_json: Json = False) -> None:
    """Show what the prompt-prefix cache holds: for each text that begins differently, tokens, size, hits, last use.

    It holds what was typed, in effect. --no-cache leaves it alone, `localllm cache clear` removes it,
    $LOCALLLM_CACHE_SIZE bounds it (0 turns it off).
    """
    if context.invoked_subcommand:
        return
    import json

    from localllm import settings
    from localllm.terminal.progress import size_text

    found = sorted(_prefixes(), key=lambda prefix: -prefix.used_s)
    used_bytes, budget_bytes = sum(prefix.bytes for prefix in found), settings.prefix_budget_bytes()
    if as_json:
        objects = [dataclasses.asdict(prefix) for prefix in found]
        whole = {"bytes": used_bytes, "budget_bytes": budget_bytes, "prefixes": objects}
        sys.stdout.write(json.dumps(whole, indent=2) + "\n")
        return
    rows = [prefix.as_row() for prefix in found]
    for line in table([_HEADER, *rows]) if rows else ():
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"{size_text(used_bytes)} of at most {size_text(budget_bytes)}\n")


@app.command(cls=options.SettingsCommand)
def warm(
    model: options.Model = None,
    system: options.System = "",
    file: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", metavar="PATH", help="Read this file in ahead; - is stdin. Repeatable."),
    ] = None,
    ctx_size: options.CtxSize = None,
    kv: options.Kv = "f16",
    gpu_layers: options.GpuLayers = None,
    threads: options.Threads = None,
) -> None:
    """Read a system prompt and files in ahead, so that `ask` with the same ones begins to answer at once."""
    from localllm.app import open_engine
    from localllm.terminal.progress import download_progress

    cancel = Cancel()
    text = attached_text(file or (), cancel, lambda line: print(f"localllm: {line}", file=sys.stderr))
    system = readable(system)
    if not (text.strip() or system.strip()):
        raise UsageError("there is nothing to read in", "give --system, --file or piped text")
    settings = options.settings_from(ctx_size, kv, gpu_layers, threads, "off", exact=False, cache=True)
    choose_default(model)
    with cancelling(cancel):
        with download_progress() as on_download:
            engine = open_engine(model, settings, on_download, cancel)
        messages = [*([Message("system", system)] if system else []), Message("user", text)]
        prompt = engine.encode(messages, cancel)
        *_, end = engine.reply(prompt, Sampling(temperature=0, max_tokens=1), cancel)
        cancel.check()
        engine.keep()
    assert isinstance(end, TurnEnd)
    stats = end.stats
    sys.stdout.write(f"{stats.prompt_tokens:,} tokens, {stats.cached_tokens:,} of them were there already\n")


@app.command()
def verify() -> int:
    """Check every block that is stored, and remove what is damaged. Exit code 1 where there was any."""
    from localllm import config
    from localllm.engine import prefix_store

    whole, damaged = 0, 0
    for _, entry in prefix_store.entries(config.prefix_dir()):
        if not entry.key:  # being written
            continue
        if prefix_store.intact(entry):
            whole += 1
        else:
            damaged += 1
            prefix_store.remove(entry)
    sys.stdout.write(f"{whole:,} blocks are whole" + (f", {damaged:,} were not and are gone\n" if damaged else "\n"))
    return 1 if damaged else 0


@app.command()
def clear(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Only what belongs to this model.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove what is stored, and say how much that frees."""
    from localllm import config
    from localllm.engine import prefix_store
    from localllm.terminal.progress import size_text

    found = [entry for _, entry in prefix_store.entries(config.prefix_dir())]
    if model:
        found = [entry for entry in found if (prefix_store.described(entry) or {}).get("model") == model]
    size = size_text(sum(entry.file_bytes for entry in found))
    if not yes:
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError("clearing asks first, and nobody can answer here", "give --yes")
        print(f"localllm: remove {size}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return
    freed_bytes = sum(map(prefix_store.remove, found))
    sys.stdout.write(f"{size_text(freed_bytes)} freed\n")


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A first block and all that follows it. ``used_s`` is in seconds since 1970."""

    model: str
    text: str
    tokens: int
    blocks: int
    bytes: int
    hits: int
    used_s: float

    def as_row(self) -> tuple[str, ...]:
        from localllm.terminal.progress import size_text

        used = f"{datetime.datetime.fromtimestamp(self.used_s):%Y-%m-%d %H:%M}"
        text = one_line(" ".join(self.text.split()))
        text = text if len(text) <= _PREVIEW_CHARS else f"…{text[1 - _PREVIEW_CHARS :]}"  # many begin alike
        return (self.model, f"{self.tokens:,}", size_text(self.bytes), f"{self.hits:,}", used, text)


def _prefixes() -> Iterator[_Prefix]:
    """What is stored, by its first block."""
    from localllm import config
    from localllm.engine import prefix_store

    blocks = {(fingerprint, entry.key): entry for fingerprint, entry in prefix_store.entries(config.prefix_dir())}
    families: dict[tuple[str, str], list[Entry]] = {}
    for (fingerprint, _), entry in blocks.items():
        first, seen = entry, {entry.key}
        while (fingerprint, first.parent) in blocks and first.parent not in seen:
            seen.add(first.parent)
            first = blocks[fingerprint, first.parent]
        families.setdefault((fingerprint, first.key), []).append(entry)
    for name, family in families.items():
        about = prefix_store.described(blocks[name]) or {}
        yield _Prefix(
            model=about.get("model", "?"),
            text=about.get("text", ""),
            tokens=sum(entry.tokens for entry in family),
            blocks=len(family),
            bytes=sum(entry.file_bytes for entry in family),
            hits=blocks[name].hits,
            used_s=max(entry.used_s for entry in family),
        )
