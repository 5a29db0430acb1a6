"""Measures how fast the program starts and how fast it stops. Started by scripts/bench_cli.

Start-up is compared with ``python -c "import typer, rich"`` and the two are run in turn, since machines drift.
Stopping is the time from a signal, or from the deadline, to the end of the process, in prefill and in decode of the
default model. Run it while nothing else runs.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = str(Path(sys.executable).parent / "localllm")
BASE = [sys.executable, "-c", "import typer, rich"]
STARTS = {  # each with the ratio that it should stay below
    "`localllm --help`": ([PROGRAM, "--help"], 1.4),
    "`localllm list`": ([PROGRAM, "list"], 2.2),
    "`localllm ceiling --gpu 3090 --model-bytes 19e9`": (
        [PROGRAM, "ceiling", "--gpu", "3090", "--model-bytes", "19e9"],
        2.2,
    ),
}
LONG = "The river runs to the sea, and the sea gives it back to the clouds. " * 450
ENDLESS = ["--raw", "one two three one two three one two three", "--temp", "0"]
LOADED_S = 2.0  # long enough to be in the middle of prefill or decode


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(prog="scripts/bench_cli", description="Measure starting and stopping.")
    parser.add_argument("--runs", type=int, default=10, help="runs of each (default: 10)")
    runs = parser.parse_args().runs
    timed([PROGRAM, "ask", "hi", "--max-tokens", "1", "--no-log"])  # fetches the model and warms the page cache
    report_starts(runs)
    wrapper = [str(ROOT / "scripts" / "localllm"), "--help"]
    extra_ms = [1000 * (timed(wrapper) - timed([PROGRAM, "--help"])) for _ in range(runs)]
    print(f"\n`scripts/localllm` over `localllm`: {statistics.median(extra_ms):.1f} ms (median of {runs})\n")
    print("| stopped by | in | median ms | worst ms | runs |\n|---|---|---:|---:|---:|")
    for phase in ("prefill", "decode"):
        report("Ctrl-C", phase, [signalled(phase, signal.SIGINT) for _ in range(runs)])
        report("SIGTERM", phase, [signalled(phase, signal.SIGTERM) for _ in range(runs)])
        report("`--timeout`", phase, [timed_out(phase) for _ in range(runs)])


def report_starts(runs: int) -> None:
    """Print how long the commands take that need no model, as ratios."""
    print("| start-up | median ratio to `import typer, rich` | target | met | runs |\n|---|---:|---:|---|---:|")
    for name, (command, limit) in STARTS.items():
        ratio = statistics.median(timed(command) / timed(BASE) for _ in range(runs))
        print(f"| {name} | {ratio:.2f} | {at_most(limit, ratio)} | {runs} |")


def at_most(limit: float, value: float) -> str:
    """Two cells of a table: the target, and whether it is met."""
    return f"≤ {limit:g} | {'yes' if value <= limit else '**no**'}"


def report(what: str, phase: str, times_s: Sequence[float]) -> None:
    """Print a row of the second table."""
    print(
        f"| {what} | {phase} | {1000 * statistics.median(times_s):.0f} | {1000 * max(times_s):.0f} | {len(times_s)} |"
    )


def timed(command: Sequence[str]) -> float:
    """Seconds of wall time that a command takes."""
    started_s = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started_s


def signalled(phase: str, number: int) -> float:
    """Seconds from a signal to the end of the process."""

    def act(process: subprocess.Popen[str]) -> float:
        time.sleep(LOADED_S)
        process.send_signal(number)
        return time.perf_counter()

    return stopped(phase, [], act, 130)


def timed_out(phase: str) -> float:
    """Seconds from the deadline to the end of the process; the program's own start counts as well."""
    return stopped(phase, ["--timeout", str(LOADED_S)], lambda _: time.perf_counter() + LOADED_S, 124)


def stopped(phase: str, flags: list[str], act: Callable[[subprocess.Popen[str]], float], code: int) -> float:
    """Start an answer that does not end by itself, let ``act`` say when it should, and measure from there."""
    command = [PROGRAM, "ask", "--no-cache", "--no-log", *flags, *(["what runs?"] if phase == "prefill" else ENDLESS)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=os.environ) as process:
        assert process.stdin
        process.stdin.write(LONG if phase == "prefill" else "")
        process.stdin.close()
        due_s = act(process)
        if process.wait(60) != code:
            raise SystemExit(f"the answer ended by itself with {process.returncode}; it was meant to be stopped")
        return time.perf_counter() - due_s


if __name__ == "__main__":
    main()
