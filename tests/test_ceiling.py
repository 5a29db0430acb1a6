"""``localllm ceiling``: the arithmetic, the model's bytes, and what the command answers and refuses."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import gguf
import numpy
import pytest
from gguf_files import tiny, u32
from hypothesis import given
from hypothesis import strategies as st

from localllm import sizes, subjects
from localllm.ceiling import hardware, machine, measure, roofline
from localllm.ceiling.answer import Question, Subject
from localllm.ceiling.answer import answer as solved
from localllm.ceiling.machine import Machine
from localllm.ceiling.roofline import Workload
from localllm.errors import UsageError
from localllm.models.catalog import load_catalog

GIB = 2**30
RESULT_KEYS = {
    "hardware", "bandwidth_gb_s", "memory_bytes", "ceiling_tok_s", "expected_tok_s", "measured_tok_s", "fits",
    "conversations", "prefill_tok_s", "ttft_s",
}  # fmt: skip
NOT_ASKED = {"measured_tok_s", "conversations", "ttft_s"}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "localllm", "ceiling", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def answer(*arguments: object) -> dict:
    """The JSON object that the command prints."""
    done = run(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def llama_8b(tmp_path_factory) -> Path:
    """The header of Llama 3.1 8B as the gguf package writes it, with one small tensor per layer."""
    path = tmp_path_factory.mktemp("models") / "llama-3.1-8b.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(131_072)
    writer.add_embedding_length(4096)
    writer.add_block_count(32)
    writer.add_head_count(32)
    writer.add_head_count_kv(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(128_256)
    for layer in range(32):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", numpy.ones(4096, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# -- arithmetic -----------------------------------------------------------------------------------------------------


@given(
    st.floats(0.1, 1e6),
    st.integers(10**5, 10**15),
    st.integers(0, 10**13),
)
def test_the_ceiling_is_the_rate_at_which_the_bytes_can_be_read(bandwidth_gb_s, streamed_bytes, kv_bytes):
    """Ceiling × bytes per token is the bandwidth, and a deeper context never raises it."""
    workload = roofline.Workload(streamed_bytes, streamed_bytes, kv_read=lambda depth: depth * kv_bytes)
    ceiling_tok_s = roofline.ceiling_tok_s(bandwidth_gb_s, workload.read_bytes(1))
    assert ceiling_tok_s * (streamed_bytes + kv_bytes) == pytest.approx(bandwidth_gb_s * 1e9)
    assert ceiling_tok_s <= roofline.ceiling_tok_s(bandwidth_gb_s, streamed_bytes)


def test_memory_is_counted_in_units_of_two_to_the_thirty():
    """A 24 GB card is 24 GiB, 25.77·10⁹ bytes; a size that is not known is no answer."""
    card_bytes = sizes.memory_bytes("24 GB")
    assert card_bytes == 24 * 2**30 == 25_769_803_776
    card = Machine((hardware.given(100, card_bytes),))
    assert card.fits(25_700_000_000) is True
    assert card.fits(25_800_000_000) is False
    assert Machine((hardware.given(100, None),)).fits(1) is None


# -- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("19e9", 19 * 10**9),
        ("19GB", 19 * 10**9),
        ("1.9e+10 B", 19 * 10**9),
        ("17.7GiB", round(17.7 * 2**30)),
        ("270 mb", 270 * 10**6),
        ("0.5tib", 2**39),
        ("19000000000", 19 * 10**9),
    ],
)
def test_bytes_as_people_write_them(text, n_bytes):
    """Powers of ten and of two are kept apart, as their units say."""
    assert sizes.model_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["nan", "inf", "0", "-5", "1e999", "9e15", "", "GB", "1.2.3", "19 cows", "१९e9"])
@pytest.mark.parametrize("parse", [sizes.model_bytes, sizes.bandwidth_gb_s, sizes.memory_bytes])
def test_absurd_sizes_are_refused(parse, text):
    """NaN, infinity, nothing, negative and unbelievable sizes are usage errors that quote what was given."""
    with pytest.raises(UsageError, match=r"is not a|out of range") as caught:
        parse(text)
    assert repr(text) in caught.value.message


def test_a_forgotten_unit_is_noticed():
    """``--model-bytes 19`` cannot be meant as 19 bytes, while 19 GB/s and 19 GiB are what those options take."""
    with pytest.raises(UsageError, match="out of range"):
        sizes.model_bytes("19")
    assert sizes.bandwidth_gb_s("19") == sizes.bandwidth_gb_s("19 GB/s") == 19
    assert sizes.memory_bytes("19") == sizes.memory_bytes("19GiB") == 19 * GIB


@given(st.one_of(st.text(max_size=20), st.from_regex(r"\A[0-9.e+-]{1,30} ?[kmgtKMGT]?[iI]?[bB]?(/s)?\Z")))
def test_any_text_is_a_size_in_range_or_a_usage_error(text):
    """No text crashes a parser or comes out as NaN, infinity, zero or negative."""
    for parse, low, high in (
        (sizes.model_bytes, 1e5, 1e15),
        (sizes.bandwidth_gb_s, 0.1, 1e6),
        (sizes.memory_bytes, 0.09 * GIB, 1e5 * GIB),
    ):
        try:
            value = parse(text)
        except UsageError:
            continue
        assert low <= value <= high


# -- the command ----------------------------------------------------------------------------------------------------


def test_a_3090_streams_19_gb_at_most_49_times_a_second():
    """The worked example: the ceiling with unit and origin, and whether the card holds it."""
    done = run("--gpu", "RTX 3090", "--model-bytes", "19e9")
    assert (done.returncode, done.stderr) == (0, "")
    row = next(line for line in done.stdout.splitlines() if line.startswith("GeForce RTX 3090"))
    assert "at most 49 tok/s" in row
    assert "936 GB/s ÷ 19.0 GB streamed per token" in row
    assert "25.8 GB (24 GiB)  yes" in row
    low, high = map(int, re.search(r"\((\d+)–(\d+)\)", row).groups())
    assert low <= 35 and high >= 30, "what people see is not in the band"


def test_json_is_the_documented_object():
    """Every documented key is there, with plain numbers in the units its name says; nothing is invented."""
    report = answer("--gpu", "RTX 3090", "--model-bytes", "19GB")
    assert (report["model"], report["streamed_bytes"], report["kv_bytes_per_token"]) == (None, 19_000_000_000, None)
    [result] = report["results"]
    assert result.keys() >= RESULT_KEYS
    assert {key for key in RESULT_KEYS if result[key] is None} == NOT_ASKED
    assert 0 < result["expected_tok_s"]["low"] < result["expected_tok_s"]["mid"] < result["expected_tok_s"]["high"]
    assert result["expected_tok_s"]["high"] <= result["ceiling_tok_s"]
    assert result["hardware"] == "GeForce RTX 3090"
    assert result["bandwidth_gb_s"] == 936.2
    assert result["memory_bytes"] == 24 * GIB
    assert result["ceiling_tok_s"] == pytest.approx(936.2e9 / 19e9)
    assert result["fits"] is True
    assert "TechPowerUp" in result["source"]


def test_every_key_is_documented():
    """docs/ceiling.md names each key of the object, of a result and of what is in it, and no other."""
    report = answer("qwen3-8b", "--gpu", "4090", "--ctx", "4096", "--users", "2", "--draft", "qwen3-0.6b")
    result = report["results"][0]
    inner = {*result["depths"][0], *result["batches"][0], *result["speculation"], *result["expected_tok_s"]}
    inner |= {*result["conversations"]}
    text = (Path(__file__).parent.parent / "docs" / "ceiling.md").read_text().split("## `--json`")[1]
    documented = set(re.findall(r"`([a-z_]+)`", text.split("`localllm ceiling --json`")[0]))
    assert documented - {"table", "given", "measured"} == {*report, *result} | inner


def test_several_devices_stand_side_by_side_in_the_order_given():
    """One row each; a model that does not fit is an answer, not an error."""
    names = ("4090", "RTX 3060 12GB", "M3 Max 40-core 36GB")
    options = [part for name in names for part in ("--gpu", name)]
    report = answer(*options, "--bandwidth", "400GB/s", "--memory", "128", "--model-bytes", "19GiB")
    results = [(result["bandwidth_gb_s"], result["fits"]) for result in report["results"]]
    assert results == [(1008.4, True), (360, False), (400, True), (400, True)]
    assert report["results"][2]["memory_bytes"] == 36 * GIB
    table = run(*options, "--model-bytes", "19GiB").stdout.splitlines()
    rows = [line for line in table if "tok/s" in line]
    assert len(rows) == 3
    assert len({row.index("at most") for row in rows}) == 1, "columns are not aligned"


def test_memory_of_the_hardware_can_be_given():
    """--memory belongs to --bandwidth or to the one --gpu; 12 GB is 12 GiB, so 12.5·10⁹ bytes fit."""
    [custom] = answer("--bandwidth", "100", "--memory", "12GB", "--model-bytes", "12.5e9")["results"]
    assert (custom["memory_bytes"], custom["fits"], custom["ceiling_tok_s"]) == (12 * GIB, True, 8)
    [unknown] = answer("--bandwidth", "100", "--model-bytes", "12.5e9")["results"]
    assert (unknown["memory_bytes"], unknown["fits"]) == (None, None)
    [modded] = answer("--gpu", "2080 Ti", "--memory", "22", "--model-bytes", "12.5e9")["results"]
    assert (modded["bandwidth_gb_s"], modded["memory_bytes"], modded["fits"]) == (616, 22 * GIB, True)


def test_llama_8b_keeps_131072_bytes_per_token(llama_8b):
    """The worked example: 32 layers of 8 KV heads of 128 values, in f16; 8,192 tokens are 1.07·10⁹ bytes."""
    report = answer(llama_8b, "--gpu", "4090", "--ctx", 8192)
    streamed_bytes = 32 * 4096 * 4
    assert report["kv_bytes_per_token"] == 131_072
    assert report["streamed_bytes"] == streamed_bytes
    [result] = report["results"]
    assert result["ceiling_tok_s"] == pytest.approx(1008.4e9 / streamed_bytes)
    assert result["ceiling_at_ctx_tok_s"] == pytest.approx(1008.4e9 / (streamed_bytes + 8192 * 131_072))
    rows = [line for line in run(llama_8b, "--gpu", "4090", "--ctx", 8192).stdout.splitlines() if "÷" in line]
    assert ["0 tokens" in rows[0], "8,192 tokens" in rows[-1], "1.07 GB of KV cache" in rows[-1]] == [True] * 3


def test_a_quantised_kv_cache_is_about_half(llama_8b):
    """q8_0 keeps 34 bytes for 32 values, q4_0 18."""
    per_token = {kv: answer(llama_8b, "--gpu", "4090", "--kv", kv)["kv_bytes_per_token"] for kv in ("q8_0", "q4_0")}
    assert per_token == {"q8_0": 131_072 * 34 // 64, "q4_0": 131_072 * 18 // 64}


def test_the_kv_cache_counts_for_what_fits(llama_8b):
    """24 GiB hold the KV cache of some 190,000 tokens of Llama 3.1 8B, not of 200,000."""
    fits = {ctx: answer(llama_8b, "--gpu", "4090", "--ctx", ctx)["results"][0]["fits"] for ctx in (190_000, 200_000)}
    assert fits == {190_000: True, 200_000: False}


def test_where_a_window_is_not_known_the_bound_reads_the_window_alone(tmp_path):
    """Past the window the ceiling stays where it is: no layer is sure to read more. Memory is priced in full."""
    model = tiny()
    model.metadata["llama.attention.sliding_window"] = u32(64)
    path = model.write(tmp_path / "windowed.gguf")
    shape = model.shape()
    report = answer(path, "--bandwidth", "10", "--memory", "0.1", "--ctx", 1_000_000)
    read_bytes = shape.streamed_bytes + 64 * shape.kv_bytes_per_token("f16")
    assert report["results"][0]["ceiling_at_ctx_tok_s"] == pytest.approx(10e9 / read_bytes)
    assert report["results"][0]["fits"] is False
    assert any("sliding window" in note for note in report["notes"])
    assert any("trained for 512 tokens" in note for note in report["notes"])


def test_this_machine_is_measured(tmp_path):
    """Without hardware the memory of this machine is measured, and the origin says so; a cached model is noted."""
    path = tiny().write(tmp_path / "tiny.gguf")
    report = answer(path)
    [result] = report["results"]
    assert result["bandwidth_origin"] == "measured"
    assert result["ceiling_tok_s"] == pytest.approx(result["bandwidth_gb_s"] * 1e9 / report["streamed_bytes"])
    assert result["fits"] is True
    in_cache = report["streamed_bytes"] < 2 * measure.last_level_cache_bytes()
    assert any("processor's cache" in note for note in report["notes"]) == in_cache
    assert "GB/s measured read bandwidth ÷" in run(path).stdout


def test_the_default_model_is_asked_about_where_none_is_named(tmp_path, monkeypatch):
    """``localllm ceiling --gpu NAME`` is about $LOCALLLM_MODEL."""
    path = tiny().write(tmp_path / "mine.gguf")
    monkeypatch.setenv("LOCALLLM_MODEL", str(path))
    assert answer("--gpu", "4090")["model"] == "mine.gguf"


def test_a_catalog_model_that_is_not_here_is_judged_by_its_shape(home, monkeypatch):
    """Nothing is fetched: bytes, layers and KV cache are those of the table of shapes."""
    monkeypatch.setenv("HF_HOME", str(home / "hub"))
    report = answer("qwen3-8b", "--gpu", "4090", "--ctx", 8192)
    assert report["kv_bytes_per_token"] == 36 * 8 * 256 * 2
    assert report["kv_bytes"] == 8192 * report["kv_bytes_per_token"]
    assert report["weights_bytes"] > report["streamed_bytes"] > 0.9 * report["weights_bytes"]
    assert any("not on this disk" in note for note in report["notes"])
    assert list(home.rglob("*")) == []


def test_every_model_of_the_catalog_is_answered(home, monkeypatch):
    """With a ceiling and a sane share of it expected; what streams is no more than what there is."""
    monkeypatch.setenv("HF_HOME", str(home / "hub"))
    card = Machine(machine.parse("RTX PRO 6000 Blackwell"))
    for name, spec in load_catalog().items():
        subject = subjects.named(name, 0, "f16")
        result = solved(subject, card, Question())
        workload = subject.workload
        assert 0 < workload.streamed_bytes <= workload.weights_bytes, name
        if spec.file_bytes:
            assert workload.weights_bytes == pytest.approx(spec.file_bytes, rel=0.05), name
        assert result.shallow.expected is not None
        assert 0.03 < result.shallow.expected.mid / result.shallow.ceiling_tok_s < 0.95, name


def test_a_model_of_which_only_its_size_is_known_gives_a_lower_estimate(home, monkeypatch):
    """From the user's own catalog: the whole file counts as streamed, and a context cannot be asked about."""
    monkeypatch.setenv("HF_HOME", str(home / "hub"))
    entry = "{hub: me/mine-GGUF, file: mine-Q4_K_M.gguf, bytes: 5000000000}"
    own = home / ".config" / "localllm" / "models.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(f"mine:\n  description: Mine\n  licence: mit\n  sources: [{entry}]\n")
    report = answer("mine", "--gpu", "4090")
    assert (report["streamed_bytes"], report["streamed_is_upper_bound"]) == (5 * 10**9, True)
    assert report["results"][0]["expected_tok_s"] is None
    assert "≥ 202 tok/s" in run("mine", "--gpu", "4090").stdout
    done = run("mine", "--gpu", "4090", "--ctx", 100)
    assert done.returncode == 4
    assert "localllm pull mine" in done.stderr


