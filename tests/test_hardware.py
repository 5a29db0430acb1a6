"""The table of devices and the names that people and drivers give them."""

import csv
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.ceiling import hardware, machine, measure
from localllm.ceiling.hardware import find, find_in_any_size
from localllm.ceiling.machine import Machine
from localllm.errors import UsageError

GIB = 2**30

with hardware.TABLE.open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))


def label(row: dict[str, str]) -> str:
    """How a row is written where namesakes must be told apart."""
    memory = f", {row['memory_gb']} GiB" if row["memory_gb"] else ""
    return f"{row['name']} ({float(row['bandwidth_gb_s']):g} GB/s{memory})"


def facts(row: dict[str, str]) -> tuple[float, int | None]:
    return float(row["bandwidth_gb_s"]), int(row["memory_gb"]) * GIB if row["memory_gb"] else None


def outcome(name: str) -> tuple[float, int | None] | str:
    """What a name means, or how it is refused."""
    try:
        device = find(name)
    except UsageError as error:
        return error.message.removeprefix(repr(name))
    return device.bandwidth_gb_s, device.memory_bytes


# How sources and names tell a data rate and a bus: in 10⁶ transfers per second, and in bits.
_CLOCK_AND_BUS = re.compile(r"(\d+) MHz x (\d+) x (\d+) bit / 8")
_RATE_AND_BUS = re.compile(r"(\d+) (M|G)(?:T/s|bps) x (\d+) (bit|B\b)")
_NAMED_RATE = re.compile(r"(?:DDR\d\w?|MRDIMM)-(\d{4,5})\b(?:\)? (\w+)-channel| (\d+)[- ]bit| x (\d+) bit)")
_CHANNELS = {"single": 1, "dual": 2, "quad": 4}


def computed_gb_s(row: dict[str, str]) -> float | None:
    """Memory clock × bus width in 10⁹ bytes per second, where the row's name or source tells both."""
    if match := _CLOCK_AND_BUS.search(row["source"]):
        clock_mhz, transfers, bus_bits = map(int, match.groups())
        return clock_mhz * transfers * bus_bits / 8 / 1000
    if match := _RATE_AND_BUS.search(row["source"]):
        rate = int(match[1]) * (1000 if match[2] == "G" else 1)
        return rate * int(match[3]) / (8 if match[4] == "bit" else 1) / 1000
    if match := _NAMED_RATE.search(row["name"]) or _NAMED_RATE.search(row["source"]):
        rate, channels, *bits = match.groups()
        count = _CHANNELS.get(channels or "") or int(channels or 0)
        return int(rate) * (64 * count or int(next(filter(None, bits)))) / 8 / 1000
    return None


def test_bandwidth_is_memory_clock_times_bus_width():
    """Where both are known the table has their product, to the digit that it gives."""
    known = {row["name"]: (computed_gb_s(row), float(row["bandwidth_gb_s"])) for row in ROWS if computed_gb_s(row)}
    for name, value in {
        "GeForce RTX 4090": 1008.384,
        "Radeon VII": 1024,
        "Radeon RX 9070": 640,
        "CPU DDR4-2933 6-channel": 140.784,
        "CPU LPDDR5X-8533 128-bit": 136.528,
        "AMD Ryzen AI Max+ 395 / Radeon 8060S (Strix Halo)": 256,
        "Raspberry Pi 5 (LPDDR4X-4267 32 bit)": 17.068,
    }.items():
        assert known[name][0] == pytest.approx(value), name
    assert len(known) == 75
    assert {name: figures for name, figures in known.items() if abs(figures[0] - figures[1]) > 0.06} == {}


def test_the_table_is_sane():
    """Every device has a source and a believable bandwidth and memory; only one name is there twice."""
    assert len(ROWS) == 455
    names = [row["name"] for row in ROWS]
    assert {name for name in names if names.count(name) > 1} == {"GeForce GTX 1050 Ti Mobile"}
    for row in ROWS:
        bandwidth_gb_s, memory_bytes = facts(row)
        assert row["source"].strip(), row
        assert row["kind"] in {"gpu", "apu", "apple", "cpu"}, row
        assert 10 < bandwidth_gb_s < 10_000, row
        assert memory_bytes is not None or row["kind"] != "gpu", row


