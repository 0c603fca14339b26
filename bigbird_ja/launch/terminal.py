"""What a person at the terminal sees of a run, before and while it trains, and wants at Ctrl-C."""

from __future__ import annotations

import datetime
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from bigbird_ja.accelerators import hardware
from bigbird_ja.accelerators.prices import Prices
from bigbird_ja.launch import backends, compute, services, startup
from bigbird_ja.launch.run_files import LOCK, BucketFiles, Run, find_runs
from bigbird_ja.launch.run_state import Phase, RunState, longest_life
from bigbird_ja.launch.supervise import Stop
from bigbird_ja.plan import rows as plan
from bigbird_ja.process import signals
from bigbird_ja.process.console import human_time
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.resolve import complete_config
from bigbird_ja.settings.schema import Config

_COMPUTE_LISTS = ("instances", "instanceGroupManagers", "instanceTemplates", "resourcePolicies")

QUESTION = (
    "\nStop watching and [d]elete the TPU, or de[t]ach (it trains on; the same command watches"
    " again), or [c]ontinue? "
)
_ANCHOR = 400  # characters by which a later copy is laid against an earlier one
_PROGRESS = re.compile(r"^step +[0-9]")


# --- the dry run ----------------------------------------------------------------------------------


def dry_run(run: Run, config: Config, vm: startup.Vm, table: Prices) -> dict[str, Any]:
    """Prints machine, lease and money; the `--json` results."""
    package = startup.build_wheel()
    run = replace(run, wheel=package.path_on(run.bucket), wheel_sha256=package.sha256)
    cost, spec, settings = cost_plan(run, config, table), run.spec, run.settings
    machine = hardware.find(spec.accelerator_type)
    queue = ", in the queue" if spec.queued else ""
    print(
        "dry run: nothing was asked for, nothing is billed\n"
        f"machine  {spec.accelerator_type}, {spec.pricing.replace('_', ' ')}{queue}: chips"
        f" {machine.chips}, hosts {machine.hosts}, image {spec.runtime_version}\n"
        f"zones    {', '.join(settings.zones)}, in this order\n"
        f"lease    {_lease(run, cost)}\n"
        f"cost     {_cost(cost)}\n"
        f"         {table.describe_age(datetime.date.today())}\n"
        f"run      {run.name}: {settings.target_step:,} steps on {run.data_dir}\n"
        "every request and the start-up script: --json"
    )
    return {"requests": planned_requests(run, vm), "cost": cost}


def planned_requests(run: Run, vm: startup.Vm) -> list[dict[str, Any]]:
    """Every request of an undisturbed run, and what follows a preemption.

    Args:
        run: with the path of its package.
    """
    is_compute = backends.service_of(run.spec.accelerator_type) == "compute"
    operation = "zoneOperations.get" if is_compute else "GetOperation"
    lists = _COMPUTE_LISTS if is_compute else ("ListNodes", "ListQueuedResources")
    zones = [{"project": run.project, "zone": zone} for zone in run.settings.zones]
    written = (run.wheel, run.config_path, run.supervisor("launch.json"), run.supervisor(LOCK))
    requests = [{"method": "storage.write", "request": {"path": path}} for path in written]
    requests += [{"method": method, "request": zone} for zone in zones for method in lists]
    for zone in zones:
        creations = _creations(run, vm, zone["zone"])
        requests += [
            {
                "method": method,
                "when": "in the first zone with capacity",
                "request": {**zone, "body": body},
            }
            for method, body in creations
        ]
    every = f"every {run.settings.poll:g} s"
    watched = (run.supervisor("exit.json"), f"{run.model_dir}/heartbeat.json")
    polled = [{"path": path} for path in watched]
    delete = creations[-1][0].replace("Create", "Delete").replace(".insert", ".delete")
    return [
        *requests,
        {"method": operation, "when": f"{every} until done", "request": {"name": "..."}},
        {"method": lists[0], "when": every, "request": zones[0]},
        *({"method": "storage.read", "when": every, "request": path} for path in polled),
        {
            "method": delete,
            "when": "after a preemption or failure (then one is created again), and at the end",
            "request": {**zones[0], "name": run.name},
        },
    ]


def _creations(run: Run, vm: startup.Vm, zone: str) -> list[tuple[str, dict[str, Any]]]:
    """Method and body of what rents a machine."""
    limit = longest_life(RunState(run.name), run.settings)
    metadata = startup.metadata(run, vm, zone, 1, limit)
    if backends.service_of(run.spec.accelerator_type) == "compute":
        return compute.creations(run.project, run.spec, zone, 1, metadata, limit)
    method = "CreateQueuedResource" if run.spec.queued else "CreateNode"
    return [(method, services.creation(run.project, run.spec, zone, 1, metadata))]