# -- more that can be asked -----------------------------------------------------------------------------------------


def test_a_24_gb_card_holds_19_conversations_and_17_with_something_left(tmp_path):
    """The worked example: 5 GB of weights, 8,192 tokens of 131,072 bytes."""
    subject = Subject(
        "example", Workload(5 * 10**9, 5 * 10**9, lambda ctx: ctx * 131_072, lambda depth: depth * 131_072), n_layers=32
    )
    result = solved(subject, Machine(machine.parse("RTX 3090")), Question(ctx=8192))
    assert (result.theoretical_conversations, result.usable_conversations) == (19, 17)


def test_parameters_and_a_quantisation_stand_for_a_model():
    """32 B in Q8_0 are 34·10⁹ bytes; of a mixture, the parameters that a token passes are streamed."""
    assert answer("--params", "32b", "--quant", "q8_0", "--gpu", "4090")["streamed_bytes"] == 34 * 10**9
    mixture = answer("--params", "30b-a3b", "--quant", "Q8_0", "--gpu", "4090")
    assert (mixture["streamed_bytes"], mixture["weights_bytes"]) == (3_187_500_000, 31_875_000_000)


def test_a_card_of_unknown_memory_is_answered_where_that_does_not_matter():
    """The row says which sizes there are; where one holds the model and another does not, both are named: exit 2."""
    for size, fits in (("2GB", True), ("30GB", False)):
        [result] = answer("--model-bytes", size, "--gpu", "RTX 2060")["results"]
        assert (result["hardware"], result["fits"]) == ("GeForce RTX 2060 (6 or 12 GiB)", fits)
        assert result["ceiling_tok_s"] == pytest.approx(336e9 / sizes.model_bytes(size))
    done = run("--model-bytes", "8GB", "--gpu", "RTX 2060")
    assert done.returncode == 2
    assert "GeForce RTX 2060 (336 GB/s, 6 GiB); GeForce RTX 2060 12 GB (336 GB/s, 12 GiB)" in done.stderr
    [result] = answer("--model-bytes", "8GB", "--gpu", "RTX 2060", "--memory", "12")["results"]
    assert (result["hardware"], result["fits"]) == ("GeForce RTX 2060 12 GB", True)


