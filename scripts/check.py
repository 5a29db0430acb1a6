"""Runs every check and every test, also after one has failed. Started by scripts/check."""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

CHECKS = {
    "format": "ruff format --check .",
    "lint": "ruff check .",
    "types": "mypy",
    "types of the scripts": "mypy scripts",
    "layers": "lint-imports --no-logo",
    "help texts in README": "cog -I scripts --check README.md",  # to renew them: -r instead of --check
}
COVERAGE = ("--cov", "--cov-report=term")  # slow on Python 3.11
FAST_TESTS = ("-m", "not slow and not model")


def main() -> int:
    """Run all of it; 0 where all of it passed."""
    parser = argparse.ArgumentParser(prog="scripts/check", description="Run every check and every test.")
    parser.add_argument("--fast", action="store_true", help="leave out slow tests and real models")
    parser.add_argument("--coverage", action="store_true", help="count the lines that are run; they must be 85 %%")
    parser.add_argument("pytest", nargs="*", metavar="-- ARGUMENT", help="goes to pytest")
    options = parser.parse_args()
    chosen = (*(FAST_TESTS if options.fast else ()), *(COVERAGE if options.coverage else ()))
    tests = ("pytest", *chosen, *options.pytest)
    commands = {name: tuple(line.split()) for name, line in CHECKS.items()} | {"tests": tests}
    started = time.monotonic()
    failed = [name for name, command in commands.items() if not passes(name, command)]
    verdict = f"failed: {', '.join(failed)}" if failed else "all passed"
    print(f"\n{verdict} ({time.monotonic() - started:.0f} s)")
    return 1 if failed else 0


def passes(name: str, command: Iterable[str]) -> bool:
    """Run one check with its output shown."""
    print(f"\n── {name}", flush=True)
    started = time.monotonic()
    program, *arguments = command
    code = subprocess.run([BIN / program, *arguments], cwd=ROOT).returncode
    print(f"{'failed' if code else 'passed'}: {name} ({time.monotonic() - started:.1f} s)", flush=True)
    return code == 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
