"""The prompt-prefix cache: what was read once is not read again, and no answer changes by it."""

import json
import multiprocessing
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from fakes import FakeDecoder, fake_engine, says
from hypothesis import given
from hypothesis import strategies as st
from proofs import sample_size
from tiny_models import make

from localllm import Message, Sampling, Settings, TurnEnd, open_engine
from localllm.engine.bindings import lib
from localllm.engine.engine import Engine
from localllm.engine.llama import LlamaDecoder, LoadOptions
from localllm.engine.prefix import PrefixCache
from localllm.engine.prefix_store import PrefixStore, entries
from localllm.engine.slicing import WIDE, border, landmarks, pure_slices, reusable, slices
from localllm.values import Progress, Prompt

PROGRAM = str(Path(sys.executable).parent / "localllm")
GREEDY, SAMPLED = Sampling(temperature=0, max_tokens=8), Sampling(temperature=0.9, seed=5, max_tokens=8)


# --- slices ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 3000), st.integers(0, 3000), st.sampled_from([192, 256, 512]), st.booleans())
def test_all_but_the_end_of_a_prompt_is_read_in_wide_slices(length, pure, most, whole):
    """Wherever reading resumes: slices join, none is too wide, those before the border are wide, the rest is one."""
    start = reusable(pure, length)
    marks = landmarks(border(length)) if whole else []
    parts = list(pure_slices(start, length, most, marks))
    assert {mark for mark in marks if mark >= start + WIDE} <= {b for _, b in parts}
    assert start <= min(pure, length - 1)
    assert [at for a, b in parts for at in range(a, b)] == list(range(start, length))
    assert all(b - a <= most for a, b in parts)
    if end := border(length):
        assert 0 < length - end <= 8 and parts[-1] == (end, length)
        assert all(b - a >= WIDE for a, b in parts[:-1])
    else:
        assert length <= WIDE and start == 0 and len(parts) == 1


@given(st.integers(1, 50_000), st.integers(0, 50_000), st.integers(0, 2000))
def test_from_a_landmark_little_more_than_what_differs_is_read(length, agreed, rest):
    """Of a prompt that agrees with an earlier one of ``length`` tokens so far: four times what differs, and a bit."""
    agreed, other = min(agreed, border(length)), min(agreed, border(length)) + rest
    usable = [mark for mark in landmarks(border(length)) if mark <= agreed and reusable(mark, other) == mark]
    found = max(usable, default=0)
    differs = max(border(length), other) - agreed
    assert other - found <= 4 * differs + 5 * WIDE


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 64))
def test_slices_cover_the_range(start, stop, most):
    parts = list(slices(start, stop, most))
    assert [at for a, b in parts for at in range(a, b)] == list(range(start, stop))
    assert all(0 < b - a <= most for a, b in parts)


# --- with a model that is a rule ---------------------------------------------------------------------------------


def process(folder: Path | None, rewinds: bool = True, budget_bytes: int = 10**8, window: int | None = None) -> Engine:
    """An engine as a new process has it, with the cache in ``folder``."""
    answer = b"fine, thank you, and how are you and all of yours?"
    decoder = FakeDecoder(says(answer), slice_tokens=256, rewinds=rewinds, n_ctx=16384, window=window)
    engine = fake_engine(decoder)
    if folder:
        engine._prefix = PrefixCache(decoder, PrefixStore(folder, "f" * 32, budget_bytes))
    return engine


def turn(engine: Engine, messages: Sequence[Message], keep: bool = True) -> TurnEnd:
    *_, end = engine.reply(messages)
    assert isinstance(end, TurnEnd)
    if keep:
        engine.keep()
    return end


LETTERS = st.text("ab", min_size=1, max_size=2).map(lambda text: text * 150)


