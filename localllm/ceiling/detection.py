"""Which devices of the table this machine has, by what its drivers say of them.

Knows how the drivers of NVIDIA, AMD and Apple name a GPU, and what tells namesakes apart: memory, memory clock and bus,
the number of cores. Knows how Linux tells the type of the main memory. Does not know which of this a llama.cpp can
use. Never guesses: what the table does not have, or what could be one of several, stays unknown and says why.
"""

import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from localllm.ceiling import hardware
from localllm.ceiling.gpus import DRM, gpus
from localllm.ceiling.hardware import Hardware
from localllm.ceiling.measure import total_memory_bytes
from localllm.errors import UsageError
from localllm.sizes import GIB

EDAC = Path("/sys/devices/system/edac/mc")  # where Linux lists memory modules, on machines that check them

_LEAST_SHARE = 0.9  # of a card's memory that its driver tells: the rest is for error correction and the driver itself
_MOST_SHARE = 1.02
_SAME_BANDWIDTH = 0.03
_NAME_CHARS = 100
_ANSWER_S = 5.0  # system tools answer within milliseconds
_SYSCTL, _IOREG = "/usr/sbin/sysctl", "/usr/sbin/ioreg"
_CORES = re.compile(r'"gpu-core-count" = (\d{1,4})\b')
_PCI_ID = re.compile(r"0x[0-9a-f]{4}")
_MEMORY_TYPE = re.compile(r"(Low-Power-)?(DDR\d?)\b")
_NOT_A_CHANNEL = re.compile(r"\b(?:slot|csrow) \d+")


@dataclass(frozen=True, slots=True)
class Detected:
    """A GPU of this machine. ``memory_bytes`` is what its driver tells; None where it tells nothing.

    ``hardware`` is its row of the table with that memory, or None, and then ``note`` says why in a phrase.
    """

    name: str
    memory_bytes: int | None
    hardware: Hardware | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class MainMemory:
    """Type (``DDR5``) and populated channels of the main memory. Its speed is not told; that is measured."""

    kind: str
    channels: int

    @property
    def text(self) -> str:
        """As a person would write it."""
        return f"{self.kind}, {self.channels} channel{'s' if self.channels > 1 else ''}"


def detected(drm: Path = DRM) -> list[Detected]:
    """All GPUs of this machine; ``drm`` is where Linux lists graphics cards."""
    if sys.platform == "darwin":
        return _this_mac()
    found = [look_up(gpu.name, gpu.memory_bytes, gpu.bandwidth_gb_s) for gpu in gpus(drm)]
    return [*found, *_silent(drm, nvidia_answers=any("NVIDIA" in device.name for device in found))]


def look_up(name: str, memory_bytes: int, bandwidth_gb_s: float | None = None) -> Detected:
    """The device that a driver calls ``name``. The bandwidth (10⁹ bytes per second) is that of its clock and bus."""
    name = _one_line(name)
    try:
        devices = hardware.candidates(name)
    except UsageError:
        told = f"; by its memory clock and bus it has {bandwidth_gb_s:.0f} GB/s" if bandwidth_gb_s else ""
        return Detected(name, memory_bytes, None, f"it is not in the table of hardware{told}")
    sized = [device for device in devices if _has(device, memory_bytes)]
    alike = _alike(sized or devices, bandwidth_gb_s)
    if len({device.bandwidth_gb_s for device in alike}) > 1:
        return Detected(name, memory_bytes, None, _any_of(alike))
    notes = [] if sized else [f"the table has it with {_sizes(alike)} GiB"]
    if bandwidth_gb_s and not _near(alike[0], bandwidth_gb_s):
        notes.append(f"its memory clock and bus give {bandwidth_gb_s:.0f} GB/s")
    return Detected(name, memory_bytes, replace(alike[0], memory_bytes=memory_bytes), "; ".join(notes))


