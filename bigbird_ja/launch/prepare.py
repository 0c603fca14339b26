"""Makes the record of a run from the flags of `launch`, and shows what it would rent and cost."""

import contextlib
import datetime
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bigbird_ja import accelerators, storage
from bigbird_ja.accelerators import USUAL_ZONES, Prices, Rental
from bigbird_ja.accelerators.rentals import FLEX_START
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import order
from bigbird_ja.launch import LaunchedRun, Machine, Tpus, backends, flex_start, startup
from bigbird_ja.launch.account import longest_life
from bigbird_ja.launch.advice import TRC, advise
from bigbird_ja.launch.files import RunFiles, read_run
from bigbird_ja.launch.offers import Offers
from bigbird_ja.launch.rest import ServiceFault
from bigbird_ja.launch.state import Phase, RunState
from bigbird_ja.plan.estimate import Plan, make_row
from bigbird_ja.process.console import human_time
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.settings import Data, requested_data
from bigbird_ja.settings.resolve import Override, fit_to_data
from bigbird_ja.settings.schema import Config

# Flags that are stored on a bucket and sent to a machine under their own names.
_STORED = (
    *("project", "engine", "mode", "pricing", "service_account"),
    *("network", "subnetwork", "external_ip", "vm_python"),
)
_FLEX_PRICE = "flex-start counts at the on-demand price, from which Google grants a discount"
_DEFAULT_ACCOUNT = (
    "without --service_account the machine has the project's default account, which may do far"
    " more: give it one that has roles/storage.objectUser on the bucket and may delete the machine:"
    " roles/tpu.admin, or roles/compute.instanceAdmin.v1 if Compute Engine rents it"
    " (docs/cloud-setup.md has a narrower one)"
)


# --- the record -----------------------------------------------------------------------------------


def make_record(
    flags: Mapping[str, Any], config: Config, vm: startup.Emulation, table: Prices
) -> tuple[LaunchedRun, list[str]]:
    """Check the flags and fill in what follows from them, without a credential or data.

    A dry run has placeholders for what was not given.

    Args:
        flags: of `launch`, by name.
        config: of the run.
        vm: what it is rented as, or emulated by.
        table: of prices.

    Returns:
        The record of the run, and warnings to show.

    Raises:
        BadInput: something missing, unknown, or known not to work.
    """
    kind, pricing, is_dry = flags["accelerator_type"], flags["pricing"], flags["dry_run"]
    rental = backends.find_rentals(flags, table)[0]
    if pricing == FLEX_START:
        flex_start.check(flags["max_hours"], needs_gcloud=not is_dry)
    backends.check_engine(kind, flags["engine"])
    warnings = ["no run of ours has used a rented TPU yet: watch its first hour"]
    warnings += [_FLEX_PRICE] if pricing == FLEX_START else []
    warnings += [] if flags["service_account"] else [_DEFAULT_ACCOUNT]
    name, (bucket, data_dir) = check_name(flags["name"] or "my-run"), _places(flags, vm)
    before = None if is_dry else _original(bucket, name)
    most = flags["max_hours"]
    run = LaunchedRun(
        bucket,
        name,
        (before and before.run_id) or secrets.token_hex(8),
        data_dir=data_dir,
        target_step=config.training.num_train_steps,
        accelerator_type=kind,
        queued=flags["queued"] or pricing == FLEX_START,
        max_seconds=None if most is None else most * 3600,
        max_usd=flags["max_cost"],
        poll=flags["poll_seconds"],
        lease=flags["lease_hours"] * 3600,
        **{flag: flags[flag] for flag in _STORED},
    )
    run = replace(run, project=run.project or "MY-PROJECT")
    if not is_dry:  # `offered` asks the services
        return run, warnings
    zones = flags["zones"] or table.usual_zones(kind, pricing)
    for zone in zones:
        table.check_zone(zone, kind, pricing)
    run, more = _from_rental(run, flags, table, rental, zones)
    return run, [*warnings, *more]