@given(
    talk=st.lists(
        st.tuples(LETTERS, st.sampled_from(["go on", "other process", "undo", "anew"]), st.booleans()), max_size=8
    ),
    memory=st.sampled_from([{}, {"rewinds": False}, {"window": 300}, {"window": 30}]),
    budget_bytes=st.sampled_from([10**8, 20_000, 3_000]),
)
def test_answers_are_those_without_a_cache(tmp_path_factory, talk, memory, budget_bytes):
    """Chats that go on, go on elsewhere, take back a turn or begin anew, with turns of which nothing is kept.

    The fake checks each state that it is given: it must have been saved behind the very same tokens.
    """
    folder = tmp_path_factory.mktemp("prefix")
    engine, messages = process(folder, budget_bytes=budget_bytes, **memory), []
    for text, then, keep in talk:
        question = Message("user", text)
        end = turn(engine, [*messages, question], keep)
        *_, plain = process(None, **memory).reply([*messages, question])
        assert (end.message, end.reason) == (plain.message, plain.reason)
        messages += [question, end.message]
        match then:
            case "other process":
                engine = process(folder, budget_bytes=budget_bytes, **memory)
            case "undo":
                messages = messages[:-2]
            case "anew":
                messages = []


@pytest.mark.parametrize("memory", [{}, {"rewinds": False}, {"window": 300}])
def test_a_conversation_goes_on_in_another_process_where_it_was(tmp_path, memory):
    """All of its tokens come from the disk, those of the answer too."""
    first = turn(process(tmp_path, **memory), [Message("user", "x" * 300)])
    messages = [Message("user", "x" * 300), first.message, Message("user", "and?")]
    again = turn(process(tmp_path, **memory), messages)
    assert again.stats.cached_tokens == first.stats.prompt_tokens + first.stats.output_tokens


@pytest.mark.parametrize("memory", [{}, {"rewinds": False}, {"window": 300}])
def test_a_document_is_read_once_whatever_is_asked_about_it(tmp_path, memory):
    document = "".join(random.Random(1).choices("abcdefgh", k=2000))
    first = turn(process(tmp_path, **memory), [Message("user", document + "one?")])
    other = turn(process(tmp_path, **memory), [Message("user", document + "and the second question")])
    assert first.stats.cached_tokens == 0
    assert other.stats.cached_tokens > 1900


@pytest.mark.parametrize("cached", [True, False])
def test_another_answer_to_the_last_question_reads_only_that_question(tmp_path, cached):
    """Also where nothing is kept on disk; and going back two turns reads one more."""
    engine = process(tmp_path if cached else None)
    messages, ends = [Message("user", "x" * 300)], []
    for text in ("and?", "go on", "is that all?", ""):
        end = turn(engine, messages)
        ends.append(end.stats.prompt_tokens + end.stats.output_tokens)
        messages += [end.message, Message("user", text)]
    for back, end in ((2, ends[2]), (4, ends[1])):
        assert turn(engine, messages[:-back]).stats.cached_tokens == end


def test_each_token_of_a_long_chat_is_stored_once(tmp_path):
    """100 turns, each in its own process: as many tokens on disk as the conversation has."""
    messages: list[Message] = [Message("user", "x" * 300)]
    for number in range(100):
        end = turn(process(tmp_path), messages)
        messages += [end.message, Message("user", f"question number {number}")]
    stored = sum(entry.tokens for _, entry in entries(tmp_path))
    assert stored == end.stats.prompt_tokens + end.stats.output_tokens


@pytest.mark.parametrize("memory", [{}, {"rewinds": False}, {"window": 300}])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_prompt_that_was_not_answered_is_no_conversation(tmp_path, memory, elsewhere):
    """A longer one that begins with all of it uses what is pure alone: the end was not read as it would be in there."""
    engine = process(tmp_path, **memory)
    shorter, longer = engine.encode_raw("x" * 301 + "assistant\n"), engine.encode_raw("x" * 301 + "assistant\n" * 40)
    *_, end = engine.reply(shorter, Sampling(temperature=0, max_tokens=1))
    engine.keep()
    *_, again = (process(tmp_path, **memory) if elsewhere else engine).reply(longer, Sampling(max_tokens=1))
    assert again.stats.cached_tokens in (0, border(end.stats.prompt_tokens))
    assert again.stats.cached_tokens or memory == {"rewinds": False}


