"""From flags to a supervised run: what is checked before anything is rented, what is asked for."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from absl import flags

from bigbird_ja import storage
from bigbird_ja.accelerators import hardware, prices
from bigbird_ja.launch import backends, machines, startup, wheel
from bigbird_ja.launch.run_files import LOCK, BucketFiles, RunPaths, check_name, read_launched
from bigbird_ja.launch.run_state import RunState, Settings, longest_life
from bigbird_ja.launch.startup import Startup, Vm, vm_from_environment
from bigbird_ja.launch.tpu_service import RUN_DIR_KEY, TpuSpec
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.resolve import Override, complete_config, read_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import config_to_yaml, differences, flatten, may_change_in_mid_run


@dataclass(frozen=True)
class Prepared:
    """All that `launch` would do, decided without a credential, a project or data."""

    args: flags.FlagValues  # of `launch`
    data_dir: str
    config: Config  # as the VM will read it; what the data set fixes is still open
    paths: RunPaths
    project: str
    spec: TpuSpec
    settings: Settings
    usd_per_hour: float
    wheel: wheel.Wheel
    warnings: tuple[str, ...]
    vm: Vm

    @property
    def config_path(self) -> str:
        return self.paths.supervisor("config.yaml")


def prepare(args: flags.FlagValues, config: Config, needs_all: bool) -> Prepared:
    """Checks the flags and fills in what follows from them.

    Args:
        args: the flags of `launch`.
        config: resolved.
        needs_all: False for a dry run, where placeholders stand for what was not given.

    Raises:
        BadInput: something missing, unknown, or known not to work.
    """
    warnings = machines.check_rentable(args.accelerator_type, args.force, args.engine)
    if args.pricing == "preemptible" and args.queued:
        raise BadInput("--queued has no preemptible TPUs: use --pricing=spot (same price)")
    service = backends.service_of(args.accelerator_type)
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
    vm = vm_from_environment()
    if not storage.is_remote(bucket) and vm.device == "tpu":
        raise BadInput(f"--bucket {bucket}: a TPU reads and writes gs:// only")
    table = prices.load(args.prices)
    zones = tuple(args.zones) or table.usual_zones(args.accelerator_type, args.pricing)
    for zone in zones:
        table.check_zone(zone, args.accelerator_type)
    usd, price_warning = _price(args, table, zones, needs_all)
    paths = RunPaths(bucket, name)
    spec = TpuSpec(
        name,
        args.accelerator_type,
        args.runtime_version or backends.image(args.accelerator_type),
        args.pricing,
        args.queued,
        args.service_account,
        args.network,
        args.subnetwork,
        args.external_ip,
    )
    settings = _settings(args, config, zones, usd, project)
    return Prepared(
        args, data_dir, config, paths, project, spec, settings, usd, wheel.build(),
        (*warnings, *price_warning), vm,
    )  # fmt: skip


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


def _settings(
    args: flags.FlagValues, config: Config, zones: tuple[str, ...], usd: float, project: str
) -> Settings:
    return Settings(
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


@dataclass(frozen=True)
class Recorded:
    """What of a launched run lies on the bucket."""

    wheel: str
    wheel_sha256: str
    continue_with: tuple[str, ...] = ()  # settings that were ever changed in mid run


def startup_of(prepared: Prepared, recorded: Recorded) -> Startup:
    """What the start-up script is told."""
    args, paths, vm = prepared.args, prepared.paths, prepared.vm
    device = ["--use_tpu", "--tpu_name=local"] if vm.device == "tpu" else ["--nouse_tpu"]
    # A package of before this flag is not told of its default.
    device += [] if args.engine == "auto" else [f"--engine={args.engine}"]
    engine = machines.engine_on(args.accelerator_type, args.engine)
    settings = flatten(prepared.config)
    hosts = prepared.settings.hosts
    # A lost host's successor has as long to come as the supervisor waits for it.
    pod = [f"--pod_wait_seconds={prepared.settings.create_timeout:.0f}"] if hosts > 1 else []
    return Startup(
        run_name=paths.name,
        supervisor_dir=storage.join(paths.run_dir, "supervisor"),
        model_dir=paths.model_dir,
        wheel=recorded.wheel,
        wheel_sha256=recorded.wheel_sha256,
        pretrain_flags=[
            f"--config={prepared.config_path}",
            f"--data_dir={prepared.data_dir}",
            f"--model_dir={paths.model_dir}",
            *device,
            *pod,
            # Each machine is told, and the first one changes it: the run then has that value.
            *(
                f"--continue_with={key}={json.dumps(settings[key])}"
                for key in recorded.continue_with
            ),
        ],
        requirements=wheel.requirements() if vm.installs else (),
        lacking=wheel.engine_requirements(engine, prepared.spec.runtime_version)
        if vm.installs
        else (),
        python=args.vm_python,
        lease_seconds=prepared.settings.lease,
        hosts=hosts,
        vm=vm,
    )


def metadata_source(
    prepared: Prepared, recorded: Recorded, clock: Callable[[], float] = time.time
) -> Callable[[str, int, float], Mapping[str, str]]:
    """The metadata of a TPU in a zone at an attempt, which may live so many seconds: the filled
    start-up script, and whose machine it is."""
    told = startup_of(prepared, recorded)

    def metadata(zone: str, attempt: int, limit: float) -> Mapping[str, str]:
        delete = backends.delete_addresses(told.vm.api, prepared.project, prepared.spec, zone)
        script = startup.fill(told, attempt, limit, delete, clock())
        return {"startup-script": script, RUN_DIR_KEY: prepared.paths.run_dir}

    return metadata


def planned_requests(prepared: Prepared) -> list[dict[str, Any]]:
    """Every request of an undisturbed run, and what follows a preemption, for `--dry_run`."""
    packed, spec = prepared.wheel, prepared.spec
    limit = longest_life(RunState(spec.name), prepared.settings)
    wheel_path = wheel.location(prepared.paths.bucket, packed)
    metadata = metadata_source(prepared, Recorded(wheel_path, packed.sha256))
    verbs = backends.verbs(spec)
    where = [{"project": prepared.project, "zone": zone} for zone in prepared.settings.zones]
    requests: list[dict[str, Any]] = [
        _request("storage.write", wheel_path, f"{len(packed.content):,} bytes, unless it is there"),
        _request("storage.write", prepared.config_path, "the resolved config"),
        _request("storage.write", prepared.paths.supervisor("launch.json"), "what was launched"),
        _request("storage.create", prepared.paths.supervisor(LOCK), "one supervisor per run"),
    ]
    requests += [{"method": verb, "request": place} for place in where for verb in verbs.lists]
    for number, zone in enumerate(prepared.settings.zones):
        bodies = backends.create_bodies(
            prepared.project, spec, zone, metadata(zone, 1, limit), limit
        )
        when = "first" if number == 0 else "if the zones before have no capacity"
        requests += [{"method": m, "when": when, "request": body} for m, body in bodies]
    every = f"every {prepared.settings.poll:g} s"
    watched = [prepared.paths.supervisor("exit.json"), f"{prepared.paths.model_dir}/heartbeat.json"]
    requests += [
        {"method": verbs.operation, "when": f"{every} until done", "request": {"name": "..."}},
        {"method": verbs.lists[0], "when": every, "request": where[0]},
        *({"method": "storage.read", "when": every, "request": {"path": p}} for p in watched),
        {
            "method": verbs.delete,
            "when": "after a preemption or failure (then one is created again), and at the end",
            "request": {**where[0], "name": spec.name, **({"force": True} if spec.queued else {})},
        },
    ]
    return requests


def _request(method: str, path: str, what: str) -> dict[str, Any]:
    return {"method": method, "request": {"path": path, "what": what}}


def check_data(prepared: Prepared, overrides: Sequence[Override]) -> Prepared:
    """Reads the data set's manifest, so that what disagrees is found before it is paid for.

    Returns:
        The same, with the config of a run on that data.

    Raises:
        BadInput: no data set there, a setting that contradicts it, or a slice of more hosts than
            its readers can be shared among.
    """
    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.data import order

    manifest = manifest_lib.load(prepared.data_dir)
    where = storage.join(prepared.data_dir, "manifest.json")
    config = complete_config(prepared.config, overrides, manifest.as_settings(), where)
    batch = prepared.config.training.global_batch_size
    if prepared.settings.hosts > 1:
        order.check_hosts(manifest.num_readers, batch, prepared.settings.hosts, 0)
    return dataclasses.replace(prepared, config=config)


def region_warnings(prepared: Prepared, table: prices.Prices) -> list[str]:
    """What reading the bucket from another region costs, for each zone where it does."""
    if not storage.is_remote(prepared.paths.bucket):
        return []
    location = storage.bucket_location(prepared.paths.bucket)
    if not location:
        return []
    found = [
        prices.traffic_warning(prepared.paths.bucket, location, zone, table)
        for zone in prepared.settings.zones
    ]
    return [warning for warning in found if warning]


def record(prepared: Prepared, changes: Sequence[str] = ()) -> Recorded:
    """Writes what the VM needs to the bucket.

    A run that was launched before keeps its package, unless `--update_package`.

    Args:
        changes: settings that may differ from what was launched: those of `--continue_with`.

    Raises:
        BadInput: the run exists with a config that its checkpoints do not accept.
    """
    paths, args = prepared.paths, prepared.args
    BucketFiles(paths).prepare()
    before = read_launched(paths)
    wheel_path, digest = "", ""
    continued = tuple(dict.fromkeys((*(before.continue_with if before else ()), *changes)))
    if before:
        _compare_config(prepared, changes)
        if not args.update_package and before.wheel and storage.exists(before.wheel):
            wheel_path, digest = before.wheel, before.wheel_sha256
    if not wheel_path:
        wheel_path, digest = wheel.upload(paths.bucket, prepared.wheel), prepared.wheel.sha256
    storage.write_text(prepared.config_path, config_to_yaml(prepared.config))
    values = {
        "name": paths.name,
        "project": prepared.project,
        "zones": list(prepared.settings.zones),
        "accelerator_type": args.accelerator_type,
        "pricing": args.pricing,
        "queued": args.queued,
        "engine": args.engine,
        "usd_per_hour": prepared.usd_per_hour,
        "target_step": prepared.settings.target_step,
        "data_dir": prepared.data_dir,
        "wheel": wheel_path,
        "wheel_sha256": digest,
        "continue_with": list(continued),
    }
    text = json.dumps(values, ensure_ascii=False, indent=1)
    storage.write_text(paths.supervisor("launch.json"), text)
    return Recorded(wheel_path, digest, continued)


def _compare_config(prepared: Prepared, changes: Sequence[str]) -> None:
    try:
        old = read_config(prepared.config_path)
    except BadInput:
        return
    found = differences(old, prepared.config)
    changed = [one for one in found if one.partition(":")[0] not in changes]
    if changed:
        keys = [one.partition(":")[0] for one in changed]
        may = all(map(may_change_in_mid_run, keys))
        advice = "change it in mid run by --continue_with, " if may else ""
        raise BadInput(
            f"{prepared.paths.run_dir} was launched with another config:"
            f" {'; '.join(changed[:5])}: keep it, {advice}or choose another --name"
        )
