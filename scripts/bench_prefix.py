"""What the prompt-prefix cache saves, and what it costs. Started by scripts/bench_prefix.

Every call is a new process, and each round has them in one order and then in the other: the same long prompt without a
cache, with an empty one, again, and with another question at its end; and by the peers. Ratios are those of one round,
and the median counts. Run it while nothing else runs.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench_peers import machine

from localllm.app import locate
from localllm.cores import default_threads
from localllm.engine.llama import LlamaDecoder, LoadOptions
from localllm.engine.prefix import PrefixCache
from localllm.engine.prefix_store import ROOT, PrefixStore, entries
from localllm.engine.slicing import border, pure_slices

PROGRAM = str(Path(sys.executable).parent / "localllm")
N_CTX, PROMPT_TOKENS, ANSWER_TOKENS = 4096, 2000, 64
QUESTIONS = ("What is this about?", "Name one place in it.")
WORDS = (
    *("river", "hill", "bridge", "town", "mill", "road", "garden", "church"),
    *("field", "winter", "summer", "stone", "water", "north", "people", "year"),
)
PEER = "llama-completion"
BINDING = """
import sys
from llama_cpp import Llama
path, threads, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
llama = Llama(path, n_ctx={n_ctx}, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False)
for _ in llama.create_completion(sys.stdin.read(), max_tokens=tokens, temperature=0, stream=True):
    pass
"""


@dataclass(frozen=True)
class Call:
    """One process: how long it took, and what it says itself (0 for a peer): time to the first token, tokens."""

    wall_s: float
    ttft_s: float = 0.0
    cached: int = 0
    output: int = 0


def document(vocab_tokens: Callable[[str], Sequence[int]], tokens: int) -> str:
    """A text of about so many tokens in which nothing repeats for long."""
    draw = random.Random(1)
    text = "An account of the valley."
    while len(vocab_tokens(text)) < tokens:
        text += " The " + " ".join(draw.choices(WORDS, k=12)) + "."
    return text


def ask(path: Path, threads: int, text: str, question: str, *flags: str) -> Call:
    """``localllm ask`` with the text piped in."""
    fixed = ("--json", "--temp", "0", "--draft", "off", "--threads", str(threads), "--ctx-size", str(N_CTX))
    command = [PROGRAM, "ask", "-m", str(path), *fixed, "--max-tokens", str(ANSWER_TOKENS), *flags, question]
    begin_s = time.perf_counter()
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    wall_s = time.perf_counter() - begin_s
    stats = json.loads(done.stdout)["stats"]
    return Call(wall_s, stats["ttft_s"], stats["cached_tokens"], stats["output_tokens"])


def program(command: Sequence[str], text: str) -> Call:
    """A peer, for its time alone."""
    begin_s = time.perf_counter()
    subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return Call(time.perf_counter() - begin_s)


def calls(path: Path, threads: int, text: str, runs: int) -> dict[str, list[Call]]:
    """Each way to ask, in each round that counts."""
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "localllm" / "prefix"
    files = tempfile.mkdtemp()
    binding = [sys.executable, "-c", BINDING.format(n_ctx=N_CTX), str(path), str(threads), str(ANSWER_TOKENS)]
    ways: dict[str, Callable[[], Call]] = {
        "warm": lambda: ask(path, threads, text, QUESTIONS[0]),
        "other": lambda: ask(path, threads, text, QUESTIONS[1]),
        "binding": lambda: program(binding, f"{text}\n\n{QUESTIONS[0]}"),
    }
    if shutil.which(PEER):
        stored = Path(files) / "prompt.bin"
        asked = f"{text}\n\n{QUESTIONS[0]}"
        written = ask(path, threads, text, QUESTIONS[0]).output  # the peer has to write as many
        numbers = ("-n", str(written), "--ignore-eos", "-t", str(threads), "-c", str(N_CTX), "--temp", "0")
        command = [PEER, "-m", str(path), "-p", asked, *numbers, "-no-cnv", "--prompt-cache", str(stored)]
        program(command, "")
        ways["peer"] = lambda: program(command, "")
    slow: dict[str, Callable[[], Call]] = {  # next to each other: reading takes long, and the machine drifts
        "without": lambda: ask(path, threads, text, QUESTIONS[0], "--no-cache"),
        "cold": lambda: ask(path, threads, text, QUESTIONS[0]),
    }
    found: dict[str, list[Call]] = {name: [] for name in (*slow, *ways)}
    for turn in range(runs + 1):
        shutil.rmtree(cache, ignore_errors=True)
        for name in list(slow)[:: 1 if turn % 2 else -1]:
            found[name].append(slow[name]())
        ask(path, threads, text, QUESTIONS[0])  # the file is in the page cache now
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            found[name].append(ways[name]())
    return {name: values[1:] for name, values in found.items()}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over the rounds."""
    return statistics.median(our / their for our, their in zip(ours, theirs, strict=True))


