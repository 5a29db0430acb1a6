"""Shapes of the catalog's models, for questions about one that is not on this disk.

Knows data/shapes.csv: layers, bytes, and what a token leaves in the KV cache, each as its publisher or the header of
the file has it. A file on the disk knows better: see ``gguf``.
"""

import csv
import functools
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).parent.parent / "data" / "shapes.csv"


@dataclass(frozen=True, slots=True)
class KnownShape:
    """What is known of a catalog model in one quantisation; None or 0 where something is not.

    ``estimated``: the bytes were computed from the number of parameters.

    ``kv_values`` is how many numbers a token leaves in the caches of layers that look at everything,
    ``window_values`` in those that look at ``window`` tokens only. ``streamed_bytes`` are read for a token.
    """

    name: str
    quantisation: str
    n_layers: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    weights_bytes: int
    streamed_bytes: int
    kv_values: int | None
    window_values: int
    window: int
    n_experts: int
    n_experts_used: int
    expert_bytes: int
    recurrent: bool
    latent: bool
    estimated: bool


def known_shape(name: str) -> KnownShape | None:
    """The shape of a catalog model, by its name there."""
    return _table().get(name.lower())


@functools.cache
def _table() -> dict[str, KnownShape]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {fields["model"]: _shape(fields) for fields in csv.DictReader(file)}


def _shape(fields: dict[str, str]) -> KnownShape:
    def number(name: str) -> int:
        return int(fields[name] or 0)

    return KnownShape(
        name=fields["model"],
        quantisation=fields["quantisation"],
        n_layers=number("layers"),
        n_embd=number("embedding"),
        n_vocab=number("vocabulary"),
        n_ctx_train=number("trained_ctx"),
        weights_bytes=number("weights_bytes"),
        streamed_bytes=number("streamed_bytes"),
        kv_values=number("kv_values") if fields["kv_values"] else None,
        window_values=number("window_values"),
        window=number("window"),
        n_experts=number("experts"),
        n_experts_used=number("experts_used"),
        expert_bytes=number("expert_bytes"),
        recurrent=bool(fields["recurrent"]),
        latent=bool(fields["latent"]),
        estimated=bool(fields["estimated"]),
    )
