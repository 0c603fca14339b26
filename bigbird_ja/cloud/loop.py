"""The supervising loop: look, decide, write down, act, pause.

TPUs, files, clocks and the person at the terminal are handed in (`Services`), so that the tests and
`plan --simulate` run this very loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol, TypeVar

from bigbird_ja.cloud import supervisor
from bigbird_ja.cloud.faults import Kind, ServiceFault
from bigbird_ja.cloud.run_files import RunFiles
from bigbird_ja.cloud.run_state import (
    Action,
    ActionResult,
    Create,
    Event,
    ExitReport,
    Heartbeat,
    Observation,
    Phase,
    RunState,
    Settings,
)
from bigbird_ja.cloud.tpu import Operation, Tpu, Tpus, TpuSpec
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.lease import LeaseLost
from bigbird_ja.redaction import redact

T = TypeVar("T")

SAVE_EVERY = 300.0  # seconds between saves of an unchanged state


class Clock(Protocol):
    """Two clocks: one to measure by, one whose readings mean the same on other machines."""

    def steady(self) -> float:
        """Seconds that never jump; meaningless to other processes."""

    def wall(self) -> float:
        """UNIX seconds; may jump."""


class SystemClock:
    """This machine's clocks. The steady one goes on while a laptop sleeps, where the system can."""

    def steady(self) -> float:
        boot = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boot is None else time.clock_gettime(boot)

    def wall(self) -> float:
        return time.time()


class Stop(Enum):
    """What a person wants at Ctrl-C."""

    NO = "no"
    DELETE = "delete"
    DETACH = "detach"


class Detached(Exception):
    """The person left; the TPU goes on, and its dead man's switch watches it."""


@dataclass
class Services:
    """What the loop looks at and acts through."""

    tpus: Tpus
    files: RunFiles
    clock: Clock
    sleep: Callable[[float], None]
    beat: Callable[[], None] = lambda: None  # keeps the lease; raises LeaseLost
    stop: Callable[[], Stop] = lambda: Stop.NO
    say: Callable[[str], None] = lambda text: None
    metadata: Callable[[str, int], Mapping[str, str]] = lambda zone, attempt: {}


@dataclass
class _Memory:
    """What the loop itself remembers between two turns."""

    steady: float = 0.0
    saved: RunState | None = None
    saved_at: float = 0.0
    unsent: list[dict[str, Any]] = field(default_factory=list)  # events the bucket did not take


def supervise(spec: TpuSpec, settings: Settings, services: Services) -> RunState:
    """Runs until the run has ended; returns its last state.

    Run again after anything at all, it goes on from what is on the bucket and what is listed.

    Raises:
        Detached: Ctrl-C, answered with "detach".
        LeaseLost: another supervisor took over.
    """
    state, gap = load(spec.name, services)
    memory = _Memory(services.clock.steady() - gap)
    first = True
    while state.phase is not Phase.ENDED:
        stop = services.stop()
        if stop is Stop.DETACH:
            _write(state, [Event("detached")], memory, services)
            raise Detached
        seen = observe(state, settings, services, memory, first, stop is Stop.DELETE)
        first = False
        decision = supervisor.decide(state, seen, settings)
        # Written before acting: whoever comes after us knows what we were about to do.
        _write(decision.state, decision.events, memory, services)
        state = decision.state
        for action in decision.actions:
            result = perform(action, spec, services)
            follow_up = supervisor.after_action(state, result, settings)
            _write(follow_up.state, follow_up.events, memory, services)
            state = follow_up.state
        if decision.pause and state.phase is not Phase.ENDED:
            services.sleep(decision.pause)
    _write(state, [], memory, services)
    return state


def load(name: str, services: Services) -> tuple[RunState, float]:
    """The state on the bucket, ready to go on, and the seconds since it was saved."""
    state = services.files.load_state()
    if state is None:
        return RunState(name), 0.0
    gap = max(0.0, services.clock.wall() - state.saved_wall) if state.saved_wall else 0.0
    if state.phase is Phase.ENDED:
        # Nothing was rented between the end and now.
        gap = 0.0
    if state.ending is not None:
        state = replace(state, phase=Phase.IDLE, ending=None, ending_reason="", ending_message="")
        state = replace(state, same_failures=0, last_failure="", struck_zones={}, strikes={})
        state = replace(state, misses=0, backoff_seconds=0.0, operation="", operation_kind="")
    return state, gap


