"""All checks in order. Those of the network wait for others, so they run beside the rest and come last."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

from localllm.doctor import models, runtime, storage, surroundings
from localllm.doctor.finding import Check, Finding, examine, problem
from localllm.doctor.network import network

CHECKS: tuple[tuple[str, Check], ...] = (
    ("versions", runtime.versions),
    ("llama.cpp", runtime.backend),
    ("GPU", runtime.gpu),
    ("cores", runtime.cores),
    ("settings", surroundings.settings),
    ("catalog", surroundings.catalog),
    ("memory", models.memory),
    ("default model", models.default),
    ("draft", models.draft),
    ("speed", models.speed),
    ("prefix cache", storage.prefix_cache),
    ("folders", storage.folders),
    ("disk", storage.disk),
)


def findings(speed: Check = models.speed) -> Iterator[Finding]:
    """What all checks find, as soon as they find it; ``speed`` may be one that measures."""
    checks = dict(CHECKS) | {"speed": speed}
    pool = ThreadPoolExecutor(1)
    try:
        waiting = pool.submit(lambda: [*examine("network", network)])
        here = (finding for name, check in checks.items() for finding in examine(name, check))
        yield from _each_once(chain(here, _of(waiting)))
    finally:
        pool.shutdown(wait=False)  # who leaves early does not wait for the network


def _of(waiting: Future[list[Finding]]) -> Iterator[Finding]:
    yield from waiting.result()


def _each_once(found: Iterable[Finding]) -> Iterator[Finding]:
    """A problem that keeps several checks from their work is told by the first; the others refer to it."""
    told: dict[str, str] = {}
    for finding in found:
        first = told.setdefault(finding.text, finding.name) if finding.status == "problem" else finding.name
        yield finding if first == finding.name else problem(finding.name, f"not checked: see {first}", "")
