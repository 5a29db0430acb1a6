"""The hub's cache and downloads from the hub: a hub that really answers, well or badly, and caches in any state."""

import hashlib
import os
import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Serve, as_a_user
from gguf_files import tiny
from servers import COMMIT, Site, hub

from localllm.cancel import Cancel
from localllm.errors import Cancelled, DownloadError, LocalLLMError, ModelNotFound, UsageError
from localllm.models.catalog import Catalog, HubSource, ModelSpec
from localllm.models.store import Download, all_local, find, pull, remove, resolve

MODEL = tiny().file() + random.Random(0).randbytes(700_000)
SHA256 = hashlib.sha256(MODEL).hexdigest()
LARGE = random.Random(1).randbytes(36 * 2**20)  # the hub's library writes 10 MiB at a time
LARGE_SHA256 = hashlib.sha256(LARGE).hexdigest()
LARGE_FROM_HUB = HubSource("user/repo", "Tiny-Q4_0.gguf", len(LARGE), LARGE_SHA256)
FROM_HUB = HubSource("user/repo", "Tiny-Q4_0.gguf", len(MODEL), SHA256)
NO_CATALOG = Catalog(())
URL = "/user/repo/resolve/main/Tiny-Q4_0.gguf"

pytestmark = pytest.mark.usefixtures("cache")


def _spec(*sources: HubSource) -> ModelSpec:
    return ModelSpec("tiny", "A model", "mit", sources)


def _catalog(*sources: HubSource) -> Catalog:
    return Catalog((_spec(*sources),))


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _hub_file(tmp_path: Path) -> Path:
    return tmp_path / "hf" / "hub" / "models--user--repo" / "snapshots" / COMMIT / "Tiny-Q4_0.gguf"


def test_a_model_from_the_hub(serve: Serve, tmp_path: Path) -> None:
    """It lands in the hub's own cache, verified, and is found there without the network."""
    site = serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    seen: list[Download] = []
    model = resolve("tiny", _catalog(FROM_HUB), seen.append)
    assert model.path == _hub_file(tmp_path)
    assert model.path.read_bytes() == MODEL
    assert list(dict.fromkeys(download.phase for download in seen)) == ["fetch", "verify"]
    assert seen[-1].done_bytes == seen[-1].total_bytes == len(MODEL)
    site.status = 500
    assert resolve("tiny", _catalog(FROM_HUB)) == model


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HF_HUB_CACHE": "{}/a"}, "a"),
        ({"HF_HOME": "{}/b"}, "b/hub"),
        ({"XDG_CACHE_HOME": "{}/c"}, "c/huggingface/hub"),
        ({"HOME": "{}/d"}, "d/.cache/huggingface/hub"),
        ({"HF_HUB_CACHE": "$PLACE/e", "PLACE": "{}"}, "e"),
    ],
)
def test_we_look_where_the_hub_library_puts_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], place: str
) -> None:
    """Without importing huggingface_hub we find its cache by the same variables as it does itself."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    theirs = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    path = Path(theirs) / "models--user--repo" / "snapshots" / COMMIT / "Tiny-Q4_0.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(MODEL)
    found = find("tiny", _catalog(FROM_HUB))
    assert found
    assert found.path == path == tmp_path / place / path.relative_to(theirs)


def test_the_newest_revision_is_taken(tmp_path: Path) -> None:
    """Of several revisions in the cache the one that main means counts; a dangling link is no file."""
    repository = tmp_path / "hf" / "hub" / "models--user--repo"
    for commit in ("aaa", "bbb"):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "Tiny-Q4_0.gguf").write_text(commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("bbb")
    found = find("tiny", _catalog(FROM_HUB))
    assert found
    assert found.path.read_text() == "bbb"
    found.path.unlink()
    found.path.symlink_to("nowhere")
    assert find("tiny", _catalog(FROM_HUB)).path.read_text() == "aaa"  # type: ignore[union-attr]


def test_a_wrong_file_from_the_hub_is_removed(serve: Serve, tmp_path: Path) -> None:
    """Where the checksum is known and differs, the file is gone again, from the hub's cache too."""
    serve.hub(hub({"Tiny-Q4_0.gguf": MODEL[::-1]}))
    with pytest.raises(DownloadError, match="its checksum differs"):
        pull(_spec(FROM_HUB))
    assert find("tiny", _catalog(FROM_HUB)) is None
    assert not [path for path in (tmp_path / "hf").rglob("*") if path.is_file() and path.stat().st_size > 1000]