def observe(
    state: RunState,
    settings: Settings,
    services: Services,
    memory: _Memory,
    first: bool,
    stop: bool,
) -> Observation:
    """One look at the service, the bucket and the clocks."""
    now = services.clock.steady()
    elapsed = max(0.0, now - memory.steady)
    memory.steady = now
    watched = 0.0 if first else min(elapsed, 2 * settings.poll)
    try:
        services.beat()
    except LeaseLost:
        raise
    except (StorageError, PermissionError) as error:
        services.say(f"bucket: {error}")
    tpus, fault = _list(state, settings, services)
    operation = _look_at_operation(state, services)
    heartbeat, report, tail, bucket_seen = _read_bucket(state, settings, services, watched)
    return Observation(
        elapsed=elapsed,
        watched=watched,
        wall=services.clock.wall(),
        tpus=tpus,
        list_fault=fault,
        operation=operation,
        heartbeat=heartbeat,
        bucket_seen=bucket_seen,
        exit_report=report,
        log_tail=tail,
        stop=stop,
        resumed=first,
    )


def _list(
    state: RunState, settings: Settings, services: Services
) -> tuple[list[Tpu] | None, tuple[str, ServiceFault] | None]:
    """This run's TPUs in every zone that matters; None if one zone does not answer.

    While a TPU runs, the zones that were used are enough; before anything is created, and before
    anything is called deleted, every zone is asked.
    """
    zones = state.used_zones
    if state.phase is not Phase.RUNNING:
        zones = tuple(dict.fromkeys((*zones, *settings.zones)))
    found: list[Tpu] = []
    for zone in zones:
        try:
            found += [tpu for tpu in services.tpus.list(zone) if tpu.run == state.name]
        except ServiceFault as fault:
            services.say(f"{zone}: {fault}")
            return None, (zone, fault)
    return found, None


def _look_at_operation(state: RunState, services: Services) -> Operation | None:
    if not state.operation:
        return None
    try:
        return services.tpus.operation(state.operation)
    except ServiceFault as fault:
        if fault.kind is Kind.NOT_FOUND:  # forgotten: long over
            return Operation(done=True)
        return None


def _read_bucket(
    state: RunState, settings: Settings, services: Services, watched: float
) -> tuple[Heartbeat | None, ExitReport | None, str, bool]:
    tail = ""
    try:
        heartbeat = _if_whole(services.files.heartbeat, services)
        running = state.phase is Phase.RUNNING
        report = _if_whole(services.files.exit_report, services) if running else None
        limit = settings.stall if state.has_stepped else settings.startup
        ended = report is not None and report.attempt == state.attempt
        if ended or state.quiet_seconds + watched > limit:
            tail = services.files.log_tail()
    except (StorageError, PermissionError) as error:
        services.say(f"bucket: {error}")
        return None, None, "", False
    return heartbeat, report, tail, True


def _if_whole(read: Callable[[], T | None], services: Services) -> T | None:
    """A damaged file counts as none: a supervisor that ended over it would leave its TPU."""
    try:
        return read()
    except BadInput as error:
        services.say(str(error))
        return None


def perform(action: Action, spec: TpuSpec, services: Services) -> ActionResult:
    """Carries one act out; what the service refuses is a result, not an exception."""
    try:
        if isinstance(action, Create):
            metadata = services.metadata(action.zone, action.attempt)
            return ActionResult(
                action, services.tpus.create(spec, action.zone, action.attempt, metadata)
            )
        return ActionResult(action, services.tpus.delete(action.tpu))
    except ServiceFault as fault:
        return ActionResult(action, fault=fault)


def _write(state: RunState, events: Sequence[Event], memory: _Memory, services: Services) -> None:
    """Saves the state when something other than its timers changed, and new events."""
    for event in events:
        services.say(describe(event))
        line = {"event": event.event, "time": round(services.clock.wall(), 3)}
        memory.unsent.append({**line, "source": "supervisor", "run": state.name, **event.fields})
    changed = memory.saved is None or _identity(memory.saved) != _identity(state)
    due = memory.steady - memory.saved_at >= SAVE_EVERY
    try:
        if changed or due:
            services.files.save_state(state)
            memory.saved, memory.saved_at = state, memory.steady
        while memory.unsent:
            services.files.append_event(memory.unsent[0])
            memory.unsent.pop(0)
    except (StorageError, PermissionError) as error:
        services.say(f"bucket: {error}")  # kept in memory: the next turn tries again


def _identity(state: RunState) -> RunState:
    """The state without its timers."""
    return replace(
        state, phase_seconds=0.0, quiet_seconds=0.0, healthy_seconds=0.0, backoff_seconds=0.0,
        delete_wait=0.0, billed_seconds=0.0, elapsed_seconds=0.0, cost_usd=0.0, saved_wall=0.0,
        last_heartbeat=0.0, best_step=0, last_step=min(state.last_step, 0),
    )  # fmt: skip


def describe(event: Event) -> str:
    """One line for people; events that an earlier version wrote are cleaned here."""
    details = ", ".join(
        f"{key} {value}" for key, value in event.fields.items() if value != "" and key != "log"
    )
    line = event.event.replace("_", " ") + (f": {details}" if details else "")
    log = str(event.fields.get("log", ""))
    return redact(line + ("\n  | " + "\n  | ".join(log.splitlines()[-10:]) if log else ""))