def _from_rental(
    run: LaunchedRun, flags: Mapping[str, Any], table: Prices, rental: Rental, zones: Sequence[str]
) -> tuple[LaunchedRun, list[str]]:
    """Fill in service, image, zones and price, that of the dearest zone; return warnings, too.

    Raises:
        BadInput: no price is known and --max_cost needs one.
    """
    kind, warnings, usd = run.accelerator_type, [TRC] if rental.service == "compute" else [], 0.0
    try:
        usd = table.per_hour(kind, run.pricing, zones)
    except BadInput as error:
        if run.max_usd is not None:
            raise BadInput(f"--max_cost needs a price: {error}") from error
        warnings.append(f"{error}: costs are not counted")
    image = flags["runtime_version"] or backends.image(rental, kind, run.engine)
    run = replace(run, service=rental.service, runtime_version=image, zones=tuple(zones))
    return replace(run, usd_per_hour=usd), warnings


def machine_of(run: LaunchedRun) -> Machine | None:
    """Return the facts of the machine that a run may have now; None if it has none."""
    state = RunFiles(run).load_state() or RunState()
    may_be_there = state.attempt and (state.phase is not Phase.ENDED or state.billing)
    return (state.machine or Machine.of(run)) if may_be_there else None


# --- what the project is offered ------------------------------------------------------------------


def offered(
    run: LaunchedRun, flags: Mapping[str, Any], table: Prices
) -> Iterator[tuple[LaunchedRun, list[str]]]:
    """Yield the record and lines to show for each service that offers the machine in some zones.

    The preferred service comes first; the next one serves if the first turns out to lack quota.

    Args:
        run: the record, without service, image, zones and price.
        flags: of `launch`, by name.
        table: serves if a list can't be read.

    Raises:
        BadInput: no service offers the machine in these zones; the message has those that do.
    """
    kind, given, is_offered = run.accelerator_type, flags["zones"], False
    usual = given or table.usual_zones(kind, run.pricing, _location(run.bucket))
    zones = given or [*dict.fromkeys((*usual, *(z for z, _ in table.by_zone(kind, run.pricing))))]
    refusals, elsewhere = list[str](), list[str]()
    rentals, before = backends.find_rentals(flags, table), read_run(run.bucket, run.name)
    if machine := before and machine_of(before):
        rentals.sort(key=lambda one: one.service != machine.service)
    for rental in rentals:
        name, notes = backends.NAMES[rental.service], list[str]()
        image = flags["runtime_version"] or backends.image(rental, kind, run.engine)
        asked = replace(run, service=rental.service, runtime_version=image)
        answered = Offers([asked], zones)
        if any(fault.is_switched_off for fault in answered.faults):
            refusals.append(advise(answered.faults[-1], asked))  # no other list was asked for then
            continue
        for fault in answered.faults[:1]:
            notes.append(
                f"not all lists of {name} can be read ({fault.message}): the package's table of"
                f" {rental.as_of} serves in their place"
            )
        lacking = {zone: answered.lacks(zone, asked, rental) for zone in zones}
        notes += [f"{zone} is left out: {lacking[zone]}" for zone in usual if lacking[zone]]
        kept = [zone for zone in zones if not lacking[zone]]
        if not kept:
            refusals += dict.fromkeys(lacking.values())
            every = answered if rental.service == "compute" else Offers([asked], [])
            elsewhere += [zone for zone in every.types if not every.lacks(zone, asked, rental)]
            continue
        if refusals:
            notes.append(f"{'; '.join(refusals)}: falling back to {name}. {_GIVEN_UP}")
        if not given:  # else those that are dearer
            kept = ([zone for zone in kept if zone in usual] or kept)[:USUAL_ZONES]
        found, warnings = _from_rental(run, flags, table, rental, kept)
        yield found, [*notes, *(f"warning: {text}" for text in warnings)]
        if flags["runtime_version"]:  # an image of that service
            return
        is_offered = True
        refusals.append(f"{name} has no quota for it")
    if before is not None and not is_offered:  # it goes on
        found, _ = _from_rental(run, flags, table, rentals[0], usual)
        yield found, refusals
    elif not is_offered:
        raise BadInput(
            f"--accelerator_type {kind}: not to be had in {', '.join(usual)}"
            f" ({'; '.join(refusals)}): zones that offer it:"
            f" {', '.join(sorted({*elsewhere})) or 'none'}"
        )


_GIVEN_UP = (
    "Its run time is limited by the machine's own watcher then, and not by the cloud: look at it"
    " now and then, or use --pricing flex-start"
)


def _original(bucket: str, name: str) -> LaunchedRun | None:
    """Read what was launched under the name before.

    Raises:
        BadInput: the folder is a copy of another run's.
    """
    run = read_run(bucket, name)
    if run and run.copy_of:
        raise BadInput(
            f"{run.run_dir} is a copy of the run {run.copy_of}: go on with that one, by its"
            f" --bucket and --name; or remove {run.run_dir}/supervisor: the same command makes the"
            " copy a run of its own then, from its checkpoint"
        )
    return run