def test_two_equal_cards_hold_more_and_are_no_faster(llama_8b):
    """The layers are shared, and their times add up."""
    one, two = (answer(llama_8b, "--gpu", name)["results"][0] for name in ("RTX 3090", "2 x RTX 3090"))
    assert two["hardware"] == "2 × GeForce RTX 3090"
    assert two["memory_bytes"] == 2 * one["memory_bytes"]
    assert two["ceiling_tok_s"] == pytest.approx(one["ceiling_tok_s"])
    assert two["expected_tok_s"]["mid"] < one["expected_tok_s"]["mid"]


def test_what_no_card_holds_is_read_from_main_memory():
    """Times add up: the part on the card at its bandwidth, the rest at 89.6 GB/s."""
    [result] = answer("--params", "70b", "--gpu", "RTX 3090", "--ram", "ddr5-5600x2")["results"]
    on_card, streamed_bytes = result["on_cards"], 70e9 * 4.87 / 8
    assert 0.5 < on_card < 0.65
    seconds = on_card * streamed_bytes / 936.2e9 + (1 - on_card) * streamed_bytes / 89.6e9
    assert result["ceiling_tok_s"] == pytest.approx(1 / seconds, rel=1e-3)
    assert result["fits"] is True
    assert result["expected_tok_s"]["mid"] < result["ceiling_tok_s"]
    [whole] = answer("--params", "8b", "--gpu", "RTX 3090", "--ram", "ddr5-5600x2")["results"]
    assert whole["on_cards"] == 1


