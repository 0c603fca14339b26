"""Compile the train step with the real TPU compiler, with no TPU.

  bigbird-ja preflight --config base-4096 --chip v3 --chip v2
  bigbird-ja preflight --config base-4096 --topology v5e:2x4 --topology v6e:2x4

Traces the step that `pretrain` runs (loss, gradients, optimiser) with the config's shapes and
compiles it for one core of each --chip, and for all devices of each --topology together, with the
sums over them: the program that `pretrain --engine pjrt` runs there. Reports whether it fits, its
cycles and milliseconds, FLOPs, HBM traffic, MFU, and the costliest ops. Reads the config only: no
data, no network, no TPU. Writes only --output, --dump_hlo and a cache of compilations
(~/.cache/bigbird-ja). A 12-layer step takes three to five minutes per chip on one CPU core, the
second time seconds; --search_batch compiles three or four times. With a libtpu from 0.0.42 it also
counts cycles by machine code (v5e, v5p, v6e, v7x): some minutes more.
Needs pip install 'bigbird-ja[preflight]'.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.settings.schema import used_by

if TYPE_CHECKING:
    from bigbird_ja.preflight.compile import CompileOptions
    from bigbird_ja.preflight.estimate import Traced
    from bigbird_ja.preflight.targets import Target
    from bigbird_ja.settings import Data
    from bigbird_ja.settings.schema import Config

EXAMPLE = "bigbird-ja preflight --config base-4096-v2 --chip v2 --search_batch"
NEEDS = ("tensorflow", "jax")  # the compiler, libtpu, when all else has been checked
SETTINGS = used_by("preflight")


def define_flags(flags: Flags) -> None:
    """Declare the command's own flags."""
    chips = "v2, v3, v4, v5e, v5p, v6e or v7x; left out beside --topology."
    flags.text("chip", chips, many=True, default=["v3"])
    slices = "CHIP:SHAPE, a whole slice such as v5e:2x4, v4:2x2x1 or v3:2x2."
    flags.text("topology", slices, many=True)
    flags.integer(
        "batch_per_core",
        None,
        "Sequences per core and micro-batch.",
        unit="sequences",
        low=1,
        high=1_000_000,
        none="the config's global batch by cores and accumulation",
    )
    flags.switch("search_batch", "Finds the largest batch per core that fits.")
    flags.path("dump_hlo", "DIRECTORY for the HLO that went in and the optimised one.")
    flags.path("output", "JSON file for the results; `plan --preflight` reads it.")
    longest = "Longest time for one compilation."
    flags.number("timeout_minutes", 60.0, longest, unit="minutes", low=0.1, high=1e5)
    flags.switch("cache", "Keeps compilations and reuses them.", default=True)
    listed = "Cycles by machine code too: v5e, v5p, v6e, v7x with a libtpu from 0.0.42."
    flags.switch("machine_code", listed, default=True)


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Compile for every chip and slice, and print the results."""
    from bigbird_ja.cli import command_flags
    from bigbird_ja.model.params import count_parameters
    from bigbird_ja.preflight import compile as compile_lib
    from bigbird_ja.preflight import estimate, figures, targets
    from bigbird_ja.process.console import log
    from bigbird_ja.settings import requested_data
    from bigbird_ja.settings.resolve import fit_to_data
    from bigbird_ja.settings.values import config_fingerprint, flatten
    from bigbird_ja.storage import outputs

    _check_outputs(args)
    only_slices = args.topology and not args["chip"].present
    chips = [] if only_slices else [targets.of_chip(name) for name in dict.fromkeys(args.chip)]
    config, overrides = command_flags.resolve(args)
    data = requested_data(config)
    config = fit_to_data(config, data, overrides)
    estimate.check_length(config, data)

    def with_batch(target: Target) -> tuple[Target, int]:
        return target, args.batch_per_core or estimate.batch_per_core(config, target)

    wanted = [with_batch(chip) for chip in chips]
    slices = targets.of_topologies(list(dict.fromkeys(args.topology)), compile_lib.count_devices)
    wanted += [with_batch(slice_) for slice_ in slices]
    versions = compile_lib.versions()
    log(f"settings:\n{command_flags.echo(args, config, overrides)}")
    options = compile_lib.CompileOptions(
        cache_dir=compile_lib.default_cache_dir(dict(os.environ)) if args.cache else None,
        timeout=60.0 * args.timeout_minutes,
        dump_dir=args.dump_hlo,
        machine_code=args.machine_code,
    )
    traced: Traced = {}
    results = []
    for target, batch in wanted:
        results.append(_examine(config, data, target, batch, options, traced, args.search_batch))
        print(figures.describe(results[-1]), "\n")
    print(figures.limitations(config, count_parameters(config, data), results, versions))
    output = {
        "chips": [result for result in results if "topology" not in result],
        "topologies": [result for result in results if "topology" in result],
        "config_fingerprint": config_fingerprint(config, data),
        "config": flatten(config, data),
        "versions": versions,
    }
    if args.output:
        outputs.write(args.output, json.dumps(output, indent=1).encode())
    return output


def _check_outputs(args: absl_flags.FlagValues) -> None:
    from bigbird_ja.preflight.estimate import DUMP
    from bigbird_ja.storage import outputs

    if args.output:
        outputs.check_output_file(args.output, "--output")
    if args.dump_hlo:
        outputs.check_folder_place(args.dump_hlo, "--dump_hlo")
        outputs.check_folder(args.dump_hlo, "--dump_hlo", DUMP, "choose another folder")


def _examine(
    config: Config,
    data: Data,
    target: Target,
    batch: int,
    options: CompileOptions,
    traced: Traced,
    search_batch: bool,
) -> dict[str, Any]:
    """Return one target's results; without attention's kernels where the compiler fails on them."""
    from bigbird_ja.model import implementation
    from bigbird_ja.preflight import estimate
    from bigbird_ja.preflight.compile import CompilerFailed

    resolved = implementation.resolved(config, data, "tpu", target.chip.name)
    try:
        result = estimate.examine(resolved, data, target, batch, options, traced)
    except CompilerFailed as error:
        resolved = implementation.without_kernels(config, resolved, error)
        result = estimate.examine(resolved, data, target, batch, options, traced)
    result["lacking"] = implementation.lacking(config, data, "tpu", target.chip.name)
    if search_batch:
        only_memory = dataclasses.replace(options, machine_code=False)
        measure = functools.partial(estimate.examine, resolved, data, target, options=only_memory)
        result["largest_batch_per_core"] = estimate.largest_batch(measure, result)
    return result
