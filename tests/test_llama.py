"""llama.cpp behind the Decoder protocol: compared with the binding's own class, interrupted, and rewound."""

import itertools

import llama_cpp
import numpy as np
import pytest

from localllm import Cancel, Message, Sampling, Settings, TurnEnd, open_engine
from localllm.engine.bindings import lib
from localllm.engine.llama import LlamaDecoder, LoadOptions
from localllm.errors import Cancelled, DecodeError, ModelFileError

pytestmark = pytest.mark.model
NEVER = Cancel()
GREEDY = Sampling(temperature=0, max_tokens=40)
PROMPTS = ["Name three colours.", "Write a haiku about rain.", "def add(a, b):", "2 + 2 =", "Grüße aus Köln! 世界 🙂"]


def answer(engine, prompt, sampling=GREEDY, cancel=None):
    return next(event for event in engine.reply(prompt, sampling, cancel) if isinstance(event, TurnEnd))


def logits(decoder):
    pointer = lib.llama_get_logits_ith(decoder._ctx, -1)
    return np.ctypeslib.as_array(pointer, (decoder.vocab.n_tokens,)).copy()


@pytest.fixture(scope="module", params=["smollm2", "gemma"])
def decoder(request):
    loaded = LlamaDecoder(request.getfixturevalue(request.param), LoadOptions(n_ctx=2048, threads=2))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def binding(smollm2):
    """The binding's own high-level class, as an oracle."""
    model = llama_cpp.Llama(str(smollm2), n_ctx=4096, n_threads=2, flash_attn=True, verbose=False)
    yield model
    model.close()


def test_greedy_answers_are_those_of_the_binding(engine, binding):
    """Prompt, template, decoding and end of turn: the same text as llama-cpp-python's chat completion."""
    for prompt in PROMPTS:
        request = [{"role": "user", "content": prompt}]
        theirs = binding.create_chat_completion(request, temperature=0, max_tokens=40)["choices"][0]
        ours = answer(engine, [Message("user", prompt)])
        assert ours.message.text == theirs["message"]["content"], prompt
        assert ours.reason == theirs["finish_reason"]


def test_sampled_answers_are_those_of_the_binding(engine, binding):
    """The sampler chain in llama.cpp's order with its defaults draws the same tokens from the same seed."""
    for seed, prompt in enumerate(PROMPTS):
        ids = engine.encode([Message("user", prompt)]).ids
        binding.reset()
        binding.set_seed(seed)
        options = {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0, "repeat_penalty": 1.0}
        binding._sampler = None
        theirs = list(itertools.islice(binding.generate(ids, **options), 12))
        ours = answer(engine, engine.encode([Message("user", prompt)]), Sampling(seed=seed, max_tokens=12))
        assert list(ours.message.token_ids) == theirs[: len(ours.message.token_ids)]


def test_rewinding_gives_the_same_logits_as_never_having_gone_on(decoder):
    """After feeding, rewinding and feeding otherwise, the logits are bit for bit those of a fresh cache."""
    text = decoder.vocab.tokenize("The quick brown fox jumps over the lazy dog. " * 9)
    decoder.rewind(0)
    decoder.feed(text[:40], NEVER)
    decoder.feed(text[40:], NEVER)
    assert decoder.rewind(40) == 40 == len(decoder.tokens)
    decoder.feed(text[60:90], NEVER)
    warm = logits(decoder)
    decoder.rewind(0)
    decoder.feed(text[:40], NEVER)
    decoder.feed(text[60:90], NEVER)
    assert np.array_equal(warm, logits(decoder))


def test_a_sliding_window_is_not_rewound_beyond_what_it_still_holds(gemma):
    """Gemma forgets cells outside its window: going back there starts over instead of being silently wrong."""
    decoder = LlamaDecoder(gemma, LoadOptions(n_ctx=2048, threads=2))
    ids = decoder.vocab.tokenize("one two three four five six seven eight nine ten. " * 160)[:1800]
    for start in range(0, 1800, 450):
        decoder.feed(ids[start : start + 450], NEVER)
    kept = decoder.rewind(600)
    for start, stop in [(kept, 450), (max(kept, 450), 600), (600, 700)]:
        if start < stop:
            decoder.feed(ids[start:stop], NEVER)
    warm = logits(decoder)
    decoder.rewind(0)
    for start, stop in [(0, 450), (450, 600), (600, 700)]:
        decoder.feed(ids[start:stop], NEVER)
    assert np.array_equal(warm, logits(decoder))
    decoder.close()


@pytest.mark.parametrize("looks", [1, 40, 300])
def test_an_abort_inside_a_computation_leaves_a_known_state(decoder, looks):
    """Stopped at any of llama.cpp's own looks at the flag, the decoder goes on as if nothing had been asked."""
    ids = decoder.vocab.tokenize("alpha beta gamma delta " * 60)[:200]
    decoder.rewind(0)
    decoder.feed(ids[:100], NEVER)
    seen = itertools.count()
    assert decoder.feed(ids[100:], lambda: next(seen) >= looks) is False
    assert decoder.tokens == ids[:100]
    assert decoder.feed(ids[100:], NEVER) is True
    warm = logits(decoder)
    decoder.rewind(0)
    decoder.feed(ids[:100], NEVER)
    decoder.feed(ids[100:], NEVER)
    assert np.array_equal(warm, logits(decoder))


def test_twenty_turns_at_temperature_one_feed_only_what_is_new(engine):
    """Generated ids are kept: each turn finds all earlier tokens in the KV cache but the template's own additions."""
    messages, used = [], 0
    for turn in range(20):
        messages.append(Message("user", f"Tell me fact number {turn}, with an odd word or two: zxqv, {turn * 7919}."))
        end = answer(engine, messages, Sampling(temperature=1, seed=turn, max_tokens=30))
        assert end.message.token_ids, end.message
        if turn:
            assert end.stats.cached_tokens >= used - 1, f"turn {turn} read earlier tokens again"
        used = end.stats.prompt_tokens + end.stats.output_tokens
        messages.append(end.message)


