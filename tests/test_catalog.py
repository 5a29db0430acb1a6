"""models.yaml: the shipped one is right, the user's own adds to it, and a wrong one is refused with its line."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import as_a_user
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.config import DEFAULT_MODEL
from localllm.errors import CatalogError
from localllm.models.catalog import (
    MAX_FILE_BYTES,
    Catalog,
    FileSource,
    HubSource,
    ModelSpec,
    WheelSource,
    full_catalog,
    load_catalog,
    quantisation,
)

SHIPPED = load_catalog()
SHA256 = "0123456789abcdef" * 4
ENTRY = f"""\
good:
  description: A model
  licence: mit
  draft: small
  thinking: true
  sampling: {{temperature: 0.6, top_k: 20, min_p: 0}}
  sources:
    - {{wheel: some-wheel==1.0, member: some/Model-Q4_K_M.gguf, bytes: 1000, sha256: {SHA256}}}
    - {{hub: user/repo, file: sub/Model-Q4_K_M.gguf}}
small:
  description: "yes"
  licence: mit
  sources: [{{hub: user/repo, file: small.gguf, bytes: 10}}]
here:
  description: A file
  licence: mit
  sources: [{{path: sub/Here-Q8_0.gguf}}]
"""

# Entries whose names begin alike have one vocabulary. What is in no group has no relative in the catalog:
# phi-4-mini has another vocabulary than phi-4, and R1's Llama begins its texts with another token than Llama.
VOCABULARIES = (
    ("smollm2-",),
    ("qwen2.5-",),
    ("qwen3-",),
    ("qwen3.5-", "qwen3.6-", "qwen3.8-"),
    ("llama-3.",),
    ("gemma-3-",),
    ("gemma-3n-",),
    ("gemma-4-",),
    ("ministral-3-", "devstral-small-2-"),
    ("mistral-small-3.2-", "devstral-small-2507"),
    ("r1-distill-qwen-",),
    ("glm-4-",),
    ("granite-3.3-",),
    ("granite-4.",),
)


def _load(tmp_path: Path, text: str | bytes) -> Catalog:
    path = tmp_path / "models.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_catalog(path)


# --- the shipped catalog ---------------------------------------------------------------------------------------


def test_the_default_model_has_two_sources() -> None:
    """The package index comes first and the hub second, so either may be out of reach."""
    assert [type(source) for source in SHIPPED[DEFAULT_MODEL].sources] == [WheelSource, HubSource]


def _can_draft(draft: ModelSpec, target: ModelSpec) -> bool:
    """The catalog's rule: one vocabulary, and less than half the bytes as far as they are known."""
    smaller = not (draft.file_bytes and target.file_bytes) or draft.file_bytes < target.file_bytes / 2
    return smaller and any(draft.name.startswith(group) and target.name.startswith(group) for group in VOCABULARIES)


@pytest.mark.parametrize("spec", SHIPPED.values(), ids=lambda spec: spec.name)
def test_a_shipped_entry_names_the_draft_that_fits(spec: ModelSpec) -> None:
    """Each target that has a much smaller model of its vocabulary names one; a mixture of experts names none."""
    if re.search(r"\bactive of\b", spec.description):
        assert spec.draft is None
    elif spec.draft:
        assert _can_draft(SHIPPED[spec.draft], spec)
        assert SHIPPED[spec.draft].draft != spec.name
    elif spec.file_bytes:
        assert not [other.name for other in SHIPPED.values() if other.file_bytes and _can_draft(other, spec)]


@pytest.mark.parametrize("spec", SHIPPED.values(), ids=lambda spec: spec.name)
def test_a_shipped_file_is_what_the_description_promises(spec: ModelSpec) -> None:
    """About four bits per weight, and a tenth of the memory that is named is left for the context."""
    assert all(re.match(r"(UD-)?Q4|MXFP4", quantisation(source.file_name)) for source in spec.sources)
    memory = re.search(r"for (\d+) GB of memory", spec.description)
    if memory and spec.file_bytes:
        assert spec.file_bytes * 1.1 < int(memory[1]) * 1e9 < max(2.5 * spec.file_bytes, 2.1e9)


def test_no_two_shipped_entries_give_one_file() -> None:
    """An entry that began as a copy of another has its own repository and file."""
    sources = [source for spec in SHIPPED.values() for source in spec.sources]
    files = [(source.repository, source.file_name) for source in sources if isinstance(source, HubSource)]
    assert len(set(files)) == len(files) >= len(SHIPPED) > 80


