"""scripts/localllm and its set-up, run for real in small checkouts of their own, without network and compiler.

There, localllm only tells what reached it, and llama-cpp-python only how it was built.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pexpect
import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
LOCALLLM = """
[project]
name = "localllm"
version = "1.0"
dependencies = [
    "llama-cpp-python==1.0", # the one that is compiled
]

[dependency-groups]
dev = []
"""

# Packs what FILES says. As if it compiled for long, it waits for as long as the file "compiling" is there.
BACKEND = """
import os, pathlib, time, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    compiling = pathlib.Path(os.environ["PIP_FIND_LINKS"], "compiling")
    while NAME == "llama_cpp_python" and compiling.exists():
        compiling.write_text("at work")
        print("[3/7] c++ -O3", flush=True)
        time.sleep(0.1)
    wheel = f"{NAME}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, wheel), "w") as archive:
        for path, text in FILES.items():
            archive.writestr(path, text.replace("$CMAKE_ARGS", os.environ.get("CMAKE_ARGS", "")))
    return wheel

build_editable = build_wheel
"""


def write_project(folder: Path, name: str, pyproject: str, files: dict[str, str], needs: str = "") -> None:
    """A project that builds into a wheel of ``files``."""
    info = f"{name}-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nlocalllm = program:main\n" if "program.py" in files else "",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT + pyproject)
    (folder / "backend.py").write_text(f"NAME = {name!r}\nFILES = {files!r}\n{BACKEND}")


@pytest.fixture(scope="session")
def packages(tmp_path_factory) -> Path:
    """A package index in a folder: pip itself, and a llama-cpp-python that must be built."""
    folder = tmp_path_factory.mktemp("packages")
    pip = distribution("pip")
    with zipfile.ZipFile(folder / f"pip-{pip.version}-py3-none-any.whl", "w") as wheel:
        for path in pip.files or ():
            if path.parts[0].startswith("pip") and path.suffix != ".pyc":
                wheel.write(str(path.locate()), str(path))
    llama = folder / "llama_cpp_python-1.0"
    write_project(llama, "llama_cpp_python", "", {"llama_cpp.py": "OPTIONS = '$CMAKE_ARGS'\n"})
    (llama / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 1.0\n")
    with tarfile.open(folder / "llama_cpp_python-1.0.tar.gz", "w:gz") as sdist:
        sdist.add(llama, llama.name)
    return folder


class Checkout:
    """A checkout to set up, at a path with a space in it."""

    def __init__(self, root: Path, packages: Path) -> None:
        self.root = root
        self.packages = root.parent / "packages"
        shutil.copytree(packages, self.packages)
        (root / "scripts").mkdir(parents=True)
        for name in ("localllm", "_env.sh", "setup_env.py"):
            shutil.copy(SCRIPTS / name, root / "scripts")
        program = "import llama_cpp, sys\ndef main(): print(sys.argv[1:], repr(sys.stdin.read()), llama_cpp.OPTIONS)\n"
        write_project(root, "localllm", LOCALLLM, {"program.py": program}, "Requires-Dist: llama-cpp-python==1.0\n")
        self.script = root / "scripts" / "localllm"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "COVERAGE_"))}
        self.env |= {
            "PYTHON": sys.executable,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.packages),
            "PIP_CACHE_DIR": str(root.parent / "cache"),
        }

    def run(self, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.script, *arguments], input=stdin, env=self.env | env, capture_output=True, text=True
        )

    def pretend_installed(self) -> None:
        """As set-up leaves it; the program there is a shell script."""
        state = self.root / ".venv" / "localllm"
        (self.root / ".venv" / "bin").mkdir(parents=True)
        state.mkdir()
        (self.root / ".venv" / "bin" / "python").symlink_to(sys.executable)
        write_program(self.root / ".venv" / "bin" / "localllm", 'printf "<%s>" "$@"; cat')
        (state / "llama").write_text("cuda llama-cpp-python==1.0\n")
        (state / "run").write_text(f"{self.root}\n{(self.root / 'pyproject.toml').read_text()}")


@pytest.fixture
def checkout(tmp_path, packages) -> Checkout:
    return Checkout(tmp_path / "a checkout", packages)


def write_program(path: Path, shell: str) -> Path:
    path.write_text(f"#!/bin/sh\n{shell}\n")
    path.chmod(0o755)
    return path


def test_what_is_installed_is_started_with_its_arguments_and_its_stdin(checkout):
    """Nothing is added to or taken from the command line, stdin and stdout, and stderr stays empty."""
    checkout.pretend_installed()
    done = checkout.run("ask", "two words", "", "*", "--", "-q", stdin="text\n")
    assert (done.stdout, done.stderr, done.returncode) == ("<ask><two words><><*><--><-q>text\n", "", 0)


def test_it_can_be_called_from_anywhere_and_through_links(checkout, tmp_path):
    """A link on the PATH to a link to the script starts the checkout's own program."""
    checkout.pretend_installed()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llm").symlink_to("../link")
    (tmp_path / "link").symlink_to(checkout.script)
    env = checkout.env | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run("llm list", shell=True, cwd="/", env=env, input="", capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("<list>", "")


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "pyproject.toml").write_text("[project]\n"),
        lambda root: (root / ".venv" / "localllm" / "working").touch(),
        lambda root: (root / ".venv" / "localllm" / "run").unlink(),
        lambda root: (root / ".venv" / "localllm" / "llama").unlink(),
        lambda root: (root / ".venv" / "localllm" / "run").write_text(f"/old{root}\n{PROJECT}{LOCALLLM}"),
        lambda root: (root / ".venv" / "bin" / "python").unlink(),
    ],
    ids=["pyproject changed", "interrupted", "never finished", "no llama.cpp", "moved", "Python gone"],
)
def test_set_up_runs_when_something_is_out_of_date(checkout, change):
    """Each reason alone leads to set-up, which is told what to start afterwards."""
    checkout.pretend_installed()
    change(checkout.root)
    python = write_program(
        checkout.root / "python", 'case "$2" in *version*) echo 3.11 ;; run) shift; echo "$@" ;; esac'
    )
    program = checkout.root / ".venv" / "bin" / "localllm"
    assert checkout.run("ask", PYTHON=str(python)).stdout == f"run {program} ask\n"


