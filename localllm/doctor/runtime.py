"""Checks of what runs the models: the versions, llama.cpp's build, GPUs and cores.

Knows how llama.cpp names processor features and how it is built for a card. Measures nothing.
"""

import importlib.metadata
import os
import platform
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from localllm.cores import default_threads, quota_cores
from localllm.doctor.finding import Finding, ok, problem, warning
from localllm.sizes import GIB

BINDING = "llama-cpp-python"
_FEATURE = re.compile(r"(\w+) = (\d+)")
# What makes prompts slow where it is missing: as llama.cpp calls it, and as Linux does in /proc/cpuinfo.
_NEEDED = {
    "x86_64": {"AVX2": "avx2", "FMA": "fma", "F16C": "f16c"},
    "aarch64": {"NEON": "asimd", "DOTPROD": "asimddp"},
    "arm64": {"NEON": "asimd", "DOTPROD": "asimddp"},
}
_WITHOUT_AMX = ("CFLAGS=-U__AMX_INT8__", "CXXFLAGS=-U__AMX_INT8__")  # as scripts/setup_env.py has it
_NATIVE = "CMAKE_ARGS=-DGGML_NATIVE=on"
_OPTIONS = {"NVIDIA": "CMAKE_ARGS=-DGGML_CUDA=on", "AMD": "CMAKE_ARGS=-DGGML_HIP=on"}
_TOOLKITS = {"NVIDIA": "the CUDA toolkit", "AMD": "ROCm"}
_INTEGRATED_BYTES = 3 * GIB  # what a processor's own graphics keeps for itself is less


def versions() -> Iterator[Finding]:
    """Which versions work together here: llama.cpp's bindings must be the ones that localllm was made for."""
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    binding = _version(BINDING)
    if binding is None:
        yield problem("versions", f"{BINDING} is not installed; {python}", _install(required_binding()))
        return
    text = f"localllm {_version('localllm') or '(not installed)'}, {BINDING} {binding}, {python}"
    wanted = required_binding()
    if wanted and wanted != binding:
        yield problem("versions", f"{text}; localllm is made for {BINDING} {wanted}", _install(wanted))
    else:
        yield ok("versions", text)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def required_binding() -> str:
    """The version of the bindings that localllm asks for; "" where it is not installed itself."""
    try:
        required = importlib.metadata.requires("localllm") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((line.removeprefix(f"{BINDING}==") for line in required if line.startswith(f"{BINDING}==")), "")


def _install(version: str, *environment: str) -> str:
    """The command that installs the bindings, compiled here where variables for llama.cpp's build are given."""
    package = f"{BINDING}=={version}" if version else BINDING
    compiled = f"--force-reinstall --no-deps --no-cache-dir --no-binary {BINDING} " if environment else ""
    variables = "".join(f"{variable} " for variable in environment)
    return f"{variables}{shlex.quote(sys.executable)} -m pip install {compiled}{package}"


# --- llama.cpp's build -------------------------------------------------------------------------------------------


def backend() -> Iterator[Finding]:
    """Whether llama.cpp loads, and whether it was compiled for what this processor can do."""
    try:
        from localllm.engine.bindings import build
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        yield problem("llama.cpp", f"it cannot be loaded: {reason}", _install(required_binding(), _NATIVE))
        return
    yield compiled(build(), platform.machine(), processor_flags())


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What this processor can do, as Linux calls it; empty where that is not told."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    found = (line.partition(":") for line in lines)
    return frozenset(next((flags for key, _, flags in found if key.strip() in ("flags", "Features")), "").split())


