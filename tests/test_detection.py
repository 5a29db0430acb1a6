"""Which devices of the table this machine has: what drivers tell, and trees as Linux shows them."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.ceiling import detection, gpus, hardware
from localllm.ceiling.detection import Detected, MainMemory, apple, detected, look_up, main_memory

MIB, GIB = 2**20, 2**30
linux = pytest.mark.skipif(sys.platform != "linux", reason="sysfs and shared libraries are Linux's")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


# --- what drivers say -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "memory_mib", "bandwidth_gb_s", "expected"),
    [
        # memory tells namesakes apart; drivers keep some of it
        ("NVIDIA GeForce RTX 3050", 8192, None, 224),
        ("NVIDIA GeForce RTX 3050", 6144, None, 168),
        ("NVIDIA GeForce RTX 3080", 10240, None, 760.3),
        ("NVIDIA GeForce RTX 3080", 12288, None, 912.4),
        ("NVIDIA GeForce RTX 5060 Ti", 16311, None, 448),
        ("NVIDIA GeForce RTX 5060 Ti", 8151, None, 448),
        ("NVIDIA A100-SXM4-40GB", 40960, None, 1555.2),
        ("NVIDIA H100 80GB HBM3", 81559, None, 3350),
        ("NVIDIA H100 PCIe", 81559, None, 2039),
        ("NVIDIA L4", 23034, None, 300.1),  # error correction takes a sixteenth
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, None, 576),
        ("NVIDIA GeForce GTX 1070 with Max-Q Design", 8192, None, 256.3),
        ("Radeon PRO W7900", 49136, None, 864),
        # memory clock and bus do where it does not
        ("NVIDIA GeForce GTX 1650", 4096, 128.032, 128.1),
        ("NVIDIA GeForce GTX 1650", 4096, 192.032, 192),
        ("NVIDIA GeForce RTX 2070 with Max-Q Design", 8192, 352.064, 352),
        ("NVIDIA GeForce RTX 3090", 24576, 936.096, 936.2),
    ],
)
def test_a_driver_s_name_and_figures_are_a_row_of_the_table(name, memory_mib, bandwidth_gb_s, expected):
    """Bandwidth is that of the table, memory what the driver tells."""
    found = look_up(name, memory_mib * MIB, bandwidth_gb_s)
    assert found.hardware, found.note
    assert (found.hardware.bandwidth_gb_s, found.hardware.memory_bytes) == (expected, memory_mib * MIB)
    assert (found.name, found.memory_bytes, found.note) == (name, memory_mib * MIB, "")
    assert found.hardware.origin == "table"


@pytest.mark.parametrize(
    ("name", "memory_mib", "bandwidth_gb_s", "note"),
    [
        ("NVIDIA GeForce GTX 1650", 4096, None, "GeForce GTX 1650 (128.1 GB/s, 4 GiB); GeForce GTX 1650 GDDR6 (192"),
        ("NVIDIA GeForce GTX 1650", 4096, 160.0, "it could be any of: "),
        ("NVIDIA A40-8Q", 8192, None, "it is not in the table of hardware"),
        ("NVIDIA RTX 9999", 8192, 1234.4, "by its memory clock and bus it has 1234 GB/s"),
        ("AMD GPU", 512, None, "it is not in the table of hardware"),
    ],
)
def test_what_is_not_sure_stays_unknown(name, memory_mib, bandwidth_gb_s, note):
    """No row is invented, and none is guessed; what the driver tells is kept, and why it is unknown."""
    found = look_up(name, memory_mib * MIB, bandwidth_gb_s)
    assert (found.name, found.memory_bytes, found.hardware) == (name, memory_mib * MIB, None)
    assert note in found.note


@pytest.mark.parametrize(
    ("name", "memory_mib", "bandwidth_gb_s", "note"),
    [
        ("NVIDIA GeForce RTX 4090", 49140, None, "the table has it with 24 GiB"),
        ("NVIDIA GeForce RTX 2060", 7168, None, "the table has it with 6 or 12 GiB"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 8192, 384.064, "its memory clock and bus give 384 GB/s"),
    ],
)
def test_what_differs_from_the_table_is_said(name, memory_mib, bandwidth_gb_s, note):
    """A card with other memory or another clock than it was sold with is found, and the difference is noted."""
    found = look_up(name, memory_mib * MIB, bandwidth_gb_s)
    assert found.hardware
    assert (found.hardware.memory_bytes, found.note) == (memory_mib * MIB, note)


@given(st.text(max_size=300), st.integers(0, 2**64), st.none() | st.floats(1, 1e5))
def test_no_name_or_figure_crashes_the_look_up(name, memory_bytes, bandwidth_gb_s):
    """And what is shown of them is one line of printable text."""
    found = look_up(name, memory_bytes, bandwidth_gb_s)
    assert found.name.isprintable()
    assert len(found.name) <= 100
    assert found.note.isprintable()


@given(st.sampled_from(hardware.accelerators()), st.floats(0.94, 1.0), st.booleans())
def test_a_card_is_never_taken_for_one_of_other_bandwidth(device, told, clock):
    """By its name, most of its memory and its clock each card of the table is found, or refused naming it."""
    if device.memory_bytes is None:
        return
    found = look_up(device.name, round(told * device.memory_bytes), device.bandwidth_gb_s if clock else None)
    if found.hardware:
        assert found.hardware.bandwidth_gb_s == pytest.approx(device.bandwidth_gb_s, rel=0.03 if clock else 1e-9)
        assert found.note == ""
    else:
        assert device.label in found.note
        assert not clock


# --- Apple ----------------------------------------------------------------------------------------------------------

IOREG = """\
+-o AGXAcceleratorG15X  <class AGXAcceleratorG15X, id 0x1000005d6, registered, matched, active, busy 0>
    {
      "IOClass" = "AGXAcceleratorG15X"
      "model" = "Apple M3 Max"
      "gpu-core-count" = %s
      "IOReportLegendPublic" = Yes
      "GPUConfigurationVariable" = {"num_cores"=40,"num_gps"=10,"gpu_gen"=15}
    }
