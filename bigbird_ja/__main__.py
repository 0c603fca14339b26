"""Starts `bigbird-ja`, also as `python -m bigbird_ja`; handles signals before it imports."""

import os
import signal
import sys


def main() -> None:
    """Runs the command line."""
    # The images with TPUEstimator have 3.10, which nothing else is promised on.
    if sys.version_info < (3, 10):  # noqa: UP036
        found = "{}.{}".format(*sys.version_info[:2])
        _end(2, "bad_input", f"Python {found} is too old: use Python 3.11, 3.12 or 3.13")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)
    from bigbird_ja import cli

    cli.main()


def _leave(number: int, frame: object) -> None:
    """Ends the process at once: nothing has begun."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    message = f"interrupted ({name}) before anything was done: run the same command again"
    _end(75, "interrupted", message)


def _end(status: int, reason: str, message: str) -> None:
    """Ends the process as `process.errors` would, which is not imported yet."""
    try:
        os.write(2, f"bigbird-ja: {message}\n".encode())
        if "--json" in sys.argv:
            os.write(1, f'{{"reason": "{reason}", "error": "{message}"}}\n'.encode())
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
