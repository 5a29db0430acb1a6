"""What decoding is expected to take: the formula, its coefficients, and that the report on its accuracy is true."""

import math
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.ceiling import expected, roofline
from localllm.ceiling.expected import Step, coefficients, default_stack, group, parts, terms
from localllm.ceiling.hardware import accelerators, find
from localllm.ceiling.machine import Machine, parse, parse_ram
from localllm.ceiling.quantisations import BITS, bits_per_weight, precision
from localllm.errors import UsageError

ROOT = Path(__file__).parent.parent
STEP = Step(weights_bytes=4.7e9, kv_bytes=0.0, n_layers=32)
STEPS = st.builds(
    Step,
    weights_bytes=st.floats(1e8, 1e12),
    kv_bytes=st.floats(0, 1e11),
    n_layers=st.integers(1, 200),
    precision=st.sampled_from(["16", "8", "4", "k", "low"]),
    mixture=st.booleans(),
    recurrent=st.sampled_from(["", "state", "convolution"]),
    latent=st.booleans(),
    cards=st.integers(1, 8),
)


@given(st.sampled_from(accelerators()), STEPS)
def test_no_device_is_expected_to_beat_its_ceiling(device, step):
    """Whatever the table holds; and where no stack is known, nothing is expected."""
    band = expected.expected(device, step)
    ceiling_tok_s = roofline.ceiling_tok_s(device.bandwidth_gb_s, step.weights_bytes + step.kv_bytes)
    if band is not None:
        assert 0 < band.low < band.mid < band.high
        assert band.mid < 1.02 * ceiling_tok_s


@given(st.sampled_from(accelerators()), STEPS, st.floats(1.01, 10))
def test_more_to_do_takes_longer(device, step, factor):
    stack = default_stack(device) or "CUDA"
    once = parts(device, stack, step).total_s
    more = (
        replace(step, weights_bytes=factor * step.weights_bytes),
        replace(step, kv_bytes=factor * step.kv_bytes + 1e6),
        replace(step, n_layers=step.n_layers + 1),
    )
    assert all(parts(device, stack, step).total_s > once for step in more)


def test_every_coefficient_is_used_and_means_something():
    """Those of families and precisions are factors near 1; efficiencies are shares."""
    known = coefficients()
    assert all(math.isfinite(value) and value > 0 for value in known.values())
    for name, value in known.items():
        what, _, of = name.partition(" ")
        if what == "efficiency" and of in ("CUDA", "Metal", "ROCm", "Vulkan AMD"):
            assert 0.6 < value < 1, name
        if what == "prefill" and of in ("NVIDIA", "Apple", "AMD"):
            assert 0.1 < value < 1, name
    used = {
        name
        for device in accelerators()
        for stack in ("CUDA", "Metal", "ROCm", f"Vulkan {device.vendor}")
        for precision_ in ("16", "8", "4", "k", "low")
        for recurrent in ("", "state", "convolution")
        for factor in vars_of(
            terms(device, stack, replace(STEP, precision=precision_, recurrent=recurrent, mixture=True, latent=True))
        )
        for name in factor
    }
    assert {name for name in known if not name.startswith("prefill")} <= used


def vars_of(named: expected.Terms) -> tuple[tuple[str, ...], ...]:
    return (named.layer, named.efficiency, named.lanes, named.cache)


@pytest.mark.parametrize("name", ["4090", "RTX 3060 12GB", "H100 SXM", "M3 Max 40-core", "7900 XTX", "Arc B580", "M6"])
def test_devices_that_nobody_measured_have_a_band_too(name):
    """By their family, or the one that is nearest to it."""
    device = find(name)
    band = expected.expected(device, STEP)
    assert band is not None and band.rows > 0 and 0 < band.median_error < band.p90_error
    assert band.group == group(default_stack(device) or "", device, STEP)


def test_a_processor_is_not_guessed():
    """No published measurements say what a processor reaches; it is measured instead."""
    assert expected.expected(find("DDR5-5600 dual-channel"), STEP) is None


@pytest.mark.slow
def test_the_report_is_what_the_script_writes():
    """Fitted anew, it gives the same coefficients, bands and report; and every goal in it is met."""
    script = [sys.executable, str(ROOT / "scripts" / "validate_ceiling.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "**no**" not in (ROOT / "docs" / "ceiling-accuracy.md").read_text()


# --- quantisations -----------------------------------------------------------------------------------------------


def test_bits_follow_ggmls_block_sizes():
    """Of plain types, what the gguf package says; mixtures lie above the type that they are named after."""
    import gguf

    for name, bits in BITS.items():
        if name in gguf.GGMLQuantizationType.__members__ and not name.startswith(("IQ", "Q2_K", "Q4_0", "Q4_1", "Q5")):
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
            assert bits == pytest.approx(8 * size / block, abs=0.01), name


@pytest.mark.parametrize(
    ("name", "like"),
    [("q4_k_m", "Q4_K_M"), ("UD-Q4_K_XL", "Q4_K_M"), ("i1-Q4_K_M", "Q4_K_M"), ("Q6_K", "Q6_K"), ("F16/MXFP4", "MXFP4")],
)
def test_makers_variants_are_about_what_they_are_named_after(name, like):
    assert bits_per_weight(name) == BITS[like]
    assert precision(name) == precision(like)


def test_an_unknown_quantisation_has_no_size():
    assert bits_per_weight("Q9_Z") is None


# --- machines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("RTX 3090", ["GeForce RTX 3090"]),
        ("2 x RTX 3090", ["GeForce RTX 3090"] * 2),
        ("2x3090", ["GeForce RTX 3090"] * 2),
        ("RTX 3090 x4", ["GeForce RTX 3090"] * 4),
        ("RTX 4090 + RTX 3060 12GB", ["GeForce RTX 4090", "GeForce RTX 3060 12 GB"]),
        ("RX 7900 XTX", ["Radeon RX 7900 XTX"]),
    ],
)
def test_cards_as_people_write_them(text, names):
    assert [card.name for card in parse(text)] == names


@pytest.mark.parametrize("text", ["RTX 4091", "0 x 3090", "65 x 3090", "", " + ", "3090 + nothing"])
def test_what_is_no_card_is_refused(text):
    with pytest.raises(UsageError):
        parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_machine_or_a_usage_error(text):
    for read in (parse, parse_ram):
        with suppress(UsageError):
            assert read(text)


def test_main_memory_is_transfers_times_bytes_times_channels():
    assert parse_ram("ddr5-5600x2").bandwidth_gb_s == pytest.approx(89.6)
    assert parse_ram("DDR4-3200").bandwidth_gb_s == pytest.approx(51.2)


@given(st.integers(0, 10**12))
def test_every_byte_lies_somewhere(held_bytes):
    """On the cards as far as they hold it, by their memory; the rest in main memory."""
    machine = Machine(parse("RTX 4090 + RTX 3060 12GB"), parse_ram("ddr5-5600x2"))
    shares = machine.shares(held_bytes)
    assert sum(share.part for share in shares) == pytest.approx(1)
    for share in shares:
        if share.device is not machine.ram:
            assert share.part * held_bytes <= (share.device.usable_bytes or 0) + 1