def test_all_hardware_that_holds_it_is_ranked():
    """The fastest first, and none that is too small."""
    results = answer("--params", "70b", "--all-gpus", "--fits")["results"]
    speeds = [result["expected_tok_s"]["mid"] for result in results if result["expected_tok_s"]]
    assert speeds == sorted(speeds, reverse=True) and len(speeds) > 30
    assert all(result["fits"] for result in results)
    assert not any(result["hardware"] == "GeForce RTX 4090" for result in results)


def test_users_share_what_is_read_until_computing_is_the_limit(llama_8b):
    """Each gets less and all together more; the bend is where computing takes longer than reading."""
    [result] = answer("qwen3-8b", "--gpu", "4090", "--users", "64")["results"]
    batches = result["batches"]
    assert [batch["users"] for batch in batches] == [1, 2, 4, 8, 16, 32, 64]
    assert all(a["per_user_tok_s"] >= b["per_user_tok_s"] for a, b in pairwise(batches))
    assert all(a["aggregate_tok_s"] <= b["aggregate_tok_s"] * 1.0001 for a, b in pairwise(batches))
    bend = result["bend_users"] or 10**9
    assert [batch["compute_bound"] for batch in batches] == [batch["users"] >= bend for batch in batches]
    assert batches[0]["per_user_tok_s"] == pytest.approx(result["depths"][-1]["expected_tok_s"]["mid"])
    assert "vLLM" in run("qwen3-8b", "--gpu", "4090", "--users", "64").stdout


