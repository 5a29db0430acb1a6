"""Models that are only on the hub, answered from their headers: a hub that really answers, well or badly."""

import json
import random
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import Serve
from gguf_files import Gguf, texts, tiny, u32
from servers import Site, hub

from localllm import subjects
from localllm.cancel import Cancel
from localllm.cli.main import program
from localllm.errors import Cancelled, DownloadError, ModelFileError, ModelNotFound
from localllm.models import remote
from localllm.models.reference import HubReference

MIB = 2**20
URL = "/user/repo/resolve/main/"
WANTED = HubReference("user/repo", "Q4_K_M")

pytestmark = pytest.mark.usefixtures("cache")


def _weights(n_bytes: int) -> bytes:
    return random.Random(0).randbytes(n_bytes)


def _with_vocabulary(n_bytes: int) -> Gguf:
    """A model whose header is a little longer than ``n_bytes``."""
    model = tiny()
    model.metadata["tokenizer.chat_template.other"] = texts("x" * n_bytes)
    return model


def _ranges(site: Site, file: str = "Tiny-Q4_K_M.gguf") -> list[str]:
    return [{name.lower(): value for name, value in sent.items()}["range"] for sent in site.asked(URL + file)]


def _sent_bytes(ranges: list[str]) -> int:
    ends = [tuple(map(int, each.removeprefix("bytes=").split("-"))) for each in ranges]
    return sum(end - start + 1 for start, end in ends)


@pytest.mark.parametrize(
    ("header_bytes", "steps"),
    [(0, ["0-1048575"]), (2 * MIB, ["0-1048575", "1048576-4194303"])],
)
def test_only_the_header_is_read(serve: Serve, tmp_path: Path, header_bytes: int, steps: list[str]) -> None:
    """As much of the file as the header needs, in growing steps; nothing of it stays on this disk."""
    model = _with_vocabulary(header_bytes)
    content = model.file() + _weights(8 * MIB)
    site = serve.hub(hub({"Tiny-Q4_K_M.gguf": content, "Tiny-Q8_0.gguf": b"another"}))
    name, shape = remote.read_shape(WANTED)
    assert name == "user/repo:Q4_K_M"
    assert (shape.tensor_bytes, shape.file_bytes) == (model.shape().tensor_bytes, len(content))
    assert _ranges(site) == [f"bytes={step}" for step in steps]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_hub_that_sends_the_whole_file_is_cut_off(serve: Serve) -> None:
    """Where a part is asked for and the whole is sent, no more of it is taken."""
    model = _with_vocabulary(2 * MIB)
    site = serve.hub(hub({"Tiny-Q4_K_M.gguf": model.file() + _weights(16 * MIB)}))
    site.ranges = False
    assert remote.read_shape(WANTED)[1].tensor_bytes == model.shape().tensor_bytes
    assert len(_ranges(site)) == 2


def test_a_header_without_an_end_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """What claims to go on and on is read up to a bound."""
    monkeypatch.setattr(remote, "MOST_BYTES", 3 * MIB)
    site = serve.hub(hub({"Tiny-Q4_K_M.gguf": _with_vocabulary(6 * MIB).file()}))
    with pytest.raises(ModelFileError, match=r"Tiny-Q4_K_M.gguf has a header of more than 3,145,728 bytes"):
        remote.read_shape(WANTED)
    assert _sent_bytes(_ranges(site)) == 3 * MIB


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no GGUF at all" * 200_000, "is not a GGUF file"),
        (tiny().header()[:-20], "is cut short"),
        (tiny().file()[:-1], "is cut short: "),
        (tiny().header().replace(b"llama.block_count", b"llama.block_cAunt"), "Tiny-Q4_K_M.gguf "),
    ],
)
def test_a_file_that_is_no_model(serve: Serve, content: bytes, reason: str) -> None:
    """It is refused after one request, in the words of the check of files."""
    site = serve.hub(hub({"Tiny-Q4_K_M.gguf": content}))
    with pytest.raises(ModelFileError) as caught:
        remote.read_shape(WANTED)
    assert caught.value.message.startswith("user/repo/Tiny-Q4_K_M.gguf ")
    assert reason in caught.value.message
    assert len(_ranges(site)) == 1


