"""Compile the train step with the real TPU compiler, without a TPU.

  bigbird-ja preflight --config base-4096 --chip v5e
  bigbird-ja preflight --config base-4096 --topology v5e:2x4 --topology v6e:2x4
  bigbird-ja preflight --topology v5e:2x4 --data_dir gs://BUCKET/data --keep gs://BUCKET/run

Compiles the step that `pretrain --engine pjrt` runs, for one core of each --chip and for all
devices of each --topology together, with their all-reduces. Prints whether the step fits in memory,
its expected time with an interval, FLOPs, HBM traffic, MFU, and the most expensive ops. Reads the
config, the manifest of --data_dir and the config.json of --init_from; needs no network and no TPU.
Writes only --output, --dump_hlo and --keep. A 12-layer step takes three to five minutes per chip on
one CPU core; --search_batch compiles three or four times. With libtpu 0.0.42 or newer, cycles are
also counted in the machine code, which takes some minutes more. With --keep a machine with the same
slice, settings, data set and packages loads the step in seconds. Any other machine compiles its own
step, and logs that it does. Needs pip install 'bigbird-ja[preflight]'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import read_sets
from bigbird_ja.cli.spelling import spell_flags
from bigbird_ja.settings.variants import list_used_settings

if TYPE_CHECKING:
    from bigbird_ja.preflight.results import PreflightResult

EXAMPLE = "bigbird-ja preflight --config base-4096 --chip v5e --search_batch"
# libtpu is not listed, since `compile.read_versions` checks it.
NEEDS = ("tensorflow", "jax")
SETTINGS = list_used_settings("preflight")


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    chips = "Chip to compile for: v2, v3, v4, v5e, v5p, v6e or v7x (repeatable)."
    flags.text("chip", chips, many=True, none="v5e, or none with --topology")
    slices = "Slice to compile for, as CHIP:SHAPE, such as v5e:2x4 or v4:2x2x1."
    flags.text("topology", slices, many=True)
    flags.integer(
        "batch_per_core",
        None,
        "Sequences per core and micro-batch.",
        unit="sequences",
        low=1,
        high=1_000_000,
        none="global batch / cores / accumulation steps",
    )
    flags.switch("search_batch", "Find the largest batch per core that fits.")
    flags.path("dump_hlo", "Folder for the HLO before and after optimization.")
    lengths = "Data set of `make-data` that gives sequence and document lengths."
    flags.path("data_dir", lengths, none="the config's facts, assumed document lengths")
    flags.path(
        "init_from",
        "Hugging Face folder to start from, as in `pretrain`: its sizes replace the config's.",
    )
    kept = "BUCKET/NAME of a run of `launch`, to which the step of each --topology is written."
    flags.path("keep", kept)
    flags.path("output", "JSON file for the results, which `plan --preflight` reads.")


def run(args: Args) -> PreflightResult:
    """Compile for every chip and slice, and print the results."""
    from bigbird_ja.accelerators import environment
    from bigbird_ja.preflight import figures
    from bigbird_ja.preflight.run import preflight

    result = preflight(
        config=args.config,
        overrides=read_sets(args.set),
        chips=args.chip,
        topology=args.topology,
        batch_per_core=args.batch_per_core,
        search_batch=args.search_batch,
        dump_hlo=args.dump_hlo,
        data_dir=args.data_dir,
        init_from=args.init_from,
        keep=args.keep,
        output=args.output,
        on_result=lambda step: print(spell_flags(figures.describe(step), [*args]), "\n"),
    )
    print(f"Compiled with {environment.describe(result.versions)}.")
    print(
        "Not in these figures: input, saving, logging; nothing was timed on a TPU\n"
        "(docs/design/preflight.md, docs/lab/clock.md)"
    )
    return result