def test_control_tokens_are_all_found(decoder):
    """The search by stretches finds exactly the tokens that the API names one by one."""
    vocab = decoder.vocab
    wanted = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
    every = [i for i in range(vocab.n_tokens) if lib.llama_vocab_get_attr(vocab._vocab, i) & wanted]
    assert [token.id for token in vocab.control_tokens] == every


def test_pieces_spell_the_text(decoder):
    """Tokens -> bytes gives back any text, also pieces longer than the first buffer."""
    vocab = decoder.vocab
    for text in ("plain", "a\tb\n\n\nc", "世界🙂", "x" + " " * 40 + "y", "é\u0301", "a\x00b"):
        assert b"".join(map(vocab.piece, vocab.tokenize(text))).decode().removeprefix(" ") == text


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q4_0"])
def test_each_kv_type_answers(smollm2, kv):
    """The KV cache can be quantised; the answer remains one."""
    with open_engine(str(smollm2), Settings(ctx_size=512, kv=kv, threads=2)) as engine:
        assert answer(engine, [Message("user", PROMPTS[0])]).stats.output_tokens > 3


def test_the_repetition_penalty_avoids_what_was_said(engine):
    """A prompt that begs for repetition: plainly it is repeated, with a strong penalty none of its tokens comes."""
    prompt = engine.encode_raw("one two three one two three one two three")
    plain = answer(engine, prompt, Sampling(temperature=0, max_tokens=12)).message.token_ids
    penalised = answer(engine, prompt, Sampling(temperature=0, max_tokens=12, repeat_penalty=100)).message.token_ids
    assert set(plain) & set(prompt.ids)
    assert not set(penalised) & set(prompt.ids) and len(set(penalised)) == len(penalised)


def test_the_default_model_by_name_has_its_catalog_defaults(smollm2):
    """What its publisher advises is what it is sampled with, unless told otherwise."""
    with open_engine("smollm2-135m", Settings(ctx_size=256)) as engine:
        assert (engine.sampling.temperature, engine.sampling.top_p, engine.sampling.top_k) == (0.2, 0.9, 40)
        assert (engine.info.name, engine.info.n_ctx, engine.info.n_ctx_reason) == ("smollm2-135m", 256, "chosen")
        assert engine.info.flash_attention is True


def test_closing_waits_for_a_tokeniser_that_was_left_behind(smollm2):
    """A cancelled tokenisation still runs in llama.cpp; the model is freed only after it."""
    with open_engine(str(smollm2), Settings(ctx_size=256)) as engine, pytest.raises(Cancelled):
        engine.encode_raw("word " * 2_000_000, Cancel(timeout_s=0.3))


def test_a_closed_model_says_so(smollm2):
    """Whatever is asked of it, nothing reaches llama.cpp."""
    decoder = LlamaDecoder(smollm2, LoadOptions(n_ctx=256))
    decoder.close()
    decoder.close()
    for use in (
        lambda: decoder.feed([1], NEVER),
        lambda: decoder.rewind(0),
        lambda: decoder.vocab.tokenize("hi"),
        lambda: decoder.sampler(GREEDY, 1),
    ):
        with pytest.raises(DecodeError, match="closed"):
            use()


def test_a_closed_engine_keeps_nothing(smollm2, tmp_path, monkeypatch):
    """There is nothing left to be stored for later; nor does asking for it touch what was freed."""
    monkeypatch.setenv("LOCALLLM_CACHE_SIZE", "1GB")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with open_engine(str(smollm2), Settings(ctx_size=256, draft="off")) as engine:
        list(engine.reply([Message("user", "hi")], Sampling(max_tokens=2)))
    engine.keep()
    engine.keep(background=True)


def test_what_llama_cpp_holds_beyond_our_count_is_dropped(decoder):
    """If an exception came between llama.cpp and our count, the next rewind repairs it."""
    ids = decoder.vocab.tokenize("alpha beta gamma delta " * 9)[:40]
    decoder.rewind(0)
    decoder.feed(ids, NEVER)
    clean = logits(decoder)
    decoder.rewind(0)
    decoder.feed(ids[:20], NEVER)
    del decoder.tokens[10:]
    assert decoder.rewind(40) == 10
    decoder.rewind(0)
    decoder.feed(ids, NEVER)
    assert np.array_equal(clean, logits(decoder))


@pytest.mark.slow
@pytest.mark.parametrize("character", ["-", "a", " ", "\n", "中"])
def test_millions_of_equal_characters(decoder, character):
    """The pre-tokenizers recurse over runs; text is cut long before that becomes a crash, and stays the text."""
    vocab = decoder.vocab
    ids = vocab.tokenize("x" + character * 1_200_000)
    assert b"".join(map(vocab.piece, ids)).decode().removeprefix(" ") == "x" + character * 1_200_000


def test_too_many_tokens_are_refused_before_llama_cpp_sees_them(decoder):
    """What would end the process is a DecodeError: more than a slice, nothing, more than the context."""
    for count in (0, decoder.slice_tokens + 1):
        with pytest.raises(DecodeError):
            decoder.feed([1] * count, NEVER)


def test_a_file_that_llama_cpp_refuses_is_one_clear_line(tmp_path):
    """The reason comes out of llama.cpp's log, without control characters."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + b"\x00" * 64)
    with pytest.raises(ModelFileError, match=r"llama.cpp cannot load bad.gguf: \S") as caught:
        LlamaDecoder(path, LoadOptions(n_ctx=512))
    assert caught.value.message.isprintable()
