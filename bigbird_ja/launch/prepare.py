"""From flags to a run that can be rented: what is checked before, and what is stored for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from absl import flags

from bigbird_ja import storage
from bigbird_ja.accelerators import hardware, prices
from bigbird_ja.launch import backends, wheel
from bigbird_ja.launch.run_files import BucketFiles, Run, check_name, read_run
from bigbird_ja.launch.run_state import Settings
from bigbird_ja.launch.services import ServiceFault, Tpus, TpuSpec, advice
from bigbird_ja.launch.startup import Vm
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.settings.resolve import Override, complete_config, read_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import config_to_yaml, differences, flatten, may_change_in_mid_run


def prepare(
    args: flags.FlagValues, config: Config, vm: Vm, needs_all: bool
) -> tuple[Run, list[str]]:
    """Checks the flags and fills in what follows from them, without a credential or data.

    Args:
        args: the flags of `launch`.
        config: resolved.
        needs_all: False for a dry run, where placeholders stand for what was not given.

    Returns:
        The run, and warnings to show.

    Raises:
        BadInput: something missing, unknown, or known not to work.
    """
    warnings = backends.check_rentable(args.accelerator_type, args.engine)
    service = backends.service_of(args.accelerator_type)
    if args.pricing == "preemptible" and args.queued:
        raise BadInput("--queued has no preemptible TPUs: use --pricing=spot (same price)")
    if args.queued and service == "compute":
        raise BadInput(
            f"--queued: Compute Engine, which rents {args.accelerator_type}, has no queue: leave it"
            " out, and name several --zones"
        )
    name = check_name(args.name if args.name or needs_all else "my-run")
    bucket = _required(args.bucket, "--bucket", "gs://MY-BUCKET", needs_all).rstrip("/")
    project = _required(args.project, "--project", "MY-PROJECT", needs_all)
    data_dir = _required(args.data_dir, "--data_dir", f"{bucket}/data", needs_all)
    if storage.is_remote(bucket) and not storage.is_remote(data_dir):
        raise BadInput(
            f"--data_dir {data_dir} is on this machine, where the TPU cannot read it: put it on the"
            f" bucket, with make-data --output_dir {bucket}/data or gcloud storage cp -r"
        )
    if not storage.is_remote(bucket) and vm.device == "tpu":
        raise BadInput(f"--bucket {bucket}: a TPU reads and writes gs:// only")
    table = prices.load(args.prices)
    zones = tuple(args.zones) or table.usual_zones(args.accelerator_type, args.pricing)
    for zone in zones:
        table.check_zone(zone, args.accelerator_type)
    usd, price_warnings = _price(args, table, zones, needs_all)
    image = args.runtime_version or backends.MODULES[service].image(args.accelerator_type)
    spec = TpuSpec(
        name, args.accelerator_type, image, args.pricing, args.queued, args.service_account,
        args.network, args.subnetwork, args.external_ip,
    )  # fmt: skip
    settings = Settings(
        zones,
        config.training.num_train_steps,
        usd,
        project=project,
        accelerator_type=args.accelerator_type,
        queued=args.queued,
        lease=args.lease_hours * 3600,
        hosts=hardware.find(args.accelerator_type).hosts,
        max_seconds=None if args.max_hours is None else args.max_hours * 3600,
        max_usd=args.max_cost,
        poll=args.poll_seconds,
        stall=args.stall_minutes * 60,
        startup=args.startup_minutes * 60,
        backoff_first=min(30.0, args.poll_seconds),
    )
    run = Run(bucket, name, project, data_dir, spec, settings, args.engine, args.vm_python)
    return run, [*warnings, *price_warnings]


def _required(value: str | None, flag: str, placeholder: str, needs_all: bool) -> str:
    if value:
        return value
    if needs_all:
        raise BadInput(f"{flag} is needed: see `bigbird-ja launch --help`, or look with --dry_run")
    return placeholder


def _price(
    args: flags.FlagValues, table: prices.Prices, zones: Sequence[str], needs_all: bool
) -> tuple[float, list[str]]:
    """US dollars per hour in the dearest of the zones, so that no budget is passed.

    Raises:
        BadInput: no price is known, and nothing else bounds what is spent.
    """
    try:
        return table.per_hour(args.accelerator_type, args.pricing, zones), []
    except BadInput as error:
        if args.max_cost is not None:
            raise BadInput(f"--max_cost needs a price: {error}") from error
        if args.max_hours is None and needs_all:
            raise BadInput(
                f"{error}; or give --max_hours: without a price nothing else bounds the cost"
            ) from error
        more = "" if args.max_hours is not None else ", so that --max_hours is needed"
        return 0.0, [f"{error}: costs are not counted{more}"]


def check_data(run: Run, config: Config, overrides: Sequence[Override]) -> Config:
    """Reads the data set's manifest, so that a contradiction is found before it is paid for.

    Returns:
        The config of a run on that data.

    Raises:
        BadInput: no data set there, a setting that contradicts it, or a slice of more hosts than
            its readers can be shared among.
    """
    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.data import order

    manifest = manifest_lib.load(run.data_dir)
    where = storage.join(run.data_dir, "manifest.json")
    complete = complete_config(config, overrides, manifest.as_settings(), where)
    batch, hosts = config.training.global_batch_size, run.settings.hosts
    if hosts > 1:
        order.check_hosts(manifest.num_readers, batch, hosts, 0)
    return complete


def region_warnings(run: Run, table: prices.Prices) -> list[str]:
    """What reading the bucket from another region costs, for each zone where it does."""
    location = storage.bucket_location(run.bucket) if storage.is_remote(run.bucket) else ""
    if not location:
        return []
    zones = run.settings.zones
    warnings = [prices.traffic_warning(run.bucket, location, zone, table) for zone in zones]
    return [warning for warning in warnings if warning]


def check_mid_run_change(run: Run, keys: Sequence[str], tpus: Tpus) -> None:
    """Refuses `--continue_with` where it would change nothing, or something else than is meant.

    Args:
        keys: of the settings that change.

    Raises:
        BadInput: no such run, none of its steps is saved yet, or its TPU is still there.
        StorageError: the service does not answer.
    """
    flag = f"--continue_with {keys[0]}"
    if read_run(run.bucket, run.name) is None:
        raise BadInput(
            f"{flag}: no run {run.name!r} was launched on {run.bucket}: a new one takes it by --set"
        )
    files = BucketFiles(run)
    if files.checkpoint_step() < 0:
        raise BadInput(f"{flag}: {run.model_dir} has no checkpoint to resume from yet")
    state = files.load_state()
    used = state.used_zones if state else ()
    for zone in dict.fromkeys((*run.settings.zones, *used)):
        try:
            is_there = any(tpu.belongs_to(run.name) for tpu in tpus.list(zone))
        except ServiceFault as fault:
            text = advice(fault, run.project, zone, run.spec.accelerator_type)
            raise (StorageError if fault.is_passing else BadInput)(f"{flag}: {text}") from fault
        if is_there:
            raise BadInput(
                f"{flag}: the TPU of {run.name} in {zone} trains with the old settings: first"
                f" `bigbird-ja down --project {run.project} --name {run.name}`"
            )


def store(run: Run, config: Config, changes: Sequence[str], update_package: bool) -> Run:
    """Writes what the VM needs to the bucket.

    A run that was launched before keeps its package, unless `update_package`.

    Args:
        changes: settings that may differ from what was launched: those of `--continue_with`.

    Returns:
        The run with its package.

    Raises:
        BadInput: the run exists with a config that its checkpoints do not accept.
    """
    BucketFiles(run).prepare()
    before = read_run(run.bucket, run.name)
    if before is not None:
        _compare_config(run, config, changes)
        run = replace(run, continue_with=before.continue_with)
    if before and not update_package and before.wheel and storage.exists(before.wheel):
        run = replace(run, wheel=before.wheel, wheel_sha256=before.wheel_sha256)
    else:
        package = wheel.build()
        path = wheel.upload(run.bucket, package)
        run = replace(run, wheel=path, wheel_sha256=package.sha256)
    values = flatten(config)
    keys = dict.fromkeys((*run.continue_with, *changes))
    run = replace(run, continue_with={key: values[key] for key in keys})
    storage.write_text(run.config_path, config_to_yaml(config))
    run.save()
    return run


def _compare_config(run: Run, config: Config, changes: Sequence[str]) -> None:
    try:
        old = read_config(run.config_path)
    except BadInput:
        return
    changed = [one for one in differences(old, config) if one.partition(":")[0] not in changes]
    if changed:
        keys = [one.partition(":")[0] for one in changed]
        may = all(map(may_change_in_mid_run, keys))
        advice = "change it in mid run by --continue_with, " if may else ""
        raise BadInput(
            f"{run.run_dir} was launched with another config: {'; '.join(changed[:5])}: keep it,"
            f" {advice}or choose another --name"
        )
