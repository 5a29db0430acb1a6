"""Models that other programs keep on this disk, and what else lies about there."""

import json
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.models import elsewhere
from localllm.models.elsewhere import Found

GGUF = b"GGUF\3\0\0\0"
MODEL = "application/vnd.ollama.image.model"
ADAPTER = "application/vnd.ollama.image.adapter"
TEMPLATE = "application/vnd.ollama.image.template"
DIGEST = "sha256:" + "0123456789abcdef" * 4
LLAMA_CPP = "Library/Caches/llama.cpp" if sys.platform == "darwin" else ".cache/llama.cpp"
linux = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has no such folder, or refuses such a name")


@pytest.fixture(autouse=True)
def user(home, monkeypatch) -> Path:
    """A fresh home, and no variable that leads elsewhere."""
    for variable in ("OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    return home


def put(path: Path, data: bytes = GGUF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def put_ollama(models: Path, name: str = "registry.ollama.ai/library/llama3.2/3b", layers: object = None) -> Path:
    """A model of Ollama; the path of its blob."""
    default = [{"mediaType": TEMPLATE, "digest": "sha256:" + "f" * 64}, {"mediaType": MODEL, "digest": DIGEST}]
    manifest = {"schemaVersion": 2, "layers": default if layers is None else layers}
    put(models / "manifests" / name, json.dumps(manifest).encode())
    return put(models / "blobs" / DIGEST.replace(":", "-"))


def found(below: Path) -> list[Found]:
    """What is found below a folder: a developer's machine may have Ollama's service as well."""
    return [model for model in elsewhere.found() if model.files[0].is_relative_to(below)]


def names(below: Path) -> list[str]:
    return [model.name for model in found(below)]


def test_an_empty_home_has_no_models(user):
    """None of the programs is there: nothing is found, and nothing is created."""
    assert found(user) == []
    assert list(user.iterdir()) == []


# --- LM Studio ------------------------------------------------------------------------------------------------------


def test_lm_studio(user):
    """A model is called by repository and quantisation, and comes with the repository and file name of the hub."""
    path = put(user / ".lmstudio/models/bartowski/Llama-3.2-3B-Instruct-GGUF/Llama-3.2-3B-Instruct-Q4_K_M.gguf")
    repository = "bartowski/Llama-3.2-3B-Instruct-GGUF"
    assert found(user) == [Found(f"{repository}:Q4_K_M", "LM Studio", (path,), repository, path.name)]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["m-Q4_K_M.gguf", "m-Q8_0.gguf"], ["Q4_K_M", "Q8_0"]),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "b-Q8_0.gguf"], ["a-Q4_K_M", "b-Q4_K_M", "Q8_0"]),
        (["model.gguf"], ["model"]),
        (["m-Q4_K_M.gguf", "mmproj-m-F16.gguf", "imatrix.gguf", "mtp-m-Q8_0.gguf"], ["Q4_K_M"]),
        (["UD-Q2_K_XL/m-UD-Q2_K_XL.gguf", "m-F16.gguf"], ["UD-Q2_K_XL", "F16"]),
        (["a/m.gguf", "b/m.gguf"], ["a/m", "b/m"]),
        (["config.json", "README.md", "m.safetensors", "m.GGUF", "m.gguf.txt", ".m-Q4_0.gguf", ".gguf"], []),
    ],
)
def test_names_within_a_repository(user, files, expected):
    """The quantisation where only one file has it, else the file's own name; what is no model is passed over."""
    for file in files:
        put(user / ".lmstudio/models/me/repo" / file)
    assert sorted(names(user)) == sorted(f"me/repo:{name}" for name in expected)


def test_a_split_model_is_one_model(user):
    """All parts in order under one name; its file name is that of the first part, as on the hub."""
    folder = user / ".lmstudio/models/unsloth/R1-GGUF"
    paths = [put(folder / "Q4_K_M" / f"R1-Q4_K_M-0000{part}-of-00003.gguf") for part in (3, 1, 2)]
    (model,) = found(user)
    assert model.name == "unsloth/R1-GGUF:Q4_K_M"
    assert model.files == (paths[1], paths[2], paths[0])
    assert model.file_name == "Q4_K_M/R1-Q4_K_M-00001-of-00003.gguf"


