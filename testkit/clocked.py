"""Time limits of `pretrain` that end at a step instead of a minute."""

import functools

from bigbird_ja.train import start
from testkit import instants


def end_at_step(number):
    """End the limits of later calls of `pretrain` once this process has made `number` steps."""
    limits, marks = instants.Limits(), 0

    def mark(phase):
        nonlocal marks
        marks += phase == "step"
        # The first mark is before the first step.
        if marks == 1 + number:
            limits.end()

    instants.watch(mark)
    start.Dependencies = functools.partial(start.Dependencies, timer=limits.timer)
