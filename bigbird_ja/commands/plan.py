"""Estimate tokens, steps, hours and cost, before anything is rented.

  bigbird-ja plan --config base-4096 --data_dir gs://MY-BUCKET/data
  bigbird-ja plan --config base-4096 --preflight slices.json
  bigbird-ja plan --config modernbert-1024 --config modernbert-8192
  bigbird-ja plan --config continue-8192 --init_from encoder --max_cost 5

Reads a config and, if given, the config.json of --init_from, a data set's manifest, results of
`preflight --output` and a table of prices. Writes nothing. Takes a second.

Several --config are successive runs, each from the weights of the one before; the table shows their
sum. --data_dir and --preflight are then given once for each, in the same order, or not at all. With
--init_from all runs have the sizes of that encoder. --max_cost also shows how many steps, tokens
and epochs that budget pays for on each machine.

Hours are rented time, including saves, restarts and work that is repeated after preemptions. The
training rate is estimated from machine code (v5e, v6e), scaled by how close published runs on real
chips came (docs/lab/clock.md), or else from the compiler's priced cycles; the table says which, and
shows the interval. Costs are the machine's only: the storage of a base model costs less than a
dollar a month, and traffic within a region is free.

Compares one machine of each TPU from v2 to v7x, every slice in --preflight, and the free machines
of Kaggle and Colab. Zones are those that `launch` tries by default: the region and the continent of
--data_dir, or the US without it, since traffic from another continent costs more than a cheaper
zone saves. The price is that of the most expensive of them.
"""

from __future__ import annotations

import functools
from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import resolve
from bigbird_ja.settings.variants import used_by

EXAMPLE = "bigbird-ja plan --config base-4096"
SETTINGS = used_by("plan")
MANY_CONFIGS = True


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    guess = "estimated from Wiki40b's size"
    flags.path("data_dir", "Data set of `make-data`, one for each --config.", many=True, none=guess)
    flags.path(
        "init_from",
        "Hugging Face folder to start from, as in `pretrain`: its sizes replace the config's.",
    )
    flags.setting("training.num_train_steps")
    kind = "Accelerator type to compare, such as v5e-8 or v5e-32 (repeatable)."
    flags.text("accelerator_type", kind, many=True, none="one machine of each TPU")
    rates = (
        "Results of `preflight --output`, one file for each --config: rates from the real compiler."
    )
    flags.path("preflight", rates, many=True)
    flags.path("price_file", "YAML file that overrides built-in prices.")
    budget = "Budget; a table shows the steps that it pays for."
    flags.number("max_cost", None, budget, unit="US dollars", low=0.01, high=1e9, none="no budget")
    flags.number(
        "preemptions_per_hour",
        0.25,
        "Expected preemptions of a spot machine per hour.",
        low=0.0,
        high=1000,
    )


def run(args: Args) -> dict[str, Any]:
    """Plan one run or several successive runs."""
    from bigbird_ja.plan import runs

    return runs.plan(args, functools.partial(resolve, args))