# --- reading a catalog -----------------------------------------------------------------------------------------


def test_an_entry_comes_out_as_it_was_written(tmp_path: Path) -> None:
    """All keys of an entry arrive with their types; what is left out has its default."""
    catalog = _load(tmp_path, ENTRY)
    good = catalog["good"]
    assert list(catalog) == ["good", "small", "here"]
    assert good.sources == (
        WheelSource("some-wheel==1.0", "some/Model-Q4_K_M.gguf", 1000, SHA256),
        HubSource("user/repo", "sub/Model-Q4_K_M.gguf"),
    )
    assert (good.licence, good.draft, good.thinking, good.file_bytes) == ("mit", "small", True, 1000)
    assert good.sampling == {"temperature": 0.6, "top_k": 20, "min_p": 0.0}
    assert good.sources[0].file_name == "Model-Q4_K_M.gguf"
    small = catalog["small"]
    assert (small.draft, small.thinking, small.sampling, small.description) == (None, False, {}, "yes")
    here = catalog["here"]
    assert here.sources == (FileSource(tmp_path / "sub" / "Here-Q8_0.gguf"),)
    assert (here.file_name, here.file_bytes, here.own) == ("Here-Q8_0.gguf", None, False)


def test_what_editors_add_does_no_harm(tmp_path: Path) -> None:
    """A byte order mark and the line ends of Windows change nothing."""
    assert _load(tmp_path, "\ufeff" + ENTRY.replace("\n", "\r\n")) == _load(tmp_path, ENTRY)


def test_look_up_ignores_case() -> None:
    """A name may be typed in any case."""
    assert SHIPPED["SmolLM2-135M"] is SHIPPED["smollm2-135m"]
    assert "QWEN3-4B" in SHIPPED
    assert SHIPPED.get("zzz") is None


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("smolm2", "smollm2-"),
        ("Qwen3-4", "qwen3-4b"),
        ("llama3.2", "llama-3.2-"),
        ("llama3.2:3b", "llama-3.2-3b"),
        ("qwen3:latest", "qwen3-0.6b"),
        ("qwen3:8b", "qwen3-8b"),
        ("qwen2.5-coder:7b", "qwen2.5-coder-7b"),
        ("gemma3", "gemma-3-"),
        ("GEMMA3:27b", "gemma-3-27b"),
        ("phi4", "phi-4"),
        ("phi4-mini", "phi-4-mini"),
        ("mistral", "mistral-"),
        ("gpt_oss 20b", "gpt-oss-20b"),
        ("Llama-3.2-1B-Instruct", "llama-3.2-1b"),
        ("Qwen3-8B-GGUF", "qwen3-8b"),
        ("Phi-4-mini-instruct", "phi-4-mini"),
    ],
)
def test_what_was_probably_meant_comes_first(typed: str, nearest: str) -> None:
    """Misspelt names, and the names that Ollama and the hub have for a model, lead to ours."""
    names = SHIPPED.nearest(typed)
    assert names[0].startswith(nearest)
    assert len(names) == len(set(names)) <= 3


@pytest.mark.parametrize("typed", ["", ":", "zzz", "模型", "x" * 100_000])
def test_a_foreign_name_has_no_neighbours(typed: str) -> None:
    """No suggestion is better than a wild one."""
    assert SHIPPED.nearest(typed) == []


