"""Results of `preflight`: the step of a config, compiled for each chip and slice."""

import contextlib
import functools
import json
from typing import Any

from absl.flags import FlagValues

from bigbird_ja.accelerators import environment
from bigbird_ja.data import manifest
from bigbird_ja.errors import BadInput
from bigbird_ja.model.flops import check_length
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import estimate, figures
from bigbird_ja.preflight.precompile import keeping
from bigbird_ja.process.console import log, warn
from bigbird_ja.settings.data_facts import requested_data
from bigbird_ja.settings.provenance import echo_settings
from bigbird_ja.settings.resolve import Resolve, fit_to_data
from bigbird_ja.settings.values import config_fingerprint, flatten
from bigbird_ja.settings.variants import used_by
from bigbird_ja.storage import outputs


def preflight(args: FlagValues, resolve: Resolve) -> dict[str, Any]:
    """Compile for every chip and slice, print the figures, and return the `--json` results.

    Args:
        args: flags of `preflight`.
        resolve: returns the config that they specify, and the values that were set, in order.

    Raises:
        BadInput: a path that can't be written, an unknown chip or slice, a batch that does not
            divide, or a length that attention cannot be computed for.
    """
    if args.output:
        outputs.check_output_file(args.output, "--output")
    if args.dump_hlo:
        outputs.check_folder(args.dump_hlo, "--dump_hlo", estimate.DUMP, "choose another folder")
    config, overrides = resolve([])
    data = manifest.load(args.data_dir) if args.data_dir else requested_data(config)
    config = fit_to_data(config, data, overrides, args.data_dir or "")
    targets = _targets(args)
    check_length(config, data.seq_length)
    wanted = [
        (target, args.batch_per_core or estimate.batch_per_core(config, target))
        for target in targets
    ]
    versions = compile_lib.versions()
    log(f"settings:\n{echo_settings(config, overrides, used_by('preflight'))}")
    warn(environment.compiler_warnings(versions))
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


def _targets(args: FlagValues) -> list[compile_lib.Target]:
    """List the chips and slices to compile for.

    Raises:
        BadInput: an unknown one, or --keep without what it needs.
    """
    if args.keep and not (args.topology and args.data_dir and args.batch_per_core is None):
        raise BadInput(
            "--keep: needs the machine's --topology and the run's --data_dir, and its batch: no"
            " --batch_per_core"
        )
    chips = [] if args.topology and not args["chip"].present else args.chip
    targets = [compile_lib.of_chip(name) for name in dict.fromkeys(chips)]
    return targets + [compile_lib.of_topology(name) for name in dict.fromkeys(args.topology)]
