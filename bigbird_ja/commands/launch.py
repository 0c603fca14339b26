"""rent a spot TPU VM, train on it, recreate it after preemption, delete it at the end

  bigbird-ja launch --name base-1 --config base-4096 --project MY-PROJECT \\
      --bucket gs://MY-BUCKET --data_dir gs://MY-BUCKET/data --max_cost 300

Reads the config and the data set's manifest. Writes BUCKET/NAME/model (checkpoints, metrics,
events: see `pretrain`) and BUCKET/NAME/supervisor. Stays in the foreground until the run is
finished, which takes days: keep it in tmux, or on a small VM. If it dies, run the same command
again: it adopts what is there; a TPU that nobody watches deletes itself after --lease_hours, and no
TPU lives longer than --max_hours and --max_cost allow. v2 to v4 are rented from the Cloud TPU API,
v5e and later from Compute Engine, slices of several hosts as one. --logs NAME shows what the
trainer of a run says. --dry_run needs no credentials, no project and no data, and takes a second.
docs/cloud-setup.md leads from an empty project to here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.settings.schema import RUN_SETTINGS

if TYPE_CHECKING:
    from bigbird_ja.launch.run_files import Run
    from bigbird_ja.launch.run_state import RunState
    from bigbird_ja.launch.services import Tpus
    from bigbird_ja.launch.startup import Vm
    from bigbird_ja.settings.schema import Config

EXAMPLE = "bigbird-ja launch --config base-4096 --dry_run"
SETTINGS = RUN_SETTINGS


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    _define_what(flags)
    _define_limits(flags)
    _define_machine(flags)


def _define_what(flags: Flags) -> None:
    needed: dict[str, Any] = {"required": True, "unless": ("dry_run", "logs")}
    flags.text("name", "Name of run, TPU and folder.", **needed)
    flags.text("project", "Id of the Google Cloud project.", **needed)
    flags.words("zones", [], "Zones to try in this order.", none="those known for the type")
    flags.text(
        "accelerator_type",
        "v2-8, v3-8; untried: v4-8, v5e-8, v5p-8, v6e-8, v7x-8, and larger slices such as v6e-32.",
        default="v3-8",
    )
    flags.path("bucket", "gs://BUCKET[/FOLDER] for everything.", **needed)
    flags.path("data_dir", "Data set of `make-data`, on gs://.", **needed)
    flags.setting("training.num_train_steps")
    flags.text(
        "continue_with",
        "Changes a setting of a launched run in mid run, as `pretrain --continue_with` does"
        " (repeatable). Its TPU must be gone: it trains with the old settings.",
        many=True, excludes=("logs", "dry_run"),
    )  # fmt: skip
    flags.choice(
        "engine", ("auto", "estimator", "pjrt"),
        "As `pretrain --engine`. The VM installs jax and libtpu where they are needed and lacking.",
    )  # fmt: skip
    flags.choice(
        "pricing", ("spot", "preemptible", "on_demand"),
        "preemptible is spot's older form, ended after 24 hours at the latest.",
    )  # fmt: skip
    flags.switch("queued", "Asks through a queued resource, which waits for capacity in line.")
    flags.switch("dry_run", "Prints what would be rented, and what it costs; does nothing.")
    flags.switch("verbose", "Prints every request and the start-up script.", needs="dry_run")
    flags.text("logs", "Rents nothing: shows the log of the run of this name (with --bucket).")


def _define_limits(flags: Flags) -> None:
    flags.number(
        "max_hours", None, "Ends the run so long after its start.", unit="hours",
        above=0, high=1e6, none="no limit",
    )  # fmt: skip
    flags.number(
        "max_cost", None, "Ends the run at so much TPU time.", unit="US dollars",
        above=0, high=1e9, none="no limit",
    )  # fmt: skip
    flags.number(
        "lease_hours", 12.0, "A TPU that nobody watches any more deletes itself after so long.",
        unit="hours", above=0, high=168,
    )  # fmt: skip
    flags.number(
        "stall_minutes", 15.0, "READY so long without a new step is deleted.", unit="minutes",
        above=0, high=1e6,
    )  # fmt: skip
    flags.number(
        "startup_minutes", 45.0, "The same until the first step of a TPU.", unit="minutes",
        above=0, high=1e6,
    )  # fmt: skip
    flags.number("poll_seconds", 30.0, "Between two looks.", unit="seconds", low=0.05, high=86_400)
    flags.choice(
        "on_interrupt", ("ask", "delete", "detach"),
        "At Ctrl-C: asks on a terminal, and deletes where there is none.",
    )  # fmt: skip
    flags.path("prices", "YAML file over the table of prices.")


def _define_machine(flags: Flags) -> None:
    flags.text("runtime_version", "Image of the TPU VM.", none="chosen for the type")
    flags.text("service_account", "Account of the VM.", none="the project's default")
    flags.text("network", "VPC network.", none="the project's default")
    flags.text("subnetwork", "VPC subnetwork.", none="the network's")
    flags.text("vm_python", "Python on the VM that has TensorFlow.", default="python3")
    flags.switch("external_ip", "Gives the VM an external address.", default=True)
    flags.switch("update_package", "An existing run gets this installed code.")


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Launches, watches, ends."""
    from bigbird_ja.accelerators import prices
    from bigbird_ja.cli import command_flags
    from bigbird_ja.launch import backends, prepare
    from bigbird_ja.launch.startup import vm_from_environment
    from bigbird_ja.process.console import log
    from bigbird_ja.settings.validate import config_warnings
    from bigbird_ja.settings.values import check_mid_run

    if args.logs:
        return _follow(args)
    config, overrides = command_flags.resolve(args)
    vm = vm_from_environment()
    launched, warnings = prepare.prepare(args, config, vm, needs_all=not args.dry_run)
    for warning in (*warnings, *config_warnings(config)):
        log(f"warning: {warning}")
    changes = [override.key for override in overrides if override.source == "--continue_with"]
    check_mid_run(changes)
    service = backends.service_of(args.accelerator_type)
    engine = backends.engine_on(args.accelerator_type, args.engine)
    log(f"{args.accelerator_type}: rented from {backends.NAMES[service]}, engine {engine}")
    if args.dry_run:
        return {**_dry_run(args, launched, config, vm), "warnings": warnings}
    log(f"settings:\n{command_flags.echo(args, config, overrides)}")
    config = prepare.check_data(launched, config, overrides)
    for warning in prepare.region_warnings(launched, prices.load(args.prices)):
        log(f"warning: {warning}")
    tpus = backends.MODULES[service].connect(launched.project)
    if changes:
        prepare.check_mid_run_change(launched, changes, tpus)
    return _supervise(args, launched, config, vm, tpus, changes)


