"""Makes .venv in the checkout, installs localllm into it, then becomes the program that was meant to run.

    python setup_env.py run|dev PROGRAM [ARGUMENT…]

Called by _env.sh when .venv is not up to date, with any Python from 3.11 on; standard library only. Speaks on
stderr and reads nothing: stdin and stdout belong to the program. Knows pip, and how to read its failures;
knows nothing of localllm itself.

What was done is kept in .venv/localllm/, and written only once it is done:

    run, dev    the checkout's path, then pyproject.toml as it was when the package (dev: and the tools for
                development) were installed; _env.sh compares them at each start
    llama       which llama.cpp is installed: its backend and its requirement
    working     there while .venv is being changed; an interruption leaves it behind, and .venv is made anew
    setup.log   all that the last step said: pip, the compiler
"""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STATE = VENV / "localllm"
LLAMA = STATE / "llama"
WORKING = STATE / "working"
LOG = STATE / "setup.log"
PIP = (str(PYTHON), "-m", "pip", "install", "--verbose", "--no-input", "--disable-pip-version-check")

LIVE = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
SECONDS_BETWEEN_LINES = 30  # where the line cannot count

GOALS = {"run": (), "dev": ("--group", "dev")}  # what each adds to the installation of the package
BACKENDS = {
    "cpu": "",
    "metal": "",  # llama-cpp-python always builds it on a Mac
    "cuda": "-DGGML_CUDA=on",
    "rocm": "-DGGML_HIP=on",
    "vulkan": "-DGGML_VULKAN=on",
}

# llama.cpp's kernels for AMX crash where GCC 12 compiles them, so they are left out on processors that have it.
WITHOUT_AMX = "-U__AMX_INT8__"

# What to look for in the log of a failed step, and what it means; the first that is found counts.
FAILURES = {
    r"No space left on device": "the disk is full. Make room, delete .venv and start again",
    r"CMAKE_C(XX)?_COMPILER not set": "no C++ compiler was found, and llama.cpp must be compiled. Install one"
    " (Debian: apt install build-essential; macOS: xcode-select --install) and start again",
    r"CMake Error.*\n+\s*(?P<reason>.+)": "llama.cpp cannot be compiled as asked ({reason}). Install what is"
    " missing, or choose another LOCALLLM_BACKEND, and start again",
    r"\berror: (?P<reason>.+)\n(?=[\s\S]*CMake build failed)": "compiling llama.cpp failed ({reason})",
    r"connection broken|confirming the ssl certificate|HTTP error|Timeout": "the package index cannot be"
    " reached. Check the network and pip's index settings, and start again",
    r"(ERROR|error): (?P<reason>.+)\n(?![\s\S]*(ERROR|error): )": "pip failed ({reason})",
}


class SetupError(Exception):
    """Set-up cannot be finished; the message says in one line why and what to do."""


def main() -> None:
    """Bring .venv up to date, then hand over to the program."""
    goal, *command = sys.argv[1:]
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:  # as under nohup
            signal.signal(signum, _interrupted)
    try:
        with _one_at_a_time():
            set_up(goal)
    except (SetupError, OSError) as error:
        sys.exit(f"localllm: {error}")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is ignored stays so
    os.execv(command[0], command)


def _interrupted(signum: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signum, signal.SIG_IGN)  # cleaning up takes a moment
    _say("localllm: set-up was interrupted; start again to finish it")
    sys.exit(128 + signum)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let a second set-up of this checkout wait for the first. The lock ends when its process does."""
    with Path(__file__).open("rb+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("Waiting for another set-up of this checkout …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)  # a pip that outlives us keeps the lock
        yield


def set_up(goal: str) -> None:
    """Do what is missing for ``goal``: "run" (the package) or "dev" (the tools for development too)."""
    wanted = f"{ROOT}\n{(ROOT / 'pyproject.toml').read_text('utf-8')}"
    backend = chosen_backend()
    make_venv()
    install_llama(backend, wanted)
    if needs(_read(STATE / goal)) != needs(wanted):
        _step("Updating pip", *PIP, "pip>=25.1")  # the first to know --group
        _step("Installing localllm and what it needs", *PIP, "--editable", ".", *GOALS[goal])
        for other in GOALS:
            (STATE / other).unlink(missing_ok=True)
    for reached in {"run", goal}:
        (STATE / reached).write_text(wanted, "utf-8")


def chosen_backend() -> str:
    """Name the backend to have: $LOCALLLM_BACKEND, or else the installed one, or else llama.cpp's default."""
    installed = _read(LLAMA).partition(" ")[0]
    backend = os.environ.get("LOCALLLM_BACKEND") or installed or "cpu"
    if backend not in BACKENDS:
        raise SetupError(f"LOCALLLM_BACKEND={backend} is unknown; choose one of {', '.join(BACKENDS)}")
    if backend == "metal" and sys.platform != "darwin":
        raise SetupError("LOCALLLM_BACKEND=metal is for Macs")
    return backend


