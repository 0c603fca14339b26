"""What the services offer a project, by their own lists: types and images by zone, and quota.

The lists cost nothing and need the credentials of a creation. Google's references: Cloud TPU API v2
`projects.locations`, `.acceleratorTypes` and `.runtimeVersions`; Compute Engine v1
`machineTypes.aggregatedList`, `images.getFromFamily` and `regions.get`.

No list has the quota of the Cloud TPU API, nor Compute Engine's TPUS_PER_TPU_FAMILY (users' reports
of 2026): the first request shows them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from bigbird_ja import accelerators
from bigbird_ja.accelerators import Accelerator, Prices, Rental, region_of
from bigbird_ja.launch import backends, compute, rest
from bigbird_ja.launch.advice import quota_name
from bigbird_ja.launch.rest import Kind, ServiceFault

RETRY_SECONDS = 10.0  # a service that does not answer is not waited for: the table serves


class _Location(rest.Answer, frozen=True):
    location_id: str


class _Locations(rest.Page, frozen=True):
    locations: tuple[_Location, ...] = ()


class _Type(rest.Answer, frozen=True):
    type: str


class _Types(rest.Page, frozen=True):
    accelerator_types: tuple[_Type, ...] = ()


class _Version(rest.Answer, frozen=True):
    version: str


class _Versions(rest.Page, frozen=True):
    runtime_versions: tuple[_Version, ...] = ()


class _MachineType(rest.Answer, frozen=True):
    name: str


class _Scope(rest.Answer, frozen=True):
    machine_types: tuple[_MachineType, ...] = ()


class _MachineTypes(rest.Page, frozen=True):
    items: dict[str, _Scope] = msgspec.field(default_factory=dict)
    unreachables: tuple[str, ...] = ()


class _Image(rest.Answer, frozen=True):
    name: str


class Quota(rest.Answer, frozen=True):
    """A quota of a region."""

    metric: str
    limit: float
    usage: float = 0.0


class _Region(rest.Answer, frozen=True):
    quotas: tuple[Quota, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """A machine, in the words of the service that is asked."""

    type: str
    image: str
    machine: Accelerator
    pricing: str


@dataclass
class Offers:
    """The answers of one service. What could not be read is absent, and in `faults`."""

    service: str
    types: dict[str, frozenset[str]] = field(default_factory=dict)  # by zone
    images: dict[str, frozenset[str]] = field(default_factory=dict)  # by zone; "" is every zone
    quotas: dict[str, tuple[Quota, ...]] = field(default_factory=dict)  # by region
    faults: list[ServiceFault] = field(default_factory=list)

    def quota(self, zone: str, machine: Accelerator, pricing: str) -> Quota | None:
        """Return the listed quota that a machine would count against, if there is one."""
        family = {"v5p": "V5P", "v6e": "(CT|V)6E", "v7x": "TPU7X"}.get(machine.chip, "-")
        spot = "PREEMPTIBLE_" if pricing == "spot" else ""
        pattern = re.compile(f"{spot}(?!PREEMPTIBLE).*{family}")
        listed = self.quotas.get(region_of(zone), ())
        return next((one for one in listed if pattern.match(one.metric)), None)

    def lacks(self, zone: str, wanted: Wanted) -> str:
        """Return why a zone can't rent a machine; "" if it can, or if nobody knows."""
        if wanted.type not in self.types.get(zone, (wanted.type,)):
            return f"{backends.NAMES[self.service]} does not offer {wanted.type}"
        images = self.images.get(zone, self.images.get("", (wanted.image,)))
        if wanted.image not in images:
            return f"no image {wanted.image.rsplit('/')[-1]}"
        quota = self.quota(zone, wanted.machine, wanted.pricing)
        if quota is not None and quota.limit < wanted.machine.chips:
            return (
                f"quota {quota.metric} is {quota.limit:g} in {region_of(zone)}, and"
                f" {wanted.machine.chips} chips are needed"
            )
        return ""

    def read(self, read: Callable[[], None]) -> bool:
        """Read one list; return whether to go on with the next."""
        try:
            read()
        except ServiceFault as fault:
            self.faults.append(fault)
            return fault.kind is not Kind.UNAVAILABLE and not fault.is_switched_off
        return True


def wanted(rental: Rental, accelerator_type: str, image: str, pricing: str) -> Wanted:
    """Translate a machine into the words of the service that rents it."""
    machine = accelerators.find(accelerator_type)
    is_vm = rental.service == "compute"
    name = compute.machine_type(machine.name) if is_vm else accelerators.launch_type(machine)
    return Wanted(name, image, machine, pricing)


