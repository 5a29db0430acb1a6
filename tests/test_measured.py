"""What is measured on this machine, what is learned of it, and measurements from elsewhere taken apart."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm import measured
from localllm.ceiling import hardware, measure
from localllm.ceiling.answer import Question, Subject, answer
from localllm.ceiling.expected import Step
from localllm.ceiling.explain import explain, llama_bench
from localllm.ceiling.learned import Learned, Point, Rates, rates
from localllm.ceiling.machine import Machine
from localllm.ceiling.roofline import Workload
from localllm.cores import Watch
from localllm.errors import UsageError
from localllm.measured import Measurement

BENCH = {
    "gpu_info": "NVIDIA GeForce RTX 4090",
    "model_filename": "models/llama-2-7b.Q4_0.gguf",
    "model_size": 3_825_065_984,
    "model_n_params": 6_738_415_616,
    "n_gpu_layers": 99,
    "n_prompt": 0,
    "n_gen": 128,
    "n_depth": 0,
    "avg_ts": 189.0,
}
PREFILL = BENCH | {"n_prompt": 512, "n_gen": 0, "avg_ts": 14_000.0}


def run(*arguments: object, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "localllm", "ceiling", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, input=text)


# --- taking apart ------------------------------------------------------------------------------------------------


@given(st.floats(0.1, 1e4), st.integers(10**6, 10**12), st.integers(0, 10**6), st.integers(0, 10**5), st.floats(1, 1e4))
def test_shares_add_up_and_the_ceiling_is_where_nothing_is_left(tok_s, weights, per_token, depth, bandwidth_gb_s):
    workload = Workload(weights, weights, kv_read=lambda tokens: tokens * per_token)
    shares = explain(tok_s, workload, depth, bandwidth_gb_s)
    assert shares.weights + shares.kv + shares.rest == pytest.approx(1)
    assert shares.of_ceiling == pytest.approx(shares.weights + shares.kv)
    at_ceiling = explain(shares.ceiling_tok_s, workload, depth, bandwidth_gb_s)
    assert at_ceiling.rest == pytest.approx(0, abs=1e-9)


def test_a_llama_bench_file_is_explained(tmp_path):
    """Decode results only; the device by its driver's name, the model by its size or by the name given."""
    path = tmp_path / "bench.json"
    path.write_text(json.dumps([PREFILL, BENCH]))
    done = run("--explain", path)
    assert done.returncode == 0, done
    [line, *_] = done.stdout.splitlines()
    assert line.startswith(
        "llama-2-7b.Q4_0.gguf on GeForce RTX 4090, depth 64: 189 tok/s is 72% of the 264 tok/s ceiling"
    )
    named = json.loads(run("llama-3.1-8b", "--explain", path, "--json").stdout)["results"]
    assert len(named) == 1
    assert named[0]["weights"] + named[0]["kv"] + named[0]["rest"] == pytest.approx(1)
    assert 0 < named[0]["kv"] < 0.01
    lines = "\n".join(map(json.dumps, (PREFILL, BENCH)))  # as -o jsonl writes it
    assert run("--explain", "-", "--bandwidth", "1008.4", text=lines).stdout.split("depth")[1] == line.split("depth")[
        1
    ] + done.stdout.removeprefix(line)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no decode result"),
        ("hello", "no JSON"),
        ("[]", "no decode result"),
        ("{}", "no decode result"),
        (json.dumps([PREFILL]), "no decode result"),
        ("[" * 100_000, "no JSON"),
        (json.dumps([BENCH | {"gpu_info": "", "n_gpu_layers": 0}]), "--gpu"),
        (json.dumps([BENCH | {"gpu_info": "Nobody's card"}]), "Nobody"),
        (json.dumps([BENCH | {"avg_ts": "fast"}]), "no decode result"),
        (json.dumps([BENCH | {"model_size": 0}]), "model_size"),
        (json.dumps([BENCH | {"model_size": float("nan")}]), "model_size"),
    ],
)
def test_a_file_that_cannot_be_explained_is_refused_in_one_line(tmp_path, content, said):
    path = tmp_path / "bench.json"
    path.write_text(content)
    done = run("--explain", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and said in done.stderr


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(BENCH)), inner, max_size=9),
)


@given(st.one_of(st.text(max_size=50), VALUES.map(json.dumps), st.lists(VALUES, max_size=3).map(json.dumps)))
def test_no_file_crashes_it(text):
    try:
        found = llama_bench(text)
    except UsageError:
        return
    assert all(result.tok_s > 0 and result.depth >= 0 and result.model_bytes >= 0 for result in found)


# --- learning ----------------------------------------------------------------------------------------------------


