"""What the services offer a project, by their own lists: types and images by zone, and quota.

The lists cost nothing and need the credentials of a creation. Google's references: Cloud TPU API v2
`projects.locations`, `.acceleratorTypes` and `.runtimeVersions`; Compute Engine v1
`machineTypes.aggregatedList`, `images.getFromFamily` and `regions.get`.

No list has the quota of the Cloud TPU API, nor Compute Engine's TPUS_PER_TPU_FAMILY (users' reports
of 2026): the first request shows them.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from bigbird_ja import accelerators
from bigbird_ja.accelerators import Prices, region_of
from bigbird_ja.launch import LaunchedRun, backends, compute, rest
from bigbird_ja.launch.advice import quota_name
from bigbird_ja.launch.rest import Kind, ServiceFault

RETRY_SECONDS = 10.0  # a service that does not answer is not waited for: the table serves
_FAMILIES = {"v5p": "V5P", "v6e": "(CT|V)6E", "v7x": "TPU7X"}  # in names of listed quotas
_Read = Callable[[], None]


class _Listed(rest.Answer, frozen=True):
    name: str = ""
    location_id: str = ""
    type: str = ""
    version: str = ""


class _Scope(rest.Answer, frozen=True):
    machine_types: tuple[_Listed, ...] = ()


class _List(rest.Page, frozen=True):
    locations: tuple[_Listed, ...] = ()
    accelerator_types: tuple[_Listed, ...] = ()
    runtime_versions: tuple[_Listed, ...] = ()
    items: dict[str, _Scope] = msgspec.field(default_factory=dict)  # of Compute Engine, by scope
    unreachables: tuple[str, ...] = ()


class Quota(rest.Answer, frozen=True):
    """A quota of a region."""

    metric: str
    limit: float
    usage: float = 0.0


class _Region(rest.Answer, frozen=True):
    quotas: tuple[Quota, ...] = ()


@dataclass
class Offers:
    """The answers of one service. What could not be read is absent, and in `faults`."""

    types: dict[str, set[str]] = field(default_factory=dict)  # by zone
    images: dict[str, set[str]] = field(default_factory=dict)  # by zone; "" is every zone
    quotas: dict[str, tuple[Quota, ...]] = field(default_factory=dict)  # by region
    faults: list[ServiceFault] = field(default_factory=list)

    def quota(self, zone: str, run: LaunchedRun) -> Quota | None:
        """Return the listed quota that a run's machine counts against, if there is one."""
        family = _FAMILIES.get(accelerators.find(run.accelerator_type).chip, "-")
        spot = "PREEMPTIBLE_" if run.pricing == "spot" else ""
        pattern = re.compile(f"{spot}(?!PREEMPTIBLE).*{family}")
        listed = self.quotas.get(region_of(zone), ())
        return next((one for one in listed if pattern.match(one.metric)), None)

    def lacks(self, zone: str, run: LaunchedRun) -> str:
        """Return why a zone can't rent a run's machine; "" if it can, or if nobody knows."""
        if (name := type_name(run)) not in self.types.get(zone, {name}):
            return f"{backends.NAMES[run.service]} does not offer {name}"
        image = run.runtime_version
        if image not in self.images.get(zone, self.images.get("", {image})):
            return f"no image {image.rsplit('/')[-1]}"
        quota, chips = self.quota(zone, run), accelerators.find(run.accelerator_type).chips
        if quota is not None and quota.limit < chips:
            place = f"{quota.limit:g} in {region_of(zone)}"
            return f"quota {quota.metric} is {place}, and {chips} chips are needed"
        return ""


def type_name(run: LaunchedRun) -> str:
    """Name a run's machine as the service calls it that rents it."""
    machine = accelerators.find(run.accelerator_type)
    is_vm = run.service == "compute"
    return compute.machine_type(machine.name) if is_vm else accelerators.launch_type(machine)


def ask(runs: Sequence[LaunchedRun], zones: Sequence[str]) -> Offers:
    """Ask a service what it offers; what it does not answer is in `faults`.

    Args:
        runs: of one service and project, one for each machine that matters.
        zones: those that matter; empty for all of the Cloud TPU API.

    Raises:
        BadInput: no credentials.
    """
    offers, module = Offers(), backends.MODULES[runs[0].service]
    client = rest.connect_rest(module.API, module.EMULATOR_VARIABLE, RETRY_SECONDS)
    lists = _compute_lists if runs[0].service == "compute" else _tpu_lists
    for read in lists(offers, client, runs, zones):
        try:
            read()
        except ServiceFault as fault:
            offers.faults.append(fault)
            if fault.kind is Kind.UNAVAILABLE or fault.is_switched_off:
                break
    return offers


