"""Builds llama.cpp for this machine's GPU and runs gpu_checks.py with it. Started by scripts/check_gpu.

Works in a copy of the checkout with an environment of its own, made by setup_env.py as for any checkout; .venv is left
alone. The copy stays in the cache, so that only the first run builds. Standard library only, any Python from 3.11 on.
Knows how a machine tells that it has a GPU, and nothing of what is checked.

Exit codes: 0 all checks passed; 1 one failed, building failed, or time ran out; 4 there is no GPU.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "localllm" / "check_gpu"
LIMIT_S = 600
NO_GPU = 4

# What to ask for GPUs, and what the answer holds if there is one.
PROBES = {
    "cuda": (("nvidia-smi", "--list-gpus"), r"^GPU \d+:"),
    "rocm": (("rocminfo",), r"Device Type:\s+GPU"),
    "vulkan": (("vulkaninfo", "--summary"), r"deviceType\s*=\s*PHYSICAL_DEVICE_TYPE_(DISCRETE|INTEGRATED)_GPU"),
}
OPTIONS = {"cuda": "-DCMAKE_CUDA_ARCHITECTURES=native"}  # the card that is here: all of them would take too long


def main() -> int:
    """Find a GPU, build, check."""
    if {"-h", "--help"} & set(sys.argv):
        print("usage: scripts/check_gpu [--model NAME|PATH]\n\nA larger model whose decode rate is to be told as well.")
        return 0
    backend = os.environ.get("LOCALLLM_BACKEND") or found_backend()
    if backend is None:
        asked = ", ".join(command[0] for command, _ in PROBES.values())
        print(f"check_gpu: there is no GPU here, so nothing was checked (asked: {asked})")
        return NO_GPU
    print(f"Building for {backend} in {COPY}", flush=True)
    copy_checkout()
    return run_checks(backend, sys.argv[1:])


def found_backend() -> str | None:
    """The backend for this machine's GPU, if it has one."""
    if sys.platform == "darwin":
        return "metal" if platform.machine() == "arm64" else None
    return next((backend for backend, (command, sign) in PROBES.items() if re.search(sign, said(command), re.M)), None)


def said(command: tuple[str, ...]) -> str:
    """What a program prints; nothing where it is missing, fails or hangs."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def copy_checkout() -> None:
    """Bring the copy up to date; its hidden files, above all its environment, stay."""
    COPY.mkdir(parents=True, exist_ok=True)
    for old in COPY.glob("[!.]*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    shutil.copytree(ROOT, COPY, ignore=shutil.ignore_patterns(".*", "__pycache__"), dirs_exist_ok=True)


def run_checks(backend: str, arguments: list[str]) -> int:
    """Set up the copy and run the checks there, within the time limit."""
    command: list[str | Path] = [sys.executable, COPY / "scripts" / "setup_env.py", "run"]
    command += [COPY / ".venv" / "bin" / "python", COPY / "scripts" / "gpu_checks.py", *arguments]
    options = f"{OPTIONS.get(backend, '')} {os.environ.get('CMAKE_ARGS', '')}".strip()
    environment = os.environ | {"LOCALLLM_BACKEND": backend, "CMAKE_ARGS": options}
    return finished(subprocess.Popen(command, env=environment), LIMIT_S)


def finished(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """The exit code of a process, which is ended at the limit; it cleans up behind itself first."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        print(f"check_gpu: stopped after {limit_s / 60:g} minutes", file=sys.stderr)
        process.terminate()  # setup_env.py takes its compilers with it
        return process.wait() or 1
    except KeyboardInterrupt:  # which has reached it as well
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
