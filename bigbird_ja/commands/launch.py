"""rent a spot TPU VM, train on it, recreate it after preemption, delete it at the end

  bigbird-ja launch --name base-1 --config base-4096 --project MY-PROJECT \\
      --bucket gs://MY-BUCKET --data_dir gs://MY-BUCKET/data --max_cost 300

Reads the config and the data set's manifest. Writes BUCKET/NAME/model (checkpoints, metrics,
events: see `pretrain`) and BUCKET/NAME/supervisor. Stays in the foreground until the run is
finished, which takes days: keep it in tmux, or on a small VM. If it dies, run the same command
again: it adopts what is there; a TPU that nobody watches deletes itself after --lease_hours, and no
TPU lives longer than --max_hours and --max_cost allow. v2 to v4 are rented from the Cloud TPU API,
v5e and later from Compute Engine, slices of several hosts as one. `logs` follows the
trainer's log. --dry_run needs no credentials, no project and no data, and takes a second.
docs/cloud-setup.md leads from an empty project to here.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import RUN_SETTINGS

if TYPE_CHECKING:
    from bigbird_ja.accelerators.prices import Prices
    from bigbird_ja.launch.run_files import Run
    from bigbird_ja.launch.run_state import RunState
    from bigbird_ja.launch.services import Tpus
    from bigbird_ja.launch.startup import Vm
    from bigbird_ja.launch.supervise import Services
    from bigbird_ja.launch.terminal import Interrupts
    from bigbird_ja.settings.resolve import Override
    from bigbird_ja.settings.schema import Config
    from bigbird_ja.storage.lease import Lease

EXAMPLE = "bigbird-ja launch --config base-4096 --dry_run"
SETTINGS = RUN_SETTINGS


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    _define_what(flags)
    flags.group = "Limits"
    _define_limits(flags)
    flags.group = "Machine"
    _define_machine(flags)


def _define_what(flags: Flags) -> None:
    needed: dict[str, Any] = {"required": True, "unless": "dry_run", "filled": True}
    flags.text("name", "Name of run, TPU and folder.", **needed)
    flags.text("project", "Id of the Google Cloud project.", **needed)
    flags.words("zones", [], "Zones to try in this order.", none="those known for the type")
    flags.text(
        "accelerator_type",
        "v2-8, v3-8; untried: v4-8, v5e-8, v5p-8, v6e-8, v7x-8, and larger slices such as v6e-32.",
        default="v3-8",
    )
    flags.text("bucket", "gs://BUCKET[/FOLDER] for everything.", **needed)
    flags.text("data_dir", "Data set of `make-data`, on gs://.", **needed)
    flags.setting("training.num_train_steps")
    flags.choice(
        "engine", ("auto", "estimator", "pjrt"),
        "As `pretrain --engine`. The VM installs jax and libtpu where they are needed and lacking.",
    )  # fmt: skip
    flags.choice("pricing", ("spot", "on_demand"), "Spot TPUs are preempted, and cost a third.")
    flags.switch("queued", "Asks through a queued resource, which waits for capacity in line.")
    flags.switch(
        "dry_run", "Prints what would be rented and its cost, with --json every request; no more."
    )


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
    flags.number(
        "poll_seconds",
        30.0,
        "Between two looks at the service.",
        unit="seconds",
        low=0.05,
        high=86_400,
    )
    flags.choice(
        "on_interrupt", ("ask", "delete", "detach"),
        "At Ctrl-C: asks on a terminal, and deletes where there is none.",
    )  # fmt: skip
    flags.path("price_file", "YAML file over the table of prices.")


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
    from bigbird_ja.launch import backends, terminal
    from bigbird_ja.launch.startup import vm_from_environment
    from bigbird_ja.process.console import log
    from bigbird_ja.settings.values import config_warnings

    config, overrides = command_flags.resolve(args)
    vm, table = vm_from_environment(), prices.load(args.price_file)
    launched, warnings = _prepare(args, config, vm, table)
    for warning in (*warnings, *config_warnings(config)):
        log(f"warning: {warning}")
    service = backends.service_of(args.accelerator_type)
    engine = backends.engine_on(args.accelerator_type, args.engine)
    log(f"{args.accelerator_type}: rented from {backends.NAMES[service]}, engine {engine}")
    if args.dry_run:
        return {**terminal.dry_run(launched, config, vm, table), "warnings": warnings}
    log(f"settings:\n{command_flags.echo(args, config, overrides)}")
    config = _check_data(launched, config, overrides)
    for zone in launched.settings.zones:
        for warning in prices.traffic_warnings([launched.bucket], zone, table):
            log(f"warning: {warning}")
    tpus = backends.MODULES[service].connect(launched.project)
    _check_name_is_free(launched, tpus)
    return _supervise(args, launched, config, vm, tpus)


def _prepare(
    args: absl_flags.FlagValues, config: Config, vm: Vm, table: Prices
) -> tuple[Run, list[str]]:
    """Checks the flags and fills in what follows from them, without a credential or data; a dry
    run has placeholders for what was not given.

    Returns:
        The run, and warnings to show.

    Raises:
        BadInput: something missing, unknown, or known not to work.
    """
    from bigbird_ja.accelerators import hardware
    from bigbird_ja.launch import backends
    from bigbird_ja.launch.run_files import Run, check_name, read_run
    from bigbird_ja.launch.run_state import Settings
    from bigbird_ja.launch.services import TpuSpec

    kind, project = args.accelerator_type, args.project or "MY-PROJECT"
    warnings = backends.check_rentable(kind, args.engine, args.queued)
    name, (bucket, data_dir) = check_name(args.name or "my-run"), _places(args, vm)
    zones = tuple(args.zones) or table.usual_zones(kind, args.pricing)
    usd, price_warnings = _price(args, table, zones)
    image = args.runtime_version or backends.MODULES[backends.service_of(kind)].image(kind)
    before = None if args.dry_run else read_run(bucket, name)
    run_id = (before and before.spec.run_id) or secrets.token_hex(8)
    spec = TpuSpec(
        name, kind, image, run_id, args.pricing, args.queued,
        args.service_account, args.network, args.subnetwork, args.external_ip,
    )  # fmt: skip
    settings = Settings(
        zones, config.training.num_train_steps, usd, project, kind, run_id, args.queued,
        lease=args.lease_hours * 3600,
        hosts=hardware.find(kind).hosts,
        max_seconds=None if args.max_hours is None else args.max_hours * 3600,
        max_usd=args.max_cost,
        poll=args.poll_seconds,
        stall=args.stall_minutes * 60,
        startup=args.startup_minutes * 60,
        backoff_first=min(30.0, args.poll_seconds),
    )  # fmt: skip
    run = Run(bucket, name, project, data_dir, spec, settings, args.engine, args.vm_python)
    return run, [*warnings, *price_warnings]


def _places(args: absl_flags.FlagValues, vm: Vm) -> tuple[str, str]:
    """Bucket and data set. What is stored and sent has no free text.

    Raises:
        BadInput: free text, or a place that the machine cannot reach.
    """
    from bigbird_ja import storage
    from bigbird_ja.launch.run_files import check_word

    for flag in (
        "bucket", "data_dir", "project", "network", "subnetwork", "service_account",
        "runtime_version", "vm_python",
    ):  # fmt: skip
        check_word(f"--{flag}", args[flag].value or "")
    bucket = (args.bucket or "gs://MY-BUCKET").rstrip("/")
    data_dir = args.data_dir or f"{bucket}/data"
    if storage.is_remote(bucket) and not storage.is_remote(data_dir):
        raise BadInput(
            f"--data_dir {data_dir} is on this machine, where the TPU cannot read it: put it on the"
            f" bucket, with make-data --output_dir {bucket}/data or gcloud storage cp -r"
        )
    if not storage.is_remote(bucket) and vm.device == "tpu":
        raise BadInput(f"--bucket {bucket}: a TPU reads and writes gs:// only")
    return bucket, data_dir


def _price(
    args: absl_flags.FlagValues, table: Prices, zones: Sequence[str]
) -> tuple[float, list[str]]:
    """US dollars per hour in the dearest of the zones, so that no budget is passed.

    Raises:
        BadInput: a zone does not offer the type, or no price is known and nothing else bounds what
            is spent.
    """
    for zone in zones:
        table.check_zone(zone, args.accelerator_type)
    try:
        return table.per_hour(args.accelerator_type, args.pricing, zones), []
    except BadInput as error:
        if args.max_cost is not None:
            raise BadInput(f"--max_cost needs a price: {error}") from error
        if args.max_hours is None and not args.dry_run:
            raise BadInput(
                f"{error}; or give --max_hours: without a price nothing else bounds the cost"
            ) from error
        more = "" if args.max_hours is not None else ", so that --max_hours is needed"
        return 0.0, [f"{error}: costs are not counted{more}"]


def _check_data(run: Run, config: Config, overrides: Sequence[Override]) -> Config:
    """Reads the data set's manifest, so that a contradiction is found before it is paid for.

    Returns:
        The config of a run on that data.

    Raises:
        BadInput: no data set there, a setting that contradicts it, or a slice of more hosts than
            its readers can be shared among.
    """
    from bigbird_ja import storage
    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.data import order
    from bigbird_ja.settings.resolve import complete_config

    manifest = manifest_lib.load(run.data_dir)
    where = storage.join(run.data_dir, "manifest.json")
    complete = complete_config(config, overrides, manifest.as_settings(), where)
    batch, hosts = config.training.global_batch_size, run.settings.hosts
    if hosts > 1:
        order.check_hosts(manifest.num_readers, batch, hosts, 0)
    return complete


def _check_name_is_free(run: Run, tpus: Tpus) -> None:
    """Refuses a name that another's machine has, before anything is written or rented.

    Raises:
        BadInput: whose it is, in its owner's words.
    """
    from bigbird_ja.launch.rest import ServiceFault

    for zone in run.settings.zones:
        with contextlib.suppress(ServiceFault):  # the supervisor waits for a zone, or ends
            tpu = tpus.find(zone, run.name)
            if tpu is not None and not tpu.belongs_to(run.spec.run_id):
                raise BadInput(
                    f"--name {run.name}: {tpu.resource} is not of this run ({tpu.owner}): choose"
                    " another --name"
                )


def _supervise(
    args: absl_flags.FlagValues, launched: Run, config: Config, vm: Vm, tpus: Tpus
) -> dict[str, Any]:
    """Takes the run's lock, stores what the machine needs, and watches until the run has ended.

    Raises:
        BadInput: another `launch` watches the run.
        CommandError: the run has not finished.
    """
    from bigbird_ja.launch import startup
    from bigbird_ja.launch.run_files import BucketFiles, supervisor_lease
    from bigbird_ja.launch.supervise import Detached, service_clock, supervise
    from bigbird_ja.launch.terminal import Interrupts
    from bigbird_ja.process import streams
    from bigbird_ja.process.console import log
    from bigbird_ja.storage.lease import LeaseLost

    BucketFiles(launched).prepare()

    def now() -> float:  # by the service's clock: this machine's may be wrong by hours
        return service_clock(tpus) or time.time()

    lease = supervisor_lease(launched, log, wall=now)
    lease.acquire()
    try:
        stored = startup.store(launched, config, args.update_package)
        with (
            Interrupts(args.on_interrupt, sys.stdin.isatty(), say=log) as interrupts,
            streams.guard_stderr(interrupts.nobody_reads),
        ):
            services = _services(stored, vm, tpus, lease, interrupts)
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


def _services(run: Run, vm: Vm, tpus: Tpus, lease: Lease, interrupts: Interrupts) -> Services:
    """What the supervisor looks at and acts through."""
    from bigbird_ja.launch import startup
    from bigbird_ja.launch.run_files import BucketFiles
    from bigbird_ja.launch.supervise import Services, service_clock
    from bigbird_ja.launch.terminal import LogFollower, progress_lines
    from bigbird_ja.launch.watcher import since_boot
    from bigbird_ja.process.console import log

    files, follower = BucketFiles(run), LogFollower()

    def say(text: str) -> None:
        log(f"{time.strftime('%F %T')} {run.name}: {text}")

    def progress() -> None:
        for line in progress_lines(follower.new_lines(files.log_window()))[-1:]:
            say(line)

    def metadata(zone: str, attempt: int, limit: float) -> dict[str, str]:
        return startup.metadata(run, vm, zone, attempt, limit, service_clock(tpus) or 0.0)

    return Services(
        tpus, files, since_boot, time.time, interrupts.sleep, lease.renew, interrupts.stop,
        say, progress, metadata,
    )  # fmt: skip


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