def test_the_hubs_own_checksum_is_compared_where_the_catalog_has_none(serve: Serve) -> None:
    """The hub names large files by their sha256; a file that differs from its name is removed."""
    site = serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    site.headers["X-Linked-Etag"] = f'"{hashlib.sha256(b"something else").hexdigest()}"'
    source = replace(FROM_HUB, sha256=None)
    with pytest.raises(DownloadError, match="its checksum differs"):
        pull(_spec(source))
    assert find("tiny", _catalog(source)) is None
    del site.headers["X-Linked-Etag"]
    assert pull(_spec(source)).path.read_bytes() == MODEL


def test_a_comparison_that_is_interrupted_leaves_nothing_to_be_found(serve: Serve) -> None:
    """A file that was not verified to its end is not there."""
    serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    cancel = Cancel()

    def stop(download: Download) -> None:
        if download.phase == "verify":
            cancel.set()

    with pytest.raises(Cancelled):
        pull(_spec(FROM_HUB), stop, cancel)
    assert find("tiny", _catalog(FROM_HUB)) is None


def test_a_hub_that_fails(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unreachable, offline by wish, no such file or repository, gated, out of order: each has its own words."""

    def reason() -> str:
        with pytest.raises(DownloadError) as caught:
            pull(_spec(FROM_HUB))
        return f"{caught.value.message} | {caught.value.hint}"

    assert "the Hugging Face hub: it cannot be reached" in reason()
    site = serve.hub(Site(headers={"X-Error-Code": "EntryNotFound"}))
    assert "there is no file Tiny-Q4_0.gguf in user/repo" in reason()
    site.headers = {"X-Error-Code": "RepoNotFound"}
    assert "there is no repository user/repo" in reason()
    site.headers, site.status = {"X-Error-Code": "GatedRepo"}, 403
    assert "the licence to be accepted first" in reason()
    assert "set HF_TOKEN" in reason()
    site.headers, site.status = {}, 418
    assert "status 418" in reason()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = len(site.requests)
    assert "HF_HUB_OFFLINE is set" in reason()
    assert len(site.requests) == asked


def test_a_token_is_used_and_never_shown(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """HF_TOKEN goes to the hub; when the hub refuses it, neither message nor output contains it."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    site = serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    site.status = 401
    with pytest.raises(DownloadError) as caught:
        pull(_spec(FROM_HUB))
    sent = {name.lower(): value for name, value in site.requests[0][2].items()}
    assert sent["authorization"] == "Bearer hf_secret"
    assert "hf_secret" not in caught.value.message + caught.value.hint
    assert capfd.readouterr() == ("", "")


def test_a_stop_of_a_hub_download_and_another_try(serve: Serve) -> None:
    """A stop ends a download that hangs and leaves no file to be found; the next try succeeds."""
    site = serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    site.stall_after = 100_000
    cancel = Cancel()
    threading.Thread(target=lambda: site.stalled.wait() and cancel.set()).start()
    with pytest.raises(Cancelled):
        pull(_spec(FROM_HUB), cancelled=cancel)
    assert find("tiny", _catalog(FROM_HUB)) is None
    site.stall_after = None
    assert pull(_spec(FROM_HUB)).path.read_bytes() == MODEL


@pytest.mark.slow
def test_a_hub_that_always_breaks_off(serve: Serve) -> None:
    """The hub's library tries several times, a second apart; then it is said what happened."""
    serve.hub(hub({"Tiny-Q4_0.gguf": MODEL})).cut_after = 0
    with pytest.raises(DownloadError, match="the connection broke off"):
        pull(_spec(FROM_HUB))
    assert find("tiny", _catalog(FROM_HUB)) is None


# --- downloads that break off -----------------------------------------------------------------------------------


def _begin(site: Site, source: HubSource) -> None:
    """Stop a download when 20 MiB have come, of which 10 at least are on the disk."""
    site.stall_after = 25 * 2**20
    cancel = Cancel()
    with pytest.raises(Cancelled):
        pull(_spec(source), lambda download: cancel.set() if download.done_bytes >= 20 * 2**20 else None, cancel)
    site.stall_after = None


def test_a_stopped_download_goes_on_where_it_ended(serve: Serve) -> None:
    """What came before a stop is not fetched again, nothing of it can be found as a model, and the sum is whole."""
    site = serve.hub(hub({"Tiny-Q4_0.gguf": LARGE}))
    _begin(site, LARGE_FROM_HUB)
    assert find("tiny", _catalog(LARGE_FROM_HUB)) is None
    assert all_local(_catalog(LARGE_FROM_HUB)) == []
    assert pull(_spec(LARGE_FROM_HUB)).path.read_bytes() == LARGE
    first, second = (headers.get("Range") for headers in site.asked(URL))
    assert first is None
    assert second
    assert 10 * 2**20 <= int(second.removeprefix("bytes=").removesuffix("-")) <= 20 * 2**20


def test_a_dropped_connection_is_taken_up_again(serve: Serve) -> None:
    """A connection that breaks off in the middle of a file costs another request for the rest."""
    site = serve.hub(hub({"Tiny-Q4_0.gguf": LARGE}))
    site.cut_after = 25 * 2**20
    assert pull(_spec(LARGE_FROM_HUB)).path.read_bytes() == LARGE
    assert [headers.get("Range") for headers in site.asked(URL)] == [None, "bytes=20971520-"]


def test_a_full_disk_while_pulling(serve: Serve, tmp_path: Path) -> None:
    """It is said, no half file is found, and when there is room the download succeeds."""
    site = serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    blobs = tmp_path / "hf" / "hub" / "models--user--repo" / "blobs"
    blobs.mkdir(parents=True)
    full = blobs / f"{SHA256}.incomplete"
    full.symlink_to("/dev/full")
    with pytest.raises(DownloadError, match="the disk is full"):
        pull(_spec(FROM_HUB))
    assert find("tiny", _catalog(FROM_HUB)) is None
    full.unlink()
    assert pull(_spec(FROM_HUB)).path.read_bytes() == MODEL
    assert site.requests


# --- references -------------------------------------------------------------------------------------------------

FILES = {
    "README.md": b"# Tiny",
    "Tiny-Q4_K_M.gguf": MODEL,
    "Tiny-Q8_0.gguf": MODEL[::-1],
    "mmproj-F16.gguf": b"no model",
}


@pytest.mark.parametrize(
    ("reference", "name", "content"),
    [
        ("user/repo", "user/repo:Q4_K_M", MODEL),
        ("user/repo:q8_0", "user/repo:Q8_0", MODEL[::-1]),
        ("hf.co/user/repo:Q8_0", "user/repo:Q8_0", MODEL[::-1]),
        ("https://huggingface.co/user/repo/blob/main/Tiny-Q8_0.gguf", "user/repo:Q8_0", MODEL[::-1]),
    ],
)
def test_a_model_by_its_repository(serve: Serve, reference: str, name: str, content: bytes) -> None:
    """It is fetched, verified, and from then on found under each of its names without asking anybody."""
    site = serve.hub(hub(FILES))
    model = resolve(reference, NO_CATALOG)
    assert (model.name, model.path.read_bytes(), model.spec) == (name, content, None)
    asked = len(site.requests)
    assert resolve(reference, NO_CATALOG) == resolve(name, NO_CATALOG) == model
    assert all_local(NO_CATALOG) == [model]
    assert len(site.requests) == asked


def test_the_catalog_knows_a_model_by_its_repository_too(serve: Serve) -> None:
    """A file that an entry names brings that entry's advice along, however it was asked for."""
    serve.hub(hub({"Tiny-Q4_0.gguf": MODEL, **FILES}))
    catalog = _catalog(FROM_HUB)
    assert resolve("user/repo:Q4_0", catalog).spec == catalog["tiny"]
    assert find("user/repo:Q4_0", catalog).spec == catalog["tiny"]  # type: ignore[union-attr]
    assert find("tiny", catalog)
    assert resolve("user/repo:Q8_0", catalog).spec is None


def test_a_quantisation_that_is_not_there(serve: Serve) -> None:
    """It is said which there are; one that is on this disk does not stand in for it."""
    serve.hub(hub(FILES))
    resolve("user/repo", NO_CATALOG)
    with pytest.raises(ModelNotFound) as caught:
        resolve("user/repo:Q6_K", NO_CATALOG)
    assert caught.value.message == "user/repo has no Q6_K"
    assert caught.value.hint == "it has: Q4_K_M, Q8_0"


def test_a_repository_that_is_not_there(serve: Serve) -> None:
    """One line that says so, with what could be the reason."""
    serve.hub(Site(headers={"X-Error-Code": "RepoNotFound"}))
    with pytest.raises(DownloadError, match="there is no repository user/other, or it is private"):
        resolve("user/other", NO_CATALOG)


def test_a_repository_without_a_network() -> None:
    """It is said who cannot be reached, and what to do, as for a model of the catalog."""
    with pytest.raises(DownloadError) as caught:
        resolve("user/repo", NO_CATALOG)
    assert caught.value.message == "user/repo cannot be fetched (the Hugging Face hub: it cannot be reached)"
    assert caught.value.hint == "check the network, or give the path of a GGUF file"


def test_a_split_model(serve: Serve) -> None:
    """All parts are fetched and belong together; with one missing it is not found, and only that one is fetched."""
    names = [f"Big-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    parts = dict(zip(names, (MODEL, MODEL[::-1], b"GGUF end"), strict=True))
    site = serve.hub(hub(parts))
    model = resolve("user/repo", NO_CATALOG)
    assert [path.name for path in model.files] == names
    assert [path.read_bytes() for path in model.files] == list(parts.values())
    assert model.file_bytes == sum(map(len, parts.values()))
    assert find("user/repo:Q4_K_M", NO_CATALOG) == model
    site.requests.clear()
    model.files[1].unlink()
    assert find("user/repo", NO_CATALOG) is None
    assert all_local(NO_CATALOG) == []
    assert resolve("user/repo", NO_CATALOG) == model
    assert not site.asked(f"/user/repo/resolve/main/{names[0]}")


# --- caches in any state ----------------------------------------------------------------------------------------


def _cached(tmp_path: Path, commit: str, name: str = "Tiny-Q4_0.gguf", content: bytes = MODEL) -> Path:
    """A file as the hub's library keeps it: bytes among the blobs, a link in the revision's folder."""
    repository = tmp_path / "hf" / "hub" / "models--user--repo"
    blob = repository / "blobs" / hashlib.sha256(content).hexdigest()
    link = repository / "snapshots" / commit / name
    for folder in (blob.parent, link.parent):
        folder.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link.symlink_to(os.path.relpath(blob, link.parent))
    return link


def test_dangling_links(serve: Serve, tmp_path: Path) -> None:
    """A link without its bytes is no model: not found, not listed, and mended by a download."""
    serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    link = _cached(tmp_path, COMMIT)
    link.resolve().unlink()
    assert find("tiny", _catalog(FROM_HUB)) is None
    assert all_local(_catalog(FROM_HUB)) == []
    assert resolve("tiny", _catalog(FROM_HUB)).path.read_bytes() == MODEL


def test_a_cache_without_links(tmp_path: Path) -> None:
    """Where a file system has no links, the files lie in the revision's folder itself, and are found there."""
    path = tmp_path / "hf" / "hub" / "models--user--repo" / "snapshots" / COMMIT / "Tiny-Q4_0.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(MODEL)
    assert find("tiny", _catalog(FROM_HUB)).path == path  # type: ignore[union-attr]
    (listed,) = all_local(NO_CATALOG)
    assert (listed.name, listed.path) == ("user/repo:Q4_0", path)


def test_partial_blobs_are_no_models(tmp_path: Path) -> None:
    """What another download has begun is not looked at, whatever it is called."""
    blobs = tmp_path / "hf" / "hub" / "models--user--repo" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{SHA256}.incomplete").write_bytes(MODEL[:1000])
    (blobs / f"{SHA256}.a1b2c3d4.incomplete").write_bytes(MODEL[:1000])
    assert find("tiny", _catalog(FROM_HUB)) is None
    assert all_local(_catalog(FROM_HUB)) == []


def test_two_revisions_are_listed_once(tmp_path: Path) -> None:
    """The same file in two revisions is one model; of two versions of it the one that main means counts."""
    old, new = "a" * 40, "b" * 40
    _cached(tmp_path, old)
    newer = _cached(tmp_path, new, content=MODEL[::-1])
    (tmp_path / "hf" / "hub" / "models--user--repo" / "refs").mkdir()
    (tmp_path / "hf" / "hub" / "models--user--repo" / "refs" / "main").write_text(new)
    only_old = _cached(tmp_path, old, "Tiny-Q8_0.gguf")
    listed = {model.name: model.path for model in all_local(NO_CATALOG)}
    assert listed == {"user/repo:Q4_0": newer, "user/repo:Q8_0": only_old}
    assert {find(name, NO_CATALOG).path for name in listed} == {newer, only_old}  # type: ignore[union-attr]


@pytest.mark.parametrize("closed", ["hub", "hub/models--user--repo", "hub/models--user--repo/snapshots"])
def test_a_folder_without_permission(tmp_path: Path, closed: str) -> None:
    """What may not be read is not there for us: other models are listed, and a pull says which folder it is."""
    _cached(tmp_path, COMMIT)
    folder = tmp_path / "hf" / closed
    folder.chmod(0)
    try:
        listed = _localllm("list", "--json", "user/")
        assert (listed.returncode, listed.stdout, listed.stderr) == (0, "[]\n", "")
        pulled = _localllm("pull", "user/repo")
        assert pulled.returncode == 4
        assert "Traceback" not in pulled.stderr
    finally:
        folder.chmod(0o755)


def test_a_cache_that_may_not_be_written(serve: Serve, tmp_path: Path) -> None:
    """A pull says which folder it is that may not be written."""
    serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    folder = tmp_path / "hf"
    folder.mkdir()
    folder.chmod(0o555)
    try:
        pulled = _localllm("pull", "user/repo")
    finally:
        folder.chmod(0o755)
    assert pulled.returncode == 4
    assert f"{folder}" in pulled.stderr
    assert "Permission denied" in pulled.stderr
    assert "Traceback" not in pulled.stderr


def _localllm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = as_a_user(sys.executable, "-m", "localllm", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


# --- offline, tokens, proxies -----------------------------------------------------------------------------------


def test_offline_by_wish_with_a_cached_model(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cached is used without any request; what is not says why it cannot be fetched."""
    site = serve.hub(hub(FILES))
    _cached(tmp_path, COMMIT, "Tiny-Q8_0.gguf")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve("user/repo", NO_CATALOG).name == "user/repo:Q8_0"
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        resolve("user/repo:Q4_K_M", NO_CATALOG)
    assert site.requests == []


@pytest.mark.parametrize("token", ["", " ", "\n"])
def test_an_empty_token_is_none(serve: Serve, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """Nothing is sent, and the download works."""
    monkeypatch.setenv("HF_TOKEN", token)
    site = serve.hub(hub(FILES))
    assert resolve("user/repo", NO_CATALOG).path.read_bytes() == MODEL
    assert not [headers for _, _, headers in site.requests if "authorization" in {name.lower() for name in headers}]


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, "it refuses the token"),
        (403, {}, "it refuses the token"),
        (401, {"X-Error-Code": "GatedRepo"}, "the licence to be accepted first"),
        (403, {"X-Error-Code": "GatedRepo"}, "the licence to be accepted first"),
        (401, {"X-Error-Code": "RepoNotFound"}, "or it is private"),
    ],
)
def test_a_token_that_does_not_help(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str], says: str
) -> None:
    """Refused, or not enough for a gated or private model: each in its own words, and the token is never shown."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    site = serve.hub(hub(FILES))
    site.status, site.headers = status, headers
    for reference in ("user/repo", "tiny"):
        with pytest.raises(DownloadError) as caught:
            resolve(reference, _catalog(FROM_HUB))
        assert says in caught.value.message
        assert "hf_secret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("token", ["hf_se\x01cret", "secret\nX-Evil: 1", "s€cret"])
def test_a_token_that_cannot_be_sent_is_not_shown(serve: Serve, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """Where the token itself is the trouble, or is refused, no message holds it."""
    monkeypatch.setenv("HF_TOKEN", token)
    serve.hub(hub(FILES)).status = 401
    with pytest.raises(DownloadError) as caught:
        resolve("user/repo", NO_CATALOG)
    assert "cret" not in caught.value.message + caught.value.hint


def test_a_proxy_that_points_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said that it is the proxy, and its password is not shown."""
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    for reference in ("user/repo", "tiny"):
        with pytest.raises(DownloadError) as caught:
            resolve(reference, _catalog(FROM_HUB))
        assert "it cannot be reached through the proxy" in caught.value.message
        assert caught.value.hint == "check HTTPS_PROXY and HTTP_PROXY"
        assert "secret" not in caught.value.message


def test_a_proxy_that_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, without the password."""
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    monkeypatch.setenv("HTTP_PROXY", "gopher://user:secret@nowhere")
    with pytest.raises(DownloadError) as caught:
        resolve("user/repo", NO_CATALOG)
    assert "secret" not in caught.value.message
    assert "\n" not in caught.value.message


# --- removing ---------------------------------------------------------------------------------------------------


def test_what_was_fetched_is_removed_whole(serve: Serve, tmp_path: Path) -> None:
    """All its bytes are freed, counted, and nothing of it stays; a second time it is not there."""
    serve.hub(hub(FILES))
    resolve("user/repo", NO_CATALOG)
    resolve("user/repo:Q8_0", NO_CATALOG)
    assert remove("user/repo:Q4_K_M", NO_CATALOG) == len(MODEL)
    assert [model.name for model in all_local(NO_CATALOG)] == ["user/repo:Q8_0"]
    assert remove("user/repo", NO_CATALOG) == len(MODEL)
    assert not [name for name in _files(tmp_path / "hf") if "blobs" in name or "snapshots" in name]
    assert _files(tmp_path / "data") == []
    with pytest.raises(ModelNotFound, match="is not on this disk"):
        remove("user/repo", NO_CATALOG)


def test_a_half_file_is_removed_too(serve: Serve, tmp_path: Path) -> None:
    """What a stopped download has left is freed under the model's name."""
    site = serve.hub(hub({"Tiny-Q4_0.gguf": LARGE}))
    _begin(site, LARGE_FROM_HUB)
    assert 10 * 2**20 <= remove("tiny", _catalog(LARGE_FROM_HUB)) <= 20 * 2**20
    assert not [name for name in _files(tmp_path / "hf") if "blobs" in name]


def test_what_another_revision_needs_stays(serve: Serve, tmp_path: Path) -> None:
    """Another program's link to the same bytes keeps them; our link goes, and nothing is said to be freed."""
    serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    pull(_spec(FROM_HUB))
    theirs = tmp_path / "hf" / "hub" / "models--user--repo" / "snapshots" / ("c" * 40) / "Tiny-Q4_0.gguf"
    theirs.parent.mkdir()
    theirs.symlink_to(f"../../blobs/{SHA256}")
    assert remove("tiny", _catalog(FROM_HUB)) == 0
    assert theirs.read_bytes() == MODEL
    assert find("tiny", _catalog(FROM_HUB)).path == theirs  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="another program has put it there"):
        remove("tiny", _catalog(FROM_HUB))


def test_what_another_program_has_fetched_stays(serve: Serve, tmp_path: Path) -> None:
    """A file that was in the shared cache before is used and not removed, nor are its neighbours by our removal."""
    serve.hub(hub(FILES))
    theirs = _cached(tmp_path, COMMIT, "Tiny-Q4_K_M.gguf")
    assert resolve("user/repo", NO_CATALOG).path == theirs
    with pytest.raises(UsageError, match="another program has put it there"):
        remove("user/repo", NO_CATALOG)
    resolve("user/repo:Q8_0", NO_CATALOG)
    assert remove("user/repo:Q8_0", NO_CATALOG) == len(MODEL)
    assert theirs.read_bytes() == MODEL


def test_two_names_for_one_file(serve: Serve) -> None:
    """A file that another entry needs stays until both are to go."""
    serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    catalog = Catalog((_spec(FROM_HUB), replace(_spec(FROM_HUB), name="mine")))
    pull(catalog["tiny"])
    with pytest.raises(UsageError) as caught:
        remove("tiny", catalog)
    assert caught.value.message == "tiny has its file in common with mine"
    assert caught.value.hint == "to remove them together: localllm rm tiny mine"
    assert find("mine", catalog)
    assert remove("tiny", catalog, together_with=["tiny", "mine"]) == len(MODEL)
    assert find("mine", catalog) is None


def test_marks_cannot_lead_astray(serve: Serve, tmp_path: Path) -> None:
    """A mark that names another place frees nothing outside the cache."""
    serve.hub(hub({"Tiny-Q4_0.gguf": MODEL}))
    pull(_spec(FROM_HUB))
    (mark,) = (path for path in (tmp_path / "data").rglob("*.gguf"))
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    mark.write_text(str(precious))
    with pytest.raises(LocalLLMError):
        remove("tiny", _catalog(FROM_HUB))
    assert precious.read_bytes() == b"mine"
