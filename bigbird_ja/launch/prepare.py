"""Make the record of a run from the flags of `launch` and the offers of the services."""

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bigbird_ja import storage
from bigbird_ja.accelerators.chips import find
from bigbird_ja.accelerators.prices import FLEX_START, USUAL_ZONES, Prices, region_of
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import order
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.launch import backends, flex_start
from bigbird_ja.launch.advice import TRC, advise
from bigbird_ja.launch.files import RunFiles, read_run
from bigbird_ja.launch.launched_run import LaunchedRun, Machine
from bigbird_ja.launch.machine import startup
from bigbird_ja.launch.offers import Offers
from bigbird_ja.launch.rest import ServiceFault
from bigbird_ja.launch.service import Tpus
from bigbird_ja.launch.state import Phase, RunState
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.provenance import Override
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.schema import Config

# Flags that are stored on a bucket and sent to a machine under their own names.
_STORED = (
    "project",
    "engine",
    "mode",
    "pricing",
    "service_account",
    "network",
    "subnetwork",
    "external_ip",
    "vm_python",
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
    flags: Mapping[str, Any], config: Config, vm: startup.Emulation
) -> tuple[LaunchedRun, list[str]]:
    """Check the flags and make the record, without credentials or data.

    A dry run has placeholders for flags that were not given.

    Args:
        flags: flags of `launch`, by name.
        config: settings of the run.
        vm: rented machine, or its emulation.

    Returns:
        The record, for which `offered` finds service, image, zones and price; and warnings to show.

    Raises:
        BadInput: a flag is missing, unknown, or known not to work.
    """
    kind, pricing, is_dry = flags["accelerator_type"], flags["pricing"], flags["dry_run"]
    machine = find(kind)
    if pricing == FLEX_START:
        flex_start.check(flags["max_hours"], needs_gcloud=not is_dry)
    backends.check_engine(machine, flags["engine"])
    warnings = ["no run of ours has used a rented TPU yet: watch its first hour"]
    warnings += [_FLEX_PRICE] if pricing == FLEX_START else []
    warnings += [] if flags["service_account"] else [_DEFAULT_ACCOUNT]
    name, (bucket, data_dir) = check_name(flags["name"] or "my-run"), _places(flags, vm)
    before = None if is_dry else _original(bucket, name)
    max_hours = flags["max_hours"]
    run = LaunchedRun(
        bucket,
        name,
        (before and before.run_id) or secrets.token_hex(8),
        data_dir=data_dir,
        target_step=config.training.num_train_steps,
        accelerator_type=kind,
        queued=flags["queued"] or pricing == FLEX_START,
        max_seconds=None if max_hours is None else max_hours * 3600,
        max_usd=flags["max_cost"],
        poll=flags["poll_seconds"],
        lease=flags["lease_hours"] * 3600,
        **{flag: flags[flag] for flag in _STORED},
    )
    return replace(run, project=run.project or "MY-PROJECT"), warnings


def machine_of(run: LaunchedRun) -> Machine | None:
    """Return the facts of the machine that a run may have now; None if it has none."""
    state = RunFiles(run).load_state() or RunState()
    may_be_there = state.attempt and (state.phase is not Phase.ENDED or state.billing)
    return (state.machine or Machine.of(run)) if may_be_there else None


# --- offers ---------------------------------------------------------------------------------------


