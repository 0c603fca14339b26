"""Run every stage on a small generated corpus, on this machine's CPU.

Makes a corpus, trains a tokenizer, makes data, pretrains a tiny BigBird, kills the training with
SIGKILL midway, resumes it, compares the losses of the repeated steps, evaluates, fills three masked
sentences and writes a report. Each stage is a command, run as you would run it.

Reads nothing. Writes everything under --work_dir; a second run continues. Takes 2 to 4 minutes on
two cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags

if TYPE_CHECKING:
    from bigbird_ja.demo.demo import DemoResult

EXAMPLE = "bigbird-ja demo --work_dir demo"
NEEDS = ("tensorflow", "jax")


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    folder = "Local folder for all files of the demo; a second run continues in it."
    flags.path("work_dir", folder, default="out/demo")
    flags.integer("num_train_steps", 360, "Training steps.", unit="steps", low=80, high=10**9)


def run(args: Args) -> DemoResult:
    """Run the demo, and print its summary."""
    from bigbird_ja.demo import demo

    result = demo.demo(work_dir=args.work_dir, num_train_steps=args.num_train_steps)
    print(demo.summarize(result))
    return result