@given(st.data(), st.floats(1, 500), st.floats(0.5, 100), st.integers(10**7, 10**11), st.integers(10**3, 10**6))
def test_what_was_learned_gives_back_what_was_measured(data, weights_gb_s, kv_gb_s, weights_bytes, per_token):
    """At the depths that were measured, and at others."""

    def tok_s(depth: int) -> float:
        return 1 / (weights_bytes / weights_gb_s / 1e9 + depth * per_token / kv_gb_s / 1e9)

    points = [Point(tok_s(depth), weights_bytes, depth * per_token) for depth in (48, 560, 1072)]
    own = rates("4", points)
    known = data.draw(st.sampled_from([Learned((own,)), Learned((own,), own)]))
    for depth in (0, 48, 560, 2000):
        band = known.band(Step(weights_bytes, depth * per_token, 30, "4"))
        assert band.mid == pytest.approx(tok_s(depth), rel=1e-3)
        assert band.low < band.mid < band.high and band.here


@given(st.lists(st.floats(1, 1000), min_size=2, max_size=4))
def test_a_model_that_was_measured_is_expected_to_do_as_it_did(speeds):
    """Whatever its curve, at each depth that was measured; and deeper is never faster."""
    points = [Point(tok_s, 10**9, 10**6 * (1 + number)) for number, tok_s in enumerate(sorted(speeds, reverse=True))]
    own = rates("k", points)
    known = Learned((own,), own)
    for point in points[1:]:
        assert known.band(Step(1e9, point.kv_bytes, 30)).mid == pytest.approx(point.tok_s, rel=1e-3)
    mids = [known.band(Step(1e9, kv_bytes, 30)).mid for kv_bytes in range(10**6, 10**8, 10**7)]
    assert all(a >= b * 0.999 for a, b in pairwise(mids))


def test_another_kind_of_weights_has_a_wider_band():
    known = Learned((Rates("4", 10.0, 5.0), Rates("k", 20.0, None)))
    same, other = (known.band(Step(1e9, 0, 30, precision)) for precision in ("k", "16"))
    assert same.mid == pytest.approx(20) and other.mid == pytest.approx(200**0.5)
    assert other.high / other.low > same.high / same.low


@given(st.floats(1e9, 1e13), st.integers(2, 64))
def test_reading_a_prompt_takes_what_it_took_and_bounds_a_batch(flops, users):
    """Prefill by the operations per second that were measured; from the bend on, no more tokens in all."""
    own = Rates("k", 10.0, 5.0)
    machine = replace(Machine((hardware.given(20, None),)), learned=Learned((own,), own, flops))
    subject = Subject("model", Workload(10**9, 10**9), "f16", n_layers=16, params=2e9)
    result = answer(subject, machine, Question(prompt=100, users=users))
    assert result.prefill_tok_s == pytest.approx(flops / 4e9, rel=1e-6)
    for batch in result.batches:
        assert batch.aggregate_tok_s <= flops / 4e9 * 1.001 and batch.aggregate_tok_s <= 10 * batch.users * 1.001
    assert any(batch.users == users for batch in result.batches)


# --- remembering -------------------------------------------------------------------------------------------------

MEASUREMENT = Measurement(
    "tiny", "4", 2, False, "2026-11-30 12:00", 10**8, ((48, 120.0), (528, 90.0)), (10**6, 10**7), 3e10
)


def test_what_was_measured_is_remembered_by_the_file(home, tmp_path):
    """Another file, or the same one written anew, has not been measured."""
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    assert measured.last([path]) is None and measured.learned() is None
    measured.keep([path], MEASUREMENT)
    assert measured.last([path]) == MEASUREMENT
    assert measured.learned().prefill_flops == pytest.approx(3e10)
    measured.keep([path], replace(MEASUREMENT, prefill_flops=None))
    assert measured.learned() == Learned((MEASUREMENT.rates,))
    path.unlink()
    assert measured.last([path]) is None


RATES = st.floats(1, 1000)


@given(first=RATES, then=st.lists(st.tuples(RATES, st.booleans()), min_size=1, max_size=6))
def test_what_others_disturbed_is_not_what_the_machine_can_do(tmp_path_factory, first, then):
    """The last quiet measurement stands, else the fastest disturbed one; and only a quiet one tells of other models."""
    folder = tmp_path_factory.mktemp("measured")
    path = folder / "a.gguf"
    path.write_bytes(b"GGUF")
    seen = [(first, True), *then]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        for tok_s, disturbed in seen:
            measured.keep([path], replace(MEASUREMENT, points=((48, tok_s),), kv_bytes=(0,), disturbed=disturbed))
        kept, quiet = measured.last([path]), [tok_s for tok_s, disturbed in seen if not disturbed]
        assert kept.tok_s == (quiet[-1] if quiet else max(tok_s for tok_s, _ in seen))
        assert kept.disturbed == (not quiet) == ("while other programs" in kept.told_when)
        assert (measured.learned([path]) is None) == kept.disturbed


