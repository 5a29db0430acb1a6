"""How fast stored conversations are found. Started by scripts/bench_history.

Builds a history of so many megabytes of text whose words are as frequent as those of a language (Zipf's law), and times
each kind of search beside what it replaces: SQLite looking through all of the text (LIKE). Both in turn, on files that
are in the page cache; a first round does not count.

With --turns it times instead how a conversation of so many turns goes on, beside one that has as many tokens in three
turns: what differs is the price of turns. Both are in the prefix cache.
"""

import argparse
import itertools
import json
import os
import random
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from bench_cli import PROGRAM, at_most
from bench_peers import machine

from localllm import Message
from localllm.app import locate
from localllm.session.transcripts import FILE_NAME, Transcripts

SYLLABLES = "ba re to li ka mo ne su vi dor fen gal his jan kel lum mar nor pit quo ras sil tem ur wen"
N_WORDS = 40_000
MESSAGE_WORDS, CONVERSATION_MESSAGES = (10, 30, 80, 150, 300), (2, 2, 6, 20, 100)
TURNS_TOKENS, TURN_TOKENS = 6000, 14  # of a conversation; of one of its turns without what the model said
MOST_S, MOST_COMMAND_S = 0.2, 0.5


def vocabulary(draw: random.Random) -> list[str]:
    """Different words, the most frequent first."""
    words = dict.fromkeys("".join(draw.choices(SYLLABLES.split(), k=draw.randint(1, 4))) for _ in range(2 * N_WORDS))
    return list(words)[:N_WORDS]


def conversations(words: list[str], draw: random.Random, size_bytes: int) -> Iterator[list[Message]]:
    """Conversations with so much text in all."""
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    while size_bytes > 0:
        said = []
        for number in range(draw.choice(CONVERSATION_MESSAGES)):
            text = " ".join(draw.choices(words, cum_weights=weights, k=draw.choice(MESSAGE_WORDS)))
            said.append(Message("assistant" if number % 2 else "user", text))
            size_bytes -= len(text)
        yield said


def build(folder: Path, words: list[str], draw: random.Random, size_bytes: int) -> tuple[int, int]:
    """Store them; returns how many conversations and messages there are."""
    count = messages = 0
    with Transcripts.open(folder) as transcripts:
        for said in conversations(words, draw, size_bytes):
            transcripts.begin(" ".join(said[0].text.split()[:6]), "smollm2-135m", "", said)
            count, messages = count + 1, messages + len(said)
    return count, messages


def timed_s(action: Callable[[], object]) -> float:
    """Seconds that it takes."""
    begin_s = time.perf_counter()
    action()
    return time.perf_counter() - begin_s


def search(folder: Path, query: str) -> int:
    """As ``localllm history search`` does it; returns how many conversations were found."""
    with Transcripts.open_to_read(folder) as transcripts:
        return len(transcripts.search([query], 20))


def scan(folder: Path, query: str) -> None:
    """What a search without an index does: look through all messages for those that hold all words."""
    condition = " AND ".join("text LIKE ?" for _ in query.split())
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        words = [f"%{word}%" for word in query.split()]
        connection.execute(f"SELECT key FROM message WHERE {condition} ORDER BY key DESC", words).fetchall()


def main() -> None:
    """Build, search, print."""
    parser = argparse.ArgumentParser(prog="scripts/bench_history", description="How fast conversations are found.")
    parser.add_argument("--megabytes", type=int, default=50, help="text to be stored (default: 50)")
    parser.add_argument("--runs", type=int, default=10, help="rounds that count (default: 10)")
    parser.add_argument("--turns", type=int, help="time a conversation of so many turns instead")
    options = parser.parse_args()
    if options.turns:
        report_turns(options.turns, options.runs)
        return
    draw = random.Random(1)
    words = vocabulary(draw)
    queries = {
        "the most frequent word": words[0],
        "a frequent word": words[20],
        "a rare word": words[20_000],
        "two frequent words": f"{words[5]} {words[9]}",
        "the beginning of many words": words[20_000][:3],
        "what no word begins with": "zzz",
        "a script without spaces": "日本",
    }
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "localllm"
        begin_s = time.perf_counter()
        count, messages = build(folder, words, draw, options.megabytes * 10**6)
        each_ms = 1000 * (time.perf_counter() - begin_s) / count
        size_mb = (folder / FILE_NAME).stat().st_size / 1e6
        print(f"{machine()}; {options.megabytes} MB of text in {count:,} conversations and {messages:,} messages")
        print(f"are a file of {size_mb:.0f} MB; storing one took {each_ms:.1f} ms; {options.runs} rounds\n")
        print("| search for | conversations shown | median ms | target | met | of a LIKE scan |")
        print("|---|---:|---:|---:|---|---:|")
        for name, query in queries.items():
            ours, theirs = partial(search, folder, query), partial(scan, folder, query)
            rounds = [(timed_s(ours), timed_s(theirs)) for _ in range(options.runs + 1)][1:]
            median_s = statistics.median(our_s for our_s, _ in rounds)
            ratio = statistics.median(our_s / their_s for our_s, their_s in rounds)
            target = at_most(1000 * MOST_S, 1000 * median_s)
            print(f"| {name} | {ours()} | {1000 * median_s:.1f} | {target} | {ratio:.2f} |", flush=True)
        report_commands(home, {"history search": queries["a frequent word"], "history list": ""}, options.runs)