@pytest.mark.parametrize(
    ("name", "bandwidth_gb_s", "memory_gib"),
    [
        ("RTX 3090", 936.2, 24),
        ("4090", 1008.4, 24),
        ("rtx4090", 1008.4, 24),
        ("3090ti", 1008.4, 24),
        ("4070 ti super", 672.3, 16),
        ("4070TiSuper", 672.3, 16),
        ("7900 XTX", 960, 24),
        ("rx7900xtx", 960, 24),
        ("W7900", 864, 48),
        ("TITAN RTX", 672, 24),
        ("T4", 320, 16),
        ("Strix Halo 8060S", 256, 128),
        ("ryzen ai max+ 395", 256, 128),
        ("DGX Spark", 273, 128),
        ("DDR5-5600 dual channel", 89.6, None),
        ("Raspberry Pi 5", 17.1, 8),
        # as drivers say it
        ("NVIDIA GeForce RTX 3090", 936.2, 24),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 576, 16),
        ("NVIDIA GeForce GTX 1070 with Max-Q Design", 256.3, 8),
        ("NVIDIA RTX 5000 Ada Generation Laptop GPU", 576, 16),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1792, 96),
        ("NVIDIA H100 80GB HBM3", 3350, 80),
        ("NVIDIA H100 PCIe", 2039, 80),
        ("NVIDIA A100-SXM4-40GB", 1555.2, 40),
        ("Intel(R) Arc(TM) A770 Graphics", 560, 16),
        ("AMD Radeon RX 7900 XT", 800, 20),
        # the memory size tells namesakes apart
        ("RTX 3050 6GB", 168, 6),
        ("RTX 3050 4 GB", 192, 4),
        ("RTX 3060 12GB", 360, 12),
        ("3080 10 GiB", 760.3, 10),
        ("GeForce RTX 2060 6GB", 336, 6),
        ("GTX 1050 Ti Mobile 2GB", 112.1, 2),
        # Apple: chip, GPU cores, memory as bought
        ("Apple M4", 120, None),
        ("M3 Max 40-core", 400, 128),
        ("m3max 30", 300, None),
        ("Apple M3 Max (40-core GPU) 64GB", 400, 64),
        ("M1 Ultra", 800, 128),
    ],
)
def test_names_as_people_and_drivers_write_them(name, bandwidth_gb_s, memory_gib):
    """Brand, spacing, case, driver's trimmings and memory size in a name are understood."""
    assert outcome(name) == (bandwidth_gb_s, memory_gib and memory_gib * GIB)


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("M3 Max", ["Apple M3 Max (30-core GPU) (300 GB/s)", "Apple M3 Max (40-core GPU) (400 GB/s, 128 GiB)"]),
        ("GTX 1650", ["GeForce GTX 1650 (128.1 GB/s, 4 GiB)", "GeForce GTX 1650 GDDR6 (192 GB/s, 4 GiB)"]),
        ("NVIDIA GeForce RTX 3080", ["RTX 3080 (760.3 GB/s, 10 GiB)", "RTX 3080 12 GB (912.4 GB/s, 12 GiB)"]),
        ("RTX 3050", ["8 GB (224 GB/s, 8 GiB)", "6 GB (168 GB/s, 6 GiB)", "4 GB (192 GB/s, 4 GiB)"]),
        ("RTX 6000", ["Quadro RTX 6000 (", "RTX 6000 Ada Generation (", "RTX PRO 6000 Blackwell ("]),
        ("H100 80GB", ["H100 PCIe 80 GB (2039", "H100 SXM5 80 GB (3350"]),
        ("RTX 5060 Ti", ["16 GB (448 GB/s, 16 GiB)", "8 GB (448 GB/s, 8 GiB)"]),
        ("DDR5-5600", ["single-channel (44.8", "dual-channel (89.6", "8-channel (358.4", "12-channel (537.6"]),
    ],
)
def test_an_ambiguous_name_is_refused_with_its_candidates(name, candidates):
    """Where devices of different bandwidth or memory share a name, all are listed and none is guessed."""
    with pytest.raises(UsageError) as caught:
        find(name)
    assert [candidate for candidate in candidates if candidate not in caught.value.message] == []


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("RTX 4091", "GeForce RTX 4090 (1008.4 GB/s, 24 GiB)"),
        ("RTX 1650", "GeForce GTX 1650 ("),
        ("strix halo", "(Strix Halo)"),
        ("Titan", "TITAN RTX ("),
        ("MI50 32GB", "Radeon Instinct MI50 (1024 GB/s, 16 GiB)"),
        ("", "--bandwidth"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, nearest):
    """A name that no row has is an error that says what comes close and what else can be done."""
    with pytest.raises(UsageError, match="no hardware in the table is called") as caught:
        find(name)
    assert nearest in caught.value.hint
    assert "--bandwidth" in caught.value.hint


