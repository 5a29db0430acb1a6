"""What people write for a model of the hub, and which of a repository's files they mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import ModelNotFound
from localllm.models.reference import HubReference, choose, hub_reference, shortest_name

FILES = [
    "README.md",
    "imatrix.gguf",
    "mmproj-model-f16.gguf",
    "Tiny-Q2_K.gguf",
    "Tiny-Q4_K_M.gguf",
    "Tiny-Q4_K_S.gguf",
    "Tiny-UD-Q4_K_XL.gguf",
    "Tiny-q8_0.gguf",
    "BF16/Tiny-BF16-00001-of-00002.gguf",
    "BF16/Tiny-BF16-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("text", "repository", "wanted"),
    [
        ("user/repo", "user/repo", ""),
        ("user/repo:Q4_K_M", "user/repo", "Q4_K_M"),
        ("hf.co/user/repo", "user/repo", ""),
        ("hf.co/user/repo:q8_0", "user/repo", "q8_0"),
        ("huggingface.co/user/repo:Q8_0", "user/repo", "Q8_0"),
        ("https://huggingface.co/user/repo", "user/repo", ""),
        ("https://huggingface.co/user/repo/", "user/repo", ""),
        ("https://huggingface.co/user/repo/blob/main/sub/Tiny-Q4_0.gguf", "user/repo", "sub/Tiny-Q4_0.gguf"),
        ("https://huggingface.co/user/repo/resolve/main/T.gguf?download=true", "user/repo", "T.gguf"),
        ("hf.co/user/repo/T.gguf", "user/repo", "T.gguf"),
        ("user/repo:T.gguf", "user/repo", "T.gguf"),
        ("Qwen/Qwen3-4B-GGUF:UD-Q4_K_XL", "Qwen/Qwen3-4B-GGUF", "UD-Q4_K_XL"),
    ],
)
def test_spellings_of_a_model_on_the_hub(text: str, repository: str, wanted: str) -> None:
    """Every way in which people write a repository is understood."""
    reference = hub_reference(text)
    assert reference
    assert (reference.repository, reference.wanted) == (repository, wanted)
    assert reference.explicit == ("hf.co" in text or "huggingface.co" in text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "name", "llama3.2:3b", "/a/b", "./a/b", "../a/b", "~/a/b", "a/b.gguf", "a/b/c.gguf", "a/b/c"),
        *("user/..", "../repo", "hf.co/user", "user/repo:", "user/repo:../../x.gguf", "user/repo:a/../x.gguf"),
        *("https://huggingface.co/user/repo/blob/other/T.gguf", "https://evil.example/user/repo", "user/re\npo"),
        *("user/repo:" + "Q" * 100, "a" * 200 + "/b", "user/repo:Q4 K", "ünsler/repo"),
    ],
)
def test_what_is_no_model_on_the_hub(text: str) -> None:
    """Paths, names and addresses of anything else are not taken for repositories."""
    assert hub_reference(text) is None


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("", "Tiny-Q4_K_M.gguf"),
        ("q4_k_m", "Tiny-Q4_K_M.gguf"),
        ("Q8_0", "Tiny-q8_0.gguf"),
        ("UD-Q4_K_XL", "Tiny-UD-Q4_K_XL.gguf"),
        ("BF16", "BF16/Tiny-BF16-00001-of-00002.gguf"),
        ("BF16/Tiny-BF16-00002-of-00002.gguf", "BF16/Tiny-BF16-00001-of-00002.gguf"),
        ("Tiny-BF16.gguf", "BF16/Tiny-BF16-00001-of-00002.gguf"),
        ("tiny-q2_k.gguf", "Tiny-Q2_K.gguf"),
    ],
)
def test_the_file_that_is_meant(wanted: str, file: str) -> None:
    """Case does not matter, Q4_K_M is the default, and of a split model the first part is what is loaded."""
    assert choose(FILES, HubReference("user/repo", wanted)) == file


def test_the_nearest_to_the_default_where_it_is_missing() -> None:
    """Without Q4_K_M what is nearest to it is taken; a model whose name tells no quantisation, if it is alone."""
    reference = HubReference("user/repo")
    assert choose([file for file in FILES if "Q4_K_M" not in file], reference) == "Tiny-Q4_K_S.gguf"
    assert choose(["Tiny-Q2_K.gguf", "Tiny-Q8_0.gguf"], reference) == "Tiny-Q8_0.gguf"
    assert choose(["mmproj.gguf", "strange.gguf"], reference) == "strange.gguf"


@pytest.mark.parametrize(
    ("files", "wanted", "says", "hint"),
    [
        (FILES, "Q5_K_M", "has no Q5_K_M", "it has: BF16, Q2_K, Q4_K_M, Q4_K_S, Q8_0, UD-Q4_K_XL"),
        (["README.md", "mmproj-f16.gguf"], "", "holds no GGUF model", "-GGUF"),
        (["A-Q4_K_M.gguf", "B-Q4_K_M.gguf"], "", "several models: A-Q4_K_M.gguf, B-Q4_K_M.gguf", "FILE.gguf"),
        (["A-Q8_0.gguf", "B-Q8_0.gguf"], "Q8_0", "several models for Q8_0: A-Q8_0.gguf, B-Q8_0.gguf", "FILE.gguf"),
        ([f"M{n}-Q4_0.gguf" for n in range(40)], "", "and 28 more", "FILE.gguf"),
    ],
)
def test_what_cannot_be_chosen(files: list[str], wanted: str, says: str, hint: str) -> None:
    """It is said what there is instead; nothing is chosen by chance."""
    with pytest.raises(ModelNotFound) as caught:
        choose(files, HubReference("user/repo", wanted))
    assert says in caught.value.message
    assert hint in caught.value.hint


_NAMES = st.lists(
    st.builds(
        lambda folder, stem, quant: f"{folder}{stem}{quant}.gguf",
        st.sampled_from(["", "", "sub/", "Q4_0/"]),
        st.sampled_from(["Tiny", "tiny-v2", "Other model", "strange"]),
        st.sampled_from(["-Q4_K_M", ".q8_0", "-UD-Q4_K_XL", "-IQ4_XS", "", "-Q8_0-00001-of-00003"]),
    ),
    min_size=1,
    unique=True,
)


@given(_NAMES)
def test_every_file_has_a_name_that_means_it(files: list[str]) -> None:
    """The name that a list shows for a file leads back to it; no name is better than one that means another file."""
    for file in files:
        name = shortest_name("user/repo", file, files)
        if name is None:
            assert " " in file or len([other for other in files if other.lower().endswith(file.lower())]) > 1
        else:
            reference = hub_reference(name)
            assert reference
            assert choose(files, reference) == file
