"""Prompts: the ids are llama.cpp's own, and nothing that a user writes becomes a control token."""

import random

import pytest
from fakes import BOS, CHATML, FakeDecoder, FakeVocabulary, fake_engine, says
from hypothesis import assume, example, given
from hypothesis import strategies as st
from proofs import examples, sample_size

from localllm.cancel import Cancel
from localllm.engine.bindings import lib
from localllm.engine.decoder import ControlToken
from localllm.engine.prompt import ControlTexts, PromptEncoder
from localllm.engine.template import ChatTemplate
from localllm.values import Message

GUARD = "\ufdd0"
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def whole(vocab, template, messages):
    """llama.cpp's own tokenizer on the whole rendered prompt, reading control tokens out of the text."""
    rendered = template.render([m.role for m in messages], [m.text for m in messages], [""] * len(messages))
    data = rendered.encode()
    ids = (lib.llama_token * (len(data) + 16))()
    return ids[: lib.llama_tokenize(vocab._vocab, data, len(data), ids, len(ids), False, True)]


def ordinary_texts(vocab):
    """Text without the spelling of a control token."""
    spellings = [token.text for token in vocab.control_tokens]
    words = st.sampled_from(
        ["the ", "def f(x):\n", "\n\n\n", "  ", "\t", "1234", "<", "|>", "<|", "é", "世界", "🙂", "'s"]
    )
    return (
        st.lists(st.one_of(words, st.text(max_size=8)), max_size=20)
        .map("".join)
        .filter(lambda text: not any(spelling in text for spelling in spellings))
    )


def hostile_texts(vocab):
    """Text full of control tokens' spellings, whole, cut and nested; among them all that a template writes."""
    every = [token.text for token in vocab.control_tokens]
    written = [text for text in every if "turn" in text or "im_" in text or text in ("<bos>", "<eos>")]
    assert len(written) >= 2
    spellings = written * 3 + random.Random(0).sample(every, min(20, len(every)))
    part = st.sampled_from(spellings).flatmap(lambda s: st.integers(0, len(s)).map(lambda n: s[:n]))
    rest = st.sampled_from(spellings).flatmap(lambda s: st.integers(0, len(s)).map(lambda n: s[n:]))
    return st.lists(st.one_of(st.sampled_from(spellings), part, rest, st.sampled_from([" ", "\n", "a"]))).map("".join)


@pytest.fixture(params=["smollm2", "gemma"])
def real(request):
    """Each model with its template; Gemma's base model gets the one of its instruction-tuned sister."""
    engine = request.getfixturevalue("engine" if request.param == "smollm2" else "gemma_engine")
    vocab = engine._decoder.vocab
    if request.param == "smollm2":
        return PromptEncoder(vocab, engine._encoder._template), vocab, engine._encoder._template
    template = ChatTemplate(GEMMA_TEMPLATE, vocab.bos.text, vocab.eos.text)
    return PromptEncoder(vocab, template), vocab, template


@pytest.mark.model
@pytest.mark.proof("tokens")
def test_ids_equal_llama_cpps_own(real, record_property):
    """For ordinary text, the ids of a conversation are those of the whole rendered prompt, one for one."""
    encoder, vocab, template = real

    @examples(full=5000, sample=150)
    @given(st.lists(ordinary_texts(vocab), min_size=1, max_size=3))
    @example(["hello"])
    @example(["<|im_en", "d|>"])
    def holds(texts):
        roles = ["user", "assistant", "user"]
        messages = [Message(role, text) for role, text in zip(roles, texts, strict=False)]
        assert list(encoder.encode(messages, Cancel()).ids) == whole(vocab, template, messages)

    holds()
    record_property("cases", sample_size(full=5000, sample=150))


@pytest.mark.model
@pytest.mark.proof("tokens")
def test_user_text_never_becomes_a_control_token(real, record_property):
    """Whatever the text spells, the control ids are those of the same conversation with harmless text."""
    encoder, vocab, _ = real
    controls = {token.id for token in vocab.control_tokens}

    def control_ids(text):
        ids = encoder.encode([Message("system", text), Message("user", text)], Cancel()).ids
        return [id for id in ids if id in controls]

    harmless = control_ids("x")

    @examples(full=5000, sample=150)
    @given(hostile_texts(vocab))
    def holds(text):
        assert control_ids(text) == harmless
        assert not controls & set(vocab.tokenize(text))

    holds()
    record_property("cases", sample_size(full=5000, sample=150))


@pytest.mark.model
@pytest.mark.proof("tokens")
def test_every_control_token_of_a_vocabulary(real, record_property):
    """Each spelling alone, inside a word, and split by another; and the text itself is not changed."""
    encoder, vocab, _ = real
    harmless = encoder.encode([Message("user", "x")], Cancel()).ids
    every = list(vocab.control_tokens)
    chosen = every[:200] + random.Random(0).sample(every, min(sample_size(len(every), 50), len(every)))
    for token in chosen:
        for text in (token.text, f"a{token.text}b", token.text[:2] + token.text + token.text[2:]):
            ids = encoder.encode([Message("user", text)], Cancel()).ids
            forged = [id for id in ids if id == token.id]
            assert len(forged) == harmless.count(token.id), text
            plain = b"".join(vocab.piece(id) for id in vocab.tokenize(text))
            assert plain.decode().lstrip() == text.lstrip()
    record_property("cases", 3 * len(chosen))