def test_what_lies_in_main_memory_counts_for_users_as_for_one():
    """How fast a processor computes is not known, so no batches are shown; nor conversations of a card alone."""
    done = run("qwen3-14b", "--gpu", "3060-12GB", "--ctx", "32768", "--users", "8", "--ram", "ddr5-5600x2")
    assert "users in a batch: not known" in done.stdout and " users: " not in done.stdout
    assert "conversations" not in done.stdout and "in main memory: " in done.stdout


def test_memory_for_prompt_users_and_draft_is_counted():
    """A prompt that no card holds does not fit; what is held is what fits is about; a draft may be too much."""
    [long] = answer("qwen3-8b", "--gpu", "4090", "--prompt", "1000000", "--output", "300")["results"]
    assert long["fits"] is False
    report = answer("qwen3-8b", "--gpu", "4090", "--users", "32")
    assert report["ctx"] == 4096 and any("--ctx" in note for note in report["notes"])
    for result in answer("qwen3-8b", "--all-gpus", "--ctx", "32768", "--users", "3")["results"]:
        assert result["fits"] is None or result["fits"] == (result["held_bytes"] <= result["usable_bytes"])
    text = run("qwen3-8b", "--gpu", "3060-12GB", "--draft", "qwen3-14b", "--why").stdout
    assert "it fits without the draft" in text and " + draft " in text


