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

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import resolve
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import used_by

if TYPE_CHECKING:
    from bigbird_ja.preflight import compile as compile_lib
    from bigbird_ja.settings.data_facts import Data
    from bigbird_ja.settings.schema import Config

EXAMPLE = "bigbird-ja preflight --config base-4096 --chip v5e --search_batch"
NEEDS = ("tensorflow", "jax")  # the compiler, libtpu, when all else has been checked
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
    from bigbird_ja.accelerators import environment
    from bigbird_ja.data import manifest
    from bigbird_ja.preflight import compile as compile_lib
    from bigbird_ja.preflight import estimate, figures
    from bigbird_ja.preflight.keep import keeping
    from bigbird_ja.process.console import log
    from bigbird_ja.settings.data_facts import requested_data
    from bigbird_ja.settings.provenance import echo_settings
    from bigbird_ja.settings.resolve import fit_to_data
    from bigbird_ja.settings.values import config_fingerprint, flatten
    from bigbird_ja.storage import outputs

    if args.output:
        outputs.check_output_file(args.output, "--output")
    if args.dump_hlo:
        outputs.check_folder(args.dump_hlo, "--dump_hlo", estimate.DUMP, "choose another folder")
    config, overrides = resolve(args)
    data = manifest.load(args.data_dir) if args.data_dir else requested_data(config)
    config = fit_to_data(config, data, overrides, args.data_dir or "")
    wanted = _targets(args, config, data)
    versions = compile_lib.versions()
    log(f"settings:\n{echo_settings(config, overrides, SETTINGS)}")
    for warning in environment.compiler_warnings(versions):
        log(f"warning: {warning}")
    results = []
    with keeping(args.keep) if args.keep else contextlib.nullcontext("") as folder:
        for target, batch in wanted:
            kept_in = folder if target.is_slice else ""
            result = estimate.examine(config, data, target, batch, args.dump_hlo, kept_in=kept_in)
            if args.search_batch:
                fits = functools.partial(estimate.examine, config, data, target, with_code=False)
                result["largest_batch_per_core"] = estimate.largest_batch(fits, result)
            results.append(result)
            print(figures.describe(result, target.chip), "\n")
    print(f"Compiled with {environment.describe(versions)}.")
    print(
        "Not in these figures: input, saving, logging; links between devices beyond what their\n"
        "bytes are priced at; and nothing was timed on a TPU (docs/design/preflight.md)"
    )
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


def _targets(args: Args, config: Config, data: Data) -> list[tuple[compile_lib.Target, int]]:
    """List what is compiled for, with the batch of each.

    Raises:
        BadInput: an unknown chip or slice, a batch that does not divide, or a length that attention
            cannot be computed for.
    """
    from bigbird_ja.model.flops import check_length
    from bigbird_ja.preflight import compile as compile_lib
    from bigbird_ja.preflight import estimate

    if args.keep and not (args.topology and args.data_dir and args.batch_per_core is None):
        raise BadInput(
            "--keep: needs the machine's --topology and the run's --data_dir, and its batch: no"
            " --batch_per_core"
        )
    chips = [] if args.topology and not args["chip"].present else args.chip
    targets = [compile_lib.of_chip(name) for name in dict.fromkeys(chips)]
    targets += [compile_lib.of_topology(name) for name in dict.fromkeys(args.topology)]
    check_length(config, data.seq_length)
    return [
        (target, args.batch_per_core or estimate.batch_per_core(config, target))
        for target in targets
    ]