@pytest.mark.parametrize(("disturbed_rounds", "passes"), [(0, 6), (2, 18), (10**6, None)])
def test_memory_is_read_until_nobody_disturbs(monkeypatch, disturbed_rounds, passes):
    """The best pass of all counts, each faster than the one before here; where others never stop, we do in the end."""
    taken, rounds = list[float](), iter(range(10**7))
    slices = 4 * 2**20

    class Others:
        disturbed = property(lambda _: next(rounds) < disturbed_rounds)

    def timed_s(work):
        taken.append(1 / (1 + len(taken)))
        time.sleep(0.01)
        return taken[-1]

    monkeypatch.setattr(measure, "Watch", Others)
    monkeypatch.setattr(measure, "_timed_s", timed_s)
    bandwidth_gb_s = measure.read_bandwidth_gb_s(1, limit_bytes=slices)
    assert bandwidth_gb_s == pytest.approx(slices / taken[-1] / 1e9)
    assert len(taken) == passes if passes else len(taken) > 6


def test_a_busy_process_is_disturbed_and_a_sleeping_one_is_not():
    """More computing processes than cores take them from one another; nobody takes them from one that sleeps."""
    watch = Watch()
    time.sleep(0.3)
    assert not watch.disturbed
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
    try:
        watch, end_s = Watch(), time.monotonic() + 20
        while not watch.disturbed and time.monotonic() < end_s:  # the first slices of time may be ours alone
            sum(range(10**6))
        assert watch.disturbed
    finally:
        for process in busy:
            process.kill()
            process.wait()


@given(st.one_of(st.binary(max_size=40), VALUES.map(lambda value: json.dumps(value).encode())))
def test_a_bad_file_counts_as_not_measured(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        (folder / "localllm" / "measured").mkdir(parents=True)
        (folder / "localllm" / "measured" / "x.json").write_bytes(content)
        assert measured.learned() is None


# --- as its users have it ----------------------------------------------------------------------------------------


def test_the_overview_lists_the_models_of_this_disk(home, monkeypatch, tmp_path):
    """With nothing named: this machine's bandwidth, and a line for each model; a bad file does not hide the others."""
    from gguf_files import tiny

    monkeypatch.setenv("HF_HOME", str(home / "hub"))
    path = tiny().write(tmp_path / "mine.gguf")
    own = home / ".config" / "localllm" / "models.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(f"mine:\n  description: Mine\n  licence: mit\n  sources: [{{path: {path}}}]\n")
    done = run()
    assert done.returncode == 0 and "GB/s read bandwidth, measured now" in done.stdout
    assert any(line.startswith("mine") and "tok/s" in line for line in done.stdout.splitlines())
    report = json.loads(run("--json").stdout)
    assert [model["model"] for model in report["models"]] == ["mine"]
    assert report["models"][0]["measured_tok_s"] is None
    threads = json.loads(run("--measure", "--json").stdout)["bandwidth_by_threads_gb_s"]
    assert all(value > 0 for value in threads.values()) and "1" in threads


def test_other_hardware_cannot_be_measured():
    done = run("smollm2-135m", "--measure", "--gpu", "4090")
    assert (done.returncode, done.stdout) == (2, "") and "--gpu" in done.stderr


@pytest.mark.model
@pytest.mark.slow
def test_a_model_is_measured_and_told_apart(home, smollm2):
    """The real model: its rate, its share of the ceiling, and what it teaches about a depth that was not measured.

    On a machine where other programs compute meanwhile it says so, and teaches nothing.
    """
    text = run(smollm2, "--measure").stdout
    assert "tok/s ceiling" in text and "measured 20" in text
    [result] = json.loads(run(smollm2, "--ctx", "2000", "--json").stdout)["results"]
    assert 1 < result["measured_tok_s"] < 10_000
    assert [path for path in Path(home).rglob("*.json") if path.parent.name == "measured"]
    deep = result["depths"][-1]["expected_tok_s"]
    assert (deep is None) == ("while other programs computed" in text)
    if deep is None:
        return
    assert deep["mid"] < result["expected_tok_s"]["mid"]
    assert result["expected_tok_s"]["low"] < result["measured_tok_s"] < 1.5 * result["expected_tok_s"]["high"]
