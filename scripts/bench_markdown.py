"""What showing Markdown while it streams costs a token. Started by scripts/bench_markdown.

Long answers of several kinds come at several rates; the clock that spaces the drawings is simulated, the time that they
take is the processor's. Beside it stands printing the same pieces as they are.
"""

import argparse
import io
import subprocess
import sys
import time

from localllm.terminal.live import MarkdownWriter, Screen
from localllm.terminal.render import View, _PlainWriter

TOKEN_CHARS = 4
RATES_TOK_S = (5, 20, 80, 300)
_PROSE = "The river rose in **spring**, and people carried what they owned up the `hill` to the church. " * 7 + "\n\n"
_CODE = "".join(f"def f{n}(x: int) -> str:\n    # note {n}\n    return str(x + {n})\n\n" for n in range(30))
_LIST = "".join(f"{n}. **Item {n}**: a sentence that says something about the item.\n" for n in range(1, 30))
_TABLE = "| a | b | c |\n|---|---|---|\n" + "".join(f"| {n} | value {n} | something longer {n} |\n" for n in range(20))
ANSWERS = {
    "prose": _PROSE * 10,
    "code": f"```python\n{_CODE}```\n\n" * 3,
    "list": f"{_LIST}\nThen:\n\n" * 3,
    "table": f"{_TABLE}\nThen:\n\n" * 4,
}


def main() -> int:
    """Print the table."""
    argparse.ArgumentParser(prog="scripts/bench_markdown", description="What Markdown costs a token.").parse_args()
    print(f"Loading it: {1000 * loading_s():.0f} ms more than the rest of the renderer\n")
    print("| answer | printed as it is | " + " | ".join(f"at {rate} tok/s" for rate in RATES_TOK_S) + " |")
    print("|---|---|" + "---|" * len(RATES_TOK_S))
    for name, answer in ANSWERS.items():
        pieces = [answer[at : at + TOKEN_CHARS] for at in range(0, len(answer), TOKEN_CHARS)]
        cells = []
        for rate_tok_s in RATES_TOK_S:
            token_s = rendered_s(pieces, rate_tok_s) / len(pieces)
            cells.append(f"{1000 * token_s:.2f} ms ({100 * token_s * rate_tok_s:.1f} %)")
        print(f"| {name} | {1e6 * printed_s(pieces) / len(pieces):.1f} µs | {' | '.join(cells)} |")
    return 0


def rendered_s(pieces: list[str], rate_tok_s: float) -> float:
    """The processor's time for an answer that comes at this rate, on 80 columns and 24 rows."""
    begin_s, waited_s = time.process_time(), 0.0
    screen = Screen(io.StringIO(), lambda: (80, 24))
    writer = MarkdownWriter(screen, clock=lambda: waited_s + time.process_time() - begin_s)
    for piece in pieces:
        writer.write(piece)
        waited_s += 1 / rate_tok_s
    writer.finish()
    return time.process_time() - begin_s


def printed_s(pieces: list[str]) -> float:
    """The processor's time for printing the pieces as they are."""
    begin_s = time.process_time()
    writer = _PlainWriter(View(io.StringIO(), io.StringIO()))
    for piece in pieces:
        writer.write(piece)
    writer.finish()
    return time.process_time() - begin_s


def loading_s() -> float:
    """The fastest of five imports, less the fastest import of what prints plainly."""

    def fastest_s(code: str) -> float:
        times_s = []
        for _ in range(5):
            begin_s = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times_s.append(time.perf_counter() - begin_s)
        return min(times_s)

    return fastest_s("import localllm.terminal.live") - fastest_s("import localllm.terminal.render")


if __name__ == "__main__":
    sys.exit(main())