def test_lm_studio_keeps_models_where_its_settings_say(user):
    """The older default folder, the home that the pointer names, and the folder in its settings; each model once."""
    put(user / ".lmstudio/models/a/a/a-Q4_0.gguf")
    put(user / ".cache/lm-studio/models/b/b/b-Q4_0.gguf")
    put(user / "moved/models/c/c/c-Q4_0.gguf")
    put(user / ".lmstudio-home-pointer", f"{user}/moved\n".encode())
    put(user / "big disk/d/d/d-Q4_0.gguf")
    put(user / "moved/settings.json", json.dumps({"downloadsFolder": f"{user}/big disk"}).encode())
    put(user / ".lmstudio/settings.json", json.dumps({"downloadsFolder": f"{user}/.lmstudio/models"}).encode())
    assert sorted(names(user)) == ["a/a:Q4_0", "b/b:Q4_0", "c/c:Q4_0", "d/d:Q4_0"]


@pytest.mark.parametrize(
    "settings_json",
    [
        b"",
        b"[",
        b"[1]",
        b"null",
        b"\xff\xfe\xff",
        b'{"downloadsFolder": 3}',
        b'{"downloadsFolder": "relative"}',
        b'{"downloadsFolder": "/\\u0000"}',
        b'{"downloadsFolder": "/\\ud800"}',
        b'{"downloadsFolder": "' + b"/" * 5000 + b'x"}',
        b"[" * 100_000,
        b'{"n": ' + b"1" * 10_000 + b"}",
    ],
    ids=lambda data: repr(data[:30]),
)
def test_odd_settings_change_nothing(user, settings_json):
    """Settings and a pointer that make no sense leave the default folder."""
    put(user / ".lmstudio/models/a/a/a-Q4_0.gguf")
    put(user / ".lmstudio/settings.json", settings_json)
    put(user / ".lmstudio-home-pointer", settings_json)
    assert names(user) == ["a/a:Q4_0"]


def test_settings_that_are_too_long_are_not_read(user):
    """A quarter of a megabyte is enough for settings: beyond that they are passed over."""
    put(user / "big/d/d/d-Q4_0.gguf")
    put(user / ".lmstudio/settings.json", json.dumps({"downloadsFolder": f"{user}/big", "x": " " * 2**18}).encode())
    assert names(user) == []


# --- Ollama ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name", "repository"),
    [
        ("registry.ollama.ai/library/llama3.2/3b", "llama3.2:3b", None),
        ("registry.ollama.ai/library/llama3.2/latest", "llama3.2:latest", None),
        ("registry.ollama.ai/someone/tiny/latest", "someone/tiny:latest", None),
        ("hf.co/bartowski/L-GGUF/Q4_K_M", "hf.co/bartowski/L-GGUF:Q4_K_M", "bartowski/L-GGUF"),
        ("huggingface.co/u/r/latest", "huggingface.co/u/r:latest", "u/r"),
        ("localhost:5000/library/m/v1", "localhost:5000/library/m:v1", None),
    ],
)
def test_ollama(user, path, name, repository):
    """A model is called as Ollama lists it; where it came from the hub, that is known too."""
    blob = put_ollama(user / ".ollama/models", path)
    assert found(user) == [Found(name, "Ollama", (blob,), repository, blob.name)]


def test_ollama_names_that_share_a_blob(user):
    """Two tags of one file are two names for it."""
    put_ollama(user / ".ollama/models")
    blob = put_ollama(user / ".ollama/models", "registry.ollama.ai/library/llama3.2/latest")
    assert [(model.name, model.files) for model in found(user)] == [
        ("llama3.2:3b", (blob,)),
        ("llama3.2:latest", (blob,)),
    ]


