"""``localllm list`` and ``localllm pull``: which models there are, and fetching one."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localllm.cancel import Cancel
from localllm.cli.signals import cancelling

if TYPE_CHECKING:
    from localllm.models.catalog import Catalog, ModelSpec

_HEADER = ("NAME", "HERE", "SIZE", "QUANT", "LICENCE", "DRAFT", "DESCRIPTION")


def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects instead of a table.")] = False,
) -> None:
    """List the models that have a name, and which of them are on this disk."""
    import json

    from localllm.models.catalog import load_catalog

    catalog = load_catalog()
    entries = [_Entry.of(spec, catalog) for spec in catalog.values()]
    if as_json:
        objects = [entry.as_object() for entry in entries]
        sys.stdout.write(json.dumps(objects, indent=2, ensure_ascii=False) + "\n")
        return
    rows = [_HEADER, *(entry.as_row() for entry in entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `localllm list`.")],
) -> None:
    """Fetch a model, unless it is on this disk already, and print its path."""
    from localllm.models import store
    from localllm.models.catalog import load_catalog
    from localllm.terminal.progress import download_progress

    cancel = Cancel()
    with cancelling(cancel), download_progress() as on_download:
        model = store.resolve(name, load_catalog(), on_download, cancel)
    sys.stdout.write(f"{model.path}\n")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A model of the catalog as it is on this disk, or else as its first source would give it."""

    spec: "ModelSpec"
    path: Path | None
    file_bytes: int | None
    quantisation: str

    @classmethod
    def of(cls, spec: "ModelSpec", catalog: "Catalog") -> "_Entry":
        from localllm.models import store
        from localllm.models.catalog import quantisation

        local = store.find(spec.name, catalog)
        if local:
            return cls(spec, local.path, local.path.stat().st_size, quantisation(local.path.name))
        return cls(spec, None, spec.file_bytes, quantisation(spec.file_name))

    def as_row(self) -> tuple[str, ...]:
        from localllm.terminal.progress import size_text

        spec = self.spec
        size = size_text(self.file_bytes) if self.file_bytes else ""
        here = "yes" if self.path else ""
        return (spec.name, here, size, self.quantisation, spec.licence, spec.draft or "", spec.description)

    def as_object(self) -> dict[str, object]:
        return {
            "name": self.spec.name,
            "description": self.spec.description,
            "path": str(self.path) if self.path else None,
            "file_bytes": self.file_bytes,
            "quantisation": self.quantisation,
            "licence": self.spec.licence,
            "draft": self.spec.draft,
            "thinking": self.spec.thinking,
        }
