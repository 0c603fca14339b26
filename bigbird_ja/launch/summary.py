"""What `launch --dry_run` says in one screen: machine, zones, lease, money, what is uploaded."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from typing import Any

from bigbird_ja.accelerators import hardware
from bigbird_ja.accelerators.prices import Prices
from bigbird_ja.launch import machines
from bigbird_ja.launch.start import Prepared
from bigbird_ja.plan import rows as plan
from bigbird_ja.plan.cost import Overheads
from bigbird_ja.process.console import human_time
from bigbird_ja.settings.resolve import complete_config

WIDTH = 96  # columns, with the label's eleven
_HASH = re.compile(r"/([0-9a-f]{8})[0-9a-f]{56}/")  # of a package's folder


def cost_plan(prepared: Prepared, table: Prices) -> dict[str, Any]:
    """What the run would cost on the machine it asks for: `cost` of `launch --dry_run --json`."""
    config = complete_config(prepared.config)
    overheads = Overheads(checkpoint_interval=config.checkpoints.save_every_minutes * 60)
    run = plan.Run(
        config, config.training.num_train_steps, plan.estimated_data(config), table, overheads,
        zone=prepared.settings.zones[0],
    )  # fmt: skip
    pricing = "on_demand" if prepared.spec.pricing == "on_demand" else "spot"
    rows = plan.make_rows(run, (prepared.spec.accelerator_type,))
    chosen = [dataclasses.asdict(row) for row in rows if row.pricing == pricing]
    return {
        "usd_per_hour": prepared.usd_per_hour,
        "prices_as_of": str(table.as_of),
        "max_hours": prepared.args.max_hours,
        "max_cost": prepared.args.max_cost,
        "most_hours": most_hours(prepared),
        "most_usd": most_usd(prepared),
        "run": chosen[0] if chosen else None,
    }


def most_hours(prepared: Prepared) -> float | None:
    """How long the machine may be rented in all, by --max_hours and --max_cost; None: no limit."""
    settings = prepared.settings
    limits = [] if settings.max_seconds is None else [settings.max_seconds / 3600]
    if settings.max_usd is not None and prepared.usd_per_hour:
        limits.append(settings.max_usd / prepared.usd_per_hour)
    return min(limits, default=None)


def most_usd(prepared: Prepared) -> float | None:
    """US dollars that the machine may cost in all; None: no limit, or no price."""
    hours = most_hours(prepared)
    return hours * prepared.usd_per_hour if hours is not None and prepared.usd_per_hour else None


def text(prepared: Prepared, cost: dict[str, Any], requests: list[dict[str, Any]], age: str) -> str:
    """The summary.

    Args:
        cost: of `cost_plan`.
        requests: of `launch.planned_requests`.
        age: of the table of prices, in words.
    """
    spec, settings = prepared.spec, prepared.settings
    machine = hardware.find(spec.accelerator_type)
    engine = machines.engine_on(spec.accelerator_type, prepared.args.engine)
    chips = f"{machine.chips} chip{'s' if machine.chips > 1 else ''}"
    hosts = f"{machine.hosts} host{'s' if machine.hosts > 1 else ''}"
    queue = ", in the queue" if spec.queued else ""
    uploaded = [
        f"{_short(request['request']['path'])} ({request['request']['what']})"
        for request in requests
        if request["method"].startswith("storage.") and "what" in request["request"]
    ]
    rows = [
        ("machine", f"{spec.accelerator_type}, {spec.pricing.replace('_', ' ')}{queue}: {chips},"
         f" {hosts}, engine {engine}, image {spec.runtime_version}"),
        ("zones", f"{', '.join(settings.zones)}, in this order"),
        ("lease", _lease(prepared)),
        ("cost", _cost(prepared, cost)),
        ("", age),
        ("run", f"{prepared.paths.name}: {settings.target_step:,} steps on {prepared.data_dir}"),
        *(("uploaded" if number == 0 else "", path) for number, path in enumerate(uploaded)),
        ("deleted", "after a preemption (and created again), and at the end"),
    ]  # fmt: skip
    lines = ["dry run: nothing was asked for, nothing is billed"]
    for label, said in rows:
        lines += textwrap.wrap(
            said, WIDTH, initial_indent=f"{label:<11}", subsequent_indent=" " * 11,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join([*lines, "every request and the start-up script: --verbose, or --json"])


def _short(path: str) -> str:
    return _HASH.sub(r"/\1.../", path)


def _lease(prepared: Prepared) -> str:
    hours = most_hours(prepared)
    unwatched = f"deletes itself {prepared.settings.lease / 3600:g} h after nobody watches any more"
    if hours is None:
        days = prepared.settings.longest / 86_400
        return f"{days:g} days each, {unwatched}; in all no limit: give --max_hours or --max_cost"
    args = prepared.args
    by = [f"--max_hours={args.max_hours:g}"] if args.max_hours is not None else []
    by += [f"--max_cost={args.max_cost:.2f}"] if args.max_cost is not None else []
    return f"at most {human_time(hours * 3600)} of rented time ({', '.join(by)}); {unwatched}"


def _cost(prepared: Prepared, cost: dict[str, Any]) -> str:
    usd, run, most = prepared.usd_per_hour, cost["run"], cost["most_usd"]
    if not usd:
        return "no price is known: costs are not counted"
    parts = [f"{usd:,.2f} USD per hour"]
    if run is not None and (first := run["usd_per_hour"]) is not None and first < usd:
        parts = [f"{first:,.2f} USD per hour in {run['zone']}, {usd:,.2f} in the dearest zone"]
    parts.append("no limit" if most is None else f"at most {most:,.2f} USD")
    if run is not None and run["cost_usd"] is not None:
        parts.append(
            f"expected {run['cost_usd']:,.2f} USD, {run['hours']:,.1f} rented hours, done after"
            f" {human_time(run['wall_hours'] * 3600)} ({run['rate_source']})"
        )
        if cost["most_hours"] is not None and run["hours"] > cost["most_hours"]:
            parts.append("the run is expected to reach its limit unfinished")
    return "; ".join(parts)


def everything(requests: list[dict[str, Any]], cost: dict[str, Any]) -> str:
    """Every request in its order, start-up scripts in their own lines, and the cost plan."""
    parts = [
        f"{request['method']}  ({request.get('when', 'first')})\n{_indented(request['request'])}"
        for request in requests
    ]
    return "\n".join([*parts, "\ncost plan:", json.dumps(cost, indent=2, ensure_ascii=False)])


def _indented(body: dict[str, Any]) -> str:
    text = json.dumps(body, indent=2, ensure_ascii=False)
    return "    " + text.replace("\\n", "\n").replace('\\"', '"').replace("\n", "\n    ")
