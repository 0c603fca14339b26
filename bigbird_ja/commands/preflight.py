"""Compile the train step with the real TPU compiler, without a TPU.

  bigbird-ja preflight --config base-4096 --chip v5e
  bigbird-ja preflight --config base-4096 --topology v5e:2x4 --topology v6e:2x4
  bigbird-ja preflight --topology v5e:2x4 --data_dir gs://BUCKET/data --keep gs://BUCKET/run

Compiles the step that `pretrain --engine pjrt` runs, for one core of each --chip and for all
devices of each --topology together, with their all-reduces. Prints whether it fits, its cycles and
milliseconds, FLOPs, HBM traffic, MFU, and the most expensive ops. Reads the config and the manifest
of --data_dir; needs no network and no TPU. Writes only --output, --dump_hlo and --keep. A 12-layer
step takes three to five minutes per chip on one CPU core; --search_batch compiles three or four
times. With libtpu 0.0.42 or newer, cycles are also counted in the machine code (v5e, v5p, v6e,
v7x), which takes some minutes more. With --keep a machine with the same slice, settings, data set
and packages loads the step in seconds; any other compiles its own, and logs that. Needs
pip install 'bigbird-ja[preflight]'.
"""

from __future__ import annotations

import functools
from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import resolve
from bigbird_ja.settings.variants import used_by

EXAMPLE = "bigbird-ja preflight --config base-4096 --chip v5e --search_batch"
NEEDS = ("tensorflow", "jax")  # libtpu, too: `compile.versions` checks it later
SETTINGS = used_by("preflight")


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    chips = "Chip to compile for: v2, v3, v4, v5e, v5p, v6e or v7x; no default with --topology."
    flags.text("chip", chips, many=True, default=["v5e"])
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
    flags.switch("search_batch", "Finds the largest batch per core that fits.")
    flags.path("dump_hlo", "Folder for the HLO before and after optimization.")
    lengths = "Data set of `make-data` that gives sequence and document lengths."
    flags.path("data_dir", lengths, none="the config's facts, assumed document lengths")
    kept = "Run of `launch`, BUCKET/NAME: gets the compiled steps of each --topology."
    flags.path("keep", kept)
    flags.path("output", "JSON file for the results, which `plan --preflight` reads.")


def run(args: Args) -> dict[str, Any]:
    """Compile for every chip and slice, and print the results."""
    from bigbird_ja.preflight import run

    return run.preflight(args, functools.partial(resolve, args))
