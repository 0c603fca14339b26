"""Ask the services for their offers to a project: types and images by zone, and quota.

The lists cost nothing and need the credentials of a creation. Google's references: Cloud TPU API v2
`projects.locations`, `.acceleratorTypes` and `.runtimeVersions`; Compute Engine v1
`machineTypes.aggregatedList`, `images.getFromFamily` and `regions.get`.

No list has the quota of the Cloud TPU API, nor Compute Engine's TPUS_PER_TPU_FAMILY (users' reports
of 2026): the first request shows them.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bigbird_ja.accelerators.chips import USUAL
from bigbird_ja.accelerators.prices import FLEX_START, Prices, Rental, region_of
from bigbird_ja.launch import backends, compute, rest
from bigbird_ja.launch.advice import FAMILIES, quota_name
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Kind, ServiceFault

RETRY_SECONDS = 10.0  # a service that does not answer is not waited for: the table serves
T = TypeVar("T")


class _Listed(rest.Answer, frozen=True):
    name: str = ""
    zone: str = ""
    location_id: str = ""
    type: str = ""
    version: str = ""


class Quota(rest.Answer, frozen=True):
    """A quota of a region."""

    metric: str
    limit: float
    usage: float = 0.0


class _Region(rest.Answer, frozen=True):
    quotas: tuple[Quota, ...] = ()


class Offers:
    """Answers of one service. A list that could not be read is missing, and in `faults`.

    Args:
        runs: records of one service and project, one for each type of machine.
        zones: zones to ask for; empty for all zones of the Cloud TPU API.
        asks: whether to ask the service; else the package's table serves.

    Raises:
        BadInput: no credentials.
    """

    def __init__(
        self, runs: Sequence[LaunchedRun], zones: Sequence[str], asks: bool = True
    ) -> None:
        self.types: dict[str, set[str]] = {}  # by zone
        self.faults: list[ServiceFault] = []
        self._images: dict[str, set[str]] = {}  # by zone, of the Cloud TPU API
        self._absent: set[str] = set()  # images of Compute Engine
        self._quotas: dict[str, tuple[Quota, ...]] = {}  # by region, of Compute Engine
        if not asks:
            return
        module = backends.MODULES[runs[0].service]
        self._rest = rest.connect_rest(module.API, module.EMULATOR_VARIABLE, RETRY_SECONDS)
        if runs[0].service == "compute":
            self._ask_compute_engine(runs, zones)
        else:
            self._ask_tpu_api(f"projects/{runs[0].project}/locations", zones)

    def _read(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """Read a list; None if it can't be read, or if the service didn't answer before."""
        if any(one.kind is Kind.UNAVAILABLE or one.is_switched_off for one in self.faults):
            return None
        try:
            return call(*arguments)
        except ServiceFault as fault:
            self.faults.append(fault)
            return None

    def _ask(self, path: str, key: str) -> list[_Listed] | None:
        listed = self._read(self._rest.items, path, key, list[_Listed])
        return listed and listed[0]

    def _ask_tpu_api(self, parent: str, zones: Sequence[str]) -> None:
        listed = self._ask(parent, "locations") or ()
        known = [one.location_id for one in listed] or [*zones]
        self.types |= {zone: set() for zone in zones if zone not in known}
        for zone in [zone for zone in zones or known if zone in known]:
            types = self._ask(f"{parent}/{zone}/acceleratorTypes", "acceleratorTypes")
            if types is not None:
                self.types[zone] = {one.type for one in types}
                images = self._ask(f"{parent}/{zone}/runtimeVersions", "runtimeVersions")
                self._images |= {} if images is None else {zone: {one.version for one in images}}

    def _ask_compute_engine(self, runs: Sequence[LaunchedRun], zones: Sequence[str]) -> None:
        base = f"projects/{runs[0].project}"
        names = " OR ".join(f"(name = {type_name(run)})" for run in runs)
        query = {"filter": names, "returnPartialSuccess": "true"}
        arguments = (f"{base}/aggregated/machineTypes", "machineTypes", list[_Listed], query)
        if listed := self._read(self._rest.items, *arguments):
            types, missed = listed
            self.types = {zone: set() for zone in zones if zone not in missed}
            for one in types:
                self.types.setdefault(one.zone.rsplit("/")[-1], set()).add(one.name)
        for image in dict.fromkeys(run.runtime_version for run in runs):
            if self._read(self._is_absent, image):
                self._absent.add(image)
        for region in dict.fromkeys(map(region_of, zones)):
            if answer := self._read(self._rest.call, "GET", f"{base}/regions/{region}", _Region):
                self._quotas[region] = answer.quotas

    def _is_absent(self, image: str) -> bool:
        return self._rest.find(image, _Listed) is None

    def quota(self, zone: str, run: LaunchedRun) -> Quota | None:
        """Return the listed quota that a run's machine counts against, if there is one."""
        chip = run.accelerator.chip
        spot = "PREEMPTIBLE_" if run.pricing == "spot" else ""
        pattern = re.compile(f"{spot}(?!PREEMPTIBLE).*({FAMILIES.get(chip)}|{chip.upper()})")
        listed = self._quotas.get(region_of(zone), ())
        return next((one for one in listed if pattern.match(one.metric)), None)

    def lacks(self, zone: str, run: LaunchedRun, rental: Rental) -> str:
        """Return why a zone can't rent a run's machine; "" if it can, as far as is known.

        Args:
            zone: such as `us-central1-a`.
            run: one of those that the service was asked for.
            rental: the table's row for the machine, which serves for lists that can't be read.
        """
        if run.pricing == FLEX_START and zone not in rental.zones:  # in no list of the service
            return f"flex-start is documented for {', '.join(rental.zones)}"
        if zone not in {*self.types, *rental.zones}:
            return "neither the table (--price_file adds to it) nor a list of the service has it"
        if (name := type_name(run)) not in self.types.get(zone, {name}):
            return f"{backends.NAMES[run.service]} does not offer {name}"
        image = run.runtime_version
        if image in self._absent or image not in self._images.get(zone, {image}):
            return f"no image {image.rsplit('/')[-1]}"
        quota, chips = self.quota(zone, run), run.accelerator.chips
        if quota is not None and quota.limit < chips:
            place = f"{quota.limit:g} in {region_of(zone)}"
            return f"quota {quota.metric} is {place}, and {chips} chips are needed"
        return ""


