"""One `launch`: checks, a dry run; or the lock, the files of the machine, supervision, results."""

import functools
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from absl.flags import FlagValues

from bigbird_ja import errors, storage
from bigbird_ja.accelerators.prices import load_prices
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import hub, run_settings
from bigbird_ja.launch import backends, dry_run, encoder, package, prepare, supervise
from bigbird_ja.launch.decide import lacks_quota
from bigbird_ja.launch.files import RunFiles, read_run, supervisor_lease
from bigbird_ja.launch.interrupts import Interrupts
from bigbird_ja.launch.launched_run import LaunchedRun, Machine
from bigbird_ja.launch.machine import startup
from bigbird_ja.launch.service import Tpus
from bigbird_ja.launch.state import Ending, RunState
from bigbird_ja.launch.supervise import SupervisorIO
from bigbird_ja.process.console import log, outlive_reader, warn
from bigbird_ja.settings.checks import config_warnings
from bigbird_ja.settings.config_file import config_to_yaml, read_config
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.provenance import Layer, echo_settings
from bigbird_ja.settings.resolve import Resolve
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import changes
from bigbird_ja.settings.variants import used_by
from bigbird_ja.storage.lease import LeaseLost


def launch(args: FlagValues, resolve: Resolve) -> dict[str, Any]:
    """Launch a run, watch it, and delete its machine at the end; or print a dry run.

    Args:
        args: flags of `launch`.
        resolve: returns the config that they specify, and the values that were set, in order.

    Returns:
        The `--json` results.

    Raises:
        BadInput: nothing is offered, or the run, its name or its lock is someone else's.
        CommandError: the run ended without finishing; the class has its exit reason.
    """
    package.check_lock()
    _check_bounds(args)
    model, adopted = _model(args)
    config, overrides = resolve(adopted)
    vm, table = startup.emulation(), load_prices(args.price_file)
    flags = args.flag_values_dict()
    run, warnings = prepare.make_record(flags, config, vm)
    reads = model and not (args.dry_run and storage.is_remote(model))
    source = encoder.find(model, run.bucket) if reads else encoder.Encoder(model)
    run = replace(run, init_from=source.path)
    if args.dry_run:
        run, notes, more = next(prepare.offered(run, flags, table))
        warnings += [*notes, *more]
        warn([*warnings, *config_warnings(config, not model)])
        log(backends.describe(run))
        return {**dry_run.show(run, config, vm, table), "warnings": warnings}
    warn(warnings)
    if model:  # again: some settings depend on the data set, whose tokenizer must be the model's
        known = run_settings.adopted_settings(model, manifest_lib.load(run.data_dir), run.data_dir)
        config, overrides = resolve(known)
    log(f"settings:\n{echo_settings(config, overrides, used_by('launch'))}")
    config, data = prepare.check_data(run, config, overrides)
    warn(config_warnings(config, not model, overrides, data))
    state = None
    for record, notes, warnings in prepare.offered(run, flags, table):
        run = record
        needs, _ = dry_run.estimate(run, config, data)
        for note in notes:
            log(note)
        warn(warnings)
        log(backends.describe(run))
        log(needs)
        tpus = backends.connect(run.service, run.project)
        prepare.check_name_is_free(run, tpus)
        source.upload()
        state = _watch(run, config, data, flags, vm, tpus)
        if state is None or not lacks_quota(state, run):
            break
    return _results(run, state) if state else {"name": run.name, "state": "detached"}


def _check_bounds(args: FlagValues) -> None:
    """Refuse a launch without --config, or without --max_cost and --max_hours."""
    missing = [] if args.config else ["--config (`bigbird-ja config` lists the presets)"]
    if args.max_cost is None and args.max_hours is None:
        missing.append("--max_cost or --max_hours (`bigbird-ja plan` estimates both)")
    if missing:
        raise BadInput(f"needed: {', and '.join(missing)}")


def _model(args: FlagValues) -> tuple[str, list[Layer]]:
    """Return the path of --init_from, and the settings that the model there states."""
    path = hub.fetched(args.init_from, "`init_from`", weights=True) if args.init_from else ""
    if args.dry_run and storage.is_remote(path):
        warn([f"a dry run doesn't read {path}: the sizes are those of --config"])
        return path, []
    return path, run_settings.stated_settings(path) if path else []


