"""``localllm show``: everything that a model's file says about itself, and what the catalog adds."""

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from localllm.cli.models import Json, address, window

if TYPE_CHECKING:
    from localllm.app import Capacity
    from localllm.models.catalog import ModelSpec
    from localllm.models.container import Value
    from localllm.models.gguf import ModelShape
    from localllm.models.store import LocalModel

_MAX_VALUE_CHARS = 200

Facts = dict[str, object]


app = typer.Typer(rich_markup_mode=None)


@app.command()
def show(
    model: Annotated[str, typer.Argument(metavar="NAME|PATH", help="As for `ask -m`.")],
    as_json: Json = False,
) -> None:
    """Show a model: where it is, its shape, its licence, its header and its chat template."""
    import json

    from localllm.app import capacity
    from localllm.models.catalog import full_catalog
    from localllm.models.gguf import read_header, read_metadata
    from localllm.models.store import find, missing
    from localllm.terminal.folding import folded
    from localllm.terminal.safe import safe

    catalog = full_catalog()
    local, spec = find(model, catalog), catalog.get(model)
    if local is None and spec is None:
        raise missing(model, catalog)
    sections: dict[str, Facts] = {"model": _model_facts(local, local.spec if local else spec, capacity())}
    template = ""
    if local:
        shape = read_header(local.path)
        template = shape.chat_template
        sections |= {"shape": _shape_facts(shape), "header": dict(_header(read_metadata(local.path)))}
    if as_json:
        document: Facts = {**sections, "chat_template": template or None}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    columns = window()
    for title, facts in sections.items():
        for line in map(safe, _lines(title, facts)):
            sys.stdout.write((folded(line, columns) if columns else line) + "\n")
    if template:
        sys.stdout.write(f"chat template\n{safe(template)}\n")


def _model_facts(local: "LocalModel | None", spec: "ModelSpec | None", machine: "Capacity") -> Facts:
    from localllm.models.catalog import quantisation

    file_bytes = local.file_bytes if local else spec.file_bytes if spec else None
    file_name = local.path.name if local else spec.file_name if spec else ""
    return {
        "name": local.name if local else spec.name if spec else None,
        "description": spec.description if spec else None,
        "from": local.place if local else address(spec.sources[0]) if spec else None,
        "path": str(local.path) if local else None,
        "parts": len(local.files) if local else None,
        "file_bytes": file_bytes,
        "quantisation": quantisation(file_name) or None,
        "fits": machine.fit(file_bytes) if file_bytes else None,
        "licence": spec.licence if spec else None,
        "draft": spec.draft if spec else None,
        "thinking": spec.thinking if spec else None,
        "sampling": dict(spec.sampling) if spec else None,
        "own_entry": spec.own if spec else None,
    }


def _shape_facts(shape: "ModelShape") -> Facts:
    return {
        "architecture": shape.architecture,
        "quantisation": shape.quantisation,
        "licence": shape.licence or None,
        "layers": shape.n_layers,
        "embedding_length": shape.n_embd,
        "vocabulary": shape.n_vocab,
        "trained_context_tokens": shape.n_ctx_train,
        "kv_heads": max(shape.n_kv_heads, default=0),
        "head_dimensions": f"{shape.head_dim_k} (keys), {shape.head_dim_v} (values)",
        "sliding_window_tokens": shape.sliding_window or None,
        "experts": f"{shape.n_experts_used} of {shape.n_experts} used" if shape.n_experts else None,
        "tied_embeddings": shape.tied_embeddings,
        "weights_bytes": shape.tensor_bytes,
        "weights_read_per_token_bytes": shape.streamed_bytes,
        "kv_cache_per_token_f16_bytes": shape.kv_bytes_per_token("f16"),
        "kv_cache_per_token_q8_0_bytes": shape.kv_bytes_per_token("q8_0"),
    }


def _header(metadata: "Mapping[str, Value]") -> Iterator[tuple[str, object]]:
    """The header's own keys; long lists are counted, and the template has its own place."""
    from localllm.models.container import Array

    for key, value in metadata.items():
        if isinstance(value, Array):
            yield key, list(value.values) if 0 < len(value.values) <= 16 else f"{value.count:,} items"
        elif key != "tokenizer.chat_template":
            yield key, value


def _lines(title: str, facts: Facts) -> Iterator[str]:
    """A block of names and values, aligned; what is not known is left out."""
    from localllm.terminal.progress import size_text
    from localllm.terminal.safe import one_line

    known = {name: value for name, value in facts.items() if value not in (None, {})}
    width = max(map(len, known), default=0)
    yield title
    for name, value in known.items():
        text = one_line(_text(value))
        if title == "header" and len(text) > _MAX_VALUE_CHARS:
            text = text[:_MAX_VALUE_CHARS] + "…"
        size = f" ({size_text(value)})" if name.endswith("_bytes") and isinstance(value, int) else ""
        yield f"  {one_line(name):{width}}  {text}{size}"
    yield ""


def _text(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{name} {item}" for name, item in value.items())
        case _:
            return str(value)