def _follow(args: absl_flags.FlagValues) -> dict[str, Any]:
    """`--logs`: the trainer's log, until the run has ended."""
    import time

    from bigbird_ja.launch.run_files import BucketFiles, Run, find_runs
    from bigbird_ja.launch.terminal import follow
    from bigbird_ja.process.errors import BadInput

    if not args.bucket:
        raise BadInput("--logs needs --bucket: where `launch` put the run")
    names = find_runs(args.bucket)
    if args.logs not in names:
        raise BadInput(
            f"--logs={args.logs}: no such run on {args.bucket}: {', '.join(names) or 'none'}"
        )
    files = BucketFiles(Run(args.bucket, args.logs))
    ending = follow(files, print, time.sleep, args.poll_seconds)
    print(ending)
    return {"name": args.logs, "ending": ending}


def _dry_run(args: absl_flags.FlagValues, launched: Run, config: Config, vm: Vm) -> dict[str, Any]:
    import dataclasses
    import datetime

    from bigbird_ja.accelerators import prices
    from bigbird_ja.launch import dry_run, wheel

    table, package = prices.load(args.prices), wheel.build()
    path = wheel.location(launched.bucket, package)
    launched = dataclasses.replace(launched, wheel=path, wheel_sha256=package.sha256)
    requests = dry_run.planned_requests(launched, vm, package)
    cost = dry_run.cost_plan(launched, config, table)
    if args.verbose:
        print(dry_run.everything(requests, cost), "\n")
    print(dry_run.text(launched, cost, requests, table.describe_age(datetime.date.today())))
    return {"requests": requests, "cost": cost}


