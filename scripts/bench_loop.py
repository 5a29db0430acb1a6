"""What a token costs beside llama.cpp's computation. Started by scripts/bench_loop.

Our own part: whole turns of the engine with the real vocabulary and the real decoder, but with ``llama_decode`` and
the sampler replaced by functions that do nothing, so what remains is Python. Sampling: the default sampler on the
logits of the model, beside a decode step.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench_peers import GEMMA, machine
from llama_cpp import llama_cpp as lib

from localllm import Prompt, Sampling, Settings, open_engine
from localllm.app import locate
from localllm.cores import default_threads
from localllm.engine.llama import LlamaDecoder, LoadOptions

TEXT = "The river rose in spring, and people carried what they owned up the hill to the church.\n"
TOKENS, SAMPLES = 2000, 200
MOST_LOOP_S, MOST_SAMPLING = 40e-6, 0.03


class Told:
    """A sampler that says what it was told, for nothing."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = itertools.cycle(ids)

    def sample(self, _index: int = -1) -> int:
        return next(self._ids)

    def close(self) -> None:
        """Nothing to free."""


@contextmanager
def without_computing(ids: list[int]) -> Iterator[None]:
    """llama.cpp computes nothing, and every sampler says ``ids``."""
    decode, sampler = lib.llama_decode, LlamaDecoder.sampler
    lib.llama_decode = lambda *_: 0
    LlamaDecoder.sampler = lambda *_: Told(ids)  # type: ignore[method-assign]
    try:
        yield
    finally:
        lib.llama_decode, LlamaDecoder.sampler = decode, sampler  # type: ignore[method-assign]


def loop_s(path: Path, draft: str) -> tuple[float, float]:
    """Seconds of our own for a token, and how much more the last quarter of an answer takes than the first."""
    with open_engine(str(path), Settings(ctx_size=4096, draft=draft, cache=False)) as engine:
        ids = engine.encode_raw(TEXT).ids
        with without_computing(list(ids)):
            events = engine.reply(Prompt(ids[:8]), Sampling(max_tokens=TOKENS))
            times = [time.perf_counter() for _ in events]
    steps = [after - before for before, after in itertools.pairwise(times[2:])]
    quarter = len(steps) // 4
    growth = statistics.median(steps[-quarter:]) / statistics.median(steps[:quarter])
    return sum(steps) / len(steps), growth


def sampling_s(path: Path) -> tuple[float, float, int]:
    """Median seconds for one token: choosing it with default settings, and computing it. The size of the vocabulary."""
    with closing(LlamaDecoder(path, LoadOptions(n_ctx=1024, threads=default_threads()))) as decoder:
        decoder.feed(decoder.vocab.tokenize(TEXT), bool)
        sampling, steps = [], []
        with closing(decoder.sampler(Sampling(), 1)) as sampler:
            for _ in range(SAMPLES):
                begin_s = time.perf_counter()
                token = sampler.sample()
                chosen_s = time.perf_counter()
                decoder.feed((token,), bool)
                sampling.append(chosen_s - begin_s)
                steps.append(time.perf_counter() - chosen_s)
        return statistics.median(sampling), statistics.median(steps), decoder.vocab.n_tokens


def main() -> None:
    """Print both tables."""
    argparse.ArgumentParser(prog="scripts/bench_loop", description="What a token costs beside computing.").parse_args()
    print(f"{machine()}\n")
    default = locate("smollm2-135m").model.path
    models = [default, *([GEMMA] if GEMMA.exists() else [])]
    print("| our own part of a token | drafting | µs | target | met | last quarter of 2,000 tokens / first |")
    print("|---|---|---:|---:|---|---:|")
    for path, draft in itertools.product(models, ("off", "ngram")):
        seconds, growth = loop_s(path, draft)
        met = "yes" if seconds <= MOST_LOOP_S else "**no**"
        target = f"≤ {1e6 * MOST_LOOP_S:.0f} | {met}" if draft == "off" else "– | –"
        print(f"| {path.stem} | {draft} | {1e6 * seconds:.1f} | {target} | {growth:.2f} |", flush=True)
    print("\n| sampling, default settings | tokens | µs | share of a decode step | target | met |")
    print("|---|---:|---:|---:|---:|---|")
    for path in models:
        seconds, step_s, n_tokens = sampling_s(path)
        share = seconds / step_s
        met = "yes" if share <= MOST_SAMPLING else "**no**"
        cells = f"{n_tokens:,} | {1e6 * seconds:.0f} | {100 * share:.1f} %"
        print(f"| {path.stem} | {cells} | ≤ {100 * MOST_SAMPLING:.0f} % | {met} |", flush=True)


if __name__ == "__main__":
    main()
