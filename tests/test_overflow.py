"""A prompt larger than the context: what is dropped, how much, and what is never touched."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from localllm.errors import PromptTooLong
from localllm.session.overflow import fit
from localllm.values import Prompt


def tokenizer(text, before="<s>", after="instruction"):
    """A token for each run of letters and each other character, as uneven as real ones."""
    import re

    return Prompt(tuple(re.findall(r"[a-z]{1,5}|.", before + text + after, re.DOTALL)))


texts = st.text("abc \n.", max_size=400)


@given(texts, st.integers(8, 200), st.integers(0, 40), st.sampled_from(["head", "tail", "middle"]))
def test_what_remains_fits_and_is_what_was_asked_for(text, n_ctx, answer, drop):
    """It leaves room for the answer, keeps the part that was not named, and counts what it dropped."""
    assume(len(tokenizer("").ids) <= n_ctx - answer)
    fitted = fit(text, tokenizer, n_ctx, answer, drop)
    whole = tokenizer(text)
    assert fitted.total_tokens == len(whole.ids)
    assert fitted.dropped_tokens == len(whole.ids) - len(fitted.prompt.ids)
    if len(whole.ids) < n_ctx:
        assert fitted.prompt == whole
        return
    assert len(fitted.prompt.ids) <= n_ctx - answer
    kept = "".join(fitted.prompt.ids)[len("<s>") : -len("instruction")]
    match drop:
        case "head":
            assert text.endswith(kept)
        case "tail":
            assert text.startswith(kept)
        case "middle":
            half = len(kept) // 2
            assert text.startswith(kept[:half]) and text.endswith(kept[half:])


def test_most_of_the_text_that_fits_is_kept():
    """Not much more is dropped than must be."""
    text = "some words, and more. " * 500
    fitted = fit(text, tokenizer, 1000, 200, "tail")
    assert 760 <= len(fitted.prompt.ids) <= 800


def test_nothing_is_dropped_unless_it_was_allowed():
    """Without a policy the prompt is refused with both sizes."""
    with pytest.raises(PromptTooLong, match=r"the prompt has 1,0\d\d tokens, the context holds 512"):
        fit("a." * 512, tokenizer, 512, 10, None)


def test_an_instruction_that_is_itself_too_long_is_told_apart():
    """Dropping the text would not help, and the message says so."""
    with pytest.raises(PromptTooLong, match="even without the attached text"):
        fit("a." * 512, tokenizer, 6, 1, "head")


def test_a_prompt_may_fill_all_but_one_token():
    """The bound is exact: n_ctx - 1 tokens fit, n_ctx do not."""
    exact = "." * (100 - len(tokenizer("").ids) - 1)
    assert fit(exact, tokenizer, 100, 50, None).dropped_tokens == 0
    with pytest.raises(PromptTooLong):
        fit(exact + ".", tokenizer, 100, 50, None)