def test_every_device_can_be_asked_for():
    """Each row is found by its label, as listings print it: no device is hidden behind a namesake."""
    wrong = [label(row) for row in ROWS if outcome(label(row)) != facts(row)]
    assert wrong == []


def test_a_table_name_means_its_own_row_or_is_refused_naming_it():
    """The name of one row never silently gives another row's figures."""
    for row in ROWS:
        got = outcome(row["name"])
        assert got == facts(row) or (isinstance(got, str) and label(row) in got), (row["name"], got)


@given(
    st.sampled_from(ROWS),
    st.sampled_from([str.upper, str.lower, str.title]),
    st.sampled_from(["{}", "  {} ", "{} GPU", "{} Graphics", "{}®", "(R) {}"]),
    st.booleans(),
)
def test_case_and_trimmings_change_nothing(row, recase, trimming, with_vendor):
    """Upper and lower case, the vendor, spaces, marks and words such as "GPU" do not change what a name means."""
    vendor = row["vendor"] + " " if with_vendor and row["vendor"] in ("NVIDIA", "AMD", "Intel", "Apple") else ""
    assert outcome(trimming.format(vendor + recase(row["name"]))) == outcome(row["name"])


@given(st.sampled_from(ROWS), st.sampled_from(["Ti", "Super", "D", "XT", "Mobile", "Max-Q", "x2", "S"]))
def test_a_word_that_a_device_does_not_have_is_not_ignored(row, word):
    """A suffix names another product: the answer is that product or an error, never the plain card."""
    got = outcome(f"{row['name']} {word}")
    if isinstance(got, str):
        return
    namesakes = [other["name"].lower() for other in ROWS if facts(other) == got]
    assert any(re.search(rf"(?<![a-z]){word.lower()}\b", other) for other in namesakes), got  # "9600D" has its D


@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(st.sampled_from(sorted({word for row in ROWS for word in row["name"].split()})), max_size=5).map(
            " ".join
        ),
        st.from_regex(r"\A(RTX )?[0-9]{1,400}(\.[0-9]+)? ?(GB|GiB|GB/s)?\Z"),
    )
)
def test_any_text_is_a_device_or_a_usage_error(name):
    """No name crashes the look-up, and what it finds is a row of the table."""
    got = outcome(name)
    assert isinstance(got, str) or got[0] in {float(row["bandwidth_gb_s"]) for row in ROWS}