@pytest.mark.parametrize(("backend", "runs"), [("", False), ("cuda", False), ("vulkan", True)])
def test_set_up_runs_when_another_backend_is_asked_for(checkout, backend, runs):
    """LOCALLLM_BACKEND is compared with what is installed; without it, what is installed is right."""
    checkout.pretend_installed()
    python = write_program(checkout.root / "python", 'case "$2" in *version*) echo 3.11 ;; run) echo set-up ;; esac')
    done = checkout.run("ask", PYTHON=str(python), LOCALLLM_BACKEND=backend)
    assert done.stdout == ("set-up\n" if runs else "<ask>")


def only_these(folder: Path, **programs: str) -> str:
    """A PATH on which there are only these programs, and what the scripts themselves call."""
    folder.mkdir()
    for name in ("readlink", "cmp"):
        (folder / name).symlink_to(str(shutil.which(name)))
    for name, shell in programs.items():
        write_program(folder / name, shell)
    return str(folder)


@pytest.mark.parametrize(
    ("programs", "python", "says"),
    [
        ({}, "", "Python 3.11 or newer was not found"),
        ({"python3": "echo 3.10"}, "", "python3 is Python 3.10"),
        ({"python3": "echo 2.7"}, "", "python3 is Python 2.7"),
        ({"python3": "exit 127"}, "", "Python 3.11 or newer was not found"),
        ({"python3": "echo 3.12"}, "/nowhere/python", "PYTHON=/nowhere/python is not Python 3.11 or newer"),
        ({"python3": 'case "$2" in *version*) echo 3.12 ;; *) exit 1 ;; esac'}, "", "apt install python3-venv"),
    ],
    ids=["none", "3.10", "2.7", "broken", "wrong PYTHON", "no venv module"],
)
def test_without_a_usable_python_one_line_says_what_to_do(checkout, tmp_path, programs, python, says):
    """No Python, an old one or one without venv: exit code 1 and one line that helps."""
    path = only_these(tmp_path / "bin", **programs)
    done = checkout.run("ask", PATH=path, PYTHON=python)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("localllm: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_newer_python_is_found_where_python3_is_old(checkout, tmp_path):
    """On a system whose python3 is too old, python3.13 beside it is used."""
    path = only_these(
        tmp_path / "bin", **{"python3": "echo 3.9", "python3.13": 'case "$2" in run) echo used ;; *) echo 3.13 ;; esac'}
    )
    assert checkout.run("ask", PATH=path, PYTHON="").stdout == "used\n"


def setup_env():
    spec = importlib.util.spec_from_file_location("setup_env", SCRIPTS / "setup_env.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NO_COMPILER = """\
  *** Configuring CMake...
  CMake Error at /tmp/share/cmake-4.4/Modules/CMakeDetermineCCompiler.cmake:48 (message):
    Could not find the compiler specified in the environment variable CC:

    gcc.
  CMake Error: CMAKE_C_COMPILER not set, after EnableLanguage
  -- Configuring incomplete, errors occurred!

  *** CMake configuration failed
  ERROR: Failed building wheel for llama-cpp-python
"""
NO_VULKAN = """\
  CMake Error at /usr/share/cmake-3.25/Modules/FindPackageHandleStandardArgs.cmake:230 (message):
    Could NOT find Vulkan (missing: Vulkan_LIBRARY Vulkan_INCLUDE_DIR glslc)
    (found version "")
  *** CMake configuration failed
  ERROR: Failed building wheel for llama-cpp-python
"""
BROKEN_COMPILE = """\
WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError()': /simple/cmake/
  [3/193] /usr/bin/g++ -O3 -c ggml-backend.cpp
  FAILED: vendor/llama.cpp/ggml/src/CMakeFiles/ggml-base.dir/ggml-backend.cpp.o
  ggml-backend.cpp:12:3: fatal error: Killed signal terminated program cc1plus
  ninja: build stopped: subcommand failed.

  *** CMake build failed
  error: subprocess-exited-with-error
  ERROR: Failed building wheel for llama-cpp-python
"""
NO_NETWORK = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError()': /simple/pip/
ERROR: Could not find a version that satisfies the requirement pip>=25.1 (from versions: none)
ERROR: No matching distribution found for pip>=25.1
"""
WRONG_VERSION = """\
ERROR: Ignored the following versions that require a different python version: 2.0 Requires-Python >=3.12
ERROR: No matching distribution found for numpy==9
"""


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (NO_COMPILER, "no C++ compiler was found"),
        (NO_VULKAN, "Could NOT find Vulkan"),
        (BROKEN_COMPILE, "compiling llama.cpp failed (Killed signal terminated program cc1plus)"),
        (NO_NETWORK, "the package index cannot be reached"),
        (WRONG_VERSION, "No matching distribution found for numpy==9"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("", "failed"),
    ],
    ids=["no compiler", "no Vulkan", "broken compile", "no network", "no such version", "disk full", "nothing said"],
)
def test_a_failed_step_is_explained_by_its_log(log, says):
    """What pip and CMake say (real logs, shortened) is told apart: compiler, toolkit, network, disk."""
    explanation = setup_env().explain(log)
    assert says in explanation
    assert "\n" not in explanation


@pytest.mark.parametrize(
    ("cpuinfo", "flags"),
    [
        ("processor : 0\nflags\t\t: fpu amx_bf16 amx_tile amx_int8 flush_l1d\n", "-O3 -U__AMX_INT8__"),
        ("processor : 0\nflags\t\t: fpu avx512f\nbugs : amx_int8\n", None),
        ("Features : fp asimd\n", None),
        ("", None),
    ],
)
def test_llama_cpp_is_compiled_without_amx(tmp_path, monkeypatch, cpuinfo, flags):
    """Its kernels for AMX crash where GCC 12 compiled them; other processors need no flags."""
    monkeypatch.setenv("CFLAGS", "-O3")
    monkeypatch.delenv("CXXFLAGS", raising=False)
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    expected = {"CFLAGS": flags, "CXXFLAGS": flags.removeprefix("-O3 ")} if flags else {}
    assert setup_env().compiler_flags(tmp_path / "cpuinfo") == expected
    assert setup_env().compiler_flags(tmp_path / "none") == {}


@pytest.mark.slow
def test_the_first_start_installs_and_the_second_only_starts(checkout):
    """What is piped in reaches the program also through set-up, stdout is the program's alone, and it happens once."""
    first = checkout.run("ask", "why?", stdin="a diff\n")
    assert first.stdout == "['ask', 'why?'] 'a diff\\n' \n"
    assert "Setting up localllm in .venv (once)" in first.stderr
    assert (checkout.run("ask", stdin="x").stdout, checkout.run("ask").stderr) == ("['ask'] 'x' \n", "")


@pytest.mark.slow
def test_a_venv_made_by_hand_is_used(checkout):
    """A .venv that is there already is completed, with all that was installed into it."""
    subprocess.run([sys.executable, "-m", "venv", checkout.root / ".venv"], check=True)
    done = checkout.run()
    assert done.stdout == "[] '' \n"
    assert done.stderr.startswith("Installing llama.cpp")


@pytest.mark.slow
def test_a_backend_is_built_once_and_kept(checkout):
    """LOCALLLM_BACKEND adds its flag to the user's own; later starts and a new linter rule leave that build alone."""
    assert checkout.run(LOCALLLM_BACKEND="cuda", CMAKE_ARGS="-DMINE=1").stdout == "[] '' -DMINE=1 -DGGML_CUDA=on\n"
    pyproject = checkout.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + "[tool.ruff]\nline-length = 100\n")
    kept = checkout.run()
    assert (kept.stdout, kept.stderr) == ("[] '' -DMINE=1 -DGGML_CUDA=on\n", "")
    assert checkout.run(LOCALLLM_BACKEND="vulkan").stdout == "[] '' -DGGML_VULKAN=on\n"
    assert checkout.run(LOCALLLM_BACKEND="cpu").stdout == "[] '' \n"