def check_name(name: str) -> str:
    """Check the name of a run, which is a TPU's name, a label and a folder.

    Raises:
        BadInput: characters that one of these does not take.
    """
    if not re.fullmatch("[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise BadInput(
            f"--name {name!r}: at most 40 lower-case letters, digits and dashes, beginning with a"
            " letter, not ending with a dash"
        )
    return name


def _places(flags: Mapping[str, Any], vm: startup.Emulation) -> tuple[str, str]:
    """Check bucket and data set, and that no flag which is stored has free text.

    No query of a URL, no user or password, no space: what is refused is not shown.

    Raises:
        BadInput: free text, or a place that the machine cannot reach.
    """
    source = flags["init_from"] or ""  # of this machine: only its checksum is stored
    places = ("bucket", "data_dir", *(["init_from"] if storage.is_remote(source) else []))
    for flag in (*_STORED, *places, "runtime_version"):
        word = str(flags[flag] or "")
        if not re.fullmatch(r"[\w./:~+@-]*", word) or ("@" in word and "/" in word):
            raise BadInput(
                f"--{flag}: only letters, digits and . / : ~ + - _ belong there: no query (?), no"
                " user or password (@), no space"
            )
    bucket = (flags["bucket"] or "gs://MY-BUCKET").rstrip("/")
    data_dir = flags["data_dir"] or f"{bucket}/data"
    if storage.is_remote(bucket) and not storage.is_remote(data_dir):
        raise BadInput(
            f"--data_dir {data_dir} is on this machine, where the TPU cannot read it: put it on the"
            f" bucket, with make-data --output_dir {bucket}/data or gcloud storage cp -r"
        )
    if not storage.is_remote(bucket) and vm.device == "tpu":
        raise BadInput(f"--bucket {bucket}: a TPU reads and writes gs:// only")
    return bucket, data_dir


def check_data(
    run: LaunchedRun, config: Config, overrides: Sequence[Override]
) -> tuple[Config, Data]:
    """Read the data set's manifest, so that a contradiction is found before it is paid for.

    Returns:
        The config of a run on that data, and the data.

    Raises:
        BadInput: no data set there, a setting that contradicts it, or a slice of more hosts than
            its readers can be shared among.
    """
    manifest = manifest_lib.load(run.data_dir)
    fitted = fit_to_data(config, manifest, overrides, run.data_dir)
    if run.hosts > 1:
        order.check_hosts(manifest.num_readers, config.training.global_batch_size, run.hosts)
    return fitted, manifest


def region_warnings(run: LaunchedRun) -> list[str]:
    """Warn where zones are in another region than the bucket, if it may be asked for its own."""
    location = _location(run.bucket)
    others = {accelerators.region_of(zone) for zone in run.zones} - {location}
    if not location or not others:
        return []
    return [
        f"{run.bucket} is in {location}, zones are in {', '.join(sorted(others))}: traffic between"
        " regions costs some cents per GB in each epoch, and is slower: take zones near the bucket"
    ]


def _location(bucket: str) -> str:
    """Ask for the region of the bucket; empty if it may not be asked."""
    with contextlib.suppress(OSError, StorageError):
        return storage.bucket_location(bucket) or ""
    return ""


def check_name_is_free(run: LaunchedRun, tpus: Tpus) -> None:
    """Refuse a name that another's machine has, before anything is written or rented.

    Raises:
        BadInput: whose it is, in its owner's words.
    """
    for zone in run.zones:
        with contextlib.suppress(ServiceFault):  # the supervisor waits for a zone, or ends
            tpu = tpus.find(zone, run.name)
            if tpu is not None and not tpu.belongs_to(run):
                raise BadInput(
                    f"--name {run.name}: {tpu.resource} is not of this run ({tpu.owner}): choose"
                    " another --name"
                )


# --- the dry run ----------------------------------------------------------------------------------