"""


@pytest.mark.parametrize(
    ("chip", "cores", "name", "bandwidth_gb_s"),
    [
        ("Apple M3 Max\n", 40, "Apple M3 Max (40-core GPU)", 400),
        ("Apple M3 Max\n", 30, "Apple M3 Max (30-core GPU)", 300),
        ("Apple M4 Max\n", 32, "Apple M4 Max (32-core GPU)", 410),
        ("Apple M4\n", 10, "Apple M4 (10-core GPU)", 120),
        ("Apple M1\n", None, "Apple M1", 68),
        ("Apple M2 Ultra\n", 76, "Apple M2 Ultra (76-core GPU)", 800),
    ],
)
def test_a_mac_by_its_chip_and_gpu_cores(chip, cores, name, bandwidth_gb_s):
    """The number of cores decides where one chip is sold with two bandwidths; memory is the Mac's own."""
    found = apple(chip, IOREG % cores if cores else "", 48 * GIB)
    assert found.hardware
    assert (found.name, found.hardware.bandwidth_gb_s, found.hardware.memory_bytes) == (name, bandwidth_gb_s, 48 * GIB)
    assert found.hardware.usable_bytes == 36 * GIB


@pytest.mark.parametrize(
    ("chip", "ioreg", "note"),
    [
        ("Apple M3 Max", "", "it could be any of: Apple M3 Max (30-core GPU) (300 GB/s); Apple M3 Max (40-core GPU)"),
        ("Apple M3 Max", IOREG % 39, "it is not in the table"),
        ("Apple M1 (Virtual)", "", "it is not in the table"),
        ("", "", "it is not in the table"),
        ("\x1b[31mApple M99", IOREG % "99999999", "it is not in the table"),
    ],
)
def test_a_mac_that_is_not_sure_stays_unknown(chip, ioreg, note):
    """Without the number of cores, or with one that no row has, none is guessed."""
    found = apple(chip, ioreg, 48 * GIB)
    assert found.hardware is None
    assert note in found.note
    assert found.name.isprintable()