@pytest.mark.parametrize("backend", ["abacus", "metal"])
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has Metal")
def test_a_backend_that_does_not_exist_here_is_refused(checkout, backend):
    """A misspelt backend must not be taken for the default one."""
    done = checkout.run(LOCALLLM_BACKEND=backend)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"LOCALLLM_BACKEND={backend}" in done.stderr


@pytest.mark.slow
def test_without_the_package_index_set_up_ends_clearly_and_can_go_on_later(checkout):
    """An index that cannot be reached: exit code 1 and a line that says so; the next start goes on."""
    offline = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_FIND_LINKS": "", "PIP_RETRIES": "1"}
    done = checkout.run(**offline)
    assert done.returncode == 1
    assert "the package index cannot be reached" in done.stderr
    later = checkout.run("list")
    assert later.stdout == "['list'] '' \n"
    assert "Replacing" not in later.stderr


@pytest.mark.slow
def test_ctrl_c_stops_the_compiler_and_the_next_start_repairs(checkout):
    """Ctrl-C on a terminal: exit code 130, nothing goes on in the background, and nothing looks finished."""
    compiling = checkout.packages / "compiling"
    compiling.touch()
    terminal = pexpect.spawn(
        str(checkout.script), ["list"], env=checkout.env | {"TERM": "xterm"}, encoding="utf-8", timeout=60
    )
    terminal.expect("compiled 3 of 7")
    terminal.sendintr()
    terminal.expect("set-up was interrupted")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    compiling.write_text("nobody writes here any more")
    time.sleep(1)
    assert compiling.read_text() == "nobody writes here any more"
    compiling.unlink()
    repaired = checkout.run("list")
    assert "Replacing .venv" in repaired.stderr
    assert repaired.stdout == "['list'] '' \n"


