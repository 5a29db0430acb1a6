"""``localllm ceiling``: the arithmetic, the model's bytes, and what the command answers and refuses."""

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy
import pytest
from gguf_files import tiny, u32
from hypothesis import given
from hypothesis import strategies as st

from localllm import sizes
from localllm.ceiling import measure, roofline
from localllm.errors import UsageError
from localllm.models.catalog import load_catalog

GIB = 2**30
RESULT_KEYS = {
    "hardware", "bandwidth_gb_s", "memory_bytes", "ceiling_tok_s", "expected_tok_s", "measured_tok_s", "fits",
    "conversations", "prefill_tok_s", "ttft_s",
}  # fmt: skip
NOT_COMPUTED_YET = {"expected_tok_s", "measured_tok_s", "conversations", "prefill_tok_s", "ttft_s"}


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
    workload = roofline.Workload(streamed_bytes, streamed_bytes, kv_bytes, kv_bytes)
    ceiling_tok_s = roofline.ceiling_tok_s(bandwidth_gb_s, workload.read_bytes)
    assert ceiling_tok_s * (streamed_bytes + kv_bytes) == pytest.approx(bandwidth_gb_s * 1e9)
    assert ceiling_tok_s <= roofline.ceiling_tok_s(bandwidth_gb_s, streamed_bytes)


def test_memory_is_counted_in_units_of_two_to_the_thirty():
    """A 24 GB card is 24 GiB, 25.77·10⁹ bytes; a size that is not known is no answer."""
    card_bytes = sizes.memory_bytes("24 GB")
    assert card_bytes == 24 * 2**30 == 25_769_803_776
    assert roofline.fits(25_700_000_000, card_bytes) is True
    assert roofline.fits(25_800_000_000, card_bytes) is False
    assert roofline.fits(1, None) is None


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


def test_json_is_the_documented_object():
    """Every documented key is there, with plain numbers in the units its name says; nothing is invented."""
    report = answer("--gpu", "RTX 3090", "--model-bytes", "19GB")
    assert (report["model"], report["streamed_bytes"], report["kv_bytes_per_token"]) == (None, 19_000_000_000, None)
    [result] = report["results"]
    assert result.keys() >= RESULT_KEYS
    assert {key for key in RESULT_KEYS if result[key] is None} == NOT_COMPUTED_YET
    assert result["hardware"] == "GeForce RTX 3090"
    assert result["bandwidth_gb_s"] == 936.2
    assert result["memory_bytes"] == 24 * GIB
    assert result["ceiling_tok_s"] == pytest.approx(936.2e9 / 19e9)
    assert result["fits"] is True
    assert "TechPowerUp" in result["source"]


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
    assert ["0 tokens" in rows[0], "8,192 tokens" in rows[1], "1.07 GB of KV cache" in rows[1]] == [True] * 3


def test_a_quantised_kv_cache_is_about_half(llama_8b):
    """q8_0 keeps 34 bytes for 32 values, q4_0 18."""
    per_token = {kv: answer(llama_8b, "--gpu", "4090", "--kv", kv)["kv_bytes_per_token"] for kv in ("q8_0", "q4_0")}
    assert per_token == {"q8_0": 131_072 * 34 // 64, "q4_0": 131_072 * 18 // 64}


def test_the_kv_cache_counts_for_what_fits(llama_8b):
    """24 GiB hold the KV cache of some 190,000 tokens of Llama 3.1 8B, not of 200,000."""
    fits = {ctx: answer(llama_8b, "--gpu", "4090", "--ctx", ctx)["results"][0]["fits"] for ctx in (190_000, 200_000)}
    assert fits == {190_000: True, 200_000: False}


def test_a_sliding_window_bounds_what_is_read_but_not_what_is_kept(tmp_path):
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
    assert any("cache" in note for note in report["notes"][:1]) == in_cache
    assert "GB/s measured read bandwidth ÷" in run(path).stdout


def test_the_default_model_is_asked_about_where_none_is_named(tmp_path, monkeypatch):
    """``localllm ceiling --gpu NAME`` is about $LOCALLLM_MODEL."""
    path = tiny().write(tmp_path / "mine.gguf")
    monkeypatch.setenv("LOCALLLM_MODEL", str(path))
    assert answer("--gpu", "4090")["model"] == "mine.gguf"


def test_a_catalog_model_that_is_not_here_is_judged_by_its_file_size(home, monkeypatch):
    """Nothing is fetched; the file size is called an upper estimate of what is streamed."""
    monkeypatch.setenv("HF_HOME", str(home / "hub"))
    file_bytes = load_catalog()["qwen3-8b"].file_bytes
    report = answer("qwen3-8b", "--gpu", "4090")
    assert report["streamed_bytes"] == file_bytes
    assert report["streamed_is_upper_bound"] is True
    assert report["kv_bytes_per_token"] is None
    assert any("not on this disk" in note for note in report["notes"])
    assert "≥ 201 tok/s" in run("qwen3-8b", "--gpu", "4090").stdout
    assert list(home.rglob("*")) == []
    done = run("qwen3-8b", "--gpu", "4090", "--ctx", 100)
    assert done.returncode == 4
    assert "localllm pull qwen3-8b" in done.stderr


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