def _watch(
    run: LaunchedRun,
    config: Config,
    data: Data,
    flags: Mapping[str, Any],
    vm: startup.Emulation,
    tpus: Tpus,
) -> RunState | None:
    """Take the run's lock, store what the machine needs, and supervise until the run has ended.

    Returns:
        The last state; None if the user detached.

    Raises:
        BadInput: another `launch` watches the run, or took it over.
    """
    RunFiles(run).prepare()
    # A monotonic clock that also counts while the computer is suspended.
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    # By the service's clock: this machine's may be wrong by hours.
    lease = supervisor_lease(run, log, wall=lambda: tpus.time() or time.time())
    lease.acquire()
    try:
        stored = store(run, config, data, flags["update_package"])
        interrupts = Interrupts(flags["on_interrupt"], sys.stdin.isatty(), log=log)
        io = SupervisorIO(
            tpus=tpus,
            files=RunFiles(stored),
            monotonic=lambda: time.clock_gettime(clock),
            wall=time.time,
            sleep=interrupts.sleep,
            renew_lock=lease.renew,
            stop=interrupts.stop,
            log=lambda text: log(f"{time.strftime('%F %T')} {run.name}: {text}"),
            metadata=lambda state: startup.metadata(stored, vm, state),
            connect=functools.cache(backends.connect),
        )
        with interrupts, outlive_reader(interrupts.nobody_reads):
            return supervise.supervise(stored, io)
    except supervise.Detached:
        log(
            "detached: rerun the same command to watch again; `bigbird-ja down` deletes the TPU;"
            f" unwatched it deletes itself after {run.lease / 3600:g} hours"
        )
        return None
    except LeaseLost as error:
        raise BadInput("another `launch` took this run over: this one stops") from error
    finally:
        lease.release()


def _results(run: LaunchedRun, state: RunState) -> dict[str, Any]:
    """Print the outcome; return the `--json` results.

    Raises:
        CommandError: the run has not finished; the class has its exit reason.
    """
    results = {
        "name": run.name,
        "state": state.phase.value,
        "ending": state.ending.value if state.ending else None,
        "global_step": max(state.best_step, 0),
        "preemptions": state.preemptions,
        "failures": state.failures,
        "leases_over": state.leases_over,
        "tpu_hours": state.billed_seconds / 3600,
        "hours": state.elapsed_seconds / 3600,
        "cost_usd": state.cost_usd,
        "model_dir": run.model_dir,
    }
    if state.ending is not Ending.FINISHED or state.ending_reason != "finished":
        # Linux sends SIGKILL on the VM when memory runs out.
        reasons = {"never_started": errors.Stalled.reason, "killed": errors.OutOfMemory.reason}
        reason = reasons.get(state.ending_reason, state.ending_reason)
        error = errors.of_reason(reason, f"{run.name}: {state.ending_message}")
        error.results = results
        raise error
    print(
        f"{state.ending_message}: {state.preemptions} preemptions, {state.failures} failures,"
        f" {state.billed_seconds / 3600:.2f} TPU hours, {state.cost_usd:.2f} US dollars"
    )
    print(f"model: {run.model_dir}")
    return results


def store(run: LaunchedRun, config: Config, data: Data, update_package: bool) -> LaunchedRun:
    """Store record, config and package of a run on the bucket.

    A run that was launched before keeps its package, unless `update_package`.

    Returns:
        The record with its package.

    Raises:
        BadInput: the run exists with another config, its state is lost, or its package was not
            launched from this machine.
    """
    before, files = read_run(run.bucket, run.name), RunFiles(run)
    path, state = run.supervisor("state.json"), files.load_state()
    if before is None and state is None:  # before the record: a record without a state means a loss
        files.prepare()
        files.save_state(RunState())
    if before is not None:
        _check_unchanged(run, before, config, data)
    if before is not None and state is None:
        raise BadInput(
            f"{path} is lost, and so is what the run has spent: restore it from a copy, or remove"
            f" {run.run_dir}/supervisor: then the same command counts anew, from the checkpoint"
        )
    if before is not None and state is not None and state.attempt and state.machine is None:
        files.save_state(replace(state, machine=Machine.of(before)))  # of 0.1.0
    run = package.store(run, None if update_package else before)
    storage.write_text(run.config_path, config_to_yaml(config, data))
    RunFiles(run).save_run()
    return run


def _check_unchanged(run: LaunchedRun, before: LaunchedRun, config: Config, data: Data) -> None:
    """Check that a run has the same model and config as at its first launch.

    Raises:
        BadInput: they differ, or another process launched the run meanwhile.
    """
    if before.run_id != run.run_id:
        raise BadInput(f"{run.run_dir} was launched meanwhile: run the same command again")
    if before.init_from != run.init_from:
        raise BadInput(
            f"{run.run_dir} was launched with --init_from {before.init_from or '(none)'}, not"
            f" {run.init_from or '(none)'}: keep it, or choose another --name"
        )
    different = {}
    if storage.exists(run.config_path):
        different = changes(read_config(run.config_path), (config, data))
    if changed := [f"{key}: {old} -> {new}" for key, (old, new) in different.items()]:
        raise BadInput(
            f"{run.run_dir} was launched with another config: {'; '.join(changed[:5])}: keep"
            " it, or choose another --name"
        )
