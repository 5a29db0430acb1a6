"""The first run without any settings: which model is used, and a line that says so. Later runs find it chosen."""

import sys
from typing import TYPE_CHECKING

from localllm import config
from localllm.default import Choice, is_settled, keep, last_choice
from localllm.terminal.safe import one_line

if TYPE_CHECKING:
    from localllm.choosing import Suited


def choose_default(model: str | None, *, quiet: bool = False, may_ask: bool = True) -> None:
    """See that there is a default model, where ``model`` names none and the user has set none.

    What is on this disk comes first. Where nothing suits, and a person is there, the catalog's model for this machine
    is offered once; nothing is fetched without a yes but the small embedded default. ``quiet`` says and asks nothing.
    Raises CatalogError, DownloadError, Cancelled.
    """
    if model is not None or is_settled():
        return
    from localllm.models.catalog import full_catalog
    from localllm.models.store import all_local

    catalog, before = full_catalog(), last_choice()
    passed_over = (config.DEFAULT_MODEL, *(before.passed_over if before else ()))
    others = [local for local in all_local(catalog) if local.name not in passed_over]
    asking = may_ask and not quiet and _is_person_there() and not (before and before.asked)
    if before and not (others or asking):  # as the last time, without another word
        return
    from localllm.choosing import best_of, recommended

    found = best_of(others) if others else None
    if found:
        keep(Choice(found.name, found.file))
        _tell(f"using {found.name}: {found.why} (-m names another one)", quiet)
        return
    better = recommended(catalog)
    if asking and better and _is_reachable() and _wants(better):
        _fetch(better)
        return
    asked = asking or bool(before and before.asked)
    keep(Choice(config.DEFAULT_MODEL, None, asked, (*passed_over[1:], *(local.name for local in others))))
    if asking or not before:
        _tell(f"using {config.DEFAULT_MODEL} (very small): nothing better is on this disk", quiet)
        if better:
            _tell(f"for this machine: localllm pull {better.name} ({_size(better)})", quiet)


def _is_person_there() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _is_reachable() -> bool:
    """Whether the hub answers at once."""
    from localllm.cancel import Cancel
    from localllm.errors import Cancelled, DownloadError
    from localllm.models import hub

    try:
        hub.reach(Cancel(2.0))
    except (Cancelled, DownloadError):
        return False
    return True


def _wants(better: "Suited") -> bool:
    offer = f"localllm: no model is here yet. {better.name} ({_size(better)}) suits this machine: {better.why}."
    print(one_line(offer), file=sys.stderr)
    question = f"Fetch it? [Y/n] (n: {config.DEFAULT_MODEL}, very small, 98 MB) "
    print(question, end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    return answer.strip().lower() in ("", "y", "yes") and answer != ""  # the end of the input is no yes


def _fetch(better: "Suited") -> None:
    from localllm.cancel import Cancel
    from localllm.cli.signals import cancelling
    from localllm.models.catalog import full_catalog
    from localllm.models.store import resolve
    from localllm.terminal.progress import download_progress

    cancel = Cancel()
    with cancelling(cancel), download_progress() as on_download:
        local = resolve(better.name, full_catalog(), on_download, cancel)
    keep(Choice(better.name, local.path))


def _size(better: "Suited") -> str:
    from localllm.sizes import size_text

    return size_text(better.file_bytes)


def _tell(line: str, quiet: bool) -> None:
    if not quiet:
        print(f"localllm: {one_line(line)}", file=sys.stderr)