@pytest.mark.model
def test_bos_is_there_exactly_once(gemma_engine):
    """Written by the template or not, twice or not: Gemma gets one BOS, also for a raw prompt."""
    vocab = gemma_engine._decoder.vocab
    for source in (GEMMA_TEMPLATE, GEMMA_TEMPLATE.replace("{{ bos_token }}", ""), "{{ bos_token }}" + GEMMA_TEMPLATE):
        encoder = PromptEncoder(vocab, ChatTemplate(source, vocab.bos.text, vocab.eos.text))
        ids = encoder.encode([Message("user", f"{vocab.bos.text}hi")], Cancel()).ids
        assert ids[0] == vocab.bos.id and ids.count(vocab.bos.id) == 1
    assert gemma_engine.encode_raw("hi").ids[0] == vocab.bos.id


def test_bos_is_not_added_where_the_model_does_not_want_it():
    """A vocabulary without ``add_bos`` gets what the template writes."""
    ids = fake_engine(FakeDecoder(says(b""))).encode([Message("user", "hi")]).ids
    assert BOS not in ids
    wanting = FakeDecoder(says(b""), vocab=FakeVocabulary(add_bos=True))
    assert fake_engine(wanting).encode([Message("user", "hi")]).ids == (BOS, *ids)


SPELLINGS = ["<|a|>", "<|ab|>", "|><|", "b|>", "[x]", "<<"]


@given(st.lists(st.one_of(st.sampled_from(SPELLINGS), st.text("<|ab>[x] ", max_size=5)), max_size=8).map("".join))
def test_breaking_spellings_is_complete_and_can_be_undone(text):
    """After breaking, no spelling is left, whatever surrounds the text; without the guards it is the text again."""
    texts = ControlTexts([ControlToken(i, s) for i, s in enumerate(SPELLINGS)])
    broken = texts.broken(text, GUARD)
    assert broken.replace(GUARD, "") == text
    assert not any(spelling in broken for spelling in SPELLINGS)
    core = broken.strip()
    for spelling in SPELLINGS:  # a template may put the rest of a spelling right beside the text
        for cut in range(1, len(spelling)):
            assert core == "" or spelling not in spelling[:cut] + core[: len(spelling)]
            assert core == "" or spelling not in core[-len(spelling) :] + spelling[cut:]


@given(st.text("ab <|>", max_size=20))
def test_text_without_spellings_is_left_alone(text):
    """Ordinary text goes through untouched, so templates see exactly what was typed."""
    texts = ControlTexts([ControlToken(0, "[x]")])
    assert texts.broken(text, GUARD) == text
    assert list(texts.split(text)) == ([text] if text else [])


def test_a_vocabulary_without_control_tokens():
    """Nothing is found and nothing is changed."""
    texts = ControlTexts([])
    assert texts.broken("<|im_end|>", GUARD) == "<|im_end|>"
    assert list(texts.split("<|im_end|>")) == ["<|im_end|>"] and texts.found("<") == []


def test_white_space_that_belongs_to_a_token():
    """lstrip and rstrip take the white space beside the token, as llama.cpp does."""
    left, right = ControlToken(0, "<l>", lstrip=True), ControlToken(1, "<r>", rstrip=True)
    assert list(ControlTexts([left, right]).split("a <l> b <r> c")) == ["a", left, " b ", right, "c"]


@given(st.text(max_size=30))
def test_noncharacters_in_the_text_survive(text):
    """The marks are chosen among characters that the conversation does not use."""
    assume(not any(0xD800 <= ord(c) < 0xE000 for c in text))
    text = f"\ufdd0{text}\ufdd1"
    engine = fake_engine(FakeDecoder(says(b"")), CHATML.replace("{{ m.content }}", "[{{ m.content }}]"))
    ids = engine.encode([Message("assistant", "", token_ids=(7,)), Message("user", text)]).ids
    assert bytes(id for id in ids if id < 256).decode().count(f"[{text}]") == 1


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("m.content.replace('\\r', '')", "<|im_\rend|>"),
        ("m.content | replace('</think>', '')", "<|im_</think>end|>"),
        ("m.content.split() | join('')", "<|im_ end|>"),
        ("m.content | lower", "<|IM_END|>"),
        ("'<|' ~ m.content ~ '|>'", "im_end"),
        ("'<|' ~ (m.content | trim) ~ '|>'", " im_end "),
        ("m.content | reverse", "<|im_end|>"[::-1]),
    ],
)
def test_a_template_that_changes_text_cannot_be_used_to_forge(expression, text):
    """Control tokens that appear only for this text do not come through, whatever the template does to it."""
    template = CHATML.replace("m.content", expression)
    prompt = fake_engine(FakeDecoder(says(b"")), template).encode([Message("user", text)])
    plain = fake_engine(FakeDecoder(says(b"")), template).encode([Message("user", "harmless")])
    assert [id for id in prompt.ids if id > 255] == [id for id in plain.ids if id > 255]


def test_a_template_that_repeats_an_answer():
    """The kept ids stand wherever the answer stands."""
    template = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"
    assert fake_engine(FakeDecoder(says(b"")), template).encode([Message("assistant", "ab", (1,))]).ids == (1, 1)


@pytest.mark.parametrize(
    ("expression", "expected"), [("m.content[:1]", b"a"), ("m.content[1:]", b"b"), ("m.content[:1] ~ '!'", b"a!")]
)
def test_a_template_that_cuts_an_answer_gets_its_text(expression, expected):
    """Where what stands for the kept ids does not survive the template, the text is tokenised instead."""
    template = "{% for m in messages %}{{ " + expression + " }}{% endfor %}"
    assert fake_engine(FakeDecoder(says(b"")), template).encode([Message("assistant", "ab", (1,))]).ids == tuple(
        expected
    )
