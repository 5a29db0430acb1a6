"""``localllm list``, ``pull`` and ``rm``: which models there are, fetching them, and removing them again."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from localllm.cancel import Cancel
from localllm.cli.signals import cancelling
from localllm.errors import UsageError

if TYPE_CHECKING:
    from localllm.app import Capacity
    from localllm.engine.placement import Fit
    from localllm.models.catalog import Catalog, ModelSpec, Source
    from localllm.models.store import LocalModel

_HEADER = ("NAME", "SIZE", "QUANT", "HERE", "FITS", "DRAFT", "FROM")
_COLUMNS = 80  # of a terminal that does not tell

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


app = typer.Typer(rich_markup_mode=None)


@app.command("ls", hidden=True)
@app.command("list")
def list_models(
    pattern: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="Only names that contain this.", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    """List the models on this disk, whoever keeps them, and those of the catalog that can be fetched.

    FITS tells where a model can run on this machine: gpu, gpu+ram, ram, or no. HERE marks with * the default model.
    """
    import json

    from localllm.app import capacity
    from localllm.models.catalog import full_catalog

    machine = capacity()
    entries = [entry for entry in _entries(full_catalog(), machine) if pattern.lower() in entry.name.lower()]
    if as_json:
        objects = [entry.as_object() for entry in entries]
        sys.stdout.write(json.dumps(objects, indent=2) + "\n")
        return
    for line in table([_HEADER, *(entry.as_row() for entry in entries)]):
        sys.stdout.write(line + "\n")


@app.command()
def pull(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Names, or user/repo[:QUANT] of the hub.")],
    draft: Annotated[
        bool | None,
        typer.Option("--draft/--no-draft", help="Also the draft models that make them faster; by default it asks."),
    ] = None,
) -> None:
    """Fetch models, unless they are on this disk already, and print their paths."""
    from localllm.models import store
    from localllm.models.catalog import full_catalog
    from localllm.terminal.progress import download_progress

    cancel, catalog = Cancel(), full_catalog()
    wanted = list(models)
    for name in wanted:
        with cancelling(cancel), download_progress() as on_download:
            model = store.resolve(name, catalog, on_download, cancel)
        sys.stdout.write(f"{model.path}\n")  # once the bar is gone: it takes the lines around it along
        sys.stdout.flush()
        smaller = catalog.get(model.spec.draft) if model.spec and model.spec.draft else None
        missing = smaller and smaller.name not in wanted and not store.find(smaller.name, catalog)
        if smaller and missing and (draft or (draft is None and _wants_draft(model.name, smaller))):
            wanted.append(smaller.name)


def _wants_draft(name: str, smaller: "ModelSpec") -> bool:
    """Ask whether to fetch the draft model too; where nobody can be asked, say how."""
    from localllm.terminal.progress import size_text

    size = f" ({size_text(smaller.file_bytes)})" if smaller.file_bytes else ""
    offer = f"localllm: {smaller.name}{size} can guess ahead for {name} and make it faster"
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        print(f"{offer}: localllm pull {smaller.name}", file=sys.stderr)
        return False
    print(f"{offer}. Fetch it too? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@app.command()
def rm(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Names as in `localllm list`.")],
) -> None:
    """Delete models that localllm has fetched, and say how much that frees.

    Files that other programs keep, and files of your own, are never touched.
    """
    from localllm.models import store
    from localllm.models.catalog import full_catalog
    from localllm.terminal.progress import size_text

    catalog = full_catalog()
    for name in models:
        freed_bytes = store.remove(name, catalog, together_with=models)
        sys.stdout.write(f"{name}: {size_text(freed_bytes)} freed\n")


def address(source: "Source") -> str:
    """Where a model can be fetched from, in a few words."""
    from localllm.models.catalog import FileSource, HubSource, WheelSource

    match source:
        case HubSource():
            return f"hub: {source.repository}"
        case WheelSource():
            return f"package index: {source.requirement}"
        case FileSource():
            return f"file: {source.path}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A model as it is on this disk, or else as its first source would give it."""

    name: str
    file_bytes: int | None
    quantisation: str
    source: str
    fit: "Fit | None"
    spec: "ModelSpec | None"
    local: "LocalModel | None"
    default: bool

    @classmethod
    def here(cls, model: "LocalModel", machine: "Capacity", default: bool) -> "_Entry":
        from localllm.models.catalog import quantisation

        quant, fit = quantisation(model.path.name), machine.fit(model.file_bytes)
        return cls(model.name, model.file_bytes, quant, model.place, fit, model.spec, model, default)

    @classmethod
    def fetchable(cls, spec: "ModelSpec", machine: "Capacity", default: bool) -> "_Entry":
        from localllm.models.catalog import quantisation

        size, quant = spec.file_bytes, quantisation(spec.file_name)
        fit = machine.fit(size) if size else None
        return cls(spec.name, size, quant, address(spec.sources[0]), fit, spec, None, default)

    def as_row(self) -> tuple[str, ...]:
        from localllm.terminal.progress import size_text

        size = size_text(self.file_bytes) if self.file_bytes else ""
        draft = (self.spec and self.spec.draft) or ""
        here = ("yes" if self.local else "") + (" *" if self.default else "")
        return (self.name, size, self.quantisation, here, self.fit or "", draft, self.source)

    def as_object(self) -> dict[str, object]:
        spec = self.spec
        return {
            "name": self.name,
            "description": spec.description if spec else None,
            "path": str(self.local.path) if self.local else None,
            "files": [str(file) for file in self.local.files] if self.local else [],
            "file_bytes": self.file_bytes,
            "quantisation": self.quantisation or None,
            "from": self.source,
            "fits": self.fit,
            "licence": spec.licence if spec else None,
            "draft": spec.draft if spec else None,
            "thinking": spec.thinking if spec else None,
            "own_entry": spec.own if spec else None,
            "default": self.default,
        }


def _entries(catalog: "Catalog", machine: "Capacity") -> Iterator[_Entry]:
    """What is on this disk, then what is not."""
    from localllm.default import default_model
    from localllm.models.store import all_local, find

    local = all_local(catalog)
    try:
        wanted = default_model()
    except UsageError:  # a mistake in the settings: told by what uses them, and in the way of no list
        wanted = ""
    found = find(wanted, catalog) if wanted else None
    for model in local:
        yield _Entry.here(model, machine, default=bool(found and found.path.resolve() == model.path.resolve()))
    present = {model.name for model in local}
    for spec in catalog.values():
        if spec.name not in present:
            yield _Entry.fetchable(spec, machine, default=spec.name == wanted.lower())


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with columns as wide as they need to be; a terminal that is too narrow loses the end of the last ones."""
    from localllm.terminal import folding
    from localllm.terminal.safe import one_line

    yield from folding.table([[one_line(cell) for cell in row] for row in rows], window())


def window() -> int | None:
    """The columns of the terminal on stdout; None where it is a pipe or a file, which gets all.

    $COLUMNS does not count: where a shell exports it, it tells how wide the window once was.
    """
    if not sys.stdout.isatty():
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _COLUMNS
    except OSError:
        return _COLUMNS
