"""What `launch --dry_run` prints: every request, and one screen with machine, lease and money."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import asdict
from typing import Any

from bigbird_ja.accelerators import hardware
from bigbird_ja.accelerators.prices import Prices
from bigbird_ja.launch import backends, compute, startup, tpu_nodes, wheel
from bigbird_ja.launch.run_files import LOCK, Run
from bigbird_ja.launch.run_state import RunState, longest_life
from bigbird_ja.plan import rows as plan
from bigbird_ja.process.console import human_time
from bigbird_ja.settings.resolve import complete_config
from bigbird_ja.settings.schema import Config

WIDTH = 96  # columns, with the label's eleven
_HASH = re.compile(r"/([0-9a-f]{8})[0-9a-f]{56}/")  # of a package's folder

_COMPUTE_LISTS = ("instances", "instanceGroupManagers", "instanceTemplates", "resourcePolicies")


def planned_requests(run: Run, vm: startup.Vm, package: wheel.Wheel) -> list[dict[str, Any]]:
    """Every request of an undisturbed run, and what follows a preemption.

    Args:
        run: with the path of its package.
    """
    every = f"every {run.settings.poll:g} s"
    zones = [{"project": run.project, "zone": zone} for zone in run.settings.zones]
    if backends.service_of(run.spec.accelerator_type) == "compute":
        lists = [f"{kind}.list" for kind in _COMPUTE_LISTS]
        operation, rented = "zoneOperations.get", _creations(run, vm, run.settings.zones[0])[-1][0]
        delete = rented.replace(".insert", ".delete")
    else:
        kind = "QueuedResource" if run.spec.queued else "Node"
        lists, operation, delete = (
            ["ListNodes", "ListQueuedResources"],
            "GetOperation",
            f"Delete{kind}",
        )
    requests: list[dict[str, Any]] = [
        _file("write", run.wheel, f"{len(package.content):,} bytes, unless it is there"),
        _file("write", run.config_path, "the resolved config"),
        _file("write", run.supervisor("launch.json"), "what was launched"),
        _file("create", run.supervisor(LOCK), "one supervisor per run"),
        *({"method": method, "request": zone} for zone in zones for method in lists),
    ]
    for number, zone in enumerate(run.settings.zones):
        when = "first" if number == 0 else "if the zones before have no capacity"
        requests += [
            {"method": method, "when": when, "request": {**zones[number], "body": body}}
            for method, body in _creations(run, vm, zone)
        ]
    watched = [run.supervisor("exit.json"), f"{run.model_dir}/heartbeat.json"]
    return [
        *requests,
        {"method": operation, "when": f"{every} until done", "request": {"name": "..."}},
        {"method": lists[0], "when": every, "request": zones[0]},
        *({"method": "storage.read", "when": every, "request": {"path": p}} for p in watched),
        {
            "method": delete,
            "when": "after a preemption or failure (then one is created again), and at the end",
            "request": {**zones[0], "name": run.name},
        },
    ]  # fmt: skip


def _creations(run: Run, vm: startup.Vm, zone: str) -> list[tuple[str, dict[str, Any]]]:
    """Method and body of what rents a machine."""
    limit = longest_life(RunState(run.name), run.settings)
    metadata = startup.metadata(run, vm, zone, 1, limit)
    if backends.service_of(run.spec.accelerator_type) == "compute":
        return compute.creations(run.project, run.spec, zone, 1, metadata, limit)
    method = "CreateQueuedResource" if run.spec.queued else "CreateNode"
    return [(method, tpu_nodes.creation(run.project, run.spec, zone, 1, metadata))]


def _file(verb: str, path: str, what: str) -> dict[str, Any]:
    return {"method": f"storage.{verb}", "request": {"path": path, "what": what}}


def cost_plan(run: Run, config: Config, table: Prices) -> dict[str, Any]:
    """What the run would cost on the machine it asks for: `cost` of `launch --dry_run --json`."""
    config, settings = complete_config(config), run.settings
    overheads = plan.Overheads(checkpoint_interval=config.checkpoints.save_every_minutes * 60)
    planned = plan.Run(
        config, config.training.num_train_steps, plan.estimated_data(config), table, overheads,
        zone=settings.zones[0],
    )  # fmt: skip
    pricing = "on_demand" if run.spec.pricing == "on_demand" else "spot"
    rows = plan.make_rows(planned, (run.spec.accelerator_type,))
    usd = settings.usd_per_hour
    max_hours = None if settings.max_seconds is None else settings.max_seconds / 3600
    limits = [] if max_hours is None else [max_hours]
    limits += [settings.max_usd / usd] if settings.max_usd is not None and usd else []
    most_hours = min(limits, default=None)
    return {
        "usd_per_hour": usd,
        "prices_as_of": str(table.as_of),
        "max_hours": max_hours,
        "max_cost": settings.max_usd,
        "most_hours": most_hours,  # of rented time, by both; None: no limit
        "most_usd": most_hours * usd if most_hours is not None and usd else None,
        "run": next((asdict(row) for row in rows if row.pricing == pricing), None),
    }


def text(run: Run, cost: dict[str, Any], requests: list[dict[str, Any]], age: str) -> str:
    """The summary.

    Args:
        cost: of `cost_plan`.
        requests: of `planned_requests`.
        age: of the table of prices, in words.
    """
    spec, settings = run.spec, run.settings
    machine = hardware.find(spec.accelerator_type)
    engine = backends.engine_on(spec.accelerator_type, run.engine)
    chips = f"{machine.chips} chip{'s' if machine.chips > 1 else ''}"
    hosts = f"{machine.hosts} host{'s' if machine.hosts > 1 else ''}"
    queue = ", in the queue" if spec.queued else ""
    uploaded = [
        _HASH.sub(r"/\1.../", request["request"]["path"]) + f" ({request['request']['what']})"
        for request in requests
        if request["method"].startswith("storage.") and "what" in request["request"]
    ]
    rows = [
        ("machine", f"{spec.accelerator_type}, {spec.pricing.replace('_', ' ')}{queue}: {chips},"
         f" {hosts}, engine {engine}, image {spec.runtime_version}"),
        ("zones", f"{', '.join(settings.zones)}, in this order"),
        ("lease", _lease(run, cost)),
        ("cost", _cost(cost)),
        ("", age),
        ("run", f"{run.name}: {settings.target_step:,} steps on {run.data_dir}"),
        *(("uploaded" if number == 0 else "", path) for number, path in enumerate(uploaded)),
        ("deleted", "after a preemption (and created again), and at the end"),
    ]  # fmt: skip
    lines = ["dry run: nothing was asked for, nothing is billed"]
    for label, content in rows:
        lines += textwrap.wrap(
            content, WIDTH, initial_indent=f"{label:<11}", subsequent_indent=" " * 11,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join([*lines, "every request and the start-up script: --verbose, or --json"])


def _lease(run: Run, cost: dict[str, Any]) -> str:
    settings, hours = run.settings, cost["most_hours"]
    unwatched = f"deletes itself {settings.lease / 3600:g} h after nobody watches any more"
    if hours is None:
        days = settings.longest / 86_400
        return f"{days:g} days each, {unwatched}; in all no limit: give --max_hours or --max_cost"
    by = [f"--max_hours={cost['max_hours']:g}"] if cost["max_hours"] is not None else []
    by += [f"--max_cost={settings.max_usd:.2f}"] if settings.max_usd is not None else []
    return f"at most {human_time(hours * 3600)} of rented time ({', '.join(by)}); {unwatched}"


def _cost(cost: dict[str, Any]) -> str:
    usd, row, most = cost["usd_per_hour"], cost["run"], cost["most_usd"]
    if not usd:
        return "no price is known: costs are not counted"
    parts = [f"{usd:,.2f} USD per hour"]
    if row is not None and (first := row["usd_per_hour"]) is not None and first < usd:
        parts = [f"{first:,.2f} USD per hour in {row['zone']}, {usd:,.2f} in the dearest zone"]
    parts.append("no limit" if most is None else f"at most {most:,.2f} USD")
    if row is not None and row["cost_usd"] is not None:
        parts.append(
            f"expected {row['cost_usd']:,.2f} USD, {row['hours']:,.1f} rented hours, done after"
            f" {human_time(row['wall_hours'] * 3600)} ({row['rate_source']})"
        )
        if cost["most_hours"] is not None and row["hours"] > cost["most_hours"]:
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
    body_text = json.dumps(body, indent=2, ensure_ascii=False)
    return "    " + body_text.replace("\\n", "\n").replace('\\"', '"').replace("\n", "\n    ")