def estimate(
    run: LaunchedRun, config: Config, data: Data, table: Prices
) -> tuple[str, dict[str, Any]]:
    """Compare what `plan` computes for the whole run with the run's limits.

    Returns:
        One line for people, and `needs` of the `--json` results.
    """
    machine, price = accelerators.find(run.accelerator_type), run.usd_per_hour or None
    row = make_row([Plan(config, data)], machine, run.pricing, (), price)
    most = cost_limits(run, table)["most_hours"]
    covered = most / row.hours if most is not None and row.hours else None
    keys = ("hours", "hours_range", "cost_usd", "cost_usd_range")
    needs = {key: getattr(row, key) for key in keys}
    text = f"needs    {_figure(row.hours, row.hours_range)} rented hours,"
    text += f" {_figure(row.cost_usd, row.cost_usd_range)} USD by `plan`"
    if covered is not None:
        text += f"; the limits cover {'all of it' if covered >= 1 else f'{covered:.0%}'}"
    return text, {**needs, "covered": covered}


def _figure(value: float | None, ends: tuple[float, float] | None) -> str:
    """Write a number with its interval; one that is not known is `?`."""
    return "?" if value is None or ends is None else f"{value:,.2f} ({ends[0]:,.2f}-{ends[1]:,.2f})"


def dry_run(
    run: LaunchedRun, config: Config, vm: startup.Emulation, table: Prices
) -> dict[str, Any]:
    """Print machine, lease and money; return the `--json` results."""
    data = requested_data(config)
    needs, needed = estimate(run, fit_to_data(config, data), data, table)
    run = startup.with_package(run, startup.build_package())
    cost = cost_limits(run, table)
    machine = accelerators.find(run.accelerator_type)
    queue = ", in the queue" if run.queued else ""
    usd, hours, most = cost["usd_per_hour"], cost["most_hours"], cost["most_usd"]
    lease = "a week each" if hours is None else f"at most {human_time(hours * 3600)} of rented time"
    price = f"{usd:,.2f} USD per hour in the dearest zone" if usd else "no price is known"
    print(
        "dry run: nothing was asked for, nothing is billed\n"
        f"machine  {run.accelerator_type}, {run.pricing.replace('_', ' ')}{queue}: chips"
        f" {machine.chips}, hosts {machine.hosts}, image {run.runtime_version}\n"
        f"zones    {', '.join(run.zones)}, in this order\n"
        f"lease    {lease}; deletes itself {run.lease / 3600:g} h after nobody watches any more\n"
        f"cost     {price}; {f'at most {most:,.2f} USD' if usd else 'not counted'}\n"
        f"         {table.describe_age(datetime.date.today())}\n"
        f"{needs}\n"
        f"run      {run.name}: {run.target_step:,} steps on {run.data_dir}"
        f"{f', from {run.init_from}' if run.init_from else ''}\n"
        "the requests and the start-up script: --json"
    )
    return {"requests": planned_requests(run, vm), "cost": cost, "needs": needed}


def planned_requests(run: LaunchedRun, vm: startup.Emulation) -> list[dict[str, Any]]:
    """List the requests that rent a machine, in each zone, and the one that deletes it.

    Args:
        run: with the path of its package.
        vm: what it is rented as, or emulated by.
    """
    limit, name = longest_life(RunState(), run), run.service
    kind = "QueuedResource" if run.queued else "Node"
    create, delete = f"Create{kind}", f"Delete{kind}"
    if name == "compute":
        create, delete = "instances.insert", "instances.delete"
    create = "gcloud" if run.pricing == FLEX_START else create
    requests = []
    for zone in run.zones:
        metadata = startup.metadata(run, vm, RunState(zone=zone, attempt=1, machine_limit=limit))
        body = backends.MODULES[name].creation(run, zone, 1, metadata, limit)
        request = {"project": run.project, "zone": zone, "body": body}
        requests.append({"method": create, "request": request})
    deletion = {"project": run.project, "zone": run.zones[0], "name": run.name}
    return [*requests, {"method": delete, "request": deletion}]


def cost_limits(run: LaunchedRun, table: Prices) -> dict[str, Any]:
    """Compute the most that the run may cost: `cost` of `launch --dry_run --json`."""
    usd = run.usd_per_hour
    max_hours = None if run.max_seconds is None else run.max_seconds / 3600
    limits = [] if max_hours is None else [max_hours]
    limits += [run.max_usd / usd] if run.max_usd is not None and usd else []
    most_hours = min(limits, default=None)
    return {
        "usd_per_hour": usd,
        "prices_as_of": str(table.as_of),
        "max_hours": max_hours,
        "max_cost": run.max_usd,
        "most_hours": most_hours,  # of rented time, by both; None: no limit
        "most_usd": most_hours * usd if most_hours is not None and usd else None,
    }
