"""the whole road on a small generated corpus, on this machine's CPU

Makes a corpus, trains a tokenizer, makes data, pretrains a tiny BigBird, kills its own training
with SIGKILL midway, resumes it, compares the curve with an uninterrupted run's, evaluates, fills a
masked sentence and writes a report. Every step is one of the commands, run as you would run it.

Reads nothing. Writes everything under --work_dir. Takes under 5 minutes on two cores.
"""

from __future__ import annotations

from typing import Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.settings.schema import SECTIONS

EXAMPLE = "bigbird-ja demo --work_dir demo"
SETTINGS = SECTIONS


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    flags.path(
        "work_dir", "Folder for everything that the demo makes; what is there is continued.",
        default="out/demo",
    )  # fmt: skip
    flags.integer("num_train_steps", 200, "Training steps.", unit="steps", low=40, high=10**9)
    flags.switch("overwrite", "Removes the demo of an earlier time first.")


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Runs the demo; see `bigbird_ja.commands.demo_run`."""
    from bigbird_ja.commands import demo_run

    return demo_run.run(
        args.work_dir,
        num_train_steps=args.num_train_steps,
        overwrite=args.overwrite,
        config=args.config or "tiny-cpu",
        sets=args.set,
    )