@pytest.mark.parametrize(
    ("file_name", "expected"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-coder-7b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("gemma-4-12b-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("model-IQ3_XXS.gguf", "IQ3_XXS"),
        ("model-bf16.gguf", "BF16"),
        ("Q8_0/GLM-4.5-Air-Q4_K_M-00001-of-00002.gguf", "Q4_K_M"),
        ("Qwen3-4B.gguf", ""),
    ],
)
def test_quantisation_is_read_from_file_names(file_name: str, expected: str) -> None:
    """The naming habits of the usual publishers; a model's own number is not taken for one."""
    assert quantisation(file_name) == expected


# Each case replaces one text of ENTRY; the error must name this line and say this.
WRONG: dict[str, tuple[str, str, int, str]] = {
    "unknown key": ("  licence: mit\n  draft", "  license: mit\n  draft", 3, "unknown key 'license'"),
    "missing key": ("  description: A model\n", "", 2, "'description' is missing"),
    "key twice": ("  draft: small", "  licence: mit", 4, "'licence' comes twice"),
    "name twice": ("\nsmall:", "\ngood:", 10, "'good' comes twice"),
    "name of capitals": ("good:", "Good:", 1, "not a lower-case name"),
    "text a number": ("licence: mit\n  draft", "licence: 5\n  draft", 3, "'5' is not a text"),
    "text a list": ("licence: mit\n  draft", "licence: [mit]\n  draft", 3, "a text is needed"),
    "text empty": ("licence: mit\n  draft", "licence: ''\n  draft", 3, "not a text"),
    "no draft of this name": ("draft: small", "draft: smal", 4, "'smal' is not another entry"),
    "draft of itself": ("draft: small", "draft: good", 4, "'good' is not another entry"),
    "thinking a number": ("thinking: true", "thinking: 1", 5, "'1' is not true or false"),
    "unknown sampling": ("top_k", "topk", 6, "unknown key 'topk'"),
    "sampling out of range": ("0.6", "-0.6", 6, "temperature is -0.6"),
    "sampling not finite": ("0.6", ".nan", 6, "not a plain number"),
    "half a token": ("top_k: 20", "top_k: 20.5", 6, "'20.5' is not a whole number"),
    "sources a text": ("[{hub: user/repo, file: small.gguf, bytes: 10}]", "here", 13, "a list"),
    "no source": ("[{hub: user/repo, file: small.gguf, bytes: 10}]", "[]", 13, "at least one item"),
    "source a text": ("[{hub: user/repo, file: small.gguf, bytes: 10}]", "[here]", 13, "a mapping"),
    "wheel without hash": (f", sha256: {SHA256}", "", 8, "'sha256' is missing"),
    "wheel without version": ("some-wheel==1.0", "some-wheel", 8, "not a pinned wheel"),
    "wheel as an option": ("some-wheel==1.0", "--index-url=evil", 8, "not a pinned wheel"),
    "both at once": ("member:", "hub: user/repo, member:", 8, "unknown key 'hub'"),
    "short hash": (SHA256, SHA256[:-1], 8, "is not 64 hexadecimal digits"),
    "hash of digits": (SHA256, "1" * 64, 8, "goes in quotes"),
    "negative size": ("bytes: 1000", "bytes: -1", 8, "'-1' is not a plain whole number"),
    "no size": ("bytes: 1000", "bytes: 0", 8, "0 bytes is no size"),
    "octal size": ("bytes: 1000", "bytes: 0o17", 8, "not a whole number"),
    "sexagesimal size": ("bytes: 1000", "bytes: 190:20:30", 8, "not a plain whole number"),
    "endless size": ("bytes: 1000", f"bytes: {'9' * 99_999}", 8, "9…' is not a plain whole number"),
    "path upwards": ("member: some/Model", "member: ../Model", 8, "path of a .gguf file"),
    "path from the root": ("file: sub/Model", "file: /sub/Model", 9, "path of a .gguf file"),
    "other file": ("file: small.gguf", "file: small.bin", 13, "path of a .gguf file"),
    "later part": ("file: small.gguf", "file: small-00002-of-00003.gguf", 13, "the first part"),
    "later part on this disk": ("Here-Q8_0.gguf", "Here-00002-of-00003.gguf", 17, "the first part"),
    "path and hub": ("path: sub", "hub: user/repo, path: sub", 17, "unknown key 'hub'"),
    "path and bytes": ("Here-Q8_0.gguf", "Here-Q8_0.gguf, bytes: 10", 17, "unknown key 'bytes'"),
    "path of home": ("path: sub/Here-Q8_0.gguf", "path: ~", 17, "'~' is not the path of a file"),
    "path with a zero byte": ("sub/Here-Q8_0.gguf", r'"a\0b.gguf"', 17, r"'a\x00b.gguf' is not the path of a file"),
    "repository of three": ("hub: user/repo, file: sub", "hub: user/repo/x, file: sub", 9, "not a repository"),
    "origin as a key": ("  licence: mit\n  draft", "  own: true\n  draft", 3, "unknown key 'own'"),
    "endless key": ("  licence: mit\n  draft", f"  ? {'k' * 99_999}\n  : 1\n  draft", 3, "unknown key 'kkk"),
    "no YAML": ("draft: small", "draft: [small", 5, ""),
    "control character": ("A model", "Ä\x01", 2, "not allowed"),
    "no mapping": (ENTRY, "- good\n", 1, "a mapping"),
    "alias": ("A model", "&a A model\n  x: *a", 2, "anchors and aliases"),
    "merge key": ("  licence: mit\n  draft", "  <<: {licence: mit}\n  draft", 3, "unknown key '<<'"),
    "merge key as a name": ("good:", "<<:", 1, "'<<' is not a lower-case name"),
    "tag": ("A model", "!!python/name:os.system A model", 2, "is not a text"),
    "second document": ("\nsmall:", "\n---\nsmall:", 10, "single document"),
}


@pytest.mark.parametrize(("old", "new", "line", "reason"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_catalog_names_line_and_reason(tmp_path: Path, old: str, new: str, line: int, reason: str) -> None:
    """Each broken rule is found, and the message says where: in one line, of a length that can be read."""
    assert old in ENTRY
    with pytest.raises(CatalogError) as caught:
        _load(tmp_path, ENTRY.replace(old, new, 1))
    assert f"models.yaml, line {line}: " in caught.value.message
    assert reason in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < len(str(tmp_path)) + 200


def test_a_misspelt_key_is_corrected(tmp_path: Path) -> None:
    """The hint names the key that was probably meant, and then all that there are."""
    with pytest.raises(CatalogError) as caught:
        _load(tmp_path, ENTRY.replace("licence", "license"))
    assert caught.value.hint.startswith("did you mean 'licence'? there are: ") and "description" in caught.value.hint


@pytest.mark.parametrize("nothing", ["", "# nothing\n", "---\n# nothing\n", "{}"])
def test_a_catalog_without_entries_is_none(tmp_path: Path, nothing: str) -> None:
    """The one catalog that a program has may not be empty."""
    with pytest.raises(CatalogError, match=r"models\.yaml: empty"):
        _load(tmp_path, nothing)


def test_aliases_cannot_blow_up_a_catalog(tmp_path: Path) -> None:
    """Nested aliases that would stand for a billion entries are refused, not followed."""
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 10))
    with pytest.raises(CatalogError, match="aliases are not allowed"):
        _load(tmp_path, "l0: &l0 [x]\n" + levels)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_damage_gives_a_catalog_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Characters removed, inserted or doubled anywhere: a Catalog or a CatalogError, nothing else."""
    text = ENTRY
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(st.text("{}[]:,-#&*!|>'\"\n\t 0aé~\ud7ff", max_size=6)) + text[end:]
    try:
        _load(tmp_path_factory.getbasetemp(), text)
    except CatalogError as error:
        assert "\n" not in error.message


# --- the user's own catalog ------------------------------------------------------------------------------------

OWN = """\
mine:
  description: A model of my own
  licence: mit
  draft: smollm2-135m
  sources: [{path: mine.gguf}]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's own catalog belongs; its folder is there, the file is not."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "localllm" / "models.yaml"
    path.parent.mkdir()
    return path


def test_without_an_own_catalog_there_is_the_shipped_one(own: Path) -> None:
    """Neither the file nor the folders above it need exist."""
    assert full_catalog() == SHIPPED
    own.parent.rmdir()
    assert full_catalog() == SHIPPED
    own.parent.write_text("a file where the folder would be")
    assert full_catalog() == SHIPPED


@pytest.mark.parametrize("nothing", ["", "# none yet\n", "---\n# none yet\n", "{}\n"])
def test_an_own_catalog_without_entries_adds_nothing(own: Path, nothing: str) -> None:
    """A file that was only begun is no mistake."""
    own.write_text(nothing)
    assert full_catalog() == SHIPPED


def test_an_own_entry_comes_after_the_shipped_ones(own: Path) -> None:
    """It is marked as the user's, and its draft may be a shipped entry."""
    own.write_text(OWN)
    catalog = full_catalog()
    assert list(catalog) == [*SHIPPED, "mine"]
    assert [name for name, spec in catalog.items() if spec.own] == ["mine"]
    assert (catalog["mine"].draft, catalog["Mine"].description) == ("smollm2-135m", "A model of my own")


def test_an_own_entry_replaces_a_shipped_one(own: Path) -> None:
    """The whole entry, in its place; whatever names it as its draft then means the user's."""
    mine = OWN.replace("mine:", "qwen3-0.6b:")
    own.write_text(mine + OWN.replace("smollm2-135m", "qwen3-0.6b"))
    catalog = full_catalog()
    assert list(catalog) == [*SHIPPED, "mine"]
    replaced = catalog["qwen3-0.6b"]
    assert (replaced.own, replaced.thinking, replaced.sampling) == (True, False, {})
    assert catalog["qwen3-8b"] == SHIPPED["qwen3-8b"]
    assert catalog["mine"].draft == catalog["qwen3-8b"].draft == "qwen3-0.6b"


def test_the_own_catalog_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without XDG_CONFIG_HOME it is in ~/.config."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / ".config" / "localllm" / "models.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(OWN)
    assert full_catalog()["mine"].own


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/models/a b.gguf", "/models/a b.gguf"),
        ("~/models/é.gguf", "{home}/models/é.gguf"),
        ("blobs/sha256-0123", "{folder}/blobs/sha256-0123"),
        ("../a.gguf", "{folder}/../a.gguf"),
        ("big-00001-of-00002.gguf", "{folder}/big-00001-of-00002.gguf"),
        ("~nobody-of-this-name/a.gguf", "{folder}/~nobody-of-this-name/a.gguf"),
    ],
)
def test_a_file_on_this_disk(own: Path, monkeypatch: pytest.MonkeyPatch, written: str, meant: str) -> None:
    """Its path is absolute, begins at home, or is relative to the folder of the catalog."""
    monkeypatch.setenv("HOME", "/home/of/somebody")
    own.write_text(OWN.replace("mine.gguf", written))
    path = Path(meant.format(home="/home/of/somebody", folder=own.parent))
    assert full_catalog()["mine"].sources == (FileSource(path),)


