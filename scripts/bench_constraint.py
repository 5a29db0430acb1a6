"""What holding an answer to a JSON schema costs. Started by scripts/bench_constraint.

At each position of an answer the next token is chosen twice from the same logits: freely, and then by the schema. Both
times, and that of computing the token, are of the same step, so that the ratios do not depend on the machine's load.
"""

import argparse
import json
import statistics
import time
from contextlib import closing
from pathlib import Path

from bench_loop import TEXT
from bench_peers import GEMMA, machine

from localllm import Sampling, json_schema
from localllm.app import locate
from localllm.cores import default_threads
from localllm.engine.grammar import GrammarFilter, GrammarTokens
from localllm.engine.llama import LlamaDecoder, LoadOptions

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "likes"],
}
SCHEMA = {"type": "array", "items": PERSON}
TOKENS = 300


def rows(path: Path) -> list[str]:
    """For greedy and sampled answers: microseconds per token, free and held, and what that is of a decode step."""
    constraint = json_schema(json.dumps(SCHEMA))
    found = []
    with closing(LlamaDecoder(path, LoadOptions(n_ctx=1024, threads=default_threads()))) as decoder:
        begin_s = time.perf_counter()
        tokens = GrammarTokens(decoder.vocab, {})
        made_s = time.perf_counter() - begin_s
        for name, sampling in (("greedy", Sampling(temperature=0)), ("default", Sampling())):
            decoder.rewind(0)
            decoder.feed(decoder.vocab.tokenize(TEXT), bool)
            free: list[float] = []
            held: list[float] = []
            steps: list[float] = []
            only = GrammarFilter(tokens, constraint.grammar, "none")
            with closing(decoder.sampler(sampling, 1)) as freely, closing(decoder.sampler(sampling, 1, only)) as kept:
                while len(steps) < TOKENS:
                    times = [time.perf_counter()]
                    freely.sample()
                    times.append(time.perf_counter())
                    token = kept.sample()
                    times.append(time.perf_counter())
                    if decoder.vocab.is_end(token):
                        break
                    decoder.feed((token,), bool)
                    free.append(times[1] - times[0])
                    held.append(times[2] - times[1])
                    steps.append(time.perf_counter() - times[2])
            cost_s = statistics.median(held) - statistics.median(free)
            cells = (f"{1e6 * statistics.median(seconds):.0f}" for seconds in (free, held))
            share = 100 * cost_s / statistics.median(steps)
            once = f"{path.stem} | {decoder.vocab.n_tokens:,} | {made_s:.2f}"
            found.append(f"| {once} | {name} | {' | '.join(cells)} | {share:.1f} % |")
    return found


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(prog="scripts/bench_constraint", description="What --schema costs a token.").parse_args()
    print(f"{machine()}\n")
    print("| model | tokens | once, s | sampling | free, µs | held, µs | the difference, of a decode step |")
    print("|---|---:|---:|---|---:|---:|---:|")
    for path in (locate("smollm2-135m").model.path, *([GEMMA] if GEMMA.exists() else [])):
        print("\n".join(rows(path)), flush=True)


if __name__ == "__main__":
    main()