def ask(service: str, project: str, zones: Sequence[str], machines: Sequence[Wanted]) -> Offers:
    """Ask a service what it offers; never fails.

    Args:
        service: `compute` or `tpu`.
        project: id of the Google Cloud project.
        zones: those that matter; empty for all of the Cloud TPU API.
        machines: those that matter.

    Raises:
        BadInput: no credentials.
    """
    offers, module = Offers(service), backends.MODULES[service]
    client = rest.connect_rest(module.API, module.EMULATOR_VARIABLE, RETRY_SECONDS)
    if service == "compute":
        _ask_compute(offers, client, project, zones, machines)
    else:
        _ask_tpu(offers, client, f"projects/{project}/locations", zones)
    return offers


def _ask_tpu(offers: Offers, client: rest.Rest, parent: str, zones: Sequence[str]) -> None:
    known: set[str] = set()

    def read_locations() -> None:
        for page in client.pages(parent, _Locations):
            known.update(one.location_id for one in page.locations)

    def read_zone(zone: str) -> None:
        types = client.pages(f"{parent}/{zone}/acceleratorTypes", _Types)
        offers.types[zone] = frozenset(one.type for page in types for one in page.accelerator_types)
        versions = client.pages(f"{parent}/{zone}/runtimeVersions", _Versions)
        offers.images[zone] = frozenset(
            one.version for page in versions for one in page.runtime_versions
        )

    if not offers.read(read_locations):
        return
    for zone in zones or sorted(known):
        if known and zone not in known:
            offers.types[zone] = frozenset()
        elif not offers.read(partial(read_zone, zone)):
            return


def _ask_compute(
    offers: Offers,
    client: rest.Rest,
    project: str,
    zones: Sequence[str],
    machines: Sequence[Wanted],
) -> None:
    base = f"projects/{project}"
    names = " OR ".join(f"(name = {one.type})" for one in machines)

    def read_types() -> None:
        found: dict[str, set[str]] = {}
        query = {"filter": names, "returnPartialSuccess": "true"}
        for page in client.pages(f"{base}/aggregated/machineTypes", _MachineTypes, query):
            for scope, listed in page.items.items():
                zone = scope.removeprefix("zones/")
                found.setdefault(zone, set()).update(one.name for one in listed.machine_types)
            missed.update(name.rsplit("/")[-1] for name in page.unreachables)
        answered = {*found, *zones} - missed
        offers.types.update({zone: frozenset(found.get(zone, ())) for zone in answered})

    def read_image(image: str) -> None:
        there = client.find(image, _Image)
        known = offers.images.get("", frozenset())
        offers.images[""] = known | {image} if there else known

    def read_region(region: str) -> None:
        offers.quotas[region] = client.call("GET", f"{base}/regions/{region}", _Region).quotas

    missed: set[str] = set()
    reads: list[Callable[[], None]] = [read_types]
    reads += [partial(read_image, one) for one in dict.fromkeys(m.image for m in machines)]
    reads += [partial(read_region, one) for one in dict.fromkeys(map(region_of, zones))]
    for read in reads:
        if not offers.read(read):
            return


@dataclass(frozen=True)
class Row:
    """A machine at one service, as `doctor` shows it."""

    accelerator_type: str
    service: str
    zones: dict[str, str]  # zone -> "" if it is offered, else why it can't be rented
    quota: str
    image: str


def make_rows(project: str, table: Prices) -> tuple[list[Row], list[ServiceFault]]:
    """Ask both services for one machine of each chip, by which `launch` decides.

    Returns:
        A row for each machine and service that rents it, and the faults of lists that can't be
        read; there the row has the package's table.

    Raises:
        BadInput: no credentials.
    """
    asked: dict[str, list[tuple[Rental, Wanted]]] = {}
    for name in accelerators.USUAL:
        for rental in table.rented(name, "spot"):
            image = backends.image(rental, name, "auto")
            asked.setdefault(rental.service, []).append(
                (rental, wanted(rental, name, image, "spot"))
            )
    rows: list[Row] = []
    faults: list[ServiceFault] = []
    for service in backends.emulated() or asked:
        known = dict.fromkeys(zone for rental, _ in asked[service] for zone in rental.zones)
        answered = ask(service, project, [*known], [one for _, one in asked[service]])
        faults += answered.faults
        for rental, one in asked[service]:
            zones = dict.fromkeys((*rental.zones, *sorted(answered.types)))
            why = {zone: answered.lacks(zone, one) for zone in zones}
            shown = {zone: text for zone, text in why.items() if zone in rental.zones or not text}
            listed = [answered.quota(zone, one.machine, "spot") for zone in shown]
            limits = {
                f"{quota.metric} {quota.usage:g} of {quota.limit:g}" for quota in listed if quota
            }
            quota = ", ".join(sorted(limits)) or quota_name(one.machine.name, service, "spot")
            name = accelerators.launch_type(one.machine)
            rows.append(Row(name, service, shown, quota, rental.image))
    return rows, faults
