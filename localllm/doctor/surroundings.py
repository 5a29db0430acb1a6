"""Checks of what localllm was told: the catalog and the environment."""

import difflib
import os
from collections.abc import Iterator

from localllm import config
from localllm.doctor.finding import Finding, ok, warning

VARIABLES = ("LOCALLLM_MODEL", "LOCALLLM_CACHE_SIZE", "LOCALLLM_BACKEND")


def catalog() -> Iterator[Finding]:
    """Whether the catalog, with the user's own entries, can be used. Raises CatalogError."""
    from localllm.models.catalog import full_catalog

    found = full_catalog()
    own = sum(spec.own for spec in found.values())
    yield ok("catalog", f"{len(found)} models" + (f", {own} of them your own" if own else ""))


def settings() -> Iterator[Finding]:
    """Whether what the environment says means something. Raises UsageError for a value that does not."""
    config.prefix_budget_bytes()
    given = sorted(name for name in os.environ if name.startswith("LOCALLLM_"))
    for name in given:
        if name not in VARIABLES:
            nearest = difflib.get_close_matches(name, VARIABLES, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(VARIABLES)}"
            yield warning("settings", f"{name} is set, and means nothing", hint)
    known = [f"{name}={os.environ[name]}" for name in given if name in VARIABLES]
    yield ok("settings", ", ".join(known) or "none are set in the environment")
