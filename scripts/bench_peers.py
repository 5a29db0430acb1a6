"""Compares localllm with the other ways to run llama.cpp. Started by scripts/bench_peers.

Every figure is the median over the rounds of one run. In each round all sides have their turn, in one order and then
in the other, since machines drift; a first round is not counted. Run it while nothing else runs.

Decode: each side keeps its model loaded in a process of its own (bench_sides.py) and waits there for its turn. So no
side pays for another's memory, caches or settings (localllm sets GOMP_SPINCOUNT for itself), and the weights are the
same pages of the page cache for all. What counts is the time from the first piece of text to the last, with the same
tokens on the same number of threads. Each turn has a prompt of which nothing is in a KV cache yet, so all sides come
to decode from the same work.

Start-up and memory: each turn is a new process. What no answer can avoid is timed alone: loading the library, and, in
a bare loop on the low-level API, loading the model, making the context and reading a prompt of the same length.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from bench_cli import PROGRAM, at_most, report_starts
from prove import commit, processor

from localllm.app import Located, locate
from localllm.config import cache_dir
from localllm.cores import default_threads
from localllm.engine.placement import DEFAULT_CTX

T = TypeVar("T")
SIDE = (sys.executable, str(Path(__file__).with_name("bench_sides.py")))
GEMMA = cache_dir() / "tests" / "gemma-3-270m.Q4_K_M.gguf"  # where tests/conftest.py keeps it
PEERS = ("best", "default", "bare")  # sides of bench_sides.py
TITLES = {
    "best": "llama-cpp-python, its best settings",
    "default": "llama-cpp-python, its default settings",
    "bare": "a bare loop on the low-level API",
    "llama-bench": "`llama-bench`",
}
SHALLOW, DEEP = 48, 2000  # tokens of the prompt
LEAST_RATIO = {("best", SHALLOW): 1.0, ("default", DEEP): 1.15, ("llama-bench", SHALLOW): 0.95}
NO_TARGET = "– | –"
MOST_EXTRA_S, MOST_EXTRA_MB = 0.15, 60
MB = 10**6
DECODE_TOKENS, LLAMA_BENCH_TOKENS, ANSWER_TOKENS = 128, 256, 32
LLAMA_BENCH_ROUNDS = 10  # at least


def main() -> None:
    """Print the tables of each model, and then those of the commands that need none."""
    parser = argparse.ArgumentParser(prog="scripts/bench_peers", description="Compare localllm with its peers.")
    parser.add_argument("--runs", type=int, default=10, help="rounds that count (default: 10)")
    parser.add_argument(
        "--model", action="append", help="name or path, repeatable (default: the default model, and the tests' Gemma)"
    )
    parser.add_argument("--depth", type=int, default=DEEP, help=f"tokens of the deep prompt (default: {DEEP:,})")
    parser.add_argument(
        "--tokens", type=int, default=DECODE_TOKENS, help=f"tokens to decode (default: {DECODE_TOKENS})"
    )
    options = parser.parse_args()
    threads = default_threads()
    print(f"{machine()}; {threads} threads", flush=True)
    for reference in options.model or [None, *([str(GEMMA)] if GEMMA.exists() else [])]:
        model = locate(reference)
        print(f"\n### {model.model.name}\n")
        report_decode(model, threads, options.runs, options.depth, options.tokens)
        report_answers(model, threads, options.runs)
    print("\n### Commands without a model\n")
    report_starts(options.runs)


def machine() -> str:
    """What the figures depend on."""
    versions = [f"{name} {version(name)}" for name in ("llama-cpp-python", "localllm")]
    system = [platform.platform(), f"Python {platform.python_version()}", *versions, f"commit {commit()}"]
    return ", ".join([f"{os.cpu_count()} processors ({processor()})", *system])


def in_turn(sides: Mapping[str, Callable[[int], T]], runs: int) -> dict[str, list[T]]:
    """What each side gives in each round that counts. It is told the number of the round."""
    given: dict[str, list[T]] = {name: [] for name in sides}
    for turn in range(runs + 1):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            given[name].append(sides[name](turn))
    return {name: values[1:] for name, values in given.items()}


# --- decode ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decoded:
    """One turn of a side: its rate, and what it wrote."""

    tok_s: float
    text: str


class Racer:
    """A side of bench_sides.py with its model loaded. A context manager: leaving it ends the process."""

    def __init__(self, name: str, path: str, n_ctx: int, threads: int) -> None:
        self._name = name
        command = [*SIDE, name, path, str(n_ctx), str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()

    def decode(self, letters: Sequence[int], depth: int, tokens: int, turn: int) -> Decoded:
        """Decode ``tokens`` behind a prompt of ``depth`` tokens; ``turn`` shifts its letters, the first may be BOS.

        Each token must come as one piece of text, or the time from piece to piece would be no rate.
        """
        ids = [letters[0], *letters[1 + turn % 3 : depth + turn % 3]]
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"ids": ids, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._line())
        if answer["pieces"] != tokens:
            raise SystemExit(f"{self._name}: {tokens} tokens came as {answer['pieces']} pieces: {answer['text']!r}")
        return Decoded((tokens - 1) / answer["decode_s"], answer["text"])

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} ended by itself, with {self._process.wait()}")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # closes its stdin, which ends it


def report_decode(model: Located, threads: int, runs: int, deep: int, tokens: int) -> None:
    """Print how the rates of decode compare: a row for each peer at each depth."""
    path = str(model.model.path)
    letters = json.loads(subprocess.check_output([*SIDE, "ids", path, str(deep + 2)]))
    print(
        "| decode, against | tokens | depth | localllm tok/s | peer tok/s | ratio | target | met | same text | runs |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---|---:|---:|")
    with ExitStack() as stack:
        racers = {name: stack.enter_context(Racer(name, path, deep + 512, threads)) for name in ("localllm", *PEERS)}
        for depth in (SHALLOW, deep):
            turns = {name: partial(racer.decode, letters, depth, tokens) for name, racer in racers.items()}
            rounds = in_turn(turns, runs)
            for name in PEERS:
                print_ratio(name, depth, tokens, rounds["localllm"], rounds[name])
        program = shutil.which("llama-bench")
        if program:
            ours = partial(racers["localllm"].decode, letters, SHALLOW, LLAMA_BENCH_TOKENS)
            theirs = partial(llama_bench, program, path, threads)
            rounds = in_turn({"localllm": ours, "llama-bench": theirs}, max(runs, LLAMA_BENCH_ROUNDS))
            print_ratio("llama-bench", SHALLOW, LLAMA_BENCH_TOKENS, rounds["localllm"], rounds["llama-bench"])
    if not program:
        print("\n`llama-bench` is not on the PATH, so it is not compared.")


def llama_bench(program: str, path: str, threads: int, _turn: int) -> Decoded:
    """What llama.cpp's own benchmark measures; it warms up by itself, and decodes tokens drawn by lot."""
    sizes = ["-d", str(SHALLOW), "-p", "0", "-n", str(LLAMA_BENCH_TOKENS), "-r", "1"]
    command = [program, "-m", path, "-t", str(threads), "-fa", "1", *sizes, "-o", "json"]
    (test,) = json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))
    return Decoded(test["avg_ts"], "")