def test_a_wrong_own_catalog_names_file_and_line(own: Path) -> None:
    """Its errors are told as those of any catalog, drafts included, with the shipped name that was meant."""
    own.write_text(OWN.replace("smollm2-135m", "smolm2-135m"))
    with pytest.raises(CatalogError) as caught:
        full_catalog()
    assert caught.value.message == f"{own}, line 4: mine: its draft 'smolm2-135m' is not another entry"
    assert (caught.value.hint, caught.value.exit_code) == ("did you mean 'smollm2-135m'?", 4)


def _ten_gigabytes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * 2**30)


UNUSABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (Path.mkdir, "cannot be read: a file is needed"),
    "a pipe": (os.mkfifo, "cannot be read: a file is needed"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "cannot be read: a file is needed"),
    "a link to nothing": (lambda path: path.symlink_to("gone"), "cannot be read: No such file"),
    "a link to itself": (lambda path: path.symlink_to(path), "cannot be read: Too many levels"),
    "ten gigabytes": (_ten_gigabytes, f"longer than {MAX_FILE_BYTES:,} bytes"),
    "a model": (lambda path: path.write_bytes(b"GGUF\x03\0\0\0"), "line 1: "),
    "Latin-1": (lambda path: path.write_bytes(OWN.replace("own", "\xe9").encode("latin-1")), "line 2: not UTF-8"),
    "UTF-16": (lambda path: path.write_text(OWN, "utf-16"), "line 1: not UTF-8"),
    "nested mappings": (lambda path: path.write_text("mine: " + "{a: " * 100_000), "line 1: "),
    "nested lists": (lambda path: path.write_text("[" * 900 + "]" * 900), "line 1: "),
    "nested blocks": (lambda path: path.write_text("- " * 100_000), "line 1: "),
}


@pytest.mark.parametrize(("make", "reason"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_own_catalog_that_is_none(own: Path, make: Callable[[Path], object], reason: str) -> None:
    """Whatever lies in its place is refused in one line that names it: nothing waits, nothing is skipped silently."""
    make(own)
    with pytest.raises(CatalogError) as caught:
        full_catalog()
    assert caught.value.message.startswith(str(own))
    assert reason in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("locked", ["file", "folder", "home"])
def test_an_own_catalog_that_may_not_be_read(own: Path, locked: str) -> None:
    """A file or folder without permission is told: its entries would be missing without a word. A home that may not
    be entered at all, as in another user's container, holds no catalog for us.
    """
    own.write_text(OWN)
    target = {"file": own, "folder": own.parent, "home": own.parent.parent}[locked]
    target.chmod(0)
    code = "from localllm.models.catalog import full_catalog; print(len(full_catalog()))"
    try:
        tried = subprocess.run(as_a_user(sys.executable, "-c", code), capture_output=True, text=True)
    finally:
        target.chmod(0o700)
    if locked == "home":
        assert int(tried.stdout) == len(load_catalog())
    else:
        assert tried.stderr.endswith("models.yaml: cannot be read: Permission denied\n")