def _supervise(
    args: absl_flags.FlagValues, launched: Run, config: Config, vm: Vm, tpus: Tpus,
    changes: list[str],
) -> dict[str, Any]:  # fmt: skip
    import time

    from bigbird_ja.launch import prepare, startup
    from bigbird_ja.launch.run_files import BucketFiles, supervisor_lease
    from bigbird_ja.launch.supervise import Detached, Services, SystemClock, supervise
    from bigbird_ja.launch.terminal import Interrupts, LogFollower, progress_lines
    from bigbird_ja.process import streams
    from bigbird_ja.process.console import log
    from bigbird_ja.process.errors import BadInput
    from bigbird_ja.storage.lease import LeaseLost

    files = BucketFiles(launched)
    files.prepare()
    lease, follower = supervisor_lease(launched, log), LogFollower()

    def say(text: str) -> None:
        log(f"{time.strftime('%F %T')} {launched.name}: {text}")

    def progress() -> None:
        for line in progress_lines(follower.new_lines(files.log_window()))[-1:]:
            say(line)

    lease.acquire()
    try:
        stored = prepare.store(launched, config, changes, args.update_package)
        with (
            Interrupts(args.on_interrupt, sys.stdin.isatty(), say=log) as interrupts,
            streams.guard_stderr(interrupts.nobody_reads),
        ):
            services = Services(
                tpus, files, SystemClock(), interrupts.sleep, lease.renew, interrupts.stop, say,
                progress,
                lambda zone, attempt, limit: startup.metadata(
                    stored, vm, zone, attempt, limit, time.time()
                ),
            )  # fmt: skip
            state = supervise(launched.spec, launched.settings, services)
    except Detached:
        log(
            "detached: run the same command to watch again; `bigbird-ja down` deletes the TPU;"
            f" unwatched it deletes itself after {launched.settings.lease / 3600:g} hours"
        )
        return {"name": launched.name, "state": "detached"}
    except LeaseLost as error:
        raise BadInput("another `launch` took this run over: this one stops") from error
    finally:
        lease.release()
    return _result(launched, state)


def _result(launched: Run, state: RunState) -> dict[str, Any]:
    """The `--json` results.

    Raises:
        CommandError: of the run's reason, where it has not finished.
    """
    from bigbird_ja.launch.run_state import Ending
    from bigbird_ja.process import errors

    results = {
        "name": state.name,
        "state": state.phase.value,
        "ending": state.ending.value if state.ending else None,
        "global_step": max(state.best_step, 0),
        "preemptions": state.preemptions,
        "failures": state.failures,
        "leases_over": state.leases_over,
        "tpu_hours": state.billed_seconds / 3600,
        "hours": state.elapsed_seconds / 3600,
        "cost_usd": state.cost_usd,
        "model_dir": launched.model_dir,
    }
    if state.ending is not Ending.FINISHED or state.ending_reason != "finished":
        # SIGKILL on the VM is what Linux does when memory runs out.
        reasons = {"never_started": errors.Stalled.reason, "killed": errors.OutOfMemory.reason}
        reason = reasons.get(state.ending_reason, state.ending_reason)
        error = errors.of_reason(reason, f"{state.name}: {state.ending_message}")
        error.results = results
        raise error
    print(
        f"{state.ending_message}: {state.preemptions} preemptions, {state.failures} failures,"
        f" {state.billed_seconds / 3600:.2f} TPU hours, {state.cost_usd:.2f} US dollars"
    )
    print(f"model: {launched.model_dir}")
    return results