def row(name: str, value: float, unit: str, limit: float, at_least: bool = False) -> None:
    """Print one row of a table."""
    met = value >= limit if at_least else value <= limit
    sign = "≥" if at_least else "≤"
    print(f"| {name} | {value:.3g}{unit} | {sign} {limit:g}{unit} | {'yes' if met else '**no**'} |", flush=True)


def restoring(path: Path, threads: int, ids: Sequence[int], runs: int) -> tuple[float, float]:
    """GB/s from the page cache into the KV cache, checked; and the size of what was restored, in bytes."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(LlamaDecoder(path, LoadOptions(N_CTX, threads=threads))) as decoder,
    ):
        prefix = PrefixCache(decoder, PrefixStore(Path(folder), "f" * 32, 10**10))
        for start, stop in pure_slices(0, len(ids), decoder.slice_tokens):
            decoder.feed(ids[start:stop], bool)
        prefix.keep(border(len(ids)), answered=False, text="")
        size = sum(entry.file_bytes for _, entry in entries(Path(folder)))
        times = []
        for _ in range(runs + 1):
            decoder.rewind(0)
            begin_s = time.perf_counter()
            prefix.restore(ids, 0, only_pure=True)
            times.append(time.perf_counter() - begin_s)
        return size / statistics.median(times[1:]) / 1e9, size


def looking_up(blocks: int, runs: int) -> float:
    """Milliseconds to find a chain of 40 blocks among so many, most of which begin a text of their own."""
    with tempfile.TemporaryDirectory() as folder:
        store, draw = PrefixStore(Path(folder), "f" * 32, 10**10), random.Random(2)
        ids = [draw.randrange(50_000) for _ in range(41 * 128)]
        key: str | None = ROOT
        for start in range(0, 40 * 128, 128):
            key = key and store.write(key, ids[start : start + 128], "p", b"x", "")
        for _ in range(blocks - 40):
            store.write(
                ROOT, [draw.randrange(50_000) for _ in range(draw.choice([128, draw.randrange(1, 128)]))], "p", b"x", ""
            )
        times = []
        for _ in range(runs + 1):
            begin_s = time.perf_counter()
            chain = store.pure(ids)
            store.conversation(ids, chain)
            times.append(1000 * (time.perf_counter() - begin_s))
            assert len(chain) == 40
        return statistics.median(times[1:])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="scripts/bench_prefix", description="What the prefix cache saves and costs.")
    parser.add_argument("--runs", type=int, default=6, help="rounds that count (default: 6)")
    runs = parser.parse_args().runs
    path, threads = locate("smollm2-135m").model.path, default_threads()
    with closing(LlamaDecoder(path, LoadOptions(512, threads=threads))) as decoder:
        tokens = decoder.vocab.tokenize
        text = document(tokens, PROMPT_TOKENS)
        ids = tokens(text)[:PROMPT_TOKENS]
    print(f"{machine()}; {path.name}, {len(ids):,} tokens, {threads} threads, {runs} rounds\n")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_DATA_HOME"] = folder
        os.environ["LOCALLLM_CACHE_SIZE"] = "8GB"
        ask(path, threads, "warming up", QUESTIONS[0])
        found = calls(path, threads, text, runs)
    ttft = {name: [call.ttft_s for call in values] for name, values in found.items()}
    wall = {name: [call.wall_s for call in values] for name, values in found.items()}
    print("| in a new process, median ratio | measured | target | met |\n|---|---:|---:|---|")
    row("time to first token, same prompt: of cold", 100 * ratio(ttft["warm"], ttft["without"]), " %", 3)
    row(
        "time to first token, same text, another question: of cold",
        100 * ratio(ttft["other"], ttft["without"]),
        " %",
        10,
    )
    row("whole call, same prompt: of llama-cpp-python", 100 * ratio(wall["warm"], wall["binding"]), " %", 25)
    if "peer" in wall:
        row(f"whole call, same prompt: of {PEER} --prompt-cache", ratio(wall["warm"], wall["peer"]), "", 1.35)
    row("whole call that fills the cache: over one without", 100 * (ratio(wall["cold"], wall["without"]) - 1), " %", 3)
    print(f"\nOf the prompt, {found['warm'][-1].cached:,} tokens came from the cache; with another question,", end=" ")
    print(f"{found['other'][-1].cached:,}." + ("" if "peer" in wall else f" {PEER} is not on the PATH."))
    speed, size = restoring(path, threads, ids, runs)
    print("\n| in one process, median | measured | target | met |\n|---|---:|---:|---|")
    row(f"restoring {size / 1e6:.0f} MB, read, checked and copied", speed, " GB/s", 1, at_least=True)
    row("looking up 40 blocks among 10,000", looking_up(10_000, runs), " ms", 5)


if __name__ == "__main__":
    main()
