"""The dry run of `launch`: machine, limits, expected time and cost, and every request."""

import datetime
from dataclasses import dataclass
from typing import Any

from bigbird_ja.accelerators.prices import Prices, Rental, describe_age
from bigbird_ja.launch import backends, package
from bigbird_ja.launch.account import compute_remaining_lifetime
from bigbird_ja.launch.backends import Vm
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.machine import startup
from bigbird_ja.launch.prepare import check_machine
from bigbird_ja.launch.state import RunState
from bigbird_ja.plan.estimate import Plan, make_row
from bigbird_ja.settings.data_facts import Data, derive_data
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.schema import Config


@dataclass(frozen=True)
class Machine:
    """Machine that a launch would request.

    Attributes:
        accelerator_type: Type of the TPU.
        service: Service that rents it.
        pricing: "spot" or "on_demand".
        queued: Whether to request a queued resource.
        chips: Number of chips.
        hosts: Number of hosts.
        image: Name of the VM's image.
        zones: Zones in the order of requests.
        zones_by: Page on cloud.google.com that lists the zones.
        zones_as_of: Date on which the page was read.
    """

    accelerator_type: str
    service: str
    pricing: str
    queued: bool
    chips: int
    hosts: int
    image: str
    zones: tuple[str, ...]
    zones_by: str
    zones_as_of: str


@dataclass(frozen=True)
class Cost:
    """Limits of a launch, and their cost in US dollars. None means unlimited or unknown.

    Attributes:
        usd_per_hour: Price of the machine.
        prices_as_of: Date of the price.
        prices: Age of the price, and the page on which to verify it.
        max_hours: Maximum hours of the run.
        max_cost: Maximum cost of the run.
        most_hours: Maximum rented hours that `max_hours` and `max_cost` allow.
        most_usd: Cost of `most_hours`.
        lease_hours: Maximum lifetime of a machine without a supervisor.
    """

    usd_per_hour: float
    prices_as_of: str
    prices: str
    max_hours: float | None
    max_cost: float | None
    most_hours: float | None
    most_usd: float | None
    lease_hours: float


@dataclass(frozen=True)
class Needs:
    """Time and cost of a run, as `plan` estimates them. None means unknown.

    Attributes:
        hours: Rented hours.
        hours_range: Minimum and maximum of `hours`.
        cost_usd: Cost of `hours` in US dollars.
        cost_usd_range: Minimum and maximum of `cost_usd`.
        covered: Rented hours that `max_hours` and `max_cost` allow, divided by `hours`. It is also
            None if neither limit is set.
    """

    hours: float | None
    hours_range: tuple[float, float] | None
    cost_usd: float | None
    cost_usd_range: tuple[float, float] | None
    covered: float | None


@dataclass(frozen=True)
class DryRun:
    """Result of a dry run of `launch`."""

    name: str
    data_dir: str
    init_from: str
    num_train_steps: int
    machine: Machine
    cost: Cost
    needs: Needs
    needs_text: str
    requests: list[dict[str, Any]]
    warnings: list[str]


def estimate(run: LaunchedRun, config: Config, data: Data) -> tuple[str, Needs]:
    """Compare the estimate of `plan` with the run's limits.

    Returns:
        A line to print, and the figures.
    """
    price = run.usd_per_hour or None
    row = make_row(Plan(config, data), run.accelerator, run.pricing, (), price)
    covered = run.most_hours / row.hours if run.most_hours is not None and row.hours else None
    text = f"needs    {_format_figure(row.hours, row.hours_range)} rented hours"
    text += f", {_format_figure(row.cost_usd, row.cost_usd_range)} USD" if price else ""
    text += " by `plan`"
    if covered is not None:
        text += f"; the limits cover {'all of it' if covered >= 1 else f'{covered:.0%}'}"
    needs = Needs(row.hours, row.hours_range, row.cost_usd, row.cost_usd_range, covered)
    return text, needs


def _format_figure(value: float | None, ends: tuple[float, float] | None) -> str:
    """Format a number with its interval, or `?` if it is unknown."""
    return "?" if value is None or ends is None else f"{value:,.2f} ({ends[0]:,.2f}-{ends[1]:,.2f})"


def make(
    run: LaunchedRun, rental: Rental, config: Config, vm: Vm, table: Prices, warnings: list[str]
) -> DryRun:
    """Return the machine, limits, cost and requests of a launch.

    Raises:
        BadInput: The machine cannot train the run.
    """
    data = derive_data(config)
    config = fit_to_data(config, data)
    check_machine(run, config, data)
    text, needs = estimate(run, config, data)
    accelerator, usd, hours = run.accelerator, run.usd_per_hour, run.most_hours
    as_of = table.find_oldest_date(accelerator, run.zones)
    machine = Machine(
        accelerator_type=run.accelerator_type,
        service=run.service,
        pricing=run.pricing,
        queued=run.queued,
        chips=accelerator.chips,
        hosts=accelerator.hosts,
        image=run.runtime_version,
        zones=run.zones,
        zones_by=f"cloud.google.com/{rental.zones_by}",
        zones_as_of=str(rental.as_of),
    )
    cost = Cost(
        usd_per_hour=usd,
        prices_as_of=str(as_of),
        prices=describe_age(as_of, datetime.date.today()),
        max_hours=None if run.max_seconds is None else run.max_seconds / 3600,
        max_cost=run.max_usd,
        most_hours=hours,
        most_usd=hours * usd if hours is not None and usd else None,
        lease_hours=run.lease / 3600,
    )
    requests = list_requests(package.note(run, package.build()), vm)
    place = (run.name, run.data_dir, run.init_from, run.target_step)
    return DryRun(*place, machine, cost, needs, text, requests, warnings)


def list_requests(run: LaunchedRun, vm: Vm) -> list[dict[str, Any]]:
    """List the requests that rent a machine in each zone, and the request that deletes it.

    Args:
        run: record of the run, with the path of the code package.
        vm: environment of the machine.
    """
    limit, name = compute_remaining_lifetime(RunState(), run), run.service
    kind = "QueuedResource" if run.queued else "Node"
    create, delete = f"Create{kind}", f"Delete{kind}"
    if name == "compute":
        create, delete = "instances.insert", "instances.delete"
    requests = []
    for zone in run.zones:
        metadata = startup.make_metadata(
            run, vm, RunState(zone=zone, attempt=1, machine_limit=limit)
        )
        body = backends.MODULES[name].make_request(run, zone, 1, metadata, limit)
        request = {"project": run.project, "zone": zone, "body": body}
        requests.append({"method": create, "request": request})
    deletion = {"project": run.project, "zone": run.zones[0], "name": run.name}
    return [*requests, {"method": delete, "request": deletion}]
