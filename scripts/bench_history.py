"""How fast stored conversations are found. Started by scripts/bench_history.

Builds a history of so many megabytes of text whose words are as frequent as those of a language (Zipf's law), and times
each kind of search beside what it replaces: SQLite looking through all of the text (LIKE). Both in turn, on files that
are in the page cache; a first round does not count.
"""

import argparse
import itertools
import os
import random
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from bench_cli import PROGRAM, at_most
from bench_peers import machine

from localllm import Message
from localllm.session.transcripts import FILE_NAME, Transcripts

SYLLABLES = "ba re to li ka mo ne su vi dor fen gal his jan kel lum mar nor pit quo ras sil tem ur wen"
N_WORDS = 40_000
MESSAGE_WORDS, CONVERSATION_MESSAGES = (10, 30, 80, 150, 300), (2, 2, 6, 20, 100)
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
    options = parser.parse_args()
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


if __name__ == "__main__":
    main()
