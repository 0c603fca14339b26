"""the whole road on a small generated corpus, on this machine's CPU

Makes a corpus, trains a tokenizer, makes data, pretrains a tiny BigBird, kills its own training
with SIGKILL midway, resumes it, compares the curve with an uninterrupted run's, evaluates, fills a
masked sentence and writes a report. Every step is one of the commands, run as you would run it.

Reads nothing. Writes everything under --work_dir. Takes under five minutes on two cores.
"""

from __future__ import annotations

from typing import Any

from absl import flags

EXAMPLE = "bigbird-ja demo --work_dir demo"


def define_flags(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_string(
        "work_dir",
        "out/demo",
        "Folder for everything that the demo makes; what is there is continued.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "num_train_steps", 200, "Training steps.", lower_bound=40, flag_values=values
    )
    flags.DEFINE_bool(
        "overwrite", False, "Removes the demo of an earlier time first.", flag_values=values
    )


def run(args: flags.FlagValues) -> dict[str, Any]:
    """Runs the demo; see `bigbird_ja.demo`."""
    from bigbird_ja import config as config_lib
    from bigbird_ja import demo

    return demo.run(
        args.work_dir,
        num_train_steps=args.num_train_steps,
        overwrite=args.overwrite,
        config_path=args.config or config_lib.preset_path("tiny-cpu"),
        sets=args.set,
    )
