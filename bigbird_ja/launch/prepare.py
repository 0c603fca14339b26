"""The parameters of `launch`, the record built from them, and all checks before a rental.

A machine that refuses its run is billed until it is deleted. So all checks of `pretrain` on the
machine are done here first, by the same functions.
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
from bigbird_ja.accelerators.prices import USUAL_ZONES, Prices, Rental, region_of
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
from bigbird_ja.settings.values import train_predictions

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
# Parameters that are stored on a bucket and sent to a machine under their own names.
_STORED = ("engine", "mode", "service_account", "network", "subnetwork", "external_ip", "vm_python")
_DEFAULT_ACCOUNT = (
    "without `service_account` the machine has the project's default account, which may do far"
    " more: give it one that has roles/storage.objectUser on the bucket and may delete the machine,"
    " by roles/tpu.admin, or by roles/compute.instanceAdmin.v1 if Compute Engine rents it"
    " (docs/cloud-setup.md has a narrower one)"
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Parameters of `session.launch`, which documents them."""

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
    """Check parameters that need neither credentials nor data.

    Raises:
        BadInput: A parameter is missing, out of range, or has no effect.
    """
    places = [] if request.dry_run else ["name", "project", "bucket", "data_dir"]
    missing = [f"`{name}`" for name in places if not getattr(request, name)]
    missing += [] if request.config else ["`config` (`bigbird-ja config` lists the presets)"]
    has_limit = request.max_cost is not None or request.max_hours is not None
    missing += [] if has_limit else ["`max_cost` or `max_hours` (`bigbird-ja plan` estimates both)"]
    if missing:
        raise BadInput(f"needed: {', and '.join(missing)}")
    for name, choices in CHOICES.items():
        if getattr(request, name) not in choices:
            raise BadInput(f"`{name}` must be one of {', '.join(choices)}")
    for name, (low, high) in RANGES.items():
        value = getattr(request, name)
        if value is not None and not low <= value <= high:
            raise BadInput(f"`{name}` must be from {low:g} to {high:g}, not {value:g}")
    if request.price_per_hour == 0 and request.max_hours is None:
        raise BadInput("`price_per_hour` 0 has no costs to limit: give `max_hours`")
    if request.price_per_hour == 0 and request.max_cost is not None:
        raise BadInput("`max_cost` has no effect with `price_per_hour` 0: leave one of them out")
    for name in (*_STORED, "project", "bucket", "data_dir", "runtime_version"):
        _check_plain(name, getattr(request, name))
    # Of a local model only the hash is stored.
    if request.init_from and storage.is_remote(request.init_from):
        _check_plain("init_from", request.init_from)


def _check_plain(name: str, value: Any) -> None:
    """Check that a stored value contains no free text, without showing a refused value.

    Raises:
        BadInput: It has a query of a URL, a user or password, or a space.
    """
    word = str(value or "")
    if not re.fullmatch(r"[\w./:~+@-]*", word) or ("@" in word and "/" in word):
        raise BadInput(
            f"`{name}`: only letters, digits and ./:~+-_ belong there, no query (?), no user"
            " or password (@), no space"
        )


# --- the record -----------------------------------------------------------------------------------


def make_record(request: Request, config: Config, vm: Vm) -> tuple[LaunchedRun, list[str]]:
    """Build the record of a run, without credentials or data.

    A dry run has placeholders for parameters that were not given.

    Args:
        request: parameters, checked by `check_request`.
        config: settings of the run.
        vm: environment of the machine.

    Returns:
        The record, for which `offer` finds service, image, zones and price; and warnings to show.

    Raises:
        BadInput: A parameter is unknown, or known not to work.
    """
    machine = find(request.accelerator_type)
    backends.check_engine(machine, request.engine)
    warnings = ["no run of ours has used a rented TPU yet: watch its first hour"]
    warnings += [] if request.service_account else [_DEFAULT_ACCOUNT]
    name, (bucket, data_dir) = check_name(request.name or "my-run"), _places(request, vm)
    before = None if request.dry_run else _original(bucket, name)
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
    """Check the name of a run, which names a TPU, a label and a folder.

    Raises:
        BadInput: A character that one of these does not accept.
    """
    if not re.fullmatch("[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise BadInput(
            f"`name` {name!r}: at most 40 lower-case letters, digits and dashes, beginning with a"
            " letter, not ending with a dash"
        )
    return name


def _places(request: Request, vm: Vm) -> tuple[str, str]:
    """Return bucket and data set.

    Raises:
        BadInput: A path that the machine cannot reach.
    """
    bucket = (request.bucket or "gs://MY-BUCKET").rstrip("/")
    data_dir = request.data_dir or f"{bucket}/data"
    if storage.is_remote(bucket) and not storage.is_remote(data_dir):
        raise BadInput(
            f"`data_dir` {data_dir} is on this machine, where the TPU cannot read it: put it on the"
            f" bucket, by `make-data` with {bucket}/data or by gcloud storage cp -r"
        )
    if not storage.is_remote(bucket) and vm.device == "tpu":
        raise BadInput(f"`bucket` {bucket}: a TPU reads and writes gs:// only")
    return bucket, data_dir


def _original(bucket: str, name: str) -> LaunchedRun | None:
    """Return the record of an earlier launch under the name, if there was one.

    Raises:
        BadInput: The folder is a copy of another run's.
    """
    run = read_run(bucket, name)
    if run and run.copy_of:
        raise BadInput(
            f"{run.run_dir} is a copy of the run {run.copy_of}: go on with that one, by its"
            f" `bucket` and `name`. Or remove {run.run_dir}/supervisor, and the same command makes"
            " the copy a run of its own, from its checkpoint"
        )
    return run


# --- service, zones and price ---------------------------------------------------------------------


