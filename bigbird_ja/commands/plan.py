"""Estimate tokens, steps, hours and cost, before anything is rented.

  bigbird-ja plan --config base-4096 --data_dir gs://MY-BUCKET/data
  bigbird-ja plan --config base-4096 --preflight slices.json
  bigbird-ja plan --config continue-8192 --init_from encoder --max_cost 5

Reads a config and, if given, the config.json of --init_from, a data set's manifest, results of
`preflight --output` and a table of prices. Writes nothing. Takes a second. With --init_from the
model has the sizes of that encoder. With --max_cost it also shows the steps, tokens and epochs that
this budget pays for on each machine.

Hours are rented time, including saves, restarts and work that is repeated after preemptions. The
time of a step is computed from the compiler's output, and fitted to published times of steps on
real chips (docs/lab/clock.md). With --preflight, this output is that of the run's own step. The
printed interval of a step's time covers 80 % of the published times. Costs include only the
machine: the storage of a base model costs less than a dollar a month, and traffic within a region
is free.

Compares one machine of each TPU from v2 to v7x, every slice in --preflight, and the free machines
of Kaggle and Colab. Zones are those that `launch` tries by default: the region and the continent of
--data_dir, or the US without it, since traffic from another continent costs more than a cheaper
zone saves. The price is that of the most expensive of these zones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import read_sets
from bigbird_ja.cli.spelling import spell_flags
from bigbird_ja.settings.variants import list_used_settings

if TYPE_CHECKING:
    from bigbird_ja.plan.run import PlanResult

EXAMPLE = "bigbird-ja plan --config base-4096"
SETTINGS = list_used_settings("plan")


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    guess = "estimated from Wiki40b's size"
    flags.path("data_dir", "Data set of `make-data`.", none=guess)
    flags.path(
        "init_from",
        "Hugging Face folder to start from, as in `pretrain`: its sizes replace the config's.",
    )
    flags.setting("training.num_train_steps")
    kind = "Accelerator type to compare, such as v5e-8 or v5e-32 (repeatable)."
    flags.text("accelerator_type", kind, many=True, none="one machine of each TPU")
    flags.path("preflight", "Results of `preflight --output`: the time of the run's own step.")
    flags.path("price_file", "YAML file that overrides built-in prices.")
    budget = "Budget; a table shows the steps that it pays for."
    flags.number("max_cost", None, budget, unit="US dollars", low=0.01, high=1e9, none="no budget")
    preempted = "Expected preemptions of a spot machine per hour."
    flags.number("preemptions_per_hour", 0.25, preempted, low=0.0, high=1000)


def run(args: Args) -> PlanResult:
    """Plan a run and print the table of machines."""
    from bigbird_ja.plan import show
    from bigbird_ja.plan.run import plan

    result = plan(
        config=args.config,
        overrides=read_sets(args.set),
        num_train_steps=args.num_train_steps,
        data_dir=args.data_dir,
        init_from=args.init_from,
        accelerator_types=args.accelerator_type,
        preflight=args.preflight,
        price_file=args.price_file,
        max_cost=args.max_cost,
        preemptions_per_hour=args.preemptions_per_hour,
    )
    print(spell_flags(show.describe(result), [*args]))
    return result