@pytest.mark.parametrize(
    ("name", "shown", "bandwidth_gb_s", "sizes_gib"),
    [
        ("RTX 2060", "GeForce RTX 2060 (6 or 12 GiB)", 336, (6, 12)),
        ("NVIDIA GeForce RTX 5060 Ti", "GeForce RTX 5060 Ti (8 or 16 GiB)", 448, (8, 16)),
        ("RTX PRO 5000 Blackwell", "RTX PRO 5000 Blackwell (48 or 72 GiB)", 1344, (48, 72)),
    ],
)
def test_a_card_that_is_sold_with_several_memories(name, shown, bandwidth_gb_s, sizes_gib):
    """Where that may not matter it stands for all of them, says so, and has the memory of the smallest."""
    card = find_in_any_size(name)
    assert (card.name, card.bandwidth_gb_s, card.memory_bytes) == (shown, bandwidth_gb_s, sizes_gib[0] * GIB)
    assert tuple(variant.memory_bytes for variant in card.variants) == tuple(size * GIB for size in sizes_gib)
    for variant in card.variants:
        assert card.with_memory(variant.memory_bytes) == variant == find(variant.label)
    assert card.with_memory(7 * GIB).memory_bytes == 7 * GIB
    assert card.with_memory(7 * GIB).variants == ()
    assert find(card.label) == card.variants[0]


def test_only_memory_may_be_left_open():
    """By each name of the table, in full and without its sizes: one device, several of one bandwidth, or a refusal."""
    merged = set()
    for name in {text for row in ROWS for text in (row["name"], re.sub(r" \d+ ?GB", "", row["name"]))}:
        try:
            card = find_in_any_size(name)
        except UsageError:
            assert isinstance(outcome(name), str)
            continue
        if card.variants:
            merged.add(card.name)
            assert isinstance(outcome(name), str)
            assert {variant.bandwidth_gb_s for variant in card.variants} == {card.bandwidth_gb_s}
            assert card.memory_bytes == min(variant.memory_bytes for variant in card.variants)
            assert len({variant.memory_bytes for variant in card.variants}) == len(card.variants) > 1
            assert all(variant.label in outcome(name) for variant in card.variants)
        else:
            assert outcome(name) == (card.bandwidth_gb_s, card.memory_bytes)
    assert len(merged) > 10


@pytest.mark.parametrize(
    ("hardware", "held_gb", "matters"),
    [
        ("RTX 2060", 1, False),  # both hold it
        ("RTX 2060", 8, True),
        ("RTX 2060", 20, False),  # neither does
        ("RTX 2060 12GB", 8, False),
        ("2 x RTX 2060", 8, False),
        ("2 x RTX 2060", 20, True),
        ("RTX 2060 + RTX 3090", 1, True),  # they share the layers by their memory
        ("2 x RTX 2060", 40, False),
    ],
)
def test_whether_the_size_of_memory_matters(hardware, held_gb, matters):
    """It does where one size holds a model and another does not, and where layers would lie elsewhere."""
    asked = Machine(machine.parse(hardware))
    if matters:
        with pytest.raises(UsageError, match=r"RTX 2060 \(336 GB/s, 6 GiB\); .*RTX 2060 12 GB \(336 GB/s, 12 GiB\)"):
            asked.check_sizes(held_gb * 10**9)
    else:
        asked.check_sizes(held_gb * 10**9)


def test_beside_main_memory_the_size_matters_where_not_all_fits():
    """What the card does not hold is slower, so the rate depends on its memory."""
    asked = Machine(machine.parse("RTX 2060"), machine.parse_ram("ddr5-5600x2"))
    asked.check_sizes(10**9)
    with pytest.raises(UsageError, match="could be any of"):
        asked.check_sizes(20 * 10**9)


def test_a_mac_does_not_give_its_gpu_all_of_its_memory():
    """Three quarters of a Mac's memory can be used, all of a card's."""
    assert find("M3 Max 40-core 64GB").usable_bytes == 48 * GIB
    assert find("RTX 3090").usable_bytes == 24 * GIB
    assert find("M4").usable_bytes is None


def test_this_machine_is_described_by_measurement():
    """Threads, bandwidth and memory of this machine are there, and said to be measured."""
    device = measure.this_machine()
    assert device.origin == "measured"
    assert "thread" in device.name
    assert 0.1 < device.bandwidth_gb_s < 10_000  # a wrong unit would be outside
    assert device.memory_bytes is not None
    assert 2**26 < device.memory_bytes < 2**50
    assert 0 <= measure.last_level_cache_bytes() < device.memory_bytes
