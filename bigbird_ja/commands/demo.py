"""Goes the whole road on a small generated corpus, on this machine's CPU.

Makes a corpus, trains a tokenizer, makes data, pretrains a tiny BigBird, kills its own training
with SIGKILL midway, resumes it, compares the steps that were made twice, evaluates, fills three
masked sentences and writes a report. Every step is one of the commands, run as you would run it.

Reads nothing. Writes everything under --work_dir; run again, it goes on. Takes
under 2 minutes on two cores.
"""

from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags

EXAMPLE = "bigbird-ja demo --work_dir demo"
NEEDS = ("tensorflow", "jax")


def define_flags(flags: Flags) -> None:
    """Declares the command's flags."""
    folder = "Folder for everything that the demo makes; a second run goes on with it."
    flags.path("work_dir", folder, default="out/demo")
    flags.integer("num_train_steps", 360, "Training steps.", unit="steps", low=80, high=10**9)


def run(args: Args) -> dict[str, Any]:
    """Run the demo."""
    from bigbird_ja.workflows import demo

    return demo.run(args.work_dir, args.num_train_steps)
