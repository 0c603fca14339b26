"""Compilation of a config's train step for chips and slices."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from bigbird_ja.accelerators import environment
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import run_settings
from bigbird_ja.model.flops import check_length
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import estimate
from bigbird_ja.preflight.precompile import keep_programs
from bigbird_ja.preflight.results import PreflightResult, StepResult
from bigbird_ja.process.console import log, warn
from bigbird_ja.settings.data_facts import derive_data
from bigbird_ja.settings.provenance import echo_settings
from bigbird_ja.settings.resolve import (
    ConfigSource,
    base_layers,
    fit_to_data,
    given_layers,
    resolve_config,
)
from bigbird_ja.settings.values import compute_config_fingerprint, flatten
from bigbird_ja.settings.variants import list_used_settings
from bigbird_ja.storage import outputs

# Chips for which the step is compiled by default.
CHIPS = ("v5e",)


def preflight(
    *,
    config: ConfigSource | None = None,
    overrides: Mapping[str, Any] | None = None,
    chips: Sequence[str] = (),
    topology: Sequence[str] = (),
    batch_per_core: int | None = None,
    search_batch: bool = False,
    dump_hlo: str | None = None,
    data_dir: str | None = None,
    init_from: str | None = None,
    keep: str | None = None,
    output: str | None = None,
    on_result: Callable[[StepResult], None] | None = None,
) -> PreflightResult:
    """Compile the train step for chips and slices, and compute its time and memory.

    Args:
        config: Preset, YAML file or config.
        overrides: Values of settings, by key.
        chips: Names of chips; by default v5e, or none if `topology` is given.
        topology: Names of slices, such as "v5e:2x4".
        batch_per_core: Sequences per device and micro-batch; by default the config's global batch
            divided by the number of devices and by that of micro-batches.
        search_batch: Whether to find the largest batch that fits.
        dump_hlo: Folder for the HLO before and after optimization.
        data_dir: Data set of the run; by default the one that the config describes.
        init_from: Hugging Face folder to start from; its sizes replace the config's.
        keep: Folder of a run in which the compiled steps of `topology` are stored.
        output: JSON file for the result.
        on_result: Callback for each result, called as soon as it is known.

    Raises:
        BadInput: A path is not writable, a chip or slice is unknown, the batch is not divisible by
            the devices, or attention does not support the sequence length.
        CompilerFailed: The compiler crashed or took too long.
    """
    if output:
        outputs.check_output_file(output, "`output`")
    if dump_hlo:
        outputs.check_folder(dump_hlo, "`dump_hlo`", estimate.DUMP, "choose another folder")
    manifest = manifest_lib.load(data_dir) if data_dir else None
    layers = [
        *base_layers(config),
        *run_settings.plan_settings(init_from, manifest, data_dir or ""),
        *given_layers(overrides),
    ]
    resolved, given = resolve_config(layers, list_used_settings("preflight"))
    data = manifest or derive_data(resolved)
    resolved = fit_to_data(resolved, data, given, data_dir or "")
    if keep and not (topology and data_dir and batch_per_core is None):
        raise BadInput(
            "`keep` requires the machine's `topology` and the run's `data_dir`, and does not allow"
            " `batch_per_core`"
        )
    default = () if topology else CHIPS
    targets = [compile_lib.find_chip(name) for name in dict.fromkeys(chips or default)]
    targets += [compile_lib.find_slice(name) for name in dict.fromkeys(topology)]
    check_length(resolved, data.seq_length)
    batches = [batch_per_core or estimate.divide_batch(resolved, target) for target in targets]
    versions = compile_lib.read_versions()
    log(f"settings:\n{echo_settings(resolved, given, list_used_settings('preflight'))}")
    warn(environment.list_compiler_warnings(versions))
    results = []
    with keep_programs(keep) if keep else contextlib.nullcontext("") as folder:
        for target, batch in zip(targets, batches, strict=True):
            kept_in = folder if target.is_slice else ""
            result = estimate.examine(resolved, data, target, batch, dump_hlo, kept_in=kept_in)
            if search_batch:
                fits = functools.partial(estimate.examine, resolved, data, target, with_code=False)
                result = replace(
                    result, largest_batch_per_core=estimate.find_largest_batch(fits, result)
                )
            results.append(result)
            if on_result:
                on_result(result)
    found = PreflightResult(
        chips=[result for result in results if result.topology is None],
        topologies=[result for result in results if result.topology is not None],
        config_fingerprint=compute_config_fingerprint(resolved, data),
        config=flatten(resolved, data),
        versions=versions,
    )
    if output:
        outputs.write(output, msgspec.json.format(msgspec.json.encode(found), indent=1))
    return found