def test_ollama_keeps_models_where_its_variable_says(user, monkeypatch):
    """$OLLAMA_MODELS is read as Ollama reads it, and stands for the folder in the home."""
    put_ollama(user / ".ollama/models", "registry.ollama.ai/library/old/latest")
    put_ollama(user / "else where", "registry.ollama.ai/library/new/latest")
    monkeypatch.setenv("OLLAMA_MODELS", f' "{user}/else where" ')
    assert names(user) == ["new:latest"]


@pytest.mark.parametrize(
    "path",
    [
        "registry.ollama.ai/library/llama3.2",  # no tag
        "registry.ollama.ai/library/llama3.2/3b/more",
        "registry.ollama.ai/library/llama3.2/.DS_Store",
        "registry.ollama.ai/library/lla ma/3b",
        "registry.ollama.ai/library/lla\nma/3b",
        "registry.ollama.ai/library/lla:ma/3b",
        "registry.ollama.ai/library/llama3.2/-partial",
    ],
)
def test_files_that_are_no_manifests_of_ollama(user, path):
    """What Ollama could not have written under this name is no model."""
    put_ollama(user / ".ollama/models", path)
    assert names(user) == []


@pytest.mark.parametrize(
    "layers",
    [
        [],
        {"mediaType": MODEL, "digest": DIGEST},
        [MODEL, DIGEST, None, 3],
        [{"mediaType": TEMPLATE, "digest": DIGEST}],
        [{"mediaType": MODEL}],
        [{"mediaType": [MODEL], "digest": DIGEST}],
        [{"mediaType": MODEL, "digest": 7}],
        [{"mediaType": MODEL, "digest": [DIGEST]}],
        [{"mediaType": MODEL, "digest": ""}],
        [{"mediaType": MODEL, "digest": "../../outside.gguf"}],
        [{"mediaType": MODEL, "digest": "sha256:../../outside.gguf"}],
        [{"mediaType": MODEL, "digest": "sha256-" + "/" * 64}],
        [{"mediaType": MODEL, "digest": DIGEST + "-partial"}],
        [{"mediaType": MODEL, "digest": DIGEST + "\n"}],
        [{"mediaType": MODEL, "digest": "sha256:" + "9" * 64}],  # no such blob
        [{"mediaType": MODEL, "digest": DIGEST}] * 2,  # a model in two files
        [{"mediaType": MODEL, "digest": DIGEST}, {"mediaType": ADAPTER, "digest": DIGEST}],  # not what the name means
        [{"mediaType": ADAPTER, "digest": DIGEST}],
    ],
    ids=lambda layers: json.dumps(layers)[:60],
)
def test_manifests_that_name_no_model(user, layers):
    """A manifest must name one blob, by a digest and not by a path, and no adapter that would change its answers."""
    put(user / ".ollama/outside.gguf")
    put(user / ".ollama/models/outside.gguf")
    put(user / ".ollama/models/blobs/" / f"{DIGEST.replace(':', '-')}-partial")
    put_ollama(user / ".ollama/models", layers=layers)
    assert names(user) == []


@pytest.mark.parametrize(
    "manifest", [b"", b"{", b"\0" * 50, b"\xff" * 50, b"[" * 100_000, b'{"layers": ' * 5000, b" " * 2**19 + b"{}"]
)
def test_manifests_that_are_no_json(user, manifest):
    """They are passed over, and the others are still found."""
    put_ollama(user / ".ollama/models")
    put(user / ".ollama/models/manifests/registry.ollama.ai/library/broken/latest", manifest)
    assert names(user) == ["llama3.2:3b"]


