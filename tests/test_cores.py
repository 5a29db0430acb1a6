"""How many cores there are to compute on."""

import os
from pathlib import Path

import pytest

from localllm.cores import default_threads, quota_cores


def test_threads_are_the_cores_that_may_be_used(tmp_path):
    """At least one, and no more than there are logical processors."""
    assert 1 <= default_threads() <= (os.cpu_count() or 1)
    if Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").exists():
        siblings = {
            Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
            for cpu in os.sched_getaffinity(0)
        }
        assert default_threads(tmp_path) == len(siblings)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4.0),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense"}, None),
    ],
)
def test_the_limit_of_a_container(files, cores, tmp_path):
    """The tightest limit of all groups that the process is in, in both versions of the kernel's interface."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert quota_cores(tmp_path) == cores


def test_threads_are_no_more_than_a_container_gives_time_for(tmp_path):
    """Whole cores of it, one at least; what the machine has where it gives more."""
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    machine = default_threads(tmp_path)
    for quota in (0.2, 1, 1.9, 2, machine, machine + 0.5, 10_000):
        (tmp_path / "sys/fs/cgroup/cpu.max").write_text(f"{int(quota * 100_000)} 100000\n")
        assert default_threads(tmp_path) == max(1, min(machine, int(quota)))