def needs(stamp: str) -> dict[str, object]:
    """Everything in a stamp that decides what is installed: a new linter rule in [tool] installs nothing."""
    home, _, pyproject = stamp.partition("\n")
    tables: dict[str, object] = tomllib.loads(pyproject)
    tables.pop("tool", None)
    return tables | {"home": home}


def make_venv() -> None:
    """Make .venv, unless there is one to use: finished, with a Python that runs, and made at this place."""
    homes = {_read(STATE / goal).partition("\n")[0] for goal in GOALS}
    check = "import pip, sys; sys.exit(sys.version_info < (3, 11))"
    runs = PYTHON.exists() and subprocess.run([PYTHON, "-c", check], capture_output=True).returncode == 0
    if runs and homes <= {"", str(ROOT)} and not WORKING.exists():
        STATE.mkdir(exist_ok=True)
        return
    if VENV.exists():
        _say("Replacing .venv, which is unfinished or was made by another Python or at another place")
        shutil.rmtree(VENV)
    STATE.mkdir(parents=True)
    # The real path names the version: it goes, and .venv is made anew, when the system gets another Python.
    python = os.path.realpath(sys.executable)
    _step("Setting up localllm in .venv (once)", python, "-m", "venv", str(VENV))


def install_llama(backend: str, pyproject: str) -> None:
    """Install llama-cpp-python as pyproject.toml pins it, built for the backend, unless it is there already.

    A step of its own, because it is the long one, and because a build with options must not come from pip's
    cache, nor go there: the cache does not know them.
    """
    requirement = re.findall(r'"(llama-cpp-python[^"]*)"', pyproject)[0]
    installed_backend, _, installed = _read(LLAMA).strip().partition(" ")
    if (BACKENDS.get(installed_backend), installed) != (BACKENDS[backend], requirement):
        options = f"{os.environ.get('CMAKE_ARGS', '')} {BACKENDS[backend]}".strip()
        flags = compiler_flags()
        fresh = ("--no-cache-dir", "--no-binary", "llama-cpp-python") if options or flags else ()
        title = "Installing llama.cpp (about five minutes where it must be compiled)"
        _step(title, *PIP, "--force-reinstall", "--no-deps", *fresh, requirement, CMAKE_ARGS=options, **flags)
    LLAMA.write_text(f"{backend} {requirement}\n", "utf-8")


def compiler_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """The environment's CFLAGS and CXXFLAGS with what this processor needs; empty where that is nothing."""
    if not re.search(r"^flags\s*:.*\bamx_int8\b", _read(cpuinfo), re.MULTILINE):
        return {}
    return {name: f"{os.environ.get(name, '')} {WITHOUT_AMX}".strip() for name in ("CFLAGS", "CXXFLAGS")}


def _step(title: str, *command: str, **environment: str) -> None:
    """Run one command that changes .venv, its output going to the log. What ends us, ends it too."""
    WORKING.touch()
    with LOG.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={"CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1), **os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            close_fds=False,
            start_new_session=True,  # a group of its own, so that compilers can be stopped with it
        )
    try:
        _watch(title, process)
    except BaseException:
        _end(process)
        raise
    if process.returncode >= 0:  # it ended by itself, so .venv is whole, whether or not it did what it should
        WORKING.unlink()
    if process.returncode != 0:
        raise SetupError(f"{explain(LOG.read_text('utf-8', 'replace'))}. The whole log: {LOG}")


def _watch(title: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for the process with signs of life: a line that counts on a terminal, else a line now and then."""
    _say(f"{title} …")
    started = time.monotonic()
    while process.returncode is None:
        try:
            process.wait(1 if LIVE else SECONDS_BETWEEN_LINES)
            _say("", end="")  # takes the counting line away
        except subprocess.TimeoutExpired:
            minutes, seconds = divmod(int(time.monotonic() - started), 60)
            _say(f"  {minutes}:{seconds:02d}{_compiled()}", end="" if LIVE else "\n")


def _compiled() -> str:
    """How far the compiler is, by the last line of the build tool in the log: ``  [12/193] c++ …``."""
    steps = re.findall(r"^\s*\[(\d+)/(\d+)\] ", LOG.read_text("utf-8", "replace"), re.MULTILINE)
    return f", compiled {steps[-1][0]} of {steps[-1][1]}" if steps else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop the process and all that it started; first by Ctrl-C's signal, so that pip can clean up."""
    for signum in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)


def explain(log: str) -> str:
    """Say in one line what a failed step's log means, and what to do."""
    for pattern, meaning in FAILURES.items():
        if found := re.search(pattern, log):
            return meaning.format(**found.groupdict())
    return "a step failed"


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""


def _say(line: str, end: str = "\n") -> None:
    print(("\r\x1b[K" if LIVE else "") + line, end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
