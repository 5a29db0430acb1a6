"""Checks of what localllm was told: the catalog and the environment."""

from collections.abc import Iterator

from localllm.doctor.finding import Finding, ok, warning
from localllm.settings import TABLE, choices, nearest, unknown_variables

_LIST = "see: localllm config"


def catalog() -> Iterator[Finding]:
    """Whether the catalog, with the user's own entries, can be used. Raises CatalogError."""
    from localllm.models.catalog import full_catalog

    found = full_catalog()
    own = sum(spec.own for spec in found.values())
    yield ok("catalog", f"{len(found)} models" + (f", {own} of them your own" if own else ""))


def settings() -> Iterator[Finding]:
    """Whether config.yaml and the environment mean something. Raises UsageError for a value that does not."""
    chosen = choices()
    known = {setting.variable: setting for setting in TABLE}
    for name in unknown_variables():
        near = nearest(name, known)
        yield warning("settings", f"{name} is set, and means nothing", f"did you mean {near}?" if near else _LIST)
    said = [f"{name}={choice.setting.shown(choice.value)}" for name, choice in chosen.items()]
    yield ok("settings", ", ".join(said) or "none are made")