def offer(
    run: LaunchedRun, request: Request, table: Prices, near: str
) -> Iterator[tuple[LaunchedRun, Rental, list[str]]]:
    """Yield record, rental and warnings for each service that rents the machine by the table.

    The preferred service comes first, or the one that a machine of the run may be of; the next one
    serves if every zone refuses the first request. Only a request shows whether a zone has a TPU.

    Args:
        run: record without service, image, zones and price.
        request: parameters of `launch`.
        table: rentals and prices.
        near: region of the bucket; "" if it is unknown.

    Raises:
        BadInput: No service rents the machine, or a limit needs a price that is not known.
    """
    machine, queued = run.accelerator, request.queued
    rentals = backends.find_rentals(machine, request.service, queued, table)
    before = None if request.dry_run else read_run(run.bucket, run.name)
    if last := before and machine_of(before):
        rentals.sort(key=lambda one: one.service != last.service)
    usual = table.usual_zones(machine, run.pricing, near)
    for rental in rentals:
        zones = [zone for zone in usual if zone in rental.zones] or rental.zones[:USUAL_ZONES]
        asked = replace(run, zones=tuple(request.zones) or tuple(zones))
        priced, warnings = _add_price(asked, table, request.price_per_hour)
        found = backends.add_rental(priced, rental, request.runtime_version)
        warnings += [TRC] if found.service == "compute" else []
        yield found, rental, [*warnings, *region_warnings(found, near)]
        # The image belongs to this service, so no other can serve.
        if request.runtime_version:
            return


def machine_of(run: LaunchedRun) -> Machine | None:
    """Return the facts of the machine that may run now, or None if none was requested."""
    state = RunFiles(run).load_state() or RunState()
    may_be_there = state.attempt and (state.phase is not Phase.ENDED or state.billing)
    return (state.machine or Machine.of(run)) if may_be_there else None


def _add_price(
    run: LaunchedRun, table: Prices, per_hour: float | None
) -> tuple[LaunchedRun, list[str]]:
    """Return the record with its price and the warnings.

    By default it is the price of the dearest zone.

    Raises:
        BadInput: No price is known and `max_cost` needs one.
    """
    if per_hour is not None:
        return replace(run, usd_per_hour=per_hour), []
    try:
        usd = table.per_hour(run.accelerator, run.pricing, run.zones)
    except BadInput as error:
        if run.max_usd is not None:
            raise BadInput(f"`max_cost` needs a price: {error}") from error
        return run, [f"{error}: costs are not counted"]
    return replace(run, usd_per_hour=usd), []


def region_warnings(run: LaunchedRun, near: str) -> list[str]:
    """Return a warning if zones are in another region than the bucket, as far as it is known."""
    others = {region_of(zone) for zone in run.zones} - {near}
    if not near or not others:
        return []
    return [
        f"{run.bucket} is in {near}, zones are in {', '.join(sorted(others))}: traffic between"
        " regions costs some cents per GB in each epoch, and is slower: take zones near the bucket"
    ]


def bucket_region(bucket: str) -> str:
    """Return the region of the bucket, or "" if it is unknown."""
    with contextlib.suppress(OSError, StorageError):
        return storage.bucket_location(bucket) or ""
    return ""


def check_name_is_free(run: LaunchedRun, tpus: Tpus) -> None:
    """Check that no machine of another owner has the run's name.

    Raises:
        BadInput: One has it; the message quotes its labels.
    """
    for zone in run.zones:
        # The supervisor waits for a silent zone, or ends.
        with contextlib.suppress(ServiceFault):
            tpu = tpus.find(zone, run.name)
            if tpu is not None and not tpu.belongs_to(run):
                raise BadInput(
                    f"{tpu.resource} is not of this run ({tpu.owner}): choose another `name`"
                )


# --- what the machine would refuse ----------------------------------------------------------------


def check_data(
    run: LaunchedRun, config: Config, overrides: Sequence[Override]
) -> tuple[Config, Data]:
    """Check config and data set as `pretrain` does on the machine.

    Returns:
        The config of a run on that data, and the data.

    Raises:
        BadInput: No data set there, a damaged one, a setting that contradicts it or the machine, or
            another run in MODEL_DIR.
    """
    manifest = data_check.fast_check(run.data_dir)
    if run.mode == "train_and_eval":
        data_check.check_held_out(manifest, run.data_dir)
    fitted = fit_to_data(config, manifest, overrides, run.data_dir)
    # Raises for a mask unit or a rate that static data does not have.
    manifest.rule(fitted.data.mask_unit, train_predictions(fitted, manifest))
    check_machine(run, fitted, manifest)
    # Otherwise `session.store` compares the config.
    if read_run(run.bucket, run.name) is None:
        ModelDir(run.model_dir).check_settings(fitted, manifest)
    if run.hosts > 1:
        order.check_hosts(manifest.num_readers, fitted.training.global_batch_size, run.hosts)
    return fitted, manifest


def check_machine(run: LaunchedRun, config: Config, data: Data) -> None:
    """Check that a config can be trained on the machine.

    Raises:
        BadInput: It cannot.
    """
    training, machine = config.training, run.accelerator
    check_length(config, data.seq_length)
    if backends.engine_on(machine, run.engine) == "estimator":
        check_estimator(config)
        cores = config.tpu.num_cores
        if machine.generation < 4 and cores != machine.devices:
            raise BadInput(
                f"tpu.num_cores={cores}: TPUEstimator trains on all cores, and {machine.name} has"
                f" {machine.devices}"
            )
    else:
        cores = machine.devices
        # The machine contains jax in any case.
        if importlib.util.find_spec("jax"):
            kernels.resolved(config, data, "tpu", machine.chip)
    check_divides(training.global_batch_size, cores, training.gradient_accumulation_steps)
