"""`bigbird-ja` with a clock of the test's own: time limits end at a step and not by the minute.

`python -m testkit.clocked WORDS...` runs a command; where ENDS_AT_STEP is set, `pretrain`'s
--max_train_minutes are over once that many steps were made by this process.
"""

import os
import sys

from testkit import instants


def main():
    """Run the command of this process's arguments."""
    from bigbird_ja import cli
    from bigbird_ja.cli.tensorflow_setup import prepare_tensorflow

    limits, steps = instants.Limits(), 0

    def mark(phase):
        nonlocal steps
        steps += phase == "step"
        if steps == 1 + int(os.environ["ENDS_AT_STEP"]):  # the first is before the first step
            limits.end()

    if "ENDS_AT_STEP" in os.environ and "pretrain" in sys.argv:
        prepare_tensorflow(os.environ)  # before it is imported
        instants.watch(mark, limits)
    cli.main(sys.argv[1:])


if __name__ == "__main__":
    main()
