"""How many cores this process may compute on: the processor's, what a container leaves of them, and other programs."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

PREEMPTIONS_PER_S = 60  # an idle machine shows some 30, one with another busy process 100 to 300
_LEAST_S = 0.1  # of computing, to judge it
_TOPOLOGY = Path("/sys/devices/system/cpu")


def default_threads(root: Path = Path("/")) -> int:
    """Physical cores that this process may use: a second thread on one core only adds waiting at barriers.

    Not more than a container gives it time for: the kernel would hold all threads up until the next period.
    """
    if sys.platform == "darwin":
        return _performance_cores() or os.cpu_count() or 1
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores, quota = len({_siblings(cpu) for cpu in usable}), quota_cores(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def overload() -> float | None:
    """The system's load over the last minute where it exceeds its processors, as our own threads never do; else None.

    Then other programs take their time.
    """
    load = os.getloadavg()[0]
    return load if load > (os.cpu_count() or 1) else None


def preemptions() -> int:
    """How often this process has had to give up a core to another so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class Watch:
    """Whether other programs have taken cores away from this process since it was made."""

    def __init__(self) -> None:
        self._begin_s, self._before = time.process_time(), preemptions()

    @property
    def disturbed(self) -> bool:
        """Steadily, that is. By seconds of computing: the more others compute, the less is left to be taken away."""
        computed_s = max(_LEAST_S, time.process_time() - self._begin_s)
        return preemptions() - self._before > PREEMPTIONS_PER_S * computed_s


def quota_cores(root: Path = Path("/")) -> float | None:
    """How many cores' time the control groups of this process allow (Linux); None for as much as there is."""
    groups = [root / "sys/fs/cgroup"]
    for line in _text(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::/"):
            own = groups[0] / line.removeprefix("0::/")
            groups = [own, *own.parents][: len(own.parts) - len(groups[0].parts) + 1]
    limits = [_cpu_max(_text(group / "cpu.max")) for group in groups]
    period, quota = (_text(groups[-1] / "cpu" / f"cpu.cfs_{name}_us") for name in ("period", "quota"))  # version 1
    limits.append(_cpu_max(f"{quota} {period}"))
    return min((limit for limit in limits if limit), default=None)


def _cpu_max(text: str) -> float | None:
    match text.split():
        case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period):
            return int(quota) / int(period)
    return None


def _siblings(cpu: int) -> str:
    """The hardware threads that share a core with ``cpu``, as the kernel lists them."""
    return _text(_TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)


def _performance_cores() -> int | None:
    """Apple: the number of performance cores; the efficiency cores would hold the others up."""
    command = ["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, timeout=2, check=True).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