def _parts(count: int) -> tuple[dict[str, bytes], Gguf]:
    """A model split into its layers, of which the first part has the metadata."""
    whole = tiny(n_layers=count)
    files = {}
    for number in range(count):
        part = Gguf({}, [], alignment=whole.alignment)
        part.metadata = (whole.metadata if number == 0 else {}) | {"split.no": u32(number), "split.count": u32(count)}
        part.tensors = [
            tensor
            for tensor in whole.tensors
            if tensor[0].startswith(f"blk.{number}.") or (number == 0 and not tensor[0].startswith("blk."))
        ]
        files[f"Tiny-Q4_K_M-{number + 1:05d}-of-{count:05d}.gguf"] = part.file() + _weights(2 * MIB)
    return files, whole


def test_a_split_model_is_read_from_the_headers_of_all_its_parts(serve: Serve) -> None:
    """Sizes and tensors add up; parts that do not belong together are refused."""
    files, whole = _parts(3)
    site = serve.hub(hub(files))
    name, shape = remote.read_shape(WANTED)
    assert name == "user/repo:Q4_K_M"
    assert (shape.n_layers, shape.tensor_bytes) == (3, whole.shape().tensor_bytes)
    assert shape.file_bytes == sum(map(len, files.values()))
    assert [_ranges(site, file) for file in files] == [["bytes=0-1048575"]] * 3
    _, second, third = files
    site.files[URL + second] = files[third]
    with pytest.raises(ModelFileError, match="is not part 2 of 3"):
        remote.read_shape(WANTED)


def test_a_hub_that_fails(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unreachable, offline by wish, no such repository, file or quantisation: a line for each, and exit code 4."""

    def reason(wanted: HubReference = WANTED) -> str:
        with pytest.raises((DownloadError, ModelNotFound)) as caught:
            remote.read_shape(wanted)
        assert caught.value.exit_code == 4
        assert "\n" not in caught.value.message
        return f"{caught.value.message} | {caught.value.hint}"

    assert "user/repo is not on this disk, and cannot be read from the Hugging Face hub: it cannot be" in reason()
    assert "check the network" in reason()
    site = serve.hub(Site(headers={"X-Error-Code": "RepoNotFound"}))
    assert "there is no repository user/repo" in reason()
    site = serve.hub(hub({"Tiny-Q4_K_M.gguf": tiny().file()}))
    assert reason(HubReference("user/repo", "Q8_0")) == "user/repo has no Q8_0 | it has: Q4_K_M"
    del site.files[URL + "Tiny-Q4_K_M.gguf"]
    site.headers["X-Error-Code"] = "EntryNotFound"
    assert "there is no file Tiny-Q4_K_M.gguf in user/repo" in reason()
    del site.headers["X-Error-Code"]
    site.status = 418
    assert "status 418" in reason()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = len(site.requests)
    assert "HF_HUB_OFFLINE is set | unset it" in reason()
    assert len(site.requests) == asked


def test_a_token_is_used(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_TOKEN goes along with each request for a part of the file."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    site = serve.hub(hub({"Tiny-Q4_K_M.gguf": tiny().file()}))
    remote.read_shape(WANTED)
    [sent] = site.asked(URL + "Tiny-Q4_K_M.gguf")
    assert {name.lower(): value for name, value in sent.items()}["authorization"] == "Bearer hf_secret"


def test_a_stop_while_the_hub_is_silent(serve: Serve) -> None:
    """Ctrl-C does not wait for a hub that sends nothing."""
    site = serve.hub(hub({"Tiny-Q4_K_M.gguf": tiny().file()}))
    site.stall_after = 100
    cancel = Cancel()
    threading.Thread(target=lambda: site.stalled.wait() and cancel.set()).start()
    with pytest.raises(Cancelled):
        remote.read_shape(WANTED, cancel)


def test_the_command_answers_for_a_model_of_the_hub(serve: Serve) -> None:
    """``localllm ceiling user/repo:Q4_K_M`` gives what the file itself would give, and says where it has it from."""
    model = tiny()
    serve.hub(hub({"Tiny-Q4_K_M.gguf": model.file()}))
    done = CliRunner().invoke(program(), ["ceiling", "user/repo:Q4_K_M", "--gpu", "4090", "--ctx", "256", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    shape = model.shape()
    assert (report["model"], report["streamed_bytes"]) == ("user/repo:Q4_K_M", shape.streamed_bytes)
    assert report["kv_bytes"] == shape.kv_bytes(256, "f16")
    assert report["notes"][0] == "read from the hub: only its header"


def test_a_name_that_is_no_reference_asks_nobody(serve: Serve) -> None:
    """Only a reference to the hub leads there."""
    site = serve.hub(hub({}))
    with pytest.raises(ModelNotFound):
        subjects.named("no-such-model", 0, "f16")
    subjects.named("qwen3-8b", 0, "f16")
    assert site.requests == []
