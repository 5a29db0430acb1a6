"""scripts/bench_peers and scripts/check_gpu: what they compute, and what of a run needs no idle machine and no GPU."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from test_scripts import SCRIPTS, Checkout, only_these, packages, write_program  # noqa: F401  (a fixture)

from localllm.app import locate

bench_cli, bench_peers, bench_sides, check_gpu, gpu_checks = map(
    importlib.import_module, ("bench_cli", "bench_peers", "bench_sides", "check_gpu", "gpu_checks")
)
Decoded, Ended = bench_peers.Decoded, bench_peers.Ended


def test_sides_take_turns_in_both_orders_and_the_first_round_does_not_count():
    """Each side comes first as often as last, and is told the number of the round."""
    called = []

    def side(name):
        return lambda turn: called.append((turn, name)) or (name, turn)

    given = bench_peers.in_turn({name: side(name) for name in "abc"}, 2)
    assert called == [(turn, name) for turn, order in enumerate(("cba", "abc", "cba")) for name in order]
    assert given == {name: [(name, 1), (name, 2)] for name in "abc"}


@pytest.mark.parametrize(
    ("name", "depth", "cells"),
    [
        ("best", 48, "20.0 | 10.0 | 1.50 | ≥ 1.00 | yes | 2 | 3"),
        ("best", 2000, "20.0 | 10.0 | 1.50 | – | – | 2 | 3"),
        ("default", 2000, "20.0 | 10.0 | 1.50 | ≥ 1.15 | yes | 2 | 3"),
    ],
)
def test_a_row_gives_the_median_of_the_ratios_and_the_target_of_its_depth(capsys, name, depth, cells):
    """The ratio is formed within each round (1.5), not from the medians (2.0): machines drift between rounds."""
    ours = [Decoded(15.0, "x"), Decoded(20.0, "x"), Decoded(100.0, "x")]
    theirs = [Decoded(10.0, "x"), Decoded(5.0, "y"), Decoded(100.0, "x")]
    bench_peers.print_ratio(name, depth, 128, ours, theirs)
    assert capsys.readouterr().out == f"| {bench_peers.TITLES[name]} | 128 | {depth:,} | {cells} |\n"


def test_a_target_that_is_missed_is_seen(capsys):
    """Slower than the target, by however little, is no "yes"."""
    bench_peers.print_ratio("llama-bench", 48, 256, [Decoded(94.9, "")], [Decoded(100.0, "")])
    assert "≥ 0.95 | **no** | – |" in capsys.readouterr().out
    assert [bench_cli.at_most(1.4, ratio) for ratio in (1.4, 1.41)] == ["≤ 1.4 | yes", "≤ 1.4 | **no**"]


def test_what_localllm_adds_is_told_per_round(capsys):
    """Each answer is compared with the parts that were timed in its own round."""
    sides = [
        (f'{{"load_s": {load_s}, "init_s": 0.02}}\n{{"first_s": 0.03}}\n', library_s)
        for load_s, library_s in ((0.05, 0.1), (0.15, 0.3), (0.25, 0.5))
    ]
    rounds = [
        bench_peers.unavoidable_s(Ended(library_s, b"", 0), Ended(0, output.encode(), 0)) for output, library_s in sides
    ]
    bench_peers.print_startup([Ended(first_s, b"", 0) for first_s in (0.3, 0.7, 0.9)], rounds)
    table = capsys.readouterr().out
    assert "| first byte of `localllm ask` | 0.7 |" in table
    assert "| loading the model, alone | 0.15 |" in table
    assert "| what localllm adds | 0.1 | ≤ 0.15 | yes | 3 |" in table  # of 0.1, 0.2 and 0.1


def test_a_process_is_measured_to_its_end():
    """Its whole output, from stdin too, and its peak memory; a failure is not taken for a fast success."""
    peaks = []
    for size in (10**6, 3 * 10**8):
        command = [sys.executable, "-c", f"print(input()); bytearray({size})"]
        code = f"import bench_peers; it = bench_peers.run({command!r}, 'a line\\n'); print(it.output, it.peak_bytes)"
        said = subprocess.check_output(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(SCRIPTS)}, text=True
        )
        output, _, peak = said.strip().rpartition(" ")
        assert output == str(b"a line\n")
        peaks.append(int(peak))
    assert peaks[1] > 3 * 10**8 > peaks[0] > 10**6
    with pytest.raises(SystemExit, match="ended with 3"):
        bench_peers.run([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_measuring_process_keeps_llama_cpp_and_its_settings_to_the_sides():
    """What localllm sets for itself before it loads llama.cpp would reach its peers from their common parent."""
    code = "import os, sys, bench_peers; print(sorted({'llama_cpp', 'numpy'} & {*sys.modules}), dict(os.environ))"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SCRIPTS)}
    said = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    assert said.startswith("[] ")
    assert "GOMP" not in said


def test_llama_bench_is_asked_for_the_same_work(tmp_path):
    """The same depth, number of tokens, threads and flash attention."""
    script = f'echo "$@" >{tmp_path}/asked; echo \'[{{"n_gen": 256, "avg_ts": 123.5}}]\''
    program = write_program(tmp_path / "llama-bench", script)
    assert bench_peers.llama_bench(str(program), "a model.gguf", 3, 0) == Decoded(123.5, "")
    assert (tmp_path / "asked").read_text() == "-m a model.gguf -t 3 -fa 1 -d 48 -p 0 -n 256 -r 1 -o json\n"


@pytest.mark.model
def test_all_sides_write_the_same(smollm2):
    """Given the same tokens, each side decodes as many as it is asked for, and all come to the same text."""
    letters = json.loads(subprocess.check_output([*bench_peers.SIDE, "ids", smollm2, "50"]))
    assert len(letters) == 50
    with ExitStack() as stack:
        racers = [
            stack.enter_context(bench_peers.Racer(name, str(smollm2), 256, 2))
            for name in ("localllm", *bench_peers.PEERS)
        ]
        for turn in (0, 1):
            answers = [racer.decode(letters, 48, 6, turn) for racer in racers]
            assert {answer.text for answer in answers} == {answers[0].text}
            assert all(answer.tok_s > 0 for answer in answers)


@pytest.mark.model
@pytest.mark.slow
def test_a_whole_run_prints_every_table(smollm2, tmp_path):
    """With the smallest numbers: each peer at each depth, start-up, memory, the commands without a model."""
    env = os.environ | {"PATH": only_these(tmp_path / "bin", git="echo 1234567")}
    command = [
        sys.executable,
        SCRIPTS / "bench_peers.py",
        "--runs",
        "1",
        "--depth",
        "40",
        "--tokens",
        "8",
        "--model",
        smollm2,
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("| 8 | 48 |"), done.stdout.count("| 8 | 40 |")) == (0, 3, 3), done.stderr
    assert "`llama-bench` is not on the PATH" in done.stdout
    assert done.stdout.count("| what localllm adds | ") == 2
    assert all(f"| {name} | " in done.stdout for name in bench_cli.STARTS)


# --- scripts/check_gpu --------------------------------------------------------------------------------------------


NVIDIA = "echo 'GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-1234)'"


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a GPU")
@pytest.mark.parametrize(
    ("programs", "backend"),
    [
        ({}, None),
        ({"nvidia-smi": NVIDIA}, "cuda"),
        ({"nvidia-smi": "echo 'No devices were found'; exit 6"}, None),
        ({"nvidia-smi": "echo 'NVIDIA-SMI has failed'; exit 9", "rocminfo": "echo '  Device Type:   GPU'"}, "rocm"),
        ({"rocminfo": "echo '  Device Type:             CPU'"}, None),
        ({"vulkaninfo": "echo '	deviceType         = PHYSICAL_DEVICE_TYPE_CPU'"}, None),
        ({"vulkaninfo": "echo '	deviceType         = PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU'"}, "vulkan"),
    ],
    ids=["nothing", "NVIDIA", "no card", "no driver but AMD", "AMD CPU", "Vulkan on the CPU", "Vulkan"],
)
def test_a_gpu_is_found_by_what_its_makers_tools_say(tmp_path, monkeypatch, programs, backend):
    """A tool that is there proves nothing: a driver may be missing, or software may stand in for a GPU."""
    monkeypatch.setenv("PATH", only_these(tmp_path / "bin", **programs))
    assert check_gpu.found_backend() == backend


def run_check_gpu(script: Path, env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script, *arguments], env=env, capture_output=True, text=True)


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a GPU")
def test_without_a_gpu_check_gpu_says_so_and_stops(tmp_path):
    """One line and exit code 4; nothing is copied or built."""
    env = {"PATH": only_these(tmp_path / "bin"), "PYTHON": sys.executable, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run_check_gpu(SCRIPTS / "check_gpu", env)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (4, "", 1)
    assert done.stdout.startswith("check_gpu: there is no GPU here")
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has Metal")
def test_with_a_gpu_llama_cpp_is_built_for_it_apart_from_the_checkout(tmp_path, packages):  # noqa: F811
    """CUDA for the card that is here; the checks run there with their arguments, and their exit code is passed on."""
    checkout = Checkout(tmp_path / "a checkout", packages)
    for name in ("check_gpu", "check_gpu.py"):
        shutil.copy(SCRIPTS / name, checkout.root / "scripts")
    checks = checkout.root / "scripts" / "gpu_checks.py"
    checks.write_text("import llama_cpp, sys\nprint(llama_cpp.OPTIONS, sys.argv[1:], sys.prefix)\nsys.exit(7)\n")
    tools = write_program(tmp_path / "nvidia-smi", NVIDIA).parent
    env = checkout.env | {"PATH": f"{tools}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run_check_gpu(checkout.root / "scripts" / "check_gpu", env, "--model", "a model")
    copy = tmp_path / "cache" / "localllm" / "check_gpu"
    expected = f"-DCMAKE_CUDA_ARCHITECTURES=native -DGGML_CUDA=on ['--model', 'a model'] {copy / '.venv'}"
    assert (done.returncode, done.stdout.splitlines()[1:]) == (7, [expected]), done.stderr
    assert not (checkout.root / ".venv").exists()
    checks.write_text("import llama_cpp\nprint('changed')\n")
    again = run_check_gpu(checkout.root / "scripts" / "check_gpu", env)
    assert (again.returncode, again.stdout.splitlines()[1:], again.stderr) == (0, ["changed"], "")


def test_what_takes_too_long_is_ended_and_cleans_up(capsys):
    """At the limit the build is asked to stop, waited for, and counts as a failure even if it ends well."""
    code = "import signal, sys\nprint('ready', flush=True)\nsignal.sigwait([signal.SIGTERM])\nprint('cleaned up')"
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    with subprocess.Popen([sys.executable, "-c", block + code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        assert check_gpu.finished(process, 0.01) == 1
        assert process.stdout.read() == b"cleaned up\n"
    assert capsys.readouterr().err.startswith("check_gpu: stopped after ")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(4)"]) as process:
        assert check_gpu.finished(process, 60) == 4


ROWS = np.array([[5.0, 1.0, 0.0, -3.0], [2.0, 1.8, 0.0, -3.0]], np.float32)


@pytest.mark.parametrize(
    ("change", "small", "others"),
    [
        ([[0, 0, 0, 0], [0, 0, 0, 0]], True, 0),
        ([[7, 7, 7, 7], [0, 0, 0, 0]], True, 0),
        ([[0.01, 0, 0, 0], [-0.1, 0.15, 0, 0]], True, 1),
        ([[-5, 5, 0, 0], [0, 0, 0, 0]], False, 1),
        ([[0, 0, 0, 0], [0, -9, 0, 0]], False, 0),
        ([[0, 0, np.nan, 0], [0, 0, 0, 0]], False, 1),
    ],
    ids=["equal", "the same probabilities", "a near tie", "another token", "other probabilities", "NaN"],
)
def test_rounding_is_told_from_errors(change, small, others):
    """Logits may differ by rounding, and a token where the processor wavered; a wrong result is neither."""
    found = gpu_checks.difference(ROWS, ROWS + np.array(change, np.float32))
    assert (found.small, found.other_tokens) == (small, others)


def test_a_lead_of_the_processor_is_told_in_logits():
    """Only where the other chose another token: here the first lead of 0.2, not the second of 4."""
    found = gpu_checks.difference(ROWS[::-1], ROWS[::-1] + np.array([[-0.1, 0.15, 0, 0], [0, 0, 0, 0]], np.float32))
    assert found.margin == pytest.approx(0.2)


@pytest.mark.model
def test_answers_of_one_model_agree_and_those_to_another_prompt_do_not(smollm2):
    """On a real model: led along an answer in other slices all is close; led along after another prompt it is not."""
    model = locate(str(smollm2))
    prompt = list(range(500, 548))
    with closing(gpu_checks.opened(model, 0)) as decoder:
        answer = gpu_checks.led(decoder, prompt, slice_tokens=gpu_checks.CPU_SLICE_TOKENS)
        again = gpu_checks.led(decoder, prompt, answer.tokens)
        wrong = gpu_checks.led(decoder, prompt[:-1], answer.tokens)
    assert again.tokens == answer.tokens
    assert gpu_checks.difference(answer.logits, again.logits).small
    assert not gpu_checks.difference(answer.logits, wrong.logits).small


@pytest.mark.model
@pytest.mark.parametrize(("free_bytes", "placed"), [(2**33, "passed"), (2**29 + 2**26, "FAILED")])
def test_placement_is_checked_against_the_memory_that_is_free(smollm2, capsys, free_bytes, placed):
    """A GPU with room takes all layers; one without makes the check fail, and less memory never means more layers."""
    report = gpu_checks.Report()
    gpu_checks.check_placement(report, locate(str(smollm2)), [gpu_checks.Device("pretended", free_bytes)])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{placed}: all layers go on the GPU")
    assert second.startswith("passed: the less memory is free, the fewer layers go there (0, ")
    assert report.passed == (placed == "passed")


@pytest.mark.model
def test_the_weights_of_some_layers_are_counted_from_the_output_down(smollm2):
    """All layers are all weights (the embeddings are the output matrix here); one is the output matrix alone."""
    shape = locate(str(smollm2)).shape
    assert gpu_checks.placed_bytes(shape, shape.n_layers + 1) == pytest.approx(shape.tensor_bytes, rel=0.001)
    assert gpu_checks.placed_bytes(shape, 1) == shape.token_embd_bytes


@pytest.mark.model
def test_a_build_that_sees_no_gpu_fails_the_check():
    """As where the toolkit was too old for the card: one line says so, and the exit code is 1."""
    if gpu_checks.devices():
        pytest.skip("this build sees a GPU")
    done = subprocess.run([sys.executable, SCRIPTS / "gpu_checks.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("FAILED: llama.cpp sees a GPU (none)\n")


@pytest.mark.model
@pytest.mark.parametrize(
    ("card", "says"),
    [("NVIDIA GeForce RTX 3090", "% of the ceiling of 9,694 tok/s (GeForce RTX 3090"), ("Abacus 9", "(no ceiling: ")],
)
def test_the_decode_rate_is_told_with_its_ceiling(smollm2, card, says):
    """The card's bandwidth over what the model streams per token; a card that the table lacks gives the rate alone."""
    line = gpu_checks.decode_rate(locate(str(smollm2)), gpu_checks.Device(card, 2**34), tokens=8)
    assert line.startswith(f"{smollm2.name}, 0 of 31 layers on the GPU: decode ")
    assert says in line
