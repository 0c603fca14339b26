"""Time limits of `pretrain` that expire after a given step, instead of after some minutes."""

import functools

from bigbird_ja.train import start
from testkit import instants


def end_at_step(number):
    """Let the limit --max_train_minutes of a later `pretrain` expire after `number` steps."""
    limits, marks = instants.Limits(), 0

    def mark(phase):
        nonlocal marks
        marks += phase == "step"
        # The phase "step" is marked once before the first step, and then after steps.
        if marks == 1 + number:
            limits.end()

    instants.watch(mark)
    start.Dependencies = functools.partial(start.Dependencies, timer=limits.timer)