def cost_plan(run: Run, config: Config, table: Prices) -> dict[str, Any]:
    """What the run would cost on the machine it asks for: `cost` of `launch --dry_run --json`."""
    config, settings = complete_config(config), run.settings
    overheads = plan.Overheads(checkpoint_interval=config.checkpoints.save_every_minutes * 60)
    planned = plan.Run(
        config, config.training.num_train_steps, plan.estimated_data(config), table, overheads,
        zones=settings.zones[:1],
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


def _lease(run: Run, cost: dict[str, Any]) -> str:
    unwatched = f"deletes itself {run.settings.lease / 3600:g} h after nobody watches any more"
    if cost["most_hours"] is None:
        days = run.settings.longest / 86_400
        return f"{days:g} days each, {unwatched}; in all no limit: give --max_hours or --max_cost"
    return f"at most {human_time(cost['most_hours'] * 3600)} of rented time; {unwatched}"


def _cost(cost: dict[str, Any]) -> str:
    usd, row, most = cost["usd_per_hour"], cost["run"], cost["most_usd"]
    if not usd:
        return "no price is known: costs are not counted"
    parts = [f"{usd:,.2f} USD per hour in the dearest zone"]
    parts.append("no limit" if most is None else f"at most {most:,.2f} USD")
    if row is not None and row["cost_usd"] is not None:
        parts.append(
            f"expected {row['cost_usd']:,.2f} USD, {row['hours']:,.1f} rented hours, done after"
            f" {human_time(row['wall_hours'] * 3600)} ({row['rate_source']})"
        )
        if cost["most_hours"] is not None and row["hours"] > cost["most_hours"]:
            parts.append("the run is expected to reach its limit unfinished")
    return "; ".join(parts)


# --- Ctrl-C ---------------------------------------------------------------------------------------


class Interrupts:
    """Listens to signals while the block runs; the supervisor asks `stop` once per turn.

    Args:
        policy: `ask`, `delete` or `detach`; asking needs a terminal, else it means `delete`.
        is_terminal: whether somebody is there to answer.
        ask: shows a question and returns the answer.
        say: prints a line.
    """

    def __init__(
        self,
        policy: str,
        is_terminal: bool,
        ask: Callable[[str], str] = input,
        say: Callable[[str], None] = print,
    ) -> None:
        self._policy = "delete" if policy == "ask" and not is_terminal else policy
        self._ask, self._say = ask, say
        self._wake = threading.Event()
        self._count = 0
        self._deleting = self._by_person = False
        self._listener = signals.Listener(self._receive)

    def __enter__(self) -> Interrupts:
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.__exit__()

    def _receive(self, number: int) -> None:
        if self._deleting and number != signal.SIGINT:
            return  # a closed terminal may send several; a person in a hurry presses Ctrl-C
        self._count += 1
        self._by_person |= number == signal.SIGINT
        if number != signal.SIGINT and self._policy == "ask":
            self._policy = "delete"  # the machine shuts down, or the terminal is gone
        self._wake.set()

    def nobody_reads(self) -> None:
        """The reader of the log is gone, which is as good as a closed terminal."""
        self._receive(signal.SIGHUP)

    def sleep(self, seconds: float) -> None:
        """Waits, or until a signal comes."""
        self._wake.wait(seconds)

    def stop(self) -> Stop:
        """What the person wants now."""
        if not self._count:
            return Stop.NO
        if self._deleting:
            if self._count > 1:
                self._say("left while deleting: `bigbird-ja down` shows and deletes what remains")
                return Stop.DETACH
            return Stop.DELETE
        answer = self._answer()
        self._wake.clear()
        self._count = 0
        if answer is Stop.DELETE:
            self._deleting, self._count = True, 1
            again = "; Ctrl-C again leaves at once" if self._by_person else ""
            self._say(f"deleting the TPU; what is saved stays{again}")
        return answer

    def _answer(self) -> Stop:
        if self._policy != "ask":
            return Stop(self._policy)
        try:
            text = self._ask(QUESTION).strip().lower()
        except (EOFError, KeyboardInterrupt):
            return Stop.DELETE
        if text.startswith(("t", "detach")):
            return Stop.DETACH
        return Stop.NO if text.startswith("c") else Stop.DELETE


# --- the log --------------------------------------------------------------------------------------


class LogFollower:
    """Finds what is new in a window that moves along a growing log."""

    def __init__(self) -> None:
        self._seen = ""

    def new_lines(self, window: str) -> list[str]:
        """Whole lines that no window before has had."""
        whole = window[: window.rfind("\n") + 1]
        anchor = self._seen[-_ANCHOR:]
        at = whole.rfind(anchor) if anchor else -1
        new = whole[at + len(anchor) :] if at >= 0 else whole  # else: another machine's log
        if new:
            self._seen = whole
        return new.splitlines()


def progress_lines(lines: list[str]) -> list[str]:
    """Those that show how far training is."""
    return [line for line in lines if _PROGRESS.match(line)]


def follow(
    bucket: str,
    name: str,
    show: Callable[[str], None],
    sleep: Callable[[float], None],
    seconds: float = 30.0,
) -> str:
    """Shows the log's lines as they come, until the run has ended; how it ended.

    Raises:
        BadInput: no such run.
    """
    names = find_runs(bucket)
    if name not in names:
        raise BadInput(f"no run {name!r} on {bucket}: there are {', '.join(names) or 'none'}")
    files, follower = BucketFiles(Run(bucket, name)), LogFollower()
    while True:
        state = files.load_state()
        for line in follower.new_lines(files.log_window()):
            show(line)
        if state is not None and state.phase is Phase.ENDED:
            show(state.ending_message)
            return state.ending_message
        sleep(seconds)
