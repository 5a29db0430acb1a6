"""The machine that this runs on, measured: how fast its cores read memory, and how much of it is free.

Knows the C library and what Linux and macOS tell about memory. Knows no model and no accelerator: a GPU is
looked up in the table. Measures without numpy, whose loading would delay every answer.
"""

import ctypes
import math
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

from localllm.ceiling.hardware import Hardware
from localllm.ceiling.roofline import GB
from localllm.cores import Watch

PASSES = 6
LONGEST_S = 1.5  # of passes, where other programs compute meanwhile
MIN_BUFFER_BYTES = 256 * 2**20
SLICES_PER_THREAD = 4
MIN_SLICE_BYTES = 4 * 2**20  # about a millisecond of reading, far more than handing it to a thread takes
ROOT = Path("/")  # of the file system, where Linux describes the machine

_GROUP = re.compile(r"\d+:(|memory):/(.*)")  # "0::/user.slice/…" or "4:memory:/docker/…"
_GROUP_LIMITS = {
    "": ("sys/fs/cgroup", "memory.max"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
}


def this_machine() -> Hardware:
    """The processor with its memory: bandwidth measured now, memory as far as it is available now."""
    threads = _usable_cpus()
    available_bytes = available_memory_bytes()
    return Hardware(
        name="CPU (1 thread)" if threads == 1 else f"CPU ({threads} threads)",
        kind="cpu",
        bandwidth_gb_s=read_bandwidth_gb_s(threads, limit_bytes=available_bytes // 4),
        memory_bytes=available_bytes,
        origin="measured",
        source="this machine, now",
    )


def read_bandwidth_gb_s(threads: int, limit_bytes: int) -> float:
    """Memory read bandwidth of ``threads`` cores together, in 10⁹ bytes per second; takes 0.1 to 0.4 s.

    Where cores are taken away meanwhile it takes a second or two: of more passes one is more likely left alone.

    Slices of a buffer are searched for a byte that is not there: libc's memchr reads as fast as a core can and
    leaves the GIL free. A core takes the next slice when it is done, as cores need not be equally fast. The best
    of several passes counts: other processes can only slow a pass down. The buffer is at least four times the
    last-level cache, so that next to nothing of it is still cached when the next pass comes round, but no larger
    than ``limit_bytes``.
    """
    from concurrent.futures import ThreadPoolExecutor

    n_slices = threads * SLICES_PER_THREAD
    wanted_bytes = max(MIN_BUFFER_BYTES, 4 * last_level_cache_bytes(), n_slices * MIN_SLICE_BYTES)
    slice_bytes = max(mmap.PAGESIZE, min(wanted_bytes, limit_bytes) // n_slices)
    with ThreadPoolExecutor(threads) as pool:
        slices = list(pool.map(_Slice, [slice_bytes] * n_slices))
        best_s, end_s, disturbed = math.inf, time.perf_counter() + LONGEST_S, True
        while disturbed and time.perf_counter() < end_s:
            watch = Watch()
            best_s = min(best_s, *(_timed_s(lambda: list(pool.map(_Slice.read, slices))) for _ in range(PASSES)))
            disturbed = watch.disturbed
    return n_slices * slice_bytes / best_s / GB


def available_memory_bytes(root: Path = ROOT) -> int:
    """Memory that a new process may fill: what is free or reclaimable, within the container's limit.

    Linux says what is available (/proc/meminfo); elsewhere this is the memory of the machine.
    """
    meminfo = (line.split() for line in _lines(root / "proc/meminfo"))
    available = [int(fields[1]) * 1024 for fields in meminfo if fields[:1] == ["MemAvailable:"]]
    return min([total_memory_bytes(root), *available])


def total_memory_bytes(root: Path = ROOT) -> int:
    """All memory of this machine, or of the container where that may have less."""
    return min([_physical_memory_bytes(), *_group_limits_bytes(root)])


def _group_limits_bytes(root: Path) -> Iterator[int]:
    """Limits of the control groups that this process is in (Linux, versions 2 and 1): its own, and those around it."""
    for match in filter(None, map(_GROUP.fullmatch, _lines(root / "proc/self/cgroup"))):
        folder, name = _GROUP_LIMITS[match[1]]
        group = PurePath(match[2])
        for path in (group, *group.parents):
            yield from (int(limit) for limit in _lines(root / folder / path / name) if limit.isdigit())  # or "max"


def last_level_cache_bytes() -> int:
    """The last caches of the cores that this process may use, added up; 0 where the system does not tell."""
    sizes_bytes: dict[str, int] = {}
    for cpu in _cpu_numbers():
        caches = sorted(Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"))
        if not caches:
            return 0
        last = caches[-1]  # numbered from the core outwards
        size = "".join(_lines(last / "size"))  # "32768K"
        shared_by = "".join(_lines(last / "shared_cpu_list"))
        if size.endswith("K") and size[:-1].isdigit():
            sizes_bytes[shared_by] = int(size[:-1]) * 1024
    return sum(sizes_bytes.values())


class _Slice:
    """A part of the buffer: zeros, written once so that real pages stand behind it."""

    def __init__(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes
        self._memory = mmap.mmap(-1, n_bytes)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        ctypes.memset(self._address, 0, n_bytes)

    def read(self) -> None:
        _memchr(self._address, 1, self._n_bytes)


_memchr = ctypes.CDLL(None).memchr
_memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
_memchr.restype = ctypes.c_void_p


def _timed_s(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def _usable_cpus() -> int:
    return len(_cpu_numbers()) or os.cpu_count() or 1


def _cpu_numbers() -> set[int]:
    """The cores that this process may run on; empty where the system does not tell (macOS)."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _physical_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _lines(path: str | Path) -> list[str]:
    """The lines of a file that the system may not have."""
    try:
        return Path(path).read_text(encoding="utf-8").split("\n")
    except OSError:
        return []
