"""Starts `bigbird-ja`, also as `python -m bigbird_ja`; handles signals before it imports."""

import os
import signal
import sys
from types import FrameType

_STATUS = 75  # `errors.Interrupted`, which is not imported yet


def main() -> None:
    """Runs the command line."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)
    from bigbird_ja import cli

    cli.main()


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the process at once: nothing has begun."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    message = f"interrupted ({name}) before anything was done: run the same command again"
    try:
        os.write(2, f"bigbird-ja: {message}\n".encode())
        if "--json" in sys.argv:
            os.write(1, f'{{"reason": "interrupted", "error": "{message}"}}\n'.encode())
    finally:
        os._exit(_STATUS)


if __name__ == "__main__":
    main()