def offered(
    run: LaunchedRun, flags: Mapping[str, Any], table: Prices
) -> Iterator[tuple[LaunchedRun, list[str], list[str]]]:
    """Yield record, log lines and warnings for each service that offers the machine in some zones.

    The preferred service comes first; the next one serves if the first turns out to lack quota.
    A dry run asks no service: the package's table answers.

    Args:
        run: record without service, image, zones and price.
        flags: flags of `launch`, by name.
        table: prices and zones, which serve if a list can't be read.

    Raises:
        BadInput: no service offers the machine in these zones; the message lists zones that do.
    """
    machine, pricing, asks = run.accelerator, run.pricing, not flags["dry_run"]
    given, image, is_offered = flags["zones"], flags["runtime_version"], False
    near = bucket_region(run.bucket) if asks else ""
    usual = given or table.usual_zones(machine, pricing, near)
    zones = given or [*dict.fromkeys((*usual, *(z for z, _ in table.by_zone(machine, pricing))))]
    refusals, elsewhere = list[str](), list[str]()
    rentals = backends.find_rentals(machine, flags["service"], pricing, flags["queued"], table)
    before = read_run(run.bucket, run.name) if asks else None
    if last := before and machine_of(before):
        rentals.sort(key=lambda one: one.service != last.service)
    for rental in rentals:
        name, notes = backends.NAMES[rental.service], list[str]()
        asked = backends.rented(run, rental, image)
        answered = Offers([asked], zones, asks)
        if any(fault.is_switched_off for fault in answered.faults):
            refusals.append(advise(answered.faults[-1], asked))
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
            every = answered if rental.service == "compute" else Offers([asked], [], asks)
            known = every.types or rental.zones
            elsewhere += [zone for zone in known if not every.lacks(zone, asked, rental)]
            continue
        if refusals:
            notes.append(f"{'; '.join(refusals)}: falling back to {name}. {_GIVEN_UP}")
        if not given:  # zones beyond the usual ones are dearer: only if no usual one is left
            kept = ([zone for zone in kept if zone in usual] or kept)[:USUAL_ZONES]
        found, warnings = _priced(asked, table, kept)
        yield found, notes, [*warnings, *region_warnings(found, near)]
        if image:  # the image belongs to this service: no other can serve
            return
        is_offered = True
        refusals.append(f"{name} has no quota for it")
    if before is not None and not is_offered:  # an existing run continues all the same
        found, _ = _priced(backends.rented(run, rentals[0], image), table, usual)
        yield found, refusals, region_warnings(found, near)
    elif not is_offered:
        raise BadInput(
            f"--accelerator_type {run.accelerator_type}: not offered in {', '.join(usual)}"
            f" ({'; '.join(refusals)}): zones that offer it:"
            f" {', '.join(sorted({*elsewhere})) or 'none'}"
        )


def _priced(run: LaunchedRun, table: Prices, zones: Sequence[str]) -> tuple[LaunchedRun, list[str]]:
    """Return the record with zones and the dearest zone's price; and warnings.

    Raises:
        BadInput: no price is known and --max_cost needs one.
    """
    warnings, usd = [TRC] if run.service == "compute" else [], 0.0
    try:
        usd = table.per_hour(run.accelerator, run.pricing, zones)
    except BadInput as error:
        if run.max_usd is not None:
            raise BadInput(f"--max_cost needs a price: {error}") from error
        warnings.append(f"{error}: costs are not counted")
    return replace(run, zones=tuple(zones), usd_per_hour=usd), warnings


_GIVEN_UP = (
    "Its run time is then limited by the machine's own watcher, not by the cloud: check it now and"
    " then, or use --pricing flex-start"
)


def _original(bucket: str, name: str) -> LaunchedRun | None:
    """Return the record of an earlier launch under the name, if there was one.

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
    """Check the name of a run, which names a TPU, a label and a folder.

    Raises:
        BadInput: a character that one of these does not accept.
    """
    if not re.fullmatch("[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise BadInput(
            f"--name {name!r}: at most 40 lower-case letters, digits and dashes, beginning with a"
            " letter, not ending with a dash"
        )
    return name


def _places(flags: Mapping[str, Any], vm: startup.Emulation) -> tuple[str, str]:
    """Return bucket and data set; check that no stored flag has free text.

    No query of a URL, no user or password, no space: the refused value is not shown.

    Raises:
        BadInput: free text, or a path that the machine cannot reach.
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
            its readers can be divided among.
    """
    manifest = manifest_lib.load(run.data_dir)
    fitted = fit_to_data(config, manifest, overrides, run.data_dir)
    if run.hosts > 1:
        order.check_hosts(manifest.num_readers, config.training.global_batch_size, run.hosts)
    return fitted, manifest


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
    """Return the region of the bucket; empty if it is unknown."""
    with contextlib.suppress(OSError, StorageError):
        return storage.bucket_location(bucket) or ""
    return ""


def check_name_is_free(run: LaunchedRun, tpus: Tpus) -> None:
    """Check that no machine of another owner has the run's name.

    Raises:
        BadInput: one has it; the message quotes its labels.
    """
    for zone in run.zones:
        with contextlib.suppress(ServiceFault):  # the supervisor waits for a zone, or ends
            tpu = tpus.find(zone, run.name)
            if tpu is not None and not tpu.belongs_to(run):
                raise BadInput(
                    f"--name {run.name}: {tpu.resource} is not of this run ({tpu.owner}): choose"
                    " another --name"
                )