def test_exact_answers_use_only_what_was_read_in_wide_slices(tmp_path):
    engine = process(tmp_path)
    first = turn(engine, [Message("user", "x" * 300)])
    fresh = process(tmp_path)
    fresh._stepper.exact = True
    again = turn(fresh, [Message("user", "x" * 300), first.message, Message("user", "and?" * 50)])
    assert again.stats.cached_tokens == border(first.stats.prompt_tokens)


def test_keeping_in_the_background_is_waited_for(tmp_path):
    """The next turn, and the end of the engine, come after it."""
    engine = process(tmp_path)
    for _ in range(5):
        turn(engine, [Message("user", "x" * 500)], keep=False)
        engine.keep(background=True)
    engine.close()
    assert turn(process(tmp_path), [Message("user", "x" * 500)]).stats.cached_tokens > 400


# --- with real models --------------------------------------------------------------------------------------------

TEXT = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()


@pytest.fixture(scope="module", params=["smollm2", "smollm2-q8_0", "gemma", "gemma-q8_0", "mamba", "lfm2", "qwen35"])
def model(request, tmp_path_factory) -> tuple[Path, LoadOptions]:
    name, _, kv = request.param.partition("-")
    if name in ("smollm2", "gemma"):
        path = request.getfixturevalue(name)
    else:
        path = make(name, tmp_path_factory.mktemp("model") / f"{name}.gguf", context_length=8192)
    return path, LoadOptions(n_ctx=2048, threads=2, kv=kv or "f16")


