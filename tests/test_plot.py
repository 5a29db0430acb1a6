"""``localllm ceiling --plot``: what is drawn, in characters and in files, and what cannot be."""

import json
import os
import re
import subprocess
import sys
import unicodedata
import warnings
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import as_a_user
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm import subjects
from localllm.ceiling import hardware, machine
from localllm.ceiling.answer import Question, Subject, answer
from localllm.ceiling.curves import MOST_CURVES, Curve, Line, Point, curves
from localllm.ceiling.machine import Machine
from localllm.ceiling.roofline import Workload
from localllm.cli import plots
from localllm.errors import Unavailable, UsageError
from localllm.terminal import picture, plot
from localllm.terminal.plot import FINE, PLAIN, Chart

CARDS = ("4090", "RTX 3090", "M3 Max 40-core", "2 x RTX 3090", "RX 7900 XTX", "H100 SXM")
LLAMA = Subject(
    "llama-8b",
    Workload(5 * 10**9, 46 * 10**8, lambda ctx: ctx * 131_072, lambda depth: depth * 131_072),
    n_layers=32,
    n_embd=4096,
    n_ctx_train=131_072,
    params=8e9,
    kv_bytes_per_token=131_072,
)
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments: object, columns: int = 80, before: tuple[str, ...] = (), **variables: str):
    command = [*before, sys.executable, "-m", "localllm", "ceiling", *map(str, arguments)]
    env = os.environ | {"COLUMNS": str(columns), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"} | variables
    return subprocess.run(command, capture_output=True, env=env, encoding="utf-8", timeout=60, check=False)


def charted(subject: Subject = LLAMA, question: Question = Question(), cards=CARDS) -> Chart:  # noqa: B008
    machines = [Machine(machine.parse(card)) for card in cards]
    return plot.chart(subject, machines, question, curves(subject, machines, question))


def drawing_of(text: str) -> list[str]:
    """The rows of a chart between its axis and its right end."""
    return [line.partition(side)[2] for line in text.splitlines() for side in "│┤" if side in line]


# -- curves ---------------------------------------------------------------------------------------------------------


def test_a_deeper_context_is_never_faster_and_nothing_expected_beats_the_ceiling(home, monkeypatch):
    """For models with windows, experts, states and latent attention, with and without main memory."""
    monkeypatch.setenv("HF_HOME", str(home / "hub"))
    machines = [Machine(machine.parse(card)) for card in CARDS[:4]]
    machines.append(Machine(machine.parse("3060 12GB"), machine.parse_ram("ddr5-5600x2")))
    for name in ("qwen3-8b", "gemma-3-27b", "gpt-oss-20b", "smollm2-135m"):
        subject = subjects.named(name, 0, "f16")
        drawn = curves(subject, machines, Question())
        assert [curve.machine for curve in drawn] == [each.name for each in machines]
        for curve in drawn:
            ceiling, expected = (line.points for line in curve.lines)
            assert [point.x for point in ceiling] == [point.x for point in expected]
            assert all(low.tok_s <= most.tok_s for low, most in zip(expected, ceiling, strict=True))
            for points in (ceiling, expected):
                assert all(a.x < b.x and a.tok_s >= b.tok_s > 0 for a, b in pairwise(points))
                assert all(point.low <= point.tok_s <= point.high for point in points)


def test_curves_go_through_the_answers_of_the_table():
    """At each depth that the table shows, with the context that is asked about."""
    for cards in (machine.parse("4090"), machine.parse("3060 12GB")):
        one, question = Machine(cards, machine.parse_ram("ddr5-5600x2")), Question(ctx=100_000)
        [curve] = curves(LLAMA, [one], question)
        ceiling, expected = ({point.x: point for point in line.points} for line in curve.lines)
        for at in answer(LLAMA, one, question).depths:
            assert ceiling[at.depth].tok_s == at.ceiling_tok_s
            assert (expected[at.depth].low, expected[at.depth].high) == (at.expected.low, at.expected.high)


def test_users_together_get_more_and_each_less_up_to_the_bend():
    drawn = curves(LLAMA, [Machine(machine.parse(card)) for card in CARDS[:3]], Question(users=8))
    for curve in drawn:
        together, each = (line.points for line in curve.lines)
        assert all(a.tok_s <= b.tok_s * 1.0001 for a, b in pairwise(together))
        assert all(a.tok_s >= b.tok_s for a, b in pairwise(each))
        assert together[0].tok_s == each[0].tok_s
        assert curve.bend in [point.x for point in together]
    assert len({curve.lines[0].points[-1].x for curve in drawn}) == 1


def test_what_is_drawn_without_a_question_is_what_the_model_was_trained_for():
    """At most 32,768 tokens; a tiny context has as many points as it has depths."""
    for trained, ctx, deepest in ((131_072, 0, 32_768), (2048, 0, 2048), (None, 0, 32_768), (2048, 3, 3)):
        subject = replace(LLAMA, n_ctx_train=trained)
        [curve] = curves(subject, [Machine(machine.parse("4090"))], Question(ctx=ctx))
        assert curve.lines[0].points[-1].x == deepest
    assert [point.x for point in curve.lines[0].points] == [0, 1, 2, 3]


# -- characters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", [Question(), Question(ctx=1), Question(users=40, ctx=512)])
@pytest.mark.parametrize("style", [FINE, PLAIN])
def test_a_chart_fits_any_width(style, question):
    """From 40 to 200 columns: no line is longer, no character steers the terminal, no letter is missing."""
    drawn = charted(question=question)
    for columns in range(40, 201, 1 if style is FINE else 7):
        text = plot.as_text(drawn, columns, style)
        lines = text.splitlines()
        assert max(map(len, lines)) <= columns
        assert not [sign for sign in text.replace("\n", "") if unicodedata.category(sign).startswith("C")]
        assert style is FINE or text.isascii()
        assert {"tok/s", drawn.x_label} <= {line.strip() for line in lines}
    assert all(letter in "".join(lines) for letter in "ABCDEFabcdef")


rates = st.floats(1e-3, 1e7)


@settings(max_examples=60)
@given(st.lists(st.lists(rates, min_size=1, max_size=9), min_size=1, max_size=6), st.booleans(), st.integers(40, 200))
def test_any_curve_lies_within_the_frame(heights, users, columns):
    """Whatever the rates: each point has a place within both axes, ticks too, and each line is seen."""
    kind, start = ("together", 1) if users else ("ceiling", 0)
    made = [[Point(start + place, y, y / 2, y) for place, y in enumerate(each)] for each in heights]
    lines = [(Line(kind, tuple(points)), Line("each", tuple(points))) for points in made]
    drawn = Chart("t", "users" if users else "context", "x", tuple(Curve("m", True, each) for each in lines))
    if users and drawn.most_x == 1:
        return  # there are always several numbers of users
    x, y = plot.scales(drawn)
    for curve in drawn.curves:
        for point in curve.points:
            assert 0 <= x.part(point.x) <= 1 and -1e-9 <= y.part(point.low) <= y.part(point.high) <= 1 + 1e-9
    assert all(0 <= x.part(tick) <= 1 for tick in plot.x_ticks(drawn))
    assert all(-0.01 <= y.part(tick) <= 1.01 for tick in plot.y_ticks(y))
    rows = drawing_of(plot.as_text(drawn, columns))
    assert len(rows) == plot.ROWS and any(row.strip() for row in rows)


def test_a_line_is_where_its_numbers_are():
    """A rate that halves ends half as high, and is drawn from one end to the other."""
    points = tuple(Point(x, 100 - x / 2, 0, 100) for x in range(101))
    drawn = Chart("t", "context", "tokens", (Curve("m", True, (Line("expected", points),)),))
    rows = drawing_of(plot.as_text(drawn, 60, replace(PLAIN, side="│", tick="┤")))
    filled = [(row, column) for row, line in enumerate(rows) for column, sign in enumerate(line) if sign == "*"]
    top = min(row for row, column in filled if column == 0)
    assert max(row for row, _ in filled) == pytest.approx(top + (plot.ROWS - 1 - top) / 2, abs=1)
    assert {column for _, column in filled} | {round(0.65 * 52)} >= set(range(max(map(len, rows))))


def test_the_command_draws_behind_its_table():
    """As wide as the terminal says, with the model and all hardware; the rest of the answer is what it was."""
    arguments = ("qwen3-8b", "--gpu", "4090", "--gpu", "M3 Max 40-core", "--ctx", 8000)
    plain, done = run(*arguments), run(*arguments, "--plot", columns=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(plain.stdout)
    chart = done.stdout.removeprefix(plain.stdout).splitlines()
    assert max(map(len, chart)) == 50
    for words in (
        "qwen3-8b",
        "8,000",
        "tok/s",
        "tokens in the KV cache",
        "B b Apple M3 Max",
        "computed",
        "nine of ten",
    ):
        assert any(words in line for line in chart), words
    assert not run(*arguments, "--plot", columns=50, NO_COLOR="1").stdout.count("\x1b")


def test_plain_characters_where_there_are_no_others():
    """An ASCII locale, or a terminal that is known to have few signs."""
    for variables in ({"PYTHONIOENCODING": "ascii"}, {"TERM": "dumb"}, {"TERM": "linux"}):
        text = run("qwen3-8b", "--gpu", "4090", "--plot", **variables).stdout
        chart = text[text.index("qwen3-8b: decode rate") :]
        assert chart.isascii() and "***" in chart and "?" not in chart


@pytest.mark.parametrize(
    "arguments",
    [
        ("--plot", "qwen3-8b", "--gpu", "4090"),
        ("qwen3-8b", "--gpu", "4090", "--plot"),
        ("--gpu", "4090", "--plot", "--", "qwen3-8b"),
        ("--plot=-", "--gpu", "4090", "qwen3-8b"),
    ],
)
def test_a_model_behind_plot_is_a_model(arguments):
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "qwen3-8b: decode rate, context of 32,768 tokens" in done.stdout


def test_only_the_name_of_a_picture_is_a_value():
    words = {
        ("--plot",): ["--plot=-"],
        ("--plot", "a.svg", "b"): ["--plot=a.svg", "b"],
        ("--plot", "b.gguf", "--plot", "C.PNG"): ["--plot=-", "b.gguf", "--plot=C.PNG"],
        ("--plot", "--plot", "a.jpg"): ["--plot=-", "--plot=a.jpg"],
        ("--plot", "--", "--plot", "a.svg"): ["--plot=-", "--", "--plot", "a.svg"],
        ("--plot=x", "", "--plots"): ["--plot=x", "", "--plots"],
        (): [],
    }
    for given_words, seen in words.items():
        assert [*plots._with_values(given_words)] == seen


def test_without_a_kv_cache_users_are_the_axis():
    """Bytes or parameters say nothing of the cache; the bend of each card is marked and told."""
    text = run("--gpu", "4090", "--gpu", "RTX 3090", "--params", "8b", "--plot").stdout
    chart = text[text.index("8B Q4_K_M: decode rate in one batch") :]
    assert chart.count("◆") >= 3 and len(re.findall(r"bend\s+at", chart)) == 2
    assert "each user: expected" in chart and "KV cache" not in chart


def test_no_more_machines_than_can_be_told_apart():
    """The first six of a long list, and a machine that cannot be drawn, are told."""
    text = run("qwen3-8b", "--all-gpus", "--fits", "--plot").stdout
    assert f"drawn: the first {MOST_CURVES} of " in text and "F f " in text
    machines = [Machine(machine.parse("4090")), Machine((hardware.given(400, None),))]
    drawn = plot.chart(LLAMA, machines, Question(users=4), curves(LLAMA, machines, Question(users=4)))
    assert [curve.machine for curve in drawn.curves] == ["GeForce RTX 4090"]
    assert any("not drawn" in note and "given hardware" in note for note in drawn.notes)


def test_what_does_not_fit_is_told():
    assert "(does not fit)" in plot.as_text(charted(question=Question(ctx=10**6), cards=("3090",)), 80)


# -- files ----------------------------------------------------------------------------------------------------------


def test_an_svg_is_xml_with_all_words_in_it(tmp_path):
    """The same each time, beside --json, whose object stays whole."""
    pytest.importorskip("matplotlib")
    first, second = tmp_path / "one.svg", tmp_path / "two.SVG"
    arguments = ("qwen3-8b", "--gpu", "4090", "--gpu", "RTX 3090", "--ctx", 8000)
    done = run(*arguments, "--plot", first, "--plot", second, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["ctx"] == 8000
    assert [line.rpartition("/")[2] for line in done.stderr.splitlines()] == ["one.svg", "two.SVG"]
    assert first.read_bytes() == second.read_bytes()
    root = ElementTree.parse(first).getroot()
    assert root.tag == f"{SVG}svg" and not root.findall(".//{http://purl.org/dc/elements/1.1/}date")
    told = "\n".join("".join(each.itertext()) for each in root.iter(f"{SVG}text"))
    for words in (
        "qwen3-8b",
        "tokens in the KV cache",
        "tok/s",
        "GeForce RTX 3090",
        "8,000",
        "computed",
        "nine of ten",
    ):
        assert words in told, words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.svg", "two.SVG"]


def test_a_png_has_its_signature_and_size(tmp_path):
    """A second one takes the place of the first, also through a link; nothing else is left behind."""
    pytest.importorskip("matplotlib")
    path, link = tmp_path / "chart.png", tmp_path / "link.png"
    path.write_text("old")
    link.symlink_to(path)
    done = run("--gpu", "4090", "--params", "8b", "--plot", link)
    assert done.returncode == 0 and "tok/s" in done.stdout
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (1200, 825)
    assert 10_000 < len(data) < 500_000
    assert link.is_symlink() and len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize(
    "name", ["$\\frac{1}{", "a<b>&'\"-->]]>", "\x1b[31m red \x07", "模型" * 80, "\udcff\ufffe_", "_x"]
)
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_any_name_can_be_drawn(name, suffix):
    """Mathematics, markup, control characters, scripts without a font here, bytes that are no text."""
    pytest.importorskip("matplotlib")
    drawn = charted(replace(LLAMA, name=name), cards=("4090",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = picture.render(drawn, suffix)
    if suffix == "svg":
        ElementTree.fromstring(data)
    assert "\x1b" not in plot.as_text(drawn, 60)


def test_without_matplotlib_a_file_is_refused_in_one_line(tmp_path):
    """With what to do about it; the terminal needs no matplotlib. One that is broken is told as well."""
    missing = "raise ModuleNotFoundError('no', name='matplotlib')"
    for source, said in ((missing, "pip install 'localllm[plot]'"), ("raise ImportError('no libpng')", "no libpng")):
        (tmp_path / "matplotlib.py").write_text(source)
        path = os.pathsep.join([str(tmp_path), str(Path(picture.__file__).parents[2])])
        done = run("qwen3-8b", "--gpu", "4090", "--plot", tmp_path / "chart.svg", PYTHONPATH=path)
        assert (done.returncode, done.stdout) == (Unavailable.exit_code, "")
        assert len(done.stderr.splitlines()) == 1 and said in done.stderr
    assert run("qwen3-8b", "--gpu", "4090", "--plot", PYTHONPATH=path).returncode == 0
    assert not (tmp_path / "chart.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("qwen3-8b", "--plot", "chart.jpg"), 2, ".svg or .png"),
        (("qwen3-8b", "--plot=chart"), 2, "'chart'"),
        (("qwen3-8b", "--plot="), 2, "''"),
        (("qwen3-8b", "--plot=folder.svg"), 2, "directory"),
        (("qwen3-8b", "--plot=pipe.png"), 2, "regular file"),
        (("qwen3-8b", "--plot=missing/chart.svg"), 1, "No such file or directory"),
        (("qwen3-8b", "--plot=shut/chart.svg"), 1, "Permission denied"),
        (("qwen3-8b", "--plot=locked.svg"), 1, "Permission denied"),
        (("qwen3-8b", f"--plot={'x' * 300}.svg"), 1, "too long"),
        (("qwen3-8b", "--plot", "--json"), 2, "--plot FILE.svg"),
        (("--bandwidth", "400", "--model-bytes", "19e9", "--plot"), 2, "nothing to plot"),
        (("qwen3-8b", "--bandwidth", "400", "--users", "4", "--plot"), 2, "how fast this hardware computes"),
        (("qwen3-32b", "--gpu", "3060 12GB", "--fits", "--plot"), 2, "--fits"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(arguments, code, said, tmp_path, monkeypatch):
    """No table without its chart, no half file; --json tells the error as its object and nothing else."""
    pytest.importorskip("matplotlib")
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "shut").mkdir(mode=0o555)
    (tmp_path / "locked.svg").write_text("mine")
    (tmp_path / "locked.svg").chmod(0o444)
    os.mkfifo(tmp_path / "pipe.png")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    hardware_of = () if "--bandwidth" in arguments or "--gpu" in arguments else ("--gpu", "4090")
    source = os.pathsep.join([str(Path(picture.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = run(*arguments, *hardware_of, before=tuple(as_a_user()), PYTHONPATH=source)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1 and said in done.stderr
    assert done.stdout == "" or json.loads(done.stdout)["error"]["code"] == "usage"
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "locked.svg").read_text() == "mine"


def test_a_disk_that_is_full_leaves_no_part(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    pytest.importorskip("matplotlib")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(Exception, match="No space left") as caught:
        picture.save(charted(cards=("4090",)), tmp_path / "chart.svg")
    assert caught.value.exit_code == 1 and not [*tmp_path.iterdir()]


def test_nothing_to_draw_is_a_usage_error():
    with pytest.raises(UsageError, match="nothing to plot"):
        plots.chart(LLAMA, [], Question())