def main_memory(edac: Path = EDAC) -> MainMemory | None:
    """Type and channels of the main memory, as Linux tells of memory with error correction; None elsewhere."""
    kinds, channels = set(), set()
    for module in edac.glob("mc*/dimm*"):
        match = _MEMORY_TYPE.search(_text(module / "dimm_mem_type"))
        if match:
            kinds.add(("LP" if match[1] else "") + match[2])
            location = _NOT_A_CHANNEL.sub("", _text(module / "dimm_location")).strip()
            channels.add((module.parent.name, location))
    return MainMemory(kinds.pop(), len(channels)) if len(kinds) == 1 else None


def _has(device: Hardware, memory_bytes: int) -> bool:
    """Whether a driver would tell so much of the device's memory."""
    if device.memory_bytes is None:
        return True
    return _LEAST_SHARE * device.memory_bytes <= memory_bytes <= _MOST_SHARE * device.memory_bytes


def _alike(devices: list[Hardware], bandwidth_gb_s: float | None) -> list[Hardware]:
    """Those whose bandwidth comes nearest to this one, where any is about the same."""
    near = {abs(device.bandwidth_gb_s - (bandwidth_gb_s or 0)): device.bandwidth_gb_s for device in devices}
    nearest = [device for device in devices if device.bandwidth_gb_s == near[min(near)]]
    return nearest if bandwidth_gb_s and _near(nearest[0], bandwidth_gb_s) else devices


def _near(device: Hardware, bandwidth_gb_s: float) -> bool:
    return abs(device.bandwidth_gb_s - bandwidth_gb_s) <= _SAME_BANDWIDTH * device.bandwidth_gb_s


def _sizes(devices: list[Hardware]) -> str:
    return " or ".join(f"{size / GIB:g}" for size in sorted({device.memory_bytes or 0 for device in devices}))


def _any_of(devices: list[Hardware]) -> str:
    return "it could be any of: " + "; ".join(device.label for device in devices)


# --- Linux: cards whose drivers tell neither name nor memory --------------------------------------------------------


def _silent(drm: Path, *, nvidia_answers: bool) -> Iterator[Detected]:
    """Intel's cards, and NVIDIA's where its own driver is not at work."""
    for path in sorted(drm.glob("card*/device/vendor")):
        vendor, device = _text(path), _text(path.with_name("device"))
        number = f" ({device})" if _PCI_ID.fullmatch(device) else ""
        if vendor == "0x8086":
            yield Detected(f"Intel GPU{number}", None, None, "its driver tells neither its name nor its memory")
        if vendor == "0x10de" and not nvidia_answers:
            yield Detected(f"NVIDIA GPU{number}", None, None, "NVIDIA's driver is not there, or does not answer")


# --- Apple ----------------------------------------------------------------------------------------------------------


def _this_mac() -> list[Detected]:
    if platform.machine() != "arm64":  # a Mac of before 2020
        return []
    chip = _asked(_SYSCTL, "-n", "machdep.cpu.brand_string")
    size = _asked(_SYSCTL, "-n", "hw.memsize").strip()
    memory_bytes = int(size) if size.isdecimal() and len(size) < 20 else total_memory_bytes()
    return [apple(chip, _asked(_IOREG, "-rc", "AGXAccelerator", "-d", "1"), memory_bytes)]


def apple(chip: str, ioreg: str, memory_bytes: int) -> Detected:
    """The GPU of a Mac: by its chip, and by its number of cores (out of the text of ``ioreg``) where chips differ."""
    match = _CORES.search(ioreg)
    chip = _one_line(chip) or "Apple GPU"
    cores = f" {match[1]}-core" if match else ""
    name = chip + cores.replace(" ", " (", 1) + (" GPU)" if cores else "")
    try:
        devices = hardware.candidates(chip)
        if len({device.bandwidth_gb_s for device in devices}) > 1:
            devices = hardware.candidates(chip + cores)
    except UsageError:
        return Detected(name, memory_bytes, None, "it is not in the table of hardware")
    if len({device.bandwidth_gb_s for device in devices}) > 1:
        return Detected(name, memory_bytes, None, _any_of(devices))
    return Detected(name, memory_bytes, replace(devices[0], memory_bytes=memory_bytes))


def _asked(*command: str) -> str:
    """What a tool of the system prints; nothing where it is not there, fails or hangs."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _one_line(text: str) -> str:
    """A name from a driver, fit to be shown."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())[:_NAME_CHARS]
