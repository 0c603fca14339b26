"""`bigbird-ja` with a clock of the test's own: time limits end at a step and not by the minute.

`python -m testkit.clocked WORDS...` runs a command; where ENDS_AT_STEP is set, `pretrain`'s
--max_train_minutes are over once that many steps were made by this process.
"""

import functools
import os
import sys
import threading


class Limits:
    """Time limits that are over when the test says so."""

    def __init__(self):
        self._timers = []

    def timer(self, seconds, act):
        """Replace `Dependencies.timer`."""
        timer = threading.Timer(threading.TIMEOUT_MAX, act)
        timer.daemon = True
        self._timers.append(timer)
        return timer

    def end(self):
        """End those that run."""
        for timer in self._timers:
            if not timer.finished.is_set():
                timer.function()

    def give_to_pretrain(self, mark):
        """Give `pretrain` these limits, and the callback for its phases and steps."""
        from bigbird_ja.commands import pretrain
        from bigbird_ja.train.job import Dependencies

        deps = Dependencies(mark=mark, timer=self.timer)
        pretrain.run = functools.partial(pretrain.run, deps=deps)


def main():
    """Run the command of this process's arguments."""
    from bigbird_ja import cli

    limits, marks = Limits(), 0

    def mark(phase, step=0):
        nonlocal marks
        marks += phase == "step"
        if marks == 1 + int(os.environ["ENDS_AT_STEP"]):  # the first is before the first step
            limits.end()

    if "ENDS_AT_STEP" in os.environ:
        limits.give_to_pretrain(mark)
    cli.main(sys.argv[1:])


if __name__ == "__main__":
    main()
