"""`bigbird-ja` with a clock of the test's own: time limits end at a step and not by the minute.

`python -m testkit.clocked WORDS...` runs a command; where ENDS_AT_STEP is set, `pretrain`'s
--max_train_minutes are over once that many steps were made by this process.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable


class Limits:
    """Time limits that are over when the test says so."""

    def __init__(self) -> None:
        self._acts: list[Callable[[], None]] = []

    def timer(self, seconds: float, act: Callable[[], None]) -> Limit:
        """In the place of `Dependencies.timer`."""
        return Limit(self._acts, act)

    def end(self) -> None:
        """Ends those that run."""
        for act in self._acts:
            act()


class Limit:
    """One of them."""

    def __init__(self, running: list[Callable[[], None]], act: Callable[[], None]) -> None:
        self._running, self._act = running, act

    def start(self) -> None:
        """The limit holds from here on."""
        self._running.append(self._act)

    def cancel(self) -> None:
        """And no longer."""
        self._running.remove(self._act)


def main() -> None:
    """Runs the command of this process's arguments."""
    from bigbird_ja.cli import main as cli
    from bigbird_ja.commands import pretrain
    from bigbird_ja.train.job import Dependencies

    limits, marks = Limits(), 0

    def mark(phase: str, step: int = 0) -> None:
        nonlocal marks
        marks += phase == "step"
        if marks == 1 + int(os.environ["ENDS_AT_STEP"]):  # the first is before the first step
            limits.end()

    if "ENDS_AT_STEP" in os.environ:
        deps = Dependencies(mark=mark, timer=limits.timer)
        pretrain.run = functools.partial(pretrain.run, deps=deps)
    cli.main(sys.argv[1:])


if __name__ == "__main__":
    main()