def test_a_prompt_is_read_before_the_first_token():
    """TTFT is prefill and one step; the whole answer takes longer by a step for each token."""
    [result] = answer("qwen3-8b", "--gpu", "4090", "--prompt", "4000", "--output", "200")["results"]
    assert result["ttft_s"] == pytest.approx(4000 / result["prefill_tok_s"] + 1 / 140, rel=0.05)
    assert result["answer_s"] == pytest.approx(result["ttft_s"] + 200 / 138, rel=0.1)


def test_a_draft_is_judged_by_what_its_guesses_cost():
    """With the formula for tokens per step; one that is as slow as its target does not pay."""
    [result] = answer("qwen3-32b", "--gpu", "RTX PRO 6000 Blackwell", "--draft", "qwen3-0.6b")["results"]
    found = result["speculation"]
    k = found["drafted"]
    assert found["tokens_per_step"] == pytest.approx((1 - 0.7 ** (k + 1)) / 0.3)
    assert 1.2 < found["speedup"] < found["tokens_per_step"]
    [same] = answer("qwen3-8b", "--gpu", "4090", "--draft", "qwen3-8b")["results"]
    assert same["speculation"]["drafted"] == 0 and same["speculation"]["speedup"] == 1
    assert "does not pay" in run("qwen3-8b", "--gpu", "4090", "--draft", "qwen3-8b").stdout


