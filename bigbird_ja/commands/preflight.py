"""compile the train step with the real TPU compiler, with no TPU

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
import json
import os
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.settings.schema import STEP_SETTINGS

if TYPE_CHECKING:
    from bigbird_ja.preflight.estimate import CompileOptions
    from bigbird_ja.preflight.targets import Target
    from bigbird_ja.settings.data import Data
    from bigbird_ja.settings.schema import Config
    from bigbird_ja.train.engines.lowering import LoweredStep

EXAMPLE = "bigbird-ja preflight --config base-4096-v2 --chip v2 --search_batch"
NEEDS = ("tensorflow", "jax")  # the compiler, libtpu, when all else has been checked
SETTINGS = STEP_SETTINGS


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    flags.text(
        "chip", "v2, v3, v4, v5e, v5p, v6e or v7x; left out beside --topology.", many=True,
        default=["v3"],
    )  # fmt: skip
    flags.text(
        "topology", "CHIP:SHAPE, a whole slice such as v5e:2x4, v4:2x2x1 or v3:2x2.", many=True
    )
    flags.integer(
        "batch_per_core", None, "Sequences per core and micro-batch.", unit="sequences",
        low=1, high=1_000_000, none="the config's global batch by cores and accumulation",
    )  # fmt: skip
    flags.switch("search_batch", "Finds the largest batch per core that fits.")
    flags.path("dump_hlo", "DIRECTORY for the HLO that went in and the optimised one.")
    flags.path("output", "JSON file for the results; `plan --preflight` reads it.")
    flags.number(
        "timeout_minutes", 60.0, "Longest time for one compilation.", unit="minutes",
        low=0.1, high=1e5,
    )  # fmt: skip
    flags.switch("cache", "Keeps compilations and reuses them.", default=True)
    flags.switch(
        "machine_code", "Cycles by machine code too: v5e, v5p, v6e, v7x with a libtpu from 0.0.42.",
        default=True,
    )  # fmt: skip


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Compiles for every chip, prints what came out; see the module's docstring."""
    from bigbird_ja.cli import command_flags
    from bigbird_ja.model.params import count_parameters
    from bigbird_ja.preflight import compile as compile_lib
    from bigbird_ja.preflight import estimate, figures, targets
    from bigbird_ja.process.console import log
    from bigbird_ja.settings.data import requested_data
    from bigbird_ja.settings.resolve import fit_to_data
    from bigbird_ja.settings.values import config_fingerprint, flatten
    from bigbird_ja.storage import outputs

    if args.output:
        outputs.check_output_file(args.output, "--output")
    if args.dump_hlo:
        outputs.check_folder_place(args.dump_hlo, "--dump_hlo")
        outputs.check_folder(args.dump_hlo, "--dump_hlo", estimate.DUMP, "choose another folder")
    only_slices = args.topology and not args["chip"].present
    names = [] if only_slices else list(dict.fromkeys(args.chip))
    wanted = [targets.of_chip(name) for name in names]
    config, overrides = command_flags.resolve(args)
    data = requested_data(config)
    config = fit_to_data(config, data, overrides)
    estimate.check_length(config, data)
    batches = [args.batch_per_core or estimate.batch_per_core(config, target) for target in wanted]
    slices = targets.of_topologies(list(dict.fromkeys(args.topology)), compile_lib.count_devices)
    batches += [args.batch_per_core or estimate.batch_per_core(config, target) for target in slices]
    wanted += slices
    versions = compile_lib.versions()
    log(f"settings:\n{command_flags.echo(args, config, overrides)}")
    options = estimate.CompileOptions(
        cache_dir=compile_lib.default_cache_dir(dict(os.environ)) if args.cache else None,
        timeout=60.0 * args.timeout_minutes,
        dump_dir=args.dump_hlo,
        machine_code=args.machine_code,
    )
    steps: dict[tuple[int, int, str], LoweredStep] = {}
    results = []
    for target, batch in zip(wanted, batches, strict=True):
        result = _examine(config, data, target, batch, options, steps, args.search_batch)
        results.append(result)
        print(figures.describe(result), "\n")
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


def _examine(
    config: Config,
    data: Data,
    target: Target,
    batch: int,
    options: CompileOptions,
    steps: dict[tuple[int, int, str], LoweredStep],
    search_batch: bool,
) -> dict[str, Any]:
    """One target's results; without attention's kernels where the compiler fails on them.

    Args:
        steps: traced so far, by batch, devices and attention implementation.
    """
    from bigbird_ja.model import implementation
    from bigbird_ja.preflight import estimate
    from bigbird_ja.preflight.compile import CompilerFailed
    from bigbird_ja.process.console import waiting

    def compiled(
        resolved: Config, batch: int, options: CompileOptions, what: str, step: Any = None
    ) -> dict[str, Any]:
        takes = "minutes, and some 7.5 GB of memory for a base model"
        with waiting(f"compiling {what}for {target.name} ({takes})"):
            return estimate.examine(resolved, data, target, batch, options, step)

    def examine(resolved: Config) -> dict[str, Any]:
        key = batch, target.devices, resolved.model.attention_implementation
        if key not in steps:
            with waiting(f"tracing {config.model.num_layers} layers, {batch} sequences per core"):
                steps[key] = estimate.trace(resolved, data, batch, target.devices)
        return compiled(resolved, batch, options, "", steps[key])

    resolved = implementation.resolved(config, data, "tpu", target.chip.name)
    try:
        result = examine(resolved)
    except CompilerFailed as error:
        resolved = implementation.without_kernels(config, resolved, error)
        result = examine(resolved)
    result["lacking"] = implementation.lacking(config, data, "tpu", target.chip.name)
    if search_batch:
        only_memory = dataclasses.replace(options, machine_code=False)

        def measure(tried: int) -> dict[str, Any]:
            return compiled(resolved, tried, only_memory, f"{tried} sequences per core ")

        result["largest_batch_per_core"] = estimate.largest_batch(measure, result)
    return result