def type_name(run: LaunchedRun) -> str:
    """Name a run's machine as the service calls it that rents it."""
    is_vm = run.service == "compute"
    return compute.machine_type(run.accelerator) if is_vm else run.accelerator.launch_type


def make_rows(project: str, table: Prices) -> tuple[list[dict[str, Any]], list[ServiceFault]]:
    """Ask both services for one machine of each chip, by which `launch` decides.

    Returns:
        Rows, one for each machine and service that rents it: `accelerator_type`, `service`,
        `quota`, and `zones`: zone -> reason why it can't rent the machine, or "". And the faults of
        lists that can't be read; the package's table replaces those lists.

    Raises:
        BadInput: no credentials.
    """
    rows, faults = list[dict[str, Any]](), list[ServiceFault]()
    for service in backends.emulated() or backends.MODULES:
        runs: dict[LaunchedRun, Rental] = {}
        for name in USUAL:
            run = LaunchedRun("", "", project=project, accelerator_type=name)
            rentals = table.rented(run.accelerator, run.pricing)
            runs |= {backends.rented(run, one): one for one in rentals if one.service == service}
        places = [zone for rental in runs.values() for zone in rental.zones]
        answered = Offers([*runs], [*dict.fromkeys(places)])
        faults += answered.faults
        for run, rental in runs.items():
            known = dict.fromkeys((*rental.zones, *sorted(answered.types)))
            zones = {zone: answered.lacks(zone, run, rental) for zone in known}
            zones = {zone: why for zone, why in zones.items() if zone in rental.zones or not why}
            quotas = [listed for zone in zones if (listed := answered.quota(zone, run))]
            texts = {f"{one.metric} {one.usage:g} of {one.limit:g}" for one in quotas}
            quota = ", ".join(sorted(texts)) or quota_name(run.accelerator, service, "spot")
            name = run.accelerator.launch_type
            row = {"accelerator_type": name, "service": service, "quota": quota, "zones": zones}
            rows.append(row)
    return rows, faults
