"""Decode on a machine that does something else as well. Started by scripts/bench_contention.

Each way to decode has a process of its own with its model loaded, and decodes for a few seconds when it is its turn:
governed, as localllm does by default; on each fixed number of threads; and on all cores as llama.cpp does by itself,
whose OpenMP threads spin long at every barrier. The turns of a round follow each other, and what counts is the median
over the rounds of the ratio. Run it while nothing else runs.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench_peers import in_turn, machine

from localllm.app import locate
from localllm.cores import default_threads

OWN_SPINS = "300000"  # libgomp's default
PROMPT = "a b c d " * 12  # every model that was tried goes on with it for hundreds of tokens
N_CTX = 4096
IDLE, TAKEN, PAIR = "nothing else runs", "one core is taken by another process", "two decode at once"
LEAST = {(IDLE, "best"): 0.97, (TAKEN, "best"): 0.9, (PAIR, "default"): 2.0}


def main() -> None:
    """Print a table: for each state of the machine the governed rate beside the others."""
    parser = argparse.ArgumentParser(prog="scripts/bench_contention", description="Decode on a busy machine.")
    parser.add_argument("--runs", type=int, default=5, help="rounds that count (default: 5)")
    parser.add_argument("--seconds", type=float, default=5, help="of each turn (default: 5)")
    parser.add_argument("--model", help="name or path (default: the default model)")
    options = parser.parse_args()
    path = str(locate(options.model).model.path)
    most = default_threads()
    fixed = sorted({1, most})
    print(f"{machine()}; {Path(path).name}, {options.seconds:g} s a turn\n")
    print("| the machine | against | governed tok/s | other tok/s | ratio | target | met | runs |")
    print("|---|---|---:|---:|---:|---:|---|---:|")
    with ExitStack() as stack:
        ways = {"governed": "auto", **{f"{count} threads": str(count) for count in fixed}, "default": "default"}
        sides = {
            name: [stack.enter_context(side(path, how)) for _ in range(2 if how in ("auto", "default") else 1)]
            for name, how in ways.items()
        }
        for state in (IDLE, TAKEN, PAIR):
            names = [name for name in ways if state != PAIR or name in ("governed", "default")]
            with taken_core() if state == TAKEN else ExitStack():
                count = 2 if state == PAIR else 1
                turns = {name: turn(sides[name][:count], options.seconds) for name in names}
                rates = in_turn(turns, options.runs)
            report(state, rates)


def turn(processes: Sequence[subprocess.Popen[str]], seconds: float) -> Callable[[int], float]:
    """Lets these decode at once; gives the sum of their rates."""

    def run(_: int) -> float:
        for process in processes:
            assert process.stdin
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        return sum(float(process.stdout.readline()) for process in processes if process.stdout)

    return run


def report(state: str, rates: dict[str, list[float]]) -> None:
    """Print a row against the best fixed number of threads, and one against llama.cpp's default."""
    fixed = {name: values for name, values in rates.items() if name.endswith("threads")}
    others = {"default": rates["default"]}
    if fixed:
        best = max(fixed, key=lambda name: statistics.median(fixed[name]))
        others = {"best": fixed[best], **others}
    for kind, theirs in others.items():
        title = f"the best fixed number: {best}" if kind == "best" else "llama.cpp's default"
        ratio = statistics.median(our / their for our, their in zip(rates["governed"], theirs, strict=True))
        least = LEAST.get((state, kind))
        target = "– | –" if least is None else f"≥ {least:.2f} | {'yes' if ratio >= least else '**no**'}"
        medians = [f"{statistics.median(values):.1f}" for values in (rates["governed"], theirs)]
        print(f"| {state} | {title} | {' | '.join(medians)} | {ratio:.2f} | {target} | {len(theirs)} |", flush=True)


@contextmanager
def taken_core() -> Iterator[None]:
    """Another process computes without end."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def side(path: str, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process with the model loaded, which decodes for as many seconds as it reads, and says its rate."""
    env = os.environ | ({"GOMP_SPINCOUNT": OWN_SPINS} if how == "default" else {})
    command = [sys.executable, __file__, "--side", path, how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        yield process
    finally:
        process.communicate()


def serve(path: str, how: str) -> None:
    """The work of such a process."""
    from localllm import Sampling, Settings, TurnEnd, open_engine
    from localllm.cancel import Cancel

    threads = None if how == "auto" else default_threads() if how == "default" else int(how)
    engine = open_engine(path, Settings(ctx_size=N_CTX, threads=threads, draft="off", cache=False))
    prompt = engine.encode_raw(PROMPT)
    for line in sys.stdin:
        tokens, begin_s = 0, time.perf_counter()
        for event in engine.reply(prompt, Sampling(temperature=0), Cancel(timeout_s=float(line))):
            if isinstance(event, TurnEnd):
                tokens = event.stats.output_tokens
        print(tokens / (time.perf_counter() - begin_s), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        serve(*sys.argv[2:])
    else:
        main()
