"""How much memory the machine, its container and its GPUs have."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localllm.ceiling.gpus import Gpu, gpus
from localllm.ceiling.measure import available_memory_bytes, total_memory_bytes

MIB, GIB = 2**20, 2**30
MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
UNLIMITED_V1 = "9223372036854771712"  # what version 1 of control groups says where there is no limit


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


# --- the machine and its container ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "expected_bytes"),
    [
        ({}, MACHINE_BYTES),  # not Linux
        ({"proc/self/cgroup": "0::/\n"}, MACHINE_BYTES),  # the outermost group has no such file
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, MACHINE_BYTES),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{64 * MIB}\n"}, 64 * MIB),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{2**60}\n"}, MACHINE_BYTES),
        (
            {
                "proc/self/cgroup": "0::/user.slice/a:b.scope\n",
                "sys/fs/cgroup/user.slice/memory.max": f"{96 * MIB}\n",
                "sys/fs/cgroup/user.slice/a:b.scope/memory.max": f"{128 * MIB}\n",
            },
            96 * MIB,  # the tightest of all around us counts
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/1a\n1:name=systemd:/\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{UNLIMITED_V1}\n",
                "sys/fs/cgroup/memory/docker/1a/memory.limit_in_bytes": f"{80 * MIB}\n",
            },
            80 * MIB,
        ),
        (
            # inside a container of version 1, where its own group is the outermost that can be seen
            {
                "proc/self/cgroup": "4:memory:/docker/1a\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{72 * MIB}\n",
            },
            72 * MIB,
        ),
        ({"proc/self/cgroup": "\n0::\nnonsense\n:::\n", "sys/fs/cgroup/memory.max": "1\n"}, MACHINE_BYTES),
    ],
)
def test_memory_within_the_limit_of_the_container(tmp_path, files, expected_bytes):
    """All memory is that of the machine, or the lowest limit of the control groups that the process is in."""
    assert total_memory_bytes(write(tmp_path, files)) == expected_bytes


def test_available_memory_is_never_more_than_there_is(tmp_path):
    """The lower of what is free and what the container may use; without either, the memory of the machine."""
    assert available_memory_bytes(tmp_path) == MACHINE_BYTES
    write(tmp_path, {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {64 * 1024} kB\nCached: 1 kB\n"})
    assert available_memory_bytes(tmp_path) == 64 * MIB
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{48 * MIB}\n"})
    assert available_memory_bytes(tmp_path) == 48 * MIB


def test_this_machine_has_memory():
    """On the machine itself: some is available, and not more than there is."""
    assert 0 < available_memory_bytes() <= total_memory_bytes() <= MACHINE_BYTES


# --- AMD ------------------------------------------------------------------------------------------------------------

linux = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has Metal")


@linux
def test_amd(tmp_path):
    """The driver's files tell names and sizes; what is no card, has no size or makes no sense is passed over."""
    drm = write(
        tmp_path,
        {
            "card0/device/mem_info_vram_total": f"{24 * GIB}\n",
            "card0/device/product_name": "Radeon PRO W7900\n",
            "card1/device/mem_info_vram_total": f"{512 * MIB}\n",
            "card2/device/vendor": "0x8086\n",
            "card3/device/mem_info_vram_total": "\n",
            "card4/device/mem_info_vram_total": "-1\n",
            "card0-DP-1/status": "connected\n",
            "renderD128/device/mem_info_vram_total": f"{24 * GIB}\n",
        },
    )
    (drm / "card5/device").mkdir(parents=True)
    (drm / "card5/device/mem_info_vram_total").symlink_to("gone")
    found = [gpu for gpu in gpus(drm) if gpu not in gpus(drm / "nothing")]
    assert found == [Gpu("Radeon PRO W7900", 24 * GIB), Gpu("AMD GPU", 512 * MIB)]


# --- NVIDIA: a library of our own under the driver's name, as there is no card here ---------------------------------

NVML = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fails(const char *call) {
    const char *failing = getenv("FAILING");
    return failing && strcmp(failing, call) == 0 ? 999 : 0;
}
int nvmlInit_v2(void) { return fails("init"); }
int nvmlShutdown(void) { fputs("shut down\n", stderr); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return fails("count"); }
static int cards[2];
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &cards[index];
    return index == 0 ? fails("handle") : 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    if (device != &cards[0] && device != &cards[1]) return 2;  /* not a handle of ours */
    snprintf(name, length, device == &cards[0] ? "NVIDIA GeForce RTX 3090" : "NVIDIA GeForce RTX 4090");
    return device == &cards[0] ? fails("name") : 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    memory[0] = (device == &cards[0] ? 12ULL : 24ULL) << 30;
    memory[1] = memory[2] = 1;
    return device == &cards[0] ? fails("memory") : 0;
}
"""
RTX_3090, RTX_4090 = Gpu("NVIDIA GeForce RTX 3090", 12 * GIB), Gpu("NVIDIA GeForce RTX 4090", 24 * GIB)


@pytest.fixture(scope="module")
def nvml(tmp_path_factory) -> Path:
    """The folder of a library that answers as NVML does, for two cards."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"], check=True)
    return folder


def seen(library_folder: Path, drm: Path, failing: str = "") -> tuple[list[Gpu], str]:
    """What a new process that finds this library tells, and what it writes besides."""
    code = (
        "import dataclasses, json, pathlib, sys; from localllm.ceiling.gpus import gpus;"
        "print(json.dumps([dataclasses.asdict(gpu) for gpu in gpus(pathlib.Path(sys.argv[1]))]))"
    )
    env = os.environ | {"LD_LIBRARY_PATH": str(library_folder), "FAILING": failing}
    done = subprocess.run([sys.executable, "-c", code, str(drm)], env=env, capture_output=True, text=True, check=True)
    return [Gpu(**fields) for fields in json.loads(done.stdout)], done.stderr


@linux
@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ("", [RTX_3090, RTX_4090]),
        ("count", []),
        ("handle", [RTX_4090]),
        ("name", [RTX_4090]),
        ("memory", [RTX_4090]),
    ],
)
def test_nvidia(nvml, tmp_path, failing, expected):
    """Name and total memory of each card; a card that does not answer is left out; the library is shut down."""
    assert seen(nvml, tmp_path, failing) == (expected, "shut down\n")


@linux
def test_an_nvidia_library_without_a_driver(nvml, tmp_path):
    """What was not started is not shut down either."""
    assert seen(nvml, tmp_path, "init") == ([], "")


@linux
def test_cards_of_both_makers(nvml, tmp_path):
    """They are listed together."""
    drm = write(tmp_path, {"card1/device/mem_info_vram_total": str(16 * GIB)})
    assert seen(nvml, drm)[0] == [RTX_3090, RTX_4090, Gpu("AMD GPU", 16 * GIB)]


@linux
@pytest.mark.parametrize("content", ["", "no library", None])
def test_a_library_that_is_none(nvml, tmp_path, content):
    """A file that cannot be loaded, or has none of the functions, is as good as no GPU."""
    library = tmp_path / "libnvidia-ml.so.1"
    if content is None:
        subprocess.run(["gcc", "-shared", "-o", library, "-x", "c", "/dev/null"], check=True)
    else:
        library.write_text(content)
    assert seen(tmp_path, tmp_path) == ([], "")