def compiled(info: str, machine: str, flags: Collection[str]) -> Finding:
    """What llama.cpp says of its build (``llama_print_system_info``), held against what the processor can do."""
    features = {name for name, value in _FEATURE.findall(info) if value != "0"}
    needed = _NEEDED.get(machine, {})
    missing = [name for name in needed if name not in features]
    text = "built with " + (", ".join(sorted(features)) or "no processor features")
    unused = [name for name in missing if not flags or needed[name] in flags]
    if unused:
        advice = "compile it for this processor: " + _install(required_binding(), _NATIVE)
        return warning("llama.cpp", f"{text}; without {', '.join(unused)}, which this processor has", advice)
    if "AMX_INT8" in features:  # engine/bindings.py says why
        text += "; AMX, which crashes where GCC 12 compiled it, is not used, nor are weights arranged anew"
        return warning("llama.cpp", text, "compile it without: " + _install(required_binding(), *_WITHOUT_AMX))
    if missing:
        lacking = f"this processor has no {', '.join(missing)}, so prompts are read slowly"
        return warning("llama.cpp", f"{text}; {lacking}", "small models answer soonest here: localllm list")
    return ok("llama.cpp", text)


# --- GPUs --------------------------------------------------------------------------------------------------------


def gpu() -> Iterator[Finding]:
    """Whether the GPUs that are here are used."""
    from localllm.app import built_for_gpus
    from localllm.ceiling.detection import detected

    cards = [(card.name, card.memory_bytes) for card in detected()]
    built = built_for_gpus()
    usable = _usable() if cards and built else []
    yield graphics(cards, built, usable)


def _usable() -> list[str]:
    from localllm.engine.llama import devices

    return [device.name for device in devices()]


def graphics(cards: Sequence[tuple[str, int | None]], built: bool, usable: Sequence[str]) -> Finding:
    """The cards that the system has (name, and bytes of memory where told), and those that llama.cpp can use."""
    names = ", ".join(_with_memory(*card) for card in cards)
    if not cards:
        text = "none was found; models run on the processor"
        advice = "install the card's driver, or hand the card to this container"
        return warning("GPU", f"{text}, though llama.cpp is built for GPUs", advice) if built else ok("GPU", text)
    if built and usable:
        return ok("GPU", f"{names}; used by llama.cpp: {', '.join(usable)}")
    if built:
        advice = "update the card's driver, and see that nothing hides the card (CUDA_VISIBLE_DEVICES)"
        return problem("GPU", f"{names}: llama.cpp is built for GPUs, but cannot use any", advice)
    vendor = _vendor(cards)
    if vendor is None:
        return ok("GPU", f"{names}; not used, models run on the processor")
    advice = f"with {_TOOLKITS[vendor]} installed: {_install(required_binding(), _OPTIONS[vendor])}"
    return warning("GPU", f"{names}: not used, llama.cpp is built for the processor only", advice)


def _vendor(cards: Sequence[tuple[str, int | None]]) -> str | None:
    """Whose cards are worth a build of their own: those with memory of their own."""
    for name, memory_bytes in cards:
        vendor = "NVIDIA" if re.search("NVIDIA|GeForce|Tesla|Quadro", name) else "AMD"
        if (memory_bytes or 0) >= _INTEGRATED_BYTES or (vendor == "NVIDIA" and memory_bytes is None):
            return vendor
    return None


def _with_memory(name: str, memory_bytes: int | None) -> str:
    return f"{name} ({memory_bytes / GIB:.0f} GiB)" if memory_bytes else name


# --- cores -------------------------------------------------------------------------------------------------------


def cores() -> Iterator[Finding]:
    """Whether there are cores to compute on: a container's limit, and what other programs take."""
    yield threads(default_threads(), quota_cores(), os.getloadavg()[0])


def threads(count: int, quota: float | None, load: float) -> Finding:
    """``count`` threads are used where no other number is given; ``load`` is the system's over the last minute."""
    each = f"this container may use {quota:g} cores' time" if quota and quota < count + 1 else "one for each core"
    text = f"{count} thread{'s' if count > 1 else ''}, {each}; load {load:.1f}"
    if load > 0.7 * count:
        return warning("cores", f"{text}: other programs compute too, answers are slower", "see which: top")
    return ok("cores", text)
