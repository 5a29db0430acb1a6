"""models.yaml: the shipped one is right, and a wrong one is refused with its line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.config import DEFAULT_MODEL
from localllm.errors import CatalogError
from localllm.models.catalog import (
    MAX_FILE_BYTES,
    Catalog,
    HubSource,
    WheelSource,
    load_catalog,
    quantisation,
)
from localllm.values import Sampling

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
"""


def _load(tmp_path: Path, text: str | bytes) -> Catalog:
    path = tmp_path / "models.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_catalog(path)


def test_the_shipped_catalog() -> None:
    """The default model has its two sources, and every draft is much smaller than what it drafts for."""
    catalog = load_catalog()
    assert len(catalog) >= 20
    assert isinstance(catalog[DEFAULT_MODEL].sources[0], WheelSource)
    assert isinstance(catalog[DEFAULT_MODEL].sources[1], HubSource)
    for spec in catalog.values():
        Sampling(**spec.sampling)
        assert quantisation(spec.file_name)
        draft = catalog[spec.draft] if spec.draft else None
        if draft and draft.file_bytes and spec.file_bytes:
            assert draft.file_bytes < spec.file_bytes / 2


def test_an_entry_comes_out_as_it_was_written(tmp_path: Path) -> None:
    """All keys of an entry arrive with their types; what is left out has its default."""
    catalog = _load(tmp_path, ENTRY)
    good = catalog["good"]
    assert list(catalog) == ["good", "small"]
    assert good.sources == (
        WheelSource("some-wheel==1.0", "some/Model-Q4_K_M.gguf", 1000, SHA256),
        HubSource("user/repo", "sub/Model-Q4_K_M.gguf"),
    )
    assert (good.licence, good.draft, good.thinking, good.file_bytes) == ("mit", "small", True, 1000)
    assert good.sampling == {"temperature": 0.6, "top_k": 20, "min_p": 0.0}
    assert good.sources[0].file_name == "Model-Q4_K_M.gguf"
    small = catalog["small"]
    assert (small.draft, small.thinking, small.sampling, small.description) == (None, False, {}, "yes")


def test_look_up_ignores_case_and_finds_what_is_near() -> None:
    """A name may be typed in any case; a misspelt one has neighbours, a foreign one has none."""
    catalog = load_catalog()
    assert catalog["SmolLM2-135M"] is catalog["smollm2-135m"]
    assert "QWEN3-4B" in catalog
    assert catalog.nearest("smolm2")[0].startswith("smollm2")
    assert catalog.nearest("Qwen3-4") == catalog.nearest("qwen3-4")
    assert catalog.nearest("zzz") == []
    assert catalog.get("zzz") is None


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
    "path upwards": ("member: some/Model", "member: ../Model", 8, "path of a .gguf file"),
    "path from the root": ("file: sub/Model", "file: /sub/Model", 9, "path of a .gguf file"),
    "other file": ("file: small.gguf", "file: small.bin", 13, "path of a .gguf file"),
    "repository of three": ("hub: user/repo, file: sub", "hub: user/repo/x, file: sub", 9, "not a repository"),
    "no YAML": ("draft: small", "draft: [small", 5, ""),
    "no mapping": (ENTRY, "- good\n", 1, "a mapping"),
    "alias": ("A model", "&a A model\n  x: *a", 2, "anchors and aliases"),
    "tag": ("A model", "!!python/name:os.system A model", 2, "is not a text"),
    "second document": ("\nsmall:", "\n---\nsmall:", 10, "single document"),
}


@pytest.mark.parametrize(("old", "new", "line", "reason"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_catalog_names_line_and_reason(tmp_path: Path, old: str, new: str, line: int, reason: str) -> None:
    """Each broken rule is found, and the message says where."""
    assert old in ENTRY
    with pytest.raises(CatalogError) as caught:
        _load(tmp_path, ENTRY.replace(old, new, 1))
    assert f"models.yaml, line {line}: " in caught.value.message
    assert reason in caught.value.message
    assert "\n" not in caught.value.message


def test_a_misspelt_key_is_corrected(tmp_path: Path) -> None:
    """The hint names the key that was probably meant."""
    with pytest.raises(CatalogError) as caught:
        _load(tmp_path, ENTRY.replace("licence", "license"))
    assert caught.value.hint == "did you mean 'licence'?"


def test_files_that_are_no_catalog(tmp_path: Path) -> None:
    """Missing, empty, binary, huge and endlessly nested files are refused in a line, not in a traceback."""
    with pytest.raises(CatalogError, match="cannot be read"):
        load_catalog(tmp_path / "missing.yaml")
    with pytest.raises(CatalogError, match="cannot be read"):
        load_catalog(tmp_path)
    with pytest.raises(CatalogError, match="empty"):
        _load(tmp_path, "# nothing\n")
    with pytest.raises(CatalogError, match="line 2: not UTF-8"):
        _load(tmp_path, b"a: 1\nb: \xff\n")
    with pytest.raises(CatalogError, match=r"models\.yaml"):
        _load(tmp_path, b"a: \x00\n")
    with pytest.raises(CatalogError, match="longer than"):
        _load(tmp_path, b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(CatalogError, match=r"models\.yaml"):
        _load(tmp_path, "[" * 100_000)


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
        text = text[:start] + data.draw(st.text("{}[]:,-#&*!|>'\"\n\t 0aé\ud7ff", max_size=6)) + text[end:]
    try:
        _load(tmp_path_factory.getbasetemp(), text)
    except CatalogError as error:
        assert "\n" not in error.message
