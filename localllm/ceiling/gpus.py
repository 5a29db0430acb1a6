"""The GPUs of this machine and their memory, asked of the system itself: no model runtime is loaded for it.

Knows NVIDIA's management library (NVML), what Linux tells of AMD's cards, and that a Mac's GPU shares the machine's
memory. Does not know whether the llama.cpp that is installed can use what is there.
"""

import ctypes
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from localllm.ceiling.hardware import APPLE_USABLE_SHARE
from localllm.ceiling.measure import total_memory_bytes

DRM = Path("/sys/class/drm")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``memory_bytes`` is all that a model may fill when it is idle; ``shared`` if the machine's own.

    ``bandwidth_gb_s`` is its highest memory clock times its bus, in 10⁹ bytes per second; None where that is not told.
    """

    name: str
    memory_bytes: int
    shared: bool = False
    bandwidth_gb_s: float | None = None


def gpus(drm: Path = DRM) -> list[Gpu]:
    """All GPUs that tell how much memory they have; ``drm`` is where Linux lists graphics cards."""
    return _apple() if sys.platform == "darwin" else _nvidia() + _amd(drm)


def _apple() -> list[Gpu]:
    if platform.machine() != "arm64":  # a Mac of before 2020
        return []
    return [Gpu("Apple GPU", int(APPLE_USABLE_SHARE * total_memory_bytes()), shared=True)]


# --- AMD ------------------------------------------------------------------------------------------------------------


def _amd(drm: Path) -> list[Gpu]:
    """The cards of the amdgpu driver. An integrated one tells what the firmware keeps from the system for it."""
    cards = [path.parent for path in sorted(drm.glob("card*/device/mem_info_vram_total"))]
    sizes = [_text(card / "mem_info_vram_total") for card in cards]
    names = [_text(card / "product_name") or "AMD GPU" for card in cards]  # only some cards tell theirs
    return [Gpu(name, int(size)) for name, size in zip(names, sizes, strict=True) if size.isdecimal()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# --- NVIDIA: https://docs.nvidia.com/deploy/nvml-api. Every call returns 0 for success ------------------------------

_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE
_CLOCK_MEM = 2  # NVML_CLOCK_MEM
_TRANSFERS = 2  # in a cycle of the clock that NVML tells, with any type of memory


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _nvidia() -> list[Gpu]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:  # the library is there, but no card or no driver
            return []
    except (OSError, AttributeError):  # no such library, or one from before 2012
        return []
    try:
        count = ctypes.c_uint()
        failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0
        cards = [] if failed else [_nvidia_card(nvml, index) for index in range(count.value)]
        return [card for card in cards if card]
    finally:
        nvml.nvmlShutdown()


def _nvidia_card(nvml: ctypes.CDLL, index: int) -> Gpu | None:
    """None where a call fails: the card is not ours to use, has fallen off the bus, or has no memory of its own."""
    device, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES), _Memory()
    failed = (
        nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
        or nvml.nvmlDeviceGetName(device, name, ctypes.c_uint(_NAME_BYTES))
        or nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    )
    if failed:
        return None
    return Gpu(name.value.decode("utf-8", "replace"), memory.total, bandwidth_gb_s=_nvidia_gb_s(nvml, device))


def _nvidia_gb_s(nvml: ctypes.CDLL, device: ctypes.c_void_p) -> float | None:
    """Memory clock × bus. None where the driver tells nothing, or what no memory reaches."""
    clock_mhz, bus_bits = ctypes.c_uint(), ctypes.c_uint()
    try:
        failed = nvml.nvmlDeviceGetMaxClockInfo(
            device, ctypes.c_uint(_CLOCK_MEM), ctypes.byref(clock_mhz)
        ) or nvml.nvmlDeviceGetMemoryBusWidth(device, ctypes.byref(bus_bits))
    except AttributeError:  # the bus is told since 2021
        return None
    gb_s = clock_mhz.value * _TRANSFERS * bus_bits.value / 8 / 1000
    return None if failed or not 1 < gb_s < 100_000 else gb_s