def print_ratio(name: str, depth: int, tokens: int, ours: Sequence[Decoded], theirs: Sequence[Decoded]) -> None:
    """Print a row: the median of the ratios of each round, and in how many of them both wrote the same."""
    ratio = statistics.median(our.tok_s / their.tok_s for our, their in zip(ours, theirs, strict=True))
    rates = [f"{statistics.median(side.tok_s for side in sides):.1f}" for sides in (ours, theirs)]
    least = LEAST_RATIO.get((name, depth))
    target = NO_TARGET if least is None else f"≥ {least:.2f} | {'yes' if ratio >= least else '**no**'}"
    same = sum(our.text == their.text for our, their in zip(ours, theirs, strict=True)) if theirs[0].text else "–"
    cells = [TITLES[name], tokens, f"{depth:,}", *rates, f"{ratio:.2f}", target, same, len(ours)]
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


# --- start-up and memory -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended: when the first byte of its output came, or else its end, and its peak memory."""

    first_s: float
    output: bytes
    peak_bytes: int


def report_answers(model: Located, threads: int, runs: int) -> None:
    """Print what localllm adds to what no answer can avoid: seconds before the first byte, and memory."""
    path, n_ctx = str(model.model.path), str(min(DEFAULT_CTX, model.shape.n_ctx_train))
    ask = [
        PROGRAM,
        "ask",
        "--model",
        path,
        "--ctx-size",
        n_ctx,
        "--threads",
        str(threads),
        "--temp",
        "0",
        "--quiet",
        "--no-cache",
        "--no-log",
    ]
    ask += ["--max-tokens", str(ANSWER_TOKENS), "Name three colours."]
    prompt_tokens = json.loads(run([*ask, "--json"]).output)["stats"]["prompt_tokens"]
    ids = json.loads(run([*SIDE, "ids", path, str(prompt_tokens)]).output)
    request = json.dumps({"ids": ids, "tokens": ANSWER_TOKENS})
    sides: dict[str, Callable[[int], Ended]] = {
        "ask": lambda _: run(ask),
        "library": lambda _: run([sys.executable, "-c", "import llama_cpp"]),
        "bare": lambda _: run([*SIDE, "bare", path, n_ctx, str(threads)], request),
    }
    rounds = in_turn(sides, runs)
    print_startup(rounds["ask"], list(map(unavoidable_s, rounds["library"], rounds["bare"])))
    print_memory(rounds["ask"], rounds["bare"])


