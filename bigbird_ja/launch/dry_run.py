"""The dry run of `launch`: machine, limits, expected time and cost, and every request."""

import datetime
from typing import Any

from bigbird_ja.accelerators.prices import FLEX_START, Prices, describe_age
from bigbird_ja.launch import backends, package
from bigbird_ja.launch.account import remaining_lifetime
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.machine import startup
from bigbird_ja.launch.state import RunState
from bigbird_ja.plan.estimate import Plan, make_row
from bigbird_ja.process.console import human_time
from bigbird_ja.settings.data_facts import Data, requested_data
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.schema import Config


def estimate(run: LaunchedRun, config: Config, data: Data) -> tuple[str, dict[str, Any]]:
    """Compare the time and cost that `plan` computes with the run's limits.

    Returns:
        A line to print, and `needs` of the `--json` results.
    """
    row = make_row(Plan(config, data), run.accelerator, run.pricing, (), run.usd_per_hour or None)
    covered = run.most_hours / row.hours if run.most_hours is not None and row.hours else None
    keys = ("hours", "hours_range", "cost_usd", "cost_usd_range")
    text = f"needs    {_figure(row.hours, row.hours_range)} rented hours,"
    text += f" {_figure(row.cost_usd, row.cost_usd_range)} USD by `plan`"
    if covered is not None:
        text += f"; the limits cover {'all of it' if covered >= 1 else f'{covered:.0%}'}"
    return text, {**{key: getattr(row, key) for key in keys}, "covered": covered}


def _figure(value: float | None, ends: tuple[float, float] | None) -> str:
    """Format a number with its interval; `?` if it is unknown."""
    return "?" if value is None or ends is None else f"{value:,.2f} ({ends[0]:,.2f}-{ends[1]:,.2f})"


def show(run: LaunchedRun, config: Config, vm: startup.Emulation, table: Prices) -> dict[str, Any]:
    """Print machine, lease and cost; return the `--json` results."""
    data, as_of = requested_data(config), table.date(run.accelerator, run.zones)
    needs, needed = estimate(run, fit_to_data(config, data), data)
    machine, usd, hours = run.accelerator, run.usd_per_hour, run.most_hours
    most_usd = hours * usd if hours is not None and usd else None
    queue = ", in the queue" if run.queued else ""
    lease = "a week each" if hours is None else f"at most {human_time(hours * 3600)} of rented time"
    price = f"{usd:,.2f} USD per hour in the dearest zone" if usd else "no price is known"
    print(
        "dry run: nothing was requested, nothing is billed\n"
        f"machine  {run.accelerator_type}, {run.pricing.replace('_', ' ')}{queue}: chips"
        f" {machine.chips}, hosts {machine.hosts}, image {run.runtime_version}\n"
        f"zones    {', '.join(run.zones)}, in this order\n"
        f"lease    {lease}; deletes itself {run.lease / 3600:g} h after the supervisor is gone\n"
        f"cost     {price}; {f'at most {most_usd:,.2f} USD' if usd else 'not counted'}\n"
        f"         {describe_age(as_of, datetime.date.today())}\n"
        f"{needs}\n"
        f"run      {run.name}: {run.target_step:,} steps on {run.data_dir}"
        f"{f', from {run.init_from}' if run.init_from else ''}\n"
        "the requests and the start-up script: --json"
    )
    cost = {
        "usd_per_hour": usd,
        "prices_as_of": str(as_of),
        "max_hours": None if run.max_seconds is None else run.max_seconds / 3600,
        "max_cost": run.max_usd,
        "most_hours": hours,  # of rented time, by both; None: unlimited
        "most_usd": most_usd,
    }
    requests = planned_requests(package.noted(run, package.build()), vm)
    return {"requests": requests, "cost": cost, "needs": needed}


def planned_requests(run: LaunchedRun, vm: startup.Emulation) -> list[dict[str, Any]]:
    """List the requests that rent a machine, in each zone, and the one that deletes it.

    Args:
        run: record with the path of its package.
        vm: rented machine, or its emulation.
    """
    limit, name = remaining_lifetime(RunState(), run), run.service
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
