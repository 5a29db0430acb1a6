"""All checks in order. Those of the network wait for others, so they run beside the rest and come last."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from localllm.doctor import models, runtime, storage, surroundings
from localllm.doctor.finding import Check, Finding, examine
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


def findings(measure: bool = False) -> Iterator[Finding]:
    """What all checks find, as soon as they find it. With ``measure`` the default model's speed is measured."""
    checks = dict(CHECKS) | ({"speed": models.measured_speed} if measure else {})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: [*examine("network", network)])
        for name, check in checks.items():
            yield from examine(name, check)
        yield from waiting.result()
