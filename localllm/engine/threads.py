"""How many threads to use. Knows the machine's cores, not what they are busy with."""

import os
import subprocess
import sys
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def default_threads() -> int:
    """Physical cores that this process may use: a second thread on one core only adds waiting at barriers."""
    if sys.platform == "darwin":
        return _performance_cores() or os.cpu_count() or 1
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    return max(1, len({_siblings(cpu) for cpu in usable}))


def _siblings(cpu: int) -> str:
    """The hardware threads that share a core with ``cpu``, as the kernel lists them."""
    try:
        return (_TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _performance_cores() -> int | None:
    """Apple: the number of performance cores; the efficiency cores would hold the others up."""
    command = ["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, timeout=2, check=True).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
