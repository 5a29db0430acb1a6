"""The program and ``python -m localllm``: a signal that comes while its modules load ends it without a word."""

import os
import signal

_INTERRUPTED = 130  # as in errors.EXIT_CODES, which is not loaded yet


def main() -> None:
    """Run the program and exit; see ``cli.main``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(_INTERRUPTED))
    from localllm.cli import main as program

    program.main()


if __name__ == "__main__":
    main()
