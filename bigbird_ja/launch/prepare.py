"""Parameters of `launch`, the record that is built from them, and all checks before a rental.

A machine on which `pretrain` fails is billed until it is deleted. So `launch` makes all checks of
`pretrain` before the rental, by the same functions.
"""

import contextlib
import importlib.util
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bigbird_ja import storage
from bigbird_ja.accelerators.chips import find
from bigbird_ja.accelerators.prices import USUAL_ZONES, Prices, Rental, get_region
from bigbird_ja.data import check as data_check
from bigbird_ja.data import order
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.launch import backends
from bigbird_ja.launch.advice import TRC
from bigbird_ja.launch.backends import Vm
from bigbird_ja.launch.files import RunFiles, read_run
from bigbird_ja.launch.launched_run import LaunchedRun, Machine
from bigbird_ja.launch.rest import ServiceFault
from bigbird_ja.launch.service import Tpus
from bigbird_ja.launch.state import Phase, RunState
from bigbird_ja.model.flops import check_length
from bigbird_ja.model.kernels import choose as kernels
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.settings.checks import check_divides, check_estimator
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.provenance import Override
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import count_train_predictions

CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("train", "train_and_eval"),
    "engine": ("auto", "estimator", "pjrt"),
    "service": ("auto", "compute", "tpu"),
    "pricing": ("spot", "on_demand", "on-demand"),
    "on_interrupt": ("ask", "delete", "detach"),
}
RANGES: Mapping[str, tuple[float, float]] = {
    "max_hours": (0.0001, 1e6),
    "max_cost": (0.01, 1e9),
    "price_per_hour": (0, 1e6),
    "lease_hours": (0.0001, 168),
    "poll_seconds": (0.05, 86_400),
}
# Parameters of `launch` that are copied to fields of the record with the same names.
_STORED = ("engine", "mode", "service_account", "network", "subnetwork", "external_ip", "vm_python")
_DEFAULT_ACCOUNT = (
    "without `service_account`, the machine uses the project's default account, which usually has"
    " far more permissions: use one with roles/storage.objectUser on the bucket and roles/tpu.admin"
    " (or roles/compute.instanceAdmin.v1 if Compute Engine rents the machine), or the narrower role"
    " in docs/cloud-setup.md"
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Parameters of `launch`, documented at `session.launch`."""

    config: Any
    overrides: Mapping[str, Any] | None
    num_train_steps: int | None
    name: str | None
    project: str | None
    bucket: str | None
    data_dir: str | None
    init_from: str | None
    mode: str
    accelerator_type: str
    zones: Sequence[str]
    engine: str
    service: str
    pricing: str
    queued: bool
    max_hours: float | None
    max_cost: float | None
    price_per_hour: float | None
    lease_hours: float
    poll_seconds: float
    on_interrupt: str
    price_file: str | None
    runtime_version: str | None
    service_account: str | None
    network: str | None
    subnetwork: str | None
    external_ip: bool
    vm_python: str
    dry_run: bool


def check_request(request: Request) -> None:
    """Check all parameters that can be checked without credentials and without the data set.

    Raises:
        BadInput: A parameter is missing, out of range, or has no effect.
    """
    places = [] if request.dry_run else ["name", "project", "bucket", "data_dir"]
    missing = [f"`{name}`" for name in places if not getattr(request, name)]
    missing += [] if request.config else ["`config` (`bigbird-ja config` lists the presets)"]
    has_limit = request.max_cost is not None or request.max_hours is not None
    missing += [] if has_limit else ["`max_cost` or `max_hours` (`bigbird-ja plan` estimates both)"]
    if missing:
        raise BadInput(f"required: {', and '.join(missing)}")
    for name, choices in CHOICES.items():
        if getattr(request, name) not in choices:
            raise BadInput(f"`{name}` must be one of {', '.join(choices)}")
    for name, (low, high) in RANGES.items():
        value = getattr(request, name)
        if value is not None and not low <= value <= high:
            raise BadInput(f"`{name}` must be from {low:g} to {high:g}, not {value:g}")
    if request.price_per_hour == 0 and request.max_hours is None:
        raise BadInput("`price_per_hour` 0 requires `max_hours`, since there is no cost to limit")
    if request.price_per_hour == 0 and request.max_cost is not None:
        raise BadInput("`max_cost` has no effect with `price_per_hour` 0: remove one of them")
    for name in (*_STORED, "project", "bucket", "data_dir", "runtime_version"):
        _check_plain(name, getattr(request, name))
    # The record contains the path of a remote model, but only the hash of a local model.
    if request.init_from and storage.is_remote(request.init_from):
        _check_plain("init_from", request.init_from)


def _check_plain(name: str, value: Any) -> None:
    """Check that the value of a parameter contains no secret.

    The value is stored, and sent to the machine. The error message does not quote it.

    Raises:
        BadInput: The value contains a URL's query, user or password, or a space.
    """
    word = str(value or "")
    if not re.fullmatch(r"[\w./:~+@-]*", word) or ("@" in word and "/" in word):
        raise BadInput(
            f"`{name}` may contain only letters, digits and ./:~+-_, but no query (?), no user or"
            " password (@), and no space"
        )


# --- the record -----------------------------------------------------------------------------------


def make_record(request: Request, config: Config, vm: Vm) -> tuple[LaunchedRun, list[str]]:
    """Build the record of a run from the parameters of `launch`, without reading the data set.

    In a dry run, missing parameters are replaced by placeholders.

    Args:
        request: parameters, checked by `check_request`.
        config: settings of the run.
        vm: environment of the machine.

    Returns:
        The record, and warnings. `offer` adds service, image, zones and price to the record later.

    Raises:
        BadInput: A parameter is invalid or does not fit the machine, or the folder of the run is a
            copy of another run's folder.
    """
    machine = find(request.accelerator_type)
    backends.check_engine(machine, request.engine)
    warnings = ["`launch` has not been tested on rented TPUs yet: watch the first hour"]
    warnings += [] if request.service_account else [_DEFAULT_ACCOUNT]
    name, (bucket, data_dir) = check_name(request.name or "my-run"), _check_places(request, vm)
    before = None if request.dry_run else _read_original(bucket, name)
    max_hours = request.max_hours
    run = LaunchedRun(
        bucket,
        name,
        (before and before.run_id) or secrets.token_hex(8),
        project=request.project or "MY-PROJECT",
        data_dir=data_dir,
        target_step=config.training.num_train_steps,
        accelerator_type=request.accelerator_type,
        pricing=request.pricing.replace("-", "_"),
        queued=request.queued,
        max_seconds=None if max_hours is None else max_hours * 3600,
        max_usd=request.max_cost,
        poll=request.poll_seconds,
        lease=request.lease_hours * 3600,
        **{name: getattr(request, name) for name in _STORED},
    )
    return run, warnings


def check_name(name: str) -> str:
    """Check the name of a run, and return it. The run's TPU, label and folder have the same name.

    Raises:
        BadInput: The name is not allowed for a TPU, a label or a folder.
    """
    if not re.fullmatch("[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise BadInput(
            f"`name` {name!r} must consist of at most 40 lower-case letters, digits and dashes,"
            " begin with a letter and not end with a dash"
        )
    return name


def _check_places(request: Request, vm: Vm) -> tuple[str, str]:
    """Return the paths of bucket and data set, and check that the machine can read them.

    Raises:
        BadInput: The machine cannot read the bucket or the data set.
    """
    bucket = (request.bucket or "gs://MY-BUCKET").rstrip("/")
    data_dir = request.data_dir or f"{bucket}/data"
    if storage.is_remote(bucket) and not storage.is_remote(data_dir):
        raise BadInput(
            f"`data_dir` {data_dir} is on this machine, where the TPU cannot read it: create it on"
            f" the bucket by `make-data` with {bucket}/data, or copy it by gcloud storage cp -r"
        )
    if not storage.is_remote(bucket) and vm.device == "tpu":
        raise BadInput(f"`bucket` {bucket}: a TPU can access only gs://")
    return bucket, data_dir


def _read_original(bucket: str, name: str) -> LaunchedRun | None:
    """Return the record of an earlier launch with this name, or None.

    Raises:
        BadInput: The folder is a copy of another run's folder.
    """
    run = read_run(bucket, name)
    if run and run.copy_of:
        raise BadInput(
            f"{run.run_dir} is a copy of the run {run.copy_of}: continue that run, by its `bucket`"
            f" and `name`. Or remove {run.run_dir}/supervisor and rerun the same command, which"
            " starts a new run from the copied checkpoint"
        )
    return run


# --- service, zones and price ---------------------------------------------------------------------


def offer(
    run: LaunchedRun, request: Request, table: Prices, near: str
) -> Iterator[tuple[LaunchedRun, Rental, list[str]]]:
    """Yield record, rental and warnings for each service that rents the machine.

    The first service is the one that rents the run's existing machine. If no machine can exist, it
    is the preferred service. The caller uses the next service if every zone refuses the first
    request, since only a request shows whether a zone provides the TPU.

    Args:
        run: record without service, image, zones and price.
        request: parameters of `launch`.
        table: rentals and prices.
        near: region of the bucket; "" if it is unknown.

    Raises:
        BadInput: No service rents the machine, or a limit requires a price that is unknown.
    """
    machine, queued = run.accelerator, request.queued
    rentals = backends.find_rentals(machine, request.service, queued, table)
    before = None if request.dry_run else read_run(run.bucket, run.name)
    if last := before and find_machine(before):
        rentals.sort(key=lambda one: one.service != last.service)
    usual = table.choose_zones(machine, run.pricing, near)
    for rental in rentals:
        zones = [zone for zone in usual if zone in rental.zones] or rental.zones[:USUAL_ZONES]
        asked = replace(run, zones=tuple(request.zones) or tuple(zones))
        priced, warnings = _add_price(asked, table, request.price_per_hour)
        found = backends.add_rental(priced, rental, request.runtime_version)
        warnings += [TRC] if found.service == "compute" else []
        # A dry run does not ask for the bucket's region.
        warnings += [] if request.dry_run else list_region_warnings(found, near)
        yield found, rental, warnings
        # `runtime_version` names an image of this service, which no other service can use.
        if request.runtime_version:
            return


def find_machine(run: LaunchedRun) -> Machine | None:
    """Return the properties of the run's machine, or None if the run can have no machine now."""
    state = RunFiles(run).load_state() or RunState()
    may_be_there = state.attempt and (state.phase is not Phase.ENDED or state.billing)
    return (state.machine or Machine.of(run)) if may_be_there else None


def _add_price(
    run: LaunchedRun, table: Prices, per_hour: float | None
) -> tuple[LaunchedRun, list[str]]:
    """Return the record with the price of the machine, and warnings.

    `per_hour` is the price that the user stated. If it is None, the price in the most expensive
    zone is used.

    Raises:
        BadInput: `max_cost` requires a price, and it is unknown.
    """
    if per_hour is not None:
        return replace(run, usd_per_hour=per_hour), []
    try:
        usd = table.get_hourly_price(run.accelerator, run.pricing, run.zones)
    except BadInput as error:
        if run.max_usd is not None:
            raise BadInput(f"`max_cost` requires a price: {error}") from error
        return run, [f"{error}: costs are not counted"]
    return replace(run, usd_per_hour=usd), []


def list_region_warnings(run: LaunchedRun, near: str) -> list[str]:
    """Return a warning if zones are not in the bucket's region, or if this region is unknown."""
    others = {get_region(zone) for zone in run.zones} - {near}
    if not near and storage.is_remote(run.bucket):
        return [
            f"the region of {run.bucket} is unknown, as you may not read the bucket's metadata"
            " (roles/storage.legacyBucketReader): check that it is the region of the zones"
            f" ({', '.join(sorted(others))}), since traffic between regions costs some cents per GB"
        ]
    if not near or not others:
        return []
    return [
        f"{run.bucket} is in {near}, but zones are in {', '.join(sorted(others))}: use zones in the"
        " bucket's region, since traffic between regions is slower and costs some cents per GB"
    ]


def find_bucket_region(bucket: str) -> str:
    """Return the region of the bucket, or "" if it is unknown."""
    with contextlib.suppress(OSError, StorageError):
        return storage.get_bucket_location(bucket) or ""
    return ""


def check_name_is_free(run: LaunchedRun, tpus: Tpus) -> None:
    """Check that no machine of another owner has the run's name.

    Raises:
        BadInput: A machine of another owner has the name. The message contains its labels.
    """
    for zone in run.zones:
        # A zone that does not answer is skipped, since the supervisor checks the name again.
        with contextlib.suppress(ServiceFault):
            tpu = tpus.find(zone, run.name)
            if tpu is not None and not tpu.belongs_to(run):
                raise BadInput(
                    f"{tpu.resource} belongs to another owner ({tpu.owner}): choose another `name`"
                )


# --- checks of `pretrain` -------------------------------------------------------------------------


def check_data(
    run: LaunchedRun, config: Config, overrides: Sequence[Override]
) -> tuple[Config, Data]:
    """Check config and data set as `pretrain` does on the machine.

    Returns:
        The config, with the values that the data set determines, and the data set's manifest.

    Raises:
        BadInput: The data set is missing or damaged, a setting contradicts it or the machine, or
            MODEL_DIR contains another run.
    """
    manifest = data_check.check_files(run.data_dir)
    if run.mode == "train_and_eval":
        data_check.check_held_out(manifest, run.data_dir)
    fitted = fit_to_data(config, manifest, overrides, run.data_dir)
    # Raises BadInput if statically masked data has another mask unit or rate than the config.
    manifest.make_rule(fitted.data.mask_unit, count_train_predictions(fitted, manifest))
    check_machine(run, fitted, manifest)
    # For an existing run, `session.store` compares the config with the stored one.
    if read_run(run.bucket, run.name) is None:
        ModelDir(run.model_dir).check_settings(fitted, manifest)
    if run.hosts > 1:
        order.check_hosts(manifest.num_readers, fitted.training.global_batch_size, run.hosts)
    return fitted, manifest


def check_machine(run: LaunchedRun, config: Config, data: Data) -> None:
    """Check that a config can be trained on the machine.

    Raises:
        BadInput: The machine cannot train the config.
    """
    training, machine = config.training, run.accelerator
    check_length(config, data.seq_length)
    if backends.choose_engine(machine, run.engine) == "estimator":
        check_estimator(config)
        cores = config.tpu.num_cores
        if machine.generation < 4 and cores != machine.devices:
            raise BadInput(
                f"tpu.num_cores={cores}: TPUEstimator uses all cores, so set it to"
                f" {machine.devices} for {machine.name}"
            )
    else:
        cores = machine.devices
        # This check of the kernels requires jax. The rented machine installs jax, but this computer
        # may lack it.
        if importlib.util.find_spec("jax"):
            kernels.resolve_attention(config, data, "tpu", machine.chip)
    check_divides(training.global_batch_size, cores, training.gradient_accumulation_steps)