def test_a_mac_is_asked_by_its_own_tools(monkeypatch):
    """Chip, memory and cores come from sysctl and ioreg; what they do not tell is no harm."""
    told = {"machdep.cpu.brand_string": "Apple M4 Max\n", "hw.memsize": f"{36 * GIB}\n", "AGXAccelerator": IOREG % 32}

    def asked(*command):
        assert command[0] in ("/usr/sbin/sysctl", "/usr/sbin/ioreg")
        return next((text for word, text in told.items() if word in command), "")

    monkeypatch.setattr(detection.sys, "platform", "darwin")
    monkeypatch.setattr(detection.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(detection, "_asked", asked)
    [found] = detected()
    assert found.hardware
    assert (found.hardware.bandwidth_gb_s, found.hardware.memory_bytes) == (410, 36 * GIB)
    told["hw.memsize"] = "-1"
    assert detected()[0].memory_bytes == detection.total_memory_bytes()
    told.clear()
    assert detected()[0].hardware is None
    monkeypatch.setattr(detection.platform, "machine", lambda: "x86_64")
    assert detected() == []


def test_a_tool_that_hangs_fails_or_is_missing_says_nothing(monkeypatch):
    """The answer is waited for a bounded time."""
    monkeypatch.setattr(detection, "_ANSWER_S", 0.2)
    assert detection._asked("/bin/echo", "yes") == "yes\n"
    assert detection._asked("/bin/sh", "-c", "echo no; exit 1") == ""
    assert detection._asked("/bin/sleep", "60") == ""
    assert detection._asked("/nowhere/tool") == ""


# --- Linux ----------------------------------------------------------------------------------------------------------


@linux
def test_cards_in_sysfs(tmp_path, monkeypatch):
    """AMD's tell memory and at times a name, Intel's neither, NVIDIA's nothing without NVIDIA's driver."""
    monkeypatch.setattr(gpus, "_nvidia", list)
    drm = write(
        tmp_path,
        {
            "card0/device/vendor": "0x1002\n",
            "card0/device/mem_info_vram_total": f"{48 * GIB}\n",
            "card0/device/product_name": "Radeon PRO W7900\n",
            "card1/device/vendor": "0x1002\n",
            "card1/device/mem_info_vram_total": f"{512 * MIB}\n",
            "card2/device/vendor": "0x8086\n",
            "card2/device/device": "0x56a0\n",
            "card3/device/vendor": "0x10de\n",
            "card3/device/device": "\x1b[31m\n",
            "card4/device/vendor": "0x1a03\n",  # a server's console
            "card0-DP-1/status": "connected\n",
        },
    )
    (w7900, unnamed, intel, nvidia) = detected(drm)
    assert w7900.hardware
    assert (w7900.hardware.name, w7900.hardware.bandwidth_gb_s, w7900.note) == ("Radeon PRO W7900", 864, "")
    assert unnamed == Detected("AMD GPU", 512 * MIB, None, "it is not in the table of hardware")
    assert (intel.name, intel.memory_bytes, intel.hardware) == ("Intel GPU (0x56a0)", None, None)
    assert "neither its name nor its memory" in intel.note
    assert (nvidia.name, nvidia.hardware) == ("NVIDIA GPU", None)
    monkeypatch.setattr(gpus, "_nvidia", lambda: [gpus.Gpu("NVIDIA L4", 23034 * MIB)])
    assert [found.name for found in detected(drm)] == ["NVIDIA L4", "Radeon PRO W7900", "AMD GPU", "Intel GPU (0x56a0)"]
    assert [found.name for found in detected(tmp_path / "nothing")] == ["NVIDIA L4"]


NVML = r"""
#include <stdio.h>
#include <stdlib.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = 0; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    snprintf(name, length, "NVIDIA GeForce GTX 1650");
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) { memory[0] = 4ULL << 30; return 0; }
int nvmlDeviceGetMaxClockInfo(void *device, unsigned type, unsigned *mhz) {
    *mhz = type == 2 ? atoi(getenv("MHZ")) : 1;
    return 0;
}
#ifndef OLD
int nvmlDeviceGetMemoryBusWidth(void *device, unsigned *bits) { *bits = 128; return atoi(getenv("FAILS")); }
#endif
"""


@linux
@pytest.mark.parametrize(
    ("mhz", "fails", "old", "bandwidth_gb_s"),
    [
        (4001, 0, False, 128.1),
        (6001, 0, False, 192.0),
        (6001, 3, False, None),  # not supported
        (6001, 0, True, None),  # a driver from before 2021
        (0, 0, False, None),
    ],
)
def test_nvidia_s_memory_clock_tells_namesakes_apart(tmp_path, mhz, fails, old, bandwidth_gb_s):
    """A GTX 1650 is told from the other GTX 1650 by what the driver says of its clock and bus, where it does."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    define = ["-DOLD"] if old else []
    subprocess.run(["gcc", "-shared", "-fPIC", *define, "-o", library, tmp_path / "nvml.c"], check=True)
    code = (
        "import dataclasses, json, pathlib; from localllm.ceiling.detection import detected;"
        "print(json.dumps([dataclasses.asdict(found) for found in detected(pathlib.Path('/nowhere'))]))"
    )
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "MHZ": str(mhz), "FAILS": str(fails)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    [found] = json.loads(done.stdout)
    assert set(found) == {field.name for field in dataclasses.fields(Detected)}
    assert (found["name"], found["memory_bytes"]) == ("NVIDIA GeForce GTX 1650", 4 * GIB)
    assert (found["hardware"] and found["hardware"]["bandwidth_gb_s"]) == bandwidth_gb_s


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (
            {
                f"mc0/dimm{n}/{name}": text
                for n in range(4)
                for name, text in {
                    "dimm_mem_type": "Registered-DDR5\n",
                    "dimm_location": f"csrow {n % 2} channel {n // 2} \n",
                }.items()
            },
            MainMemory("DDR5", 2),
        ),
        (
            {
                f"mc{mc}/dimm{n}/{name}": text
                for mc in range(4)
                for n in range(3)
                for name, text in {
                    "dimm_mem_type": "Load-Reduced-DDR4-RAM\n",
                    "dimm_location": f"channel {n} slot 0 \n",
                }.items()
            },
            MainMemory("DDR4", 12),
        ),
        (
            {"mc0/dimm0/dimm_mem_type": "Low-Power-DDR5\n", "mc0/dimm0/dimm_location": "channel 0\n"},
            MainMemory("LPDDR5", 1),
        ),
        ({"mc0/dimm0/dimm_mem_type": "Unknown\n"}, None),
        ({"mc0/dimm0/size": "16384\n"}, None),
        ({"mc0/dimm0/dimm_mem_type": "Unbuffered-DDR4\n", "mc0/dimm1/dimm_mem_type": "Unbuffered-DDR5\n"}, None),
    ],
)
def test_main_memory(tmp_path, files, expected):
    """Type and channels, where Linux checks the memory and says so: modules of one channel count once."""
    assert main_memory(write(tmp_path, files)) == expected


def test_main_memory_in_words():
    """Channels are counted in words that fit."""
    assert MainMemory("DDR5", 8).text == "DDR5, 8 channels"
    assert MainMemory("DDR4", 1).text == "DDR4, 1 channel"