def run(command: Sequence[str], request: str = "") -> Ended:
    """Run a program to its end. Its peak memory is at least this process's own: Linux counts from the fork on."""
    begin_s = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write(request.encode())
        process.stdin.close()
        first = process.stdout.read(1)
        first_s = time.perf_counter() - begin_s
        output = first + process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Ended(first_s, output, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def unavoidable_s(library: Ended, bare: Ended) -> dict[str, float]:
    """The parts of an answer's start in one round, in seconds."""
    loaded, answered = map(json.loads, bare.output.splitlines())
    return {
        '`python -c "import llama_cpp"`': library.first_s,
        "loading the model": loaded["load_s"],
        "`llama_init_from_model`": loaded["init_s"],
        "reading the prompt": answered["first_s"],
    }


def print_startup(asks: Sequence[Ended], rounds: Sequence[Mapping[str, float]]) -> None:
    """Print a table: first byte, each part of what cannot be avoided, and the rest."""
    rows = {"first byte of `localllm ask`": [ask.first_s for ask in asks]}
    rows |= {f"{part}, alone": [parts[part] for parts in rounds] for part in rounds[0]}
    extra_s = [ask.first_s - sum(parts.values()) for ask, parts in zip(asks, rounds, strict=True)]
    print_parts("start-up", "s", rows, extra_s, MOST_EXTRA_S)


def print_memory(asks: Sequence[Ended], bares: Sequence[Ended]) -> None:
    """Print a table: peak memory of an answer and of the bare loop, and the difference."""
    sides = {"`localllm ask`": asks, TITLES["bare"]: bares}
    rows = {title: [side.peak_bytes / MB for side in ended] for title, ended in sides.items()}
    extra_mb = [(ask.peak_bytes - bare.peak_bytes) / MB for ask, bare in zip(asks, bares, strict=True)]
    print_parts("memory, peak RSS", "MB", rows, extra_mb, MOST_EXTRA_MB)


def print_parts(
    what: str, unit: str, rows: Mapping[str, Sequence[float]], extra: Sequence[float], limit: float
) -> None:
    """Print a table of medians that ends with what localllm adds, for which there is a target."""
    print(f"\n| {what} | median {unit} | target | met | runs |\n|---|---:|---:|---|---:|")
    for title, values in rows.items():
        print(f"| {title} | {statistics.median(values):.3g} | {NO_TARGET} | {len(values)} |")
    median = statistics.median(extra)
    print(f"| what localllm adds | {median:.3g} | {at_most(limit, median)} | {len(extra)} |", flush=True)


if __name__ == "__main__":
    main()
