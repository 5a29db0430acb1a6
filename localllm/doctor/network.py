"""Checks of what can be reached: the Hugging Face hub and the package index, as downloads would reach them.

Both are asked in child processes, by the libraries that fetch from them, so that proxies, certificates and settings
count as they do for a download. Nothing is fetched, and nothing is asked where HF_HUB_OFFLINE is set.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from localllm import config
from localllm.cancel import Cancel
from localllm.doctor.finding import Finding, ok, warning
from localllm.errors import Cancelled, DownloadError
from localllm.models import hub
from localllm.models.catalog import WheelSource, full_catalog

_ANSWER_S = 3.0  # in all, with half a second for loading the libraries
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


def network() -> Iterator[Finding]:
    """Whether models can be fetched."""
    if hub.is_offline():
        yield ok("network", "HF_HUB_OFFLINE is set: nothing is asked, and nothing is fetched from the hub")
        return
    asked = {"hub": hub.reach, "package index": _reach_index}
    with ThreadPoolExecutor(len(asked)) as pool:
        yield from pool.map(_reached, asked, asked.values())


def _reached(name: str, reach: Callable[[Cancel], None]) -> Finding:
    try:
        reach(Cancel(_ANSWER_S))
    except DownloadError as error:
        reason, advice = error.message, error.hint
    except Cancelled:
        reason, advice = f"no answer within {_ANSWER_S:.0f} s", ""
    else:
        return ok(name, f"it answers{_way()}")
    return warning(name, f"{reason}{_way()}; models that are on this disk work all the same", advice or _ADVICE[name])


_ADVICE = {
    "hub": "check the network, HTTPS_PROXY and HF_ENDPOINT",
    "package index": "check the network, HTTPS_PROXY and: pip config list",
}


def _reach_index(cancel: Cancel) -> None:
    from localllm.models import wheel

    sources = full_catalog()[config.DEFAULT_MODEL].sources
    for source in sources:
        if isinstance(source, WheelSource):
            wheel.reach(source, cancel)


def _way() -> str:
    """The proxy that is on the way, without its password."""
    for name in _PROXIES:
        if proxy := os.environ.get(name) or os.environ.get(name.lower()):
            return f", by the proxy {urlsplit(proxy).hostname or proxy.rpartition('@')[2]} ({name})"
    return ""