def prompts(vocabulary, count: int, longest: int) -> Iterator[list[int]]:
    """Pieces of a text; each begins like one before it, up to any place or its end, and goes on with another piece."""
    draw, words = random.Random(11), vocabulary.tokenize(TEXT)
    before = [words[: longest // 2]]
    yield before[0]
    for _ in range(count - 1):
        earlier = draw.choice(before)
        share = draw.choice([draw.randrange(len(earlier) + 1), len(earlier)])
        piece = draw.randrange(len(words) - longest)
        ids = [*earlier[:share], *words[piece : piece + draw.randrange(1, 300)]][:longest]
        before.append(ids)
        yield ids


def logits_of(decoder: LlamaDecoder) -> np.ndarray:
    return np.ctypeslib.as_array(lib.llama_get_logits_ith(decoder._ctx, -1), (decoder.vocab.n_tokens,)).copy()


@dataclass(frozen=True)
class Read:
    """What became of a prompt."""

    logits: np.ndarray
    answer: Message
    cached_tokens: int


def read(decoder: LlamaDecoder, ids: Sequence[int], sampling: Sampling, folder: Path | None = None) -> Read:
    """Answer in an engine that has read nothing yet, and keep what it read."""
    engine = engine_of(decoder, folder)
    decoder.rewind(0)
    for event in engine.reply(Prompt(tuple(ids)), sampling):
        if isinstance(event, Progress) and event.done == event.total:
            logits = logits_of(decoder)
    engine.keep()
    return Read(logits, event.message, event.stats.cached_tokens)


class OtherProcess:
    """Reads prompts with a model of its own, and the cache in ``folder``. A context manager."""

    def __init__(self, path: Path, options: LoadOptions, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=self._work, args=(theirs, path, options, folder), daemon=True)
        self._process.start()
        theirs.close()

    @staticmethod
    def _work(pipe: Connection, path: Path, options: LoadOptions, folder: Path) -> None:
        with closing(LlamaDecoder(path, options)) as decoder:
            while request := pipe.recv():
                pipe.send(read(decoder, *request, folder))

    def read(self, ids: Sequence[int], sampling: Sampling) -> Read:
        self._pipe.send((ids, sampling))
        return self._pipe.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(30)
        self._process.kill()


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.proof("prefix-cache")
def test_warm_equals_cold_bit_for_bit(model, tmp_path, record_property):
    """Logits and answers, greedy and seeded, of prompts that share beginnings.

    Two other processes, under other n_ctx, have them from the disk, where one or the other has put them.
    """
    path, options = model
    two_kinds = path.name.startswith(("SmolLM2", "gemma-3-"))  # of KV cache: 200 prompts together
    count = sample_size(full=100 if two_kinds else 200, sample=3)
    longest = 1400 if "gemma" in path.name else 700
    with ExitStack() as stack:
        plain = stack.enter_context(closing(LlamaDecoder(path, options)))
        others = [
            stack.enter_context(OtherProcess(path, replace(options, n_ctx=n_ctx), tmp_path)) for n_ctx in (2560, 3072)
        ]
        cached = 0
        for number, ids in enumerate(prompts(plain.vocab, count, longest)):
            sampling = SAMPLED if number % 2 else GREEDY
            cold, warm = read(plain, ids, sampling), others[number % 3 % 2].read(ids, sampling)
            cached += warm.cached_tokens
            assert np.array_equal(cold.logits, warm.logits), (number, len(ids))
            assert cold.answer == warm.answer
    assert cached > count * 20
    record_property("cases", count)


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_what_is_pure_depends_neither_on_threads_nor_on_the_context_nor_on_the_cut(name, request):
    """The very bytes: so the cache need not tell apart what one thread has read and what two have."""
    states = []
    for threads, n_ctx, cuts in ((1, 1024, [0, 352]), (2, 2048, [0, 96, 256, 352])):
        with closing(LlamaDecoder(request.getfixturevalue(name), LoadOptions(n_ctx, threads=threads))) as decoder:
            ids = decoder.vocab.tokenize(TEXT)[:352]
            for start, stop in pairwise(cuts):
                decoder.feed(ids[start:stop], bool)
            states.append(decoder.save(0, 352))
    assert states[0] and states[0] == states[1]


def engine_of(decoder: LlamaDecoder, folder: Path | None) -> Engine:
    engine = fake_engine(decoder)
    engine._prefix = PrefixCache(decoder, PrefixStore(folder, "f" * 32, 10**10)) if folder else None
    return engine


@pytest.mark.model
@pytest.mark.slow
def test_a_resumed_chat_equals_one_that_never_left_its_process(model, tmp_path):
    """Bit for bit, though its answers were decoded and not read."""
    path, options = model
    with ExitStack() as stack:
        staying, leaving, returning = (stack.enter_context(closing(LlamaDecoder(path, options))) for _ in range(3))
        ids = staying.vocab.tokenize(TEXT)[:300]
        follow = staying.vocab.tokenize(TEXT)[500:540]
        at_home = engine_of(staying, None)
        *_, first = at_home.reply(Prompt(tuple(ids)), GREEDY)
        longer = Prompt((*ids, *answer_of(staying, ids), *follow))
        *_, second = at_home.reply(longer, SAMPLED)
        abroad = engine_of(leaving, tmp_path)
        *_, same = abroad.reply(Prompt(tuple(ids)), GREEDY)
        abroad.keep()
        *_, resumed = engine_of(returning, tmp_path).reply(longer, SAMPLED)
        assert same.message == first.message
        assert resumed.stats.cached_tokens == second.stats.cached_tokens >= len(ids)
        assert resumed.message == second.message
        assert np.array_equal(logits_of(staying), logits_of(returning))


def answer_of(decoder: LlamaDecoder, ids: Sequence[int]) -> list[int]:
    return list(decoder.tokens[len(ids) :])


# --- as its users have it ----------------------------------------------------------------------------------------

MANUAL = TEXT[:6000]


@pytest.fixture
def program(home, smollm2, monkeypatch):
    """Runs the installed program with the default model, an empty home, and the cache that every user has."""
    monkeypatch.setenv("LOCALLLM_MODEL", str(smollm2))

    def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess:
        return subprocess.run([PROGRAM, *arguments], input=text, capture_output=True, text=True, timeout=120)

    return run


ASK = ("ask", "--json", "--temp", "0", "--threads", "2", "--draft", "off", "--max-tokens", "12")


@pytest.mark.model
@pytest.mark.slow
def test_the_second_question_about_a_text_finds_it_read(program, home):
    """In another process; the answers are those without a cache, which leaves nothing behind."""
    cold = json.loads(program(*ASK, "--no-cache", "What is it about?", text=MANUAL).stdout)
    assert not list((home / ".cache" / "localllm").glob("prefix/*"))
    first = json.loads(program(*ASK, "Who wrote it?", text=MANUAL).stdout)
    warm = json.loads(program(*ASK, "What is it about?", text=MANUAL).stdout)
    assert first["stats"]["cached_tokens"] == 0
    assert warm["stats"]["cached_tokens"] > 0.8 * warm["stats"]["prompt_tokens"]
    assert warm["answer"] == cold["answer"]
    assert "cached" in program("ask", "-u", "--max-tokens", "1", "What is it about?", text=MANUAL).stderr


@pytest.mark.model
@pytest.mark.slow
def test_a_text_can_be_read_in_ahead_shown_verified_and_cleared(program, home):
    warmed = program("cache", "warm", "-s", "Be brief.", "-f", "-", text=MANUAL)
    assert warmed.returncode == 0 and "tokens, 0 of them" in warmed.stdout
    asked = json.loads(program(*ASK, "-s", "Be brief.", "What is it about?", text=MANUAL).stdout)
    assert asked["stats"]["cached_tokens"] > 0.8 * asked["stats"]["prompt_tokens"]
    shown = json.loads(program("cache", "--json").stdout)
    assert [prefix["hits"] for prefix in shown["prefixes"]] == [1]
    assert "Be brief." in shown["prefixes"][0]["text"] and shown["bytes"] < shown["budget_bytes"]
    row = program("cache").stdout.splitlines()[1]
    assert row.startswith("smollm2") or "SmolLM2" in row
    assert " 1  " in row and shown["prefixes"][0]["text"].split()[-1] in row
    assert program("cache", "verify").returncode == 0
    victim = max((home / ".cache/localllm/prefix").rglob("*.kv"), key=lambda path: path.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-1])
    damaged = program("cache", "verify")
    assert damaged.returncode == 1 and "1 were not" in damaged.stdout and not victim.exists()
    refused = program("cache", "clear")
    assert refused.returncode == 2 and "--yes" in refused.stderr
    assert program("cache", "clear", "another-model", "--yes").stdout.startswith("0 ")
    assert "freed" in program("cache", "clear", "--yes").stdout
    assert not list((home / ".cache/localllm/prefix").rglob("*"))


@pytest.mark.model
@pytest.mark.slow
def test_a_cache_full_of_garbage_changes_nothing(program, home):
    """Every file damaged in another way: the same answer, no complaint."""
    whole = json.loads(program(*ASK, "What is it about?", text=MANUAL).stdout)
    draw = random.Random(4)
    for path in (home / ".cache/localllm/prefix").rglob("*.kv"):
        content = bytearray(path.read_bytes())
        content[draw.randrange(len(content))] ^= 1
        path.write_bytes(draw.choice([content, content[: len(content) // 2], b"", draw.randbytes(10_000)]))
    result = program(*ASK, "What is it about?", text=MANUAL)
    answered = json.loads(result.stdout)
    assert result.returncode == 0 and result.stderr == ""
    assert answered["answer"] == whole["answer"] and answered["stats"]["cached_tokens"] == 0


@pytest.mark.model
def test_settings_without_a_cache_touch_no_disk(smollm2, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALLLM_CACHE_SIZE", "1GB")
    for settings, kept in ((Settings(ctx_size=512, cache=False), False), (Settings(ctx_size=512), True)):
        with open_engine(str(smollm2), settings) as engine:
            list(engine.reply([Message("user", "Name three rivers. " * 40)], GREEDY))
            engine.keep()
        assert bool(list(tmp_path.rglob("*.kv"))) is kept


def test_a_wrong_size_of_the_cache_is_told(home):
    result = subprocess.run(
        [PROGRAM, "cache"], env={"HOME": str(home), "LOCALLLM_CACHE_SIZE": "much"}, capture_output=True, text=True
    )
    assert result.returncode == 2 and "much" in result.stderr and "Traceback" not in result.stderr
