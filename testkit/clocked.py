"""Time limits of `pretrain` that expire at a step, instead of after some minutes."""

import functools

from bigbird_ja.train import start
from testkit import instants


def end_at_step(number):
    """Let --max_train_minutes of later calls of `pretrain` expire after `number` steps."""
    limits, marks = instants.Limits(), 0

    def mark(phase):
        nonlocal marks
        marks += phase == "step"
        # The first instant of the phase "step" is before the first step.
        if marks == 1 + number:
            limits.end()

    instants.watch(mark)
    start.Dependencies = functools.partial(start.Dependencies, timer=limits.timer)
