"""Runs a whole proof and writes commit and result into docs/proofs.md. Started by scripts/prove.

How a proof is written, and what the sample is that scripts/check runs: tests/proofs.py.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "proofs.md"
HEADER = """# Proofs

Whole proofs, run by `scripts/prove NAME`, which adds a row. `scripts/check` runs a seeded sample of each.

| Date (UTC) | Commit | Proof | Result | Cases | Duration | Processor |
|---|---|---|---|---:|---:|---|
"""


class Proof:
    """A pytest plugin: keeps only the tests of one proof, and counts what they looked at."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.names: set[str] = set()
        self.cases = 0
        self.outcomes: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        named = [(item, mark.args[0]) for item in items for mark in item.iter_markers("proof")]
        self.names = {name for _, name in named}
        items[:] = [item for item, name in named if name == self.name]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.outcomes.add(report.outcome)
            self.cases += sum(int(str(value)) for key, value in report.user_properties if key == "cases")

    @property
    def result(self) -> str:
        """What the row says: a proof that skipped something has proved nothing."""
        for outcome in ("failed", "skipped"):
            if outcome in self.outcomes:
                return outcome
        return "passed"


def main() -> int:
    """Run the proof that is named, and record it; 0 where it holds."""
    parser = argparse.ArgumentParser(prog="scripts/prove", description="Run a whole proof and record it.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", help="the proof to run")
    what.add_argument("--list", action="store_true", help="name all proofs")
    name: str | None = parser.parse_args().name
    proof = Proof(name)
    os.chdir(ROOT)
    os.environ["LOCALLLM_PROOF"] = "full"  # read by tests/proofs.py
    started = time.monotonic()
    code = pytest.main(["--verbose", "--timeout=0"] if name else ["--collect-only", "-qq"], plugins=[proof])
    if name is None:
        print("\n".join(sorted(proof.names)))
        return 0
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        print(f"There is no proof {name!r}, only: {', '.join(sorted(proof.names)) or 'none'}.", file=sys.stderr)
        return 2
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return code  # interrupted, or not even started: no result
    duration = f"{time.monotonic() - started:.0f} s"
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    record(today, commit(), name, proof.result, f"{proof.cases:,}", duration, processor())
    return 0 if proof.result == "passed" else 1


def commit() -> str:
    """The commit that was proved; "+" where the working tree differs from it."""
    head = _output("git", "rev-parse", "--short", "HEAD") or "none"
    changed = _output("git", "status", "--porcelain", "--", ".", f":!{RECORD.relative_to(ROOT)}")
    return head + ("+" if changed else "")


def processor() -> str:
    """The processor's own name, as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", cpuinfo.read_text() if cpuinfo.exists() else "")
    return found[1] if found else _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()


def record(*row: str) -> None:
    """Append one row to the table, and show it."""
    RECORD.parent.mkdir(exist_ok=True)
    if not RECORD.exists():
        RECORD.write_text(HEADER, "utf-8")
    line = f"| {' | '.join(row)} |\n"
    with RECORD.open("a", encoding="utf-8") as file:
        file.write(line)
    print(line, end="")


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:  # the program is not installed
        return ""


if __name__ == "__main__":
    sys.exit(main())