def report_commands(home: str, commands: dict[str, str], runs: int) -> None:
    """Print what whole commands take, from their start to their end."""
    print("\n| command | median ms | target | met |\n|---|---:|---:|---|")
    env = os.environ | {"XDG_DATA_HOME": home}
    for name, argument in commands.items():
        command = [PROGRAM, *name.split(), *argument.split()]
        call = partial(subprocess.run, command, env=env, capture_output=True, check=True)
        times = [timed_s(call) for _ in range(runs)]
        median_s = statistics.median(times)
        print(f"| `localllm {name}` | {1000 * median_s:.0f} | {at_most(1000 * MOST_COMMAND_S, 1000 * median_s)} |")


def report_turns(turns: int, runs: int) -> None:
    """Print what going on with a long conversation takes: the whole command, and until its first token.

    Both without prefill: how many tokens of the last block are read again is chance.
    """
    few = 3
    with tempfile.TemporaryDirectory() as home:
        env = os.environ | {"XDG_DATA_HOME": home, "XDG_CACHE_HOME": f"{home}/cache"}
        model = str(locate("smollm2-135m").model.path)
        ids = {count: stored(Path(home) / "localllm", model, count, env) for count in (turns, few)}
        took: dict[int, list[tuple[float, float, int]]] = {count: [] for count in ids}
        for count in [*ids] * (runs + 1):  # in turn
            begin_s = time.perf_counter()
            stats = answered(ids[count], model, env, "--no-log")
            whole_s, prefill_s = time.perf_counter() - begin_s, stats["prefill_s"]
            took[count].append((whole_s - prefill_s, stats["ttft_s"] - prefill_s, stats["cached_tokens"]))
    print(f"{machine()}; {runs} rounds\n\n| turns | cached tokens | whole command, s | TTFT, s |")
    print("|---:|---:|---:|---:|")
    for count, rounds in took.items():
        whole_s, ttft_s, cached = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
        print(f"| {count} | {cached:.0f} | {whole_s:.3f} | {ttft_s:.3f} |")
    pairs = list(zip(took[turns], took[few], strict=True))[1:]
    whole, ttft = (statistics.median(many[i] / three[i] for many, three in pairs) for i in (0, 1))
    print(f"\n{turns} turns over {few}: {whole:.2f} of the whole command, {ttft:.2f} of TTFT")


def stored(folder: Path, model: str, turns: int, env: Mapping[str, str]) -> str:
    """The id of a new conversation of so many turns, which is in the prefix cache."""
    words = TURNS_TOKENS // turns - TURN_TOKENS
    said = []
    for number in range(turns):
        said += [Message("user", f"{number}"), Message("assistant", "two " * words)]
    with Transcripts.open(folder) as transcripts:
        id = transcripts.begin("Numbers", model, "", said).summary.id
    answered(id, model, env)
    return id


def answered(id: str, model: str, env: Mapping[str, str], *options: str) -> dict[str, Any]:
    """Go on with the conversation by one token; returns what the turn tells of itself."""
    command = [PROGRAM, "ask", "-m", model, "--cid", id, "--max-tokens", "1", "--json", *options, "And?"]
    done = subprocess.run(command, env=env, capture_output=True, check=True, text=True)
    stats: dict[str, Any] = json.loads(done.stdout)["stats"]
    return stats


if __name__ == "__main__":
    main()