@pytest.mark.slow
def test_a_second_start_waits_for_the_first_to_finish_set_up(checkout):
    """Two at once: one sets up, the other says that it waits, and both programs then run."""
    compiling = checkout.packages / "compiling"
    compiling.touch()

    def start(argument: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([checkout.script, argument], env=checkout.env, text=True, **pipes)

    with start("first") as first:
        assert first.stderr.readline().startswith("Setting up")
        with start("second") as second:
            assert second.stderr.readline().startswith("Waiting for another set-up")
            compiling.unlink()
            assert second.communicate() == ("['second'] '' \n", "")
            assert first.communicate()[0] == "['first'] '' \n"


def run_check(root: Path, *arguments: str, broken: str = "") -> subprocess.CompletedProcess[str]:
    """scripts/check.py among tools that only tell how they were called, one of which fails."""
    (root / "bin").mkdir(parents=True)
    (root / "scripts").mkdir()
    shutil.copy(SCRIPTS / "check.py", root / "scripts")
    (root / "bin" / "python").symlink_to(sys.executable)
    for tool in ("ruff", "mypy", "lint-imports", "cog", "pytest"):
        write_program(root / "bin" / tool, f"echo {tool} $@; exit {int(tool == broken)}")
    command = [root / "bin" / "python", root / "scripts" / "check.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_check_goes_on_after_a_failure_and_names_it_at_the_end(tmp_path):
    """One failing check fails the whole, but all the others still run."""
    done = run_check(tmp_path, "--coverage", broken="mypy")
    assert done.returncode == 1
    assert "pytest --cov" in done.stdout
    assert "passed: tests" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("failed: types, types of the scripts (")


def test_check_hands_arguments_to_pytest(tmp_path):
    """``--fast`` leaves out slow and model tests; what follows ``--`` is for pytest."""
    done = run_check(tmp_path, "--fast", "--", "-k", "seed")
    assert done.returncode == 0
    assert "pytest -m not slow and not model -k seed\n" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("all passed (")


PROOFS = """
import os, pytest

@pytest.mark.proof("holds")
def test_holds(record_property):
    record_property("cases", 2000 if os.environ["LOCALLLM_PROOF"] == "full" else 2)

@pytest.mark.proof("breaks")
def test_breaks():
    assert False
"""


@pytest.mark.parametrize(
    ("name", "code", "row"), [("holds", 0, "| holds | passed | 2,000 |"), ("breaks", 1, "| breaks | failed | 0 |")]
)
def test_a_proof_is_run_whole_and_recorded(tmp_path, name, code, row):
    """scripts/prove runs the tests of one name at full size and appends what came out to docs/proofs.md."""
    done = prove(tmp_path, name)
    assert done.returncode == code
    assert row in (tmp_path / "docs" / "proofs.md").read_text().splitlines()[-1]


def test_an_unknown_proof_is_refused_with_the_known_ones(tmp_path):
    """A misspelt name records nothing."""
    done = prove(tmp_path, "hods")
    assert done.returncode == 2
    assert "only: breaks, holds" in done.stderr
    assert not (tmp_path / "docs").exists()


def prove(root: Path, name: str) -> subprocess.CompletedProcess[str]:
    (root / "scripts").mkdir()
    shutil.copy(SCRIPTS / "prove.py", root / "scripts")
    (root / "pytest.ini").write_text("[pytest]\nmarkers = proof\n")
    (root / "test_proofs.py").write_text(PROOFS)
    return subprocess.run([sys.executable, root / "scripts" / "prove.py", name], capture_output=True, text=True)