@pytest.mark.parametrize("head", [b"", b"GGU", b"ggjt", b"\x08\0\0\0\0\0\0\0{", b"GGML"])
def test_blobs_that_are_no_gguf(user, head):
    """Older formats, safetensors and empty blobs are told by their first bytes."""
    put_ollama(user / ".ollama/models").write_bytes(head)
    assert names(user) == []


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([MODEL, ADAPTER, DIGEST, "../../x", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["layers", "mediaType", "digest", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(ANY_JSON)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_as_a_manifest(user, manifest):
    """Whatever JSON a manifest is, the only file that it can lead to is the blob of the right name."""
    models = user / ".ollama/models"
    blob = put_ollama(models)
    put(models / "manifests/registry.ollama.ai/library/llama3.2/3b", json.dumps(manifest).encode())
    assert {model.files for model in found(user)} <= {(blob,)}


# --- llama.cpp ------------------------------------------------------------------------------------------------------


def test_llama_cpp(user):
    """A manifest's name tells where user, repository and file are divided; without one the file's name has to do."""
    cache = user / LLAMA_CPP
    put(cache / "manifest=ggml-org=gemma_3-GGUF=Q8_0.json", b"{}")
    put(cache / "manifest=ggml=org=latest.json", b"{}")
    one = put(cache / "ggml-org_gemma_3-GGUF_gemma-3-Q8_0.gguf")
    two = [put(cache / f"ggml-org_gemma_3-GGUF_g-Q4_K_M-0000{part}-of-00002.gguf") for part in (1, 2)]
    put(cache / "ggml-org_gemma_3-GGUF_mmproj-gemma-3-F16.gguf")
    put(cache / "ggml-org_gemma_3-GGUF_gemma-3-F16.gguf.downloadInProgress")
    put(cache / "ggml-org_gemma_3-GGUF_gemma-3-Q8_0.gguf.etag")
    loose = put(cache / "stories260K.gguf")
    repository = "ggml-org/gemma_3-GGUF"
    assert found(user) == [
        Found(f"{repository}:Q4_K_M", "llama.cpp", tuple(two), repository, "g-Q4_K_M-00001-of-00002.gguf"),
        Found(f"{repository}:Q8_0", "llama.cpp", (one,), repository, "gemma-3-Q8_0.gguf"),
        Found("stories260K", "llama.cpp", (loose,), None, "stories260K.gguf"),
    ]


def test_the_longest_repository_is_meant(user):
    """Where one repository's name begins another's, a file belongs to the one that explains more of its name."""
    cache = user / LLAMA_CPP
    for manifest in ("manifest=a=b=latest.json", "manifest=a=b_c=latest.json"):
        put(cache / manifest, b"{}")
    put(cache / "a_b_c_m-Q4_0.gguf")
    put(cache / "a_b_m-Q8_0.gguf")
    assert sorted(names(user)) == ["a/b:Q8_0", "a/b_c:Q4_0"]


@pytest.mark.parametrize(
    ("variable", "value", "folder"),
    [
        ("LLAMA_CACHE", "{}/mine", "mine"),
        pytest.param("XDG_CACHE_HOME", "{}/xdg", "xdg/llama.cpp", marks=linux),
        ("LLAMA_CACHE", "", None),
    ],
)
def test_llama_cpp_keeps_models_where_its_variables_say(user, monkeypatch, variable, value, folder):
    """$LLAMA_CACHE is the folder itself, $XDG_CACHE_HOME the one above; an empty variable is none."""
    put(user / LLAMA_CPP / "default.gguf")
    put(user / (folder or LLAMA_CPP) / "m.gguf")
    monkeypatch.setenv(variable, value.format(user))
    assert names(user) == (["m"] if folder else ["default", "m"])


# --- whatever the program -------------------------------------------------------------------------------------------


def test_the_same_repository_in_two_programs(user):
    """Both are found: the name is unique only within a program."""
    put(user / ".lmstudio/models/u/r/m-Q4_0.gguf")
    put(user / LLAMA_CPP / "u_r_m-Q4_0.gguf")
    put(user / LLAMA_CPP / "manifest=u=r=latest.json", b"{}")
    assert [(model.name, model.program) for model in found(user)] == [
        ("u/r:Q4_0", "LM Studio"),
        ("u/r:Q4_0", "llama.cpp"),
    ]


def test_a_model_that_a_program_has_twice(user):
    """A program's name for a model means one file: the one in the folder that it looks at first."""
    path = put(user / ".lmstudio/models/u/r/m-Q4_0.gguf")
    put(user / ".cache/lm-studio/models/u/r/m-Q4_0.gguf")
    assert [model.files for model in found(user)] == [(path,)]


@pytest.mark.parametrize(
    "file",
    [
        "m-Q8_0.gguf.part",
        "downloading_m-Q8_0.gguf.part",
        "m-Q8_0.gguf.incomplete",
        "m-Q8_0.gguf-partial",
        "m-Q8_0.gguf.downloadInProgress",
        "m-Q8_0-00001-of-00002.gguf",
        "m-Q8_0-00002-of-00002.gguf",
    ],
)
def test_downloads_that_are_under_way(user, file):
    """Half a file and some of the parts are no model, whichever program fetches them."""
    for folder in (".lmstudio/models/u/r", LLAMA_CPP):
        put(user / folder / "whole-Q4_0.gguf")
        put(user / folder / file)
    assert names(user) == ["u/r:Q4_0", "whole-Q4_0"]


def make(kind: str, path: Path) -> None:
    match kind:
        case "empty":
            put(path, b"")
        case "text":
            put(path, b"a text file by another name")
        case "folder":
            path.mkdir(parents=True)
        case "pipe":
            os.mkfifo(path)
        case "endless":
            path.symlink_to("/dev/zero")
        case "dangling link":
            path.symlink_to("gone.gguf")
        case "loop":
            path.symlink_to(path.name)


@pytest.mark.parametrize("kind", ["empty", "text", "folder", "pipe", "endless", "dangling link", "loop"])
@pytest.mark.parametrize("name", ["m-Q8_0.gguf", "s-Q4_0-00002-of-00002.gguf"])
def test_what_only_looks_like_a_model(user, kind, name):
    """Anything under a model's name or a part's that is no GGUF file is passed over, and never waited for."""
    folders = [user / ".lmstudio/models/u/r", user / LLAMA_CPP]
    for folder in folders:
        put(folder / "good-Q4_K_M.gguf")
        put(folder / "s-Q4_0-00001-of-00002.gguf")
        make(kind, folder / name)
    assert names(user) == ["u/r:Q4_K_M", "good-Q4_K_M"]


@pytest.mark.parametrize("kind", ["empty", "text", "pipe", "endless", "dangling link", "loop"])
def test_folders_that_are_none(user, kind):
    """A file, a pipe or a loop where a program's folder or settings would be hinders nothing."""
    for name in (".lmstudio", ".ollama", ".lmstudio-home-pointer"):
        make(kind, user / name)
    put(user / LLAMA_CPP / "m.gguf")
    assert names(user) == ["m"]


def test_links_are_followed(user):
    """A repository and a file may lie on another disk: that is how people share models between programs."""
    file = put(user / "disk/repo/m-Q4_0.gguf")
    models = user / ".lmstudio/models"
    (models / "u/linked file").mkdir(parents=True)
    (models / "u/linked file/m-Q8_0.gguf").symlink_to(file)
    (models / "u/linked folder").symlink_to(file.parent)
    assert sorted(names(user)) == ["u/linked file:Q8_0", "u/linked folder:Q4_0"]


def test_folders_that_contain_themselves(user):
    """Loops of links end, and do not show a model twice."""
    models = user / ".lmstudio/models"
    put(models / "u/r/m-Q4_0.gguf")
    for link, target in (("u/r/again", "u/r"), ("u/r/up", "u"), ("u/top", "."), ("v", ".")):
        (models / link).symlink_to(models / target)
    manifests = put_ollama(user / ".ollama/models").parents[1] / "manifests"
    (manifests / "registry.ollama.ai/library/loop").symlink_to(manifests)
    assert names(user) == ["u/r:Q4_0", "llama3.2:3b"]


@pytest.mark.parametrize(
    "odd", ["a\nb", "a\x1b[31mb", "a\rb", "a\x7fb", "a\u202eb", "a\u2028b", pytest.param("a\udcffb", marks=linux)]
)
def test_names_are_one_clean_line(user, odd):
    """What a terminal would take for a command, or a list for two lines, is not shown at all."""
    models = user / ".lmstudio/models"
    for path in (f"{odd}/r/m.gguf", f"u/{odd}/m.gguf", f"u/r/{odd}.gguf", "u/r/naïve 模型.gguf"):
        put(models / path)
    put(user / LLAMA_CPP / f"{odd}.gguf")
    put(user / LLAMA_CPP / f"manifest=u=r{odd}=latest.json", b"{}")
    put(user / LLAMA_CPP / f"u_r{odd}_m.gguf")
    assert names(user) == ["u/r:naïve 模型"]


def test_a_search_ends(user):
    """At most 10,000 entries are looked at below a folder, and one folder's crowd does not hide another's models."""
    crowd = user / ".cache/lm-studio/models/u"
    crowd.mkdir(parents=True)
    for number in range(10_100):
        (crowd / f"{number:05d}").touch()
    put(crowd / "r/m-Q4_0.gguf")
    put(user / ".lmstudio/models/a/b/c/d/too-deep.gguf")
    put(user / ".lmstudio/models/too-shallow.gguf")
    put(user / ".lmstudio/models/u/too-shallow.gguf")
    put_ollama(user / ".ollama/models")
    assert names(user) == ["llama3.2:3b"]


@contextmanager
def as_nobody():
    """Without root's right to read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_what_may_not_be_read(monkeypatch):
    """Folders, files and settings of others are passed over, and what may be read is still found."""
    home = Path(tempfile.mkdtemp())
    try:
        home.chmod(0o755)
        monkeypatch.setenv("HOME", str(home))
        models = home / ".lmstudio/models"
        put(models / "u/good/m-Q4_0.gguf")
        put(models / "u/file/m-Q4_0.gguf").chmod(0)
        put(models / "u/closed/m-Q4_0.gguf").parent.chmod(0)
        put(models / "u/listed/m-Q4_0.gguf").parent.chmod(0o444)
        put(home / ".lmstudio/settings.json", b"{}").chmod(0)
        put_ollama(home / ".ollama/models").parent.chmod(0)
        put(home / LLAMA_CPP / "m.gguf").parents[1].chmod(0)
        with as_nobody():
            assert names(home) == ["u/good:Q4_0"]
    finally:
        for folder in (
            Path(LLAMA_CPP).parent,
            ".ollama/models/blobs",
            ".lmstudio/models/u/closed",
            ".lmstudio/models/u/listed",
        ):
            (home / folder).chmod(0o755)
        shutil.rmtree(home)


def test_a_home_that_is_no_place(user, monkeypatch):
    """Without an absolute home, the folder that the user happens to be in is not taken for one."""
    put(user / ".lmstudio/models/u/r/m-Q4_0.gguf")
    monkeypatch.chdir(user)
    monkeypatch.setenv("HOME", ".")
    monkeypatch.setenv("OLLAMA_MODELS", ".")
    monkeypatch.setenv("LLAMA_CACHE", ".")
    assert [model for model in elsewhere.found() if not model.files[0].is_absolute()] == []


def test_nothing_is_written(user):
    """A search leaves every file and folder as it was."""
    put(user / ".lmstudio/models/u/r/m-Q4_0.gguf")
    put_ollama(user / ".ollama/models")
    put(user / LLAMA_CPP / "m.gguf")
    before = {path: (*path.stat()[:7], path.stat().st_mtime_ns) for path in user.rglob("*")}
    assert len(names(user)) == 3
    assert {path: (*path.stat()[:7], path.stat().st_mtime_ns) for path in user.rglob("*")} == before