def test_why_shows_each_formula_with_its_numbers(llama_8b):
    text = run(llama_8b, "--gpu", "4090", "--ctx", 8192, "--why").stdout
    read_bytes = 32 * 4096 * 4 + 8192 * 131_072
    assert f"1008.4·10⁹ ÷ {read_bytes:,} = " in text
    assert "TechPowerUp" in text and "median" in text and "memory needed" in text


def test_advice_comes_with_its_number():
    """A model that is too large: what fits instead; each piece of advice has a figure."""
    lines = run("qwen3-32b", "--gpu", "RTX 3090", "--ctx", "32768").stdout.split("what would help:")[1].splitlines()
    told = [line for line in lines if line.startswith("- ")]
    assert any("would fit" in line for line in told)
    assert any("--kv q8_0" in line and "quality not measured" in line for line in told)
    assert any("--ram" in line for line in told)
    assert all(re.search(r"\d", line) for line in told)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--gpu", "M3 Max", "--model-bytes", "19e9"), 2, "40-core"),
        (("--gpu", "RTX 4091", "--model-bytes", "19e9"), 2, "RTX 4090"),
        (("--gpu", "4090", "--model-bytes", "nan"), 2, "'nan'"),
        (("--gpu", "4090", "--model-bytes", "19"), 2, "19GB"),
        (("--bandwidth", "0", "--model-bytes", "19e9"), 2, "'0'"),
        (("--bandwidth", "inf", "--model-bytes", "19e9"), 2, "GB/s"),
        (("--bandwidth", "9", "--memory=-1", "--model-bytes", "19e9"), 2, "'-1'"),
        (("--memory", "24", "--model-bytes", "19e9"), 2, "--gpu"),
        (("--memory", "24", "--gpu", "4090", "--gpu", "3090", "--model-bytes", "19e9"), 2, "one --gpu"),
        (("--gpu", "4090", "--model-bytes", "19e9", "--ctx", "100"), 2, "--ctx"),
        (("smollm2-135m", "--gpu", "4090", "--model-bytes", "19e9"), 2, "--model-bytes"),
        (("--gpu", "4090", "--ctx", "0"), 2, "--ctx"),
        (("--gpu", "4090", "--kv", "q5_1"), 2, "q8_0"),
        (("--gpu", "4090", "--params", "many"), 2, "'many'"),
        (("--gpu", "4090", "--params", "3b-a30b"), 2, "30b-a3b"),
        (("--gpu", "4090", "--params", "8b", "--quant", "q9"), 2, "'q9'"),
        (("--gpu", "4090", "--quant", "q8_0"), 2, "--params"),
        (("--gpu", "4090", "--params", "8b", "--model-bytes", "19e9"), 2, "--params"),
        (("--gpu", "4090", "--users", "0"), 2, "--users"),
        (("--gpu", "4090", "--acceptance", "1.5"), 2, "--acceptance"),
        (("--gpu", "4090", "--prompt", "-1"), 2, "--prompt"),
        (("--gpu", "4090", "--ram", "fast"), 2, "ddr5-5600x2"),
        (("--params", "8b", "--ram", "ddr5-5600x2"), 2, "--gpu"),
        (("qwen3-8b", "--gpu", "4090", "--draft", "llama-3.2-1b"), 2, "vocabulary"),
        (("--gpu", "99 x 4090", "--model-bytes", "19e9"), 2, "'99 x 4090'"),
        (("--gpu", "4090x2", "--model-bytes", "19e9"), 2, "2 x RTX 3090"),
        (("--all-gpus", "--gpu", "4090"), 2, "--all-gpus"),
        (("smolm2", "--gpu", "4090"), 4, "smollm2-135m"),
        (("missing.gguf", "--gpu", "4090"), 4, "missing.gguf"),
        ((__file__, "--gpu", "4090"), 4, "not a GGUF"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(arguments, code, said):
    """Stdout stays empty, stderr says in one line what is wrong, and the exit code is the documented one."""
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