def _tpu_lists(
    offers: Offers, client: rest.Rest, runs: Sequence[LaunchedRun], zones: Sequence[str]
) -> Iterator[_Read]:
    parent, known = f"projects/{runs[0].project}/locations", set[str]()

    def read_locations() -> None:
        for page in client.pages(parent, _List):
            known.update(one.location_id for one in page.locations)

    def read_zone(zone: str) -> None:
        if known and zone not in known:
            offers.types[zone] = set()
            return
        pages = [*client.pages(f"{parent}/{zone}/acceleratorTypes", _List)]
        offers.types[zone] = {one.type for page in pages for one in page.accelerator_types}
        pages = [*client.pages(f"{parent}/{zone}/runtimeVersions", _List)]
        offers.images[zone] = {one.version for page in pages for one in page.runtime_versions}

    yield read_locations
    for zone in zones or sorted(known):
        yield partial(read_zone, zone)


def _compute_lists(
    offers: Offers, client: rest.Rest, runs: Sequence[LaunchedRun], zones: Sequence[str]
) -> Iterator[_Read]:
    base = f"projects/{runs[0].project}"

    def read_types() -> None:
        names = " OR ".join(f"(name = {type_name(run)})" for run in runs)
        query = {"filter": names, "returnPartialSuccess": "true"}
        pages = [*client.pages(f"{base}/aggregated/machineTypes", _List, query)]
        offers.types |= {zone: set() for zone in zones}
        for scope, listed in [pair for page in pages for pair in page.items.items()]:
            types = offers.types.setdefault(scope.removeprefix("zones/"), set())
            types.update(one.name for one in listed.machine_types)
        for name in [name for page in pages for name in page.unreachables]:
            offers.types.pop(name.rsplit("/")[-1], None)

    def read_image(image: str) -> None:
        offers.images.setdefault("", set()).update({image} if client.find(image, _Listed) else ())

    def read_region(region: str) -> None:
        offers.quotas[region] = client.call("GET", f"{base}/regions/{region}", _Region).quotas

    yield read_types
    for image in dict.fromkeys(run.runtime_version for run in runs):
        yield partial(read_image, image)
    for region in dict.fromkeys(map(region_of, zones)):
        yield partial(read_region, region)


def make_rows(project: str, table: Prices) -> tuple[list[dict[str, Any]], list[ServiceFault]]:
    """Ask both services for one machine of each chip, by which `launch` decides.

    Returns:
        A row for each machine and service that rents it: `accelerator_type`, `service`, `quota`,
        and `zones`, by zone "" or why the zone can't rent it; and the faults of lists that can't be
        read, in whose place the package's table serves.

    Raises:
        BadInput: no credentials.
    """
    rows, faults = list[dict[str, Any]](), list[ServiceFault]()
    for service in backends.emulated() or backends.MODULES:
        runs: dict[LaunchedRun, tuple[str, ...]] = {}  # and the zones of the table
        for name in accelerators.USUAL:
            for one in [one for one in table.rented(name, "spot") if one.service == service]:
                run = LaunchedRun("", "", project=project, accelerator_type=name, service=service)
                image = backends.image(one, name, "auto")
                runs[dataclasses.replace(run, runtime_version=image)] = one.zones
        answered = ask([*runs], [*dict.fromkeys(zone for zones in runs.values() for zone in zones)])
        faults += answered.faults
        for run, known in runs.items():
            zones = {zone: answered.lacks(zone, run) for zone in (*known, *sorted(answered.types))}
            zones = {zone: why for zone, why in zones.items() if zone in known or not why}
            quotas = [listed for zone in zones if (listed := answered.quota(zone, run))]
            texts = {f"{one.metric} {one.usage:g} of {one.limit:g}" for one in quotas}
            kind = accelerators.launch_type(accelerators.find(run.accelerator_type))
            quota = ", ".join(sorted(texts)) or quota_name(kind, service, "spot")
            row = {"accelerator_type": kind, "service": service, "quota": quota, "zones": zones}
            rows.append(row)
    return rows, faults
