"""The supervising loop: look, decide, write down, act, pause.

TPUs, files, clocks and the terminal are arguments (`Services`), so that the tests run this very
loop in virtual time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol, TypeVar

from bigbird_ja.launch.billing import accrue
from bigbird_ja.launch.decide import after_action, decide
from bigbird_ja.launch.run_files import RunFiles
from bigbird_ja.launch.run_state import (
    Action,
    Create,
    Event,
    ExitReport,
    Heartbeat,
    Observation,
    Phase,
    RunState,
    Settings,
)
from bigbird_ja.launch.services import (
    Kind,
    Operation,
    Presence,
    ServiceFault,
    Tpu,
    Tpus,
    TpuSpec,
)
from bigbird_ja.process.errors import BadInput, CommandError
from bigbird_ja.process.redaction import redact
from bigbird_ja.storage.lease import LeaseLost

T = TypeVar("T")

SAVE_EVERY = 300.0  # seconds between saves of an unchanged state
RENEW_EVERY = 300.0  # seconds between renewals of the machine's lease
ASK_AGAIN = 600.0  # seconds until a zone that does not answer, and holds nothing, is asked again

# Whatever a bucket answers, expired credentials included: the machine that is there is billed, so
# none of it may end the loop.
BUCKET_FAULTS = (CommandError, OSError)


class Clock(Protocol):
    """Two clocks: one to measure by, one whose readings mean the same on other machines."""

    def steady(self) -> float:
        """Seconds that never jump; meaningless to other processes."""

    def wall(self) -> float:
        """UNIX seconds; may jump."""


class SystemClock:
    """This machine's clocks. The steady one runs while a laptop sleeps, where the system can."""

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
    """The person left; the TPU trains until its lease is over."""


@dataclass
class Services:
    """What the loop looks at and acts through."""

    tpus: Tpus
    files: RunFiles
    clock: Clock
    sleep: Callable[[float], None]
    beat: Callable[[], None] = lambda: None  # keeps the lock; raises LeaseLost
    stop: Callable[[], Stop] = lambda: Stop.NO
    say: Callable[[str], None] = lambda text: None
    follow: Callable[[], None] = lambda: None  # shows the trainer's progress; may read the bucket
    metadata: Callable[[str, int, float], Mapping[str, str]] = lambda zone, attempt, limit: {}


@dataclass
class _Memory:
    """What the loop itself remembers between two turns."""

    steady: float = 0.0
    saved: RunState | None = None
    saved_at: float = 0.0
    renewed_at: float = -math.inf  # the machine's lease
    is_holder: bool = False  # the lock was renewed in this turn
    stores: bool = True  # the bucket took what was last to be stored
    unsent: list[dict[str, Any]] = field(default_factory=list)  # events the bucket did not take
    asleep: dict[str, tuple[float, ServiceFault]] = field(default_factory=dict)


def supervise(spec: TpuSpec, settings: Settings, services: Services) -> RunState:
    """Runs until the run has ended; returns its last state.

    Run again after any interruption, it continues from what is on the bucket and what is listed.

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
        state = accrue(state, seen, settings)
        decision = decide(state, seen, settings)
        if decision.rents and not _may_rent(decision.state, memory, services):
            services.say("nothing is rented: the decision could not be stored")
            services.sleep(settings.poll)
            continue
        # Written before acting: whoever comes after us knows what we were about to do.
        _write(decision.state, decision.events, memory, services)
        state = decision.state
        for action in decision.actions:
            operation, fault = perform(action, spec, services)
            follow_up = after_action(state, action, operation, fault, settings)
            _write(follow_up.state, follow_up.events, memory, services)
            state = follow_up.state
        if decision.pause and state.phase is not Phase.ENDED:
            services.sleep(decision.pause)
    _write(state, [], memory, services)
    return state


def _may_rent(state: RunState, memory: _Memory, services: Services) -> bool:
    """Stores the decision to rent, and asks once more whether this is the run's one supervisor."""
    if not memory.is_holder:
        return False
    try:
        services.files.save_state(state)
        services.beat()
    except LeaseLost:
        raise
    except BUCKET_FAULTS as error:
        services.say(f"bucket: {error}")
        memory.stores = False
        return False
    memory.saved, memory.saved_at = state, memory.steady
    return True


def load(name: str, services: Services) -> tuple[RunState, float]:
    """The state on the bucket, ready to continue, and the seconds since it was saved."""
    state = services.files.load_state()
    if state is None:
        return RunState(name), 0.0
    gap = max(0.0, services.clock.wall() - state.saved_wall) if state.saved_wall else 0.0
    if state.phase is Phase.ENDED and not state.billing:
        # Nothing was rented between the end and now.
        gap = 0.0
    if state.ending is not None:
        state = replace(state, phase=Phase.IDLE, ending=None, ending_reason="", ending_message="")
        state = replace(state, same_failures=0, last_failure="", struck_zones={}, strikes={})
        state = replace(state, misses=0, backoff_seconds=0.0, operation="", operation_kind="")
        state = replace(state, trouble_seconds=0.0, in_trouble=False)
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
    _hold(state, settings, memory, services)
    tpus, unlisted = _list(state, settings, services, memory)
    operation = _look_at_operation(state, services)
    ready = any(tpu.presence is Presence.READY for tpu in tpus)
    heartbeat, report, tail, step, bucket_seen = _read_bucket(
        state, settings, services, watched, suspicious=not ready
    )
    return Observation(
        elapsed=elapsed,
        watched=watched,
        wall=services.clock.wall(),
        tpus=tpus,
        unlisted=unlisted,
        operation=operation,
        heartbeat=heartbeat,
        checkpoint_step=step,
        bucket_seen=bucket_seen and memory.is_holder and memory.stores,
        exit_report=report,
        log_tail=tail,
        stop=stop,
        resumed=first,
    )


def _hold(state: RunState, settings: Settings, memory: _Memory, services: Services) -> None:
    """Keeps the lock, and renews the lease of the machine that we want to keep.

    A bucket that fails ends nothing: without a renewal the machine's lease runs out by itself.
    """
    memory.is_holder = False
    try:
        services.beat()
        memory.is_holder = True
        keeps = state.phase in (Phase.CREATING, Phase.RUNNING) and state.ending is None
        due = memory.renewed_at + min(RENEW_EVERY, settings.lease / 4)
        if keeps and memory.steady >= due:
            services.files.renew_machine(state.attempt, services.clock.wall())
            memory.renewed_at = memory.steady
    except LeaseLost:
        raise
    except BUCKET_FAULTS as error:
        services.say(f"bucket: {error}")


def _list(
    state: RunState, settings: Settings, services: Services, memory: _Memory
) -> tuple[list[Tpu], dict[str, ServiceFault]]:
    """This run's TPUs in every zone that matters, and the zones that did not answer.

    While a TPU runs, the zones that were used are enough; before anything is created, and before
    anything is called deleted, every zone is asked. One that does not answer is asked again later,
    unless the run's TPU is there: each try takes its time, and holds the others up.
    """
    zones = state.used_zones
    if state.phase is not Phase.RUNNING:
        zones = tuple(dict.fromkeys((*zones, *settings.zones)))
    tpus: list[Tpu] = []
    unlisted: dict[str, ServiceFault] = {}
    for zone in zones:
        until, before = memory.asleep.get(zone, (0.0, None))
        if before is not None and memory.steady < until and zone != state.zone:
            unlisted[zone] = before
            continue
        try:
            tpus += [tpu for tpu in services.tpus.list(zone) if tpu.belongs_to(state.name)]
            memory.asleep.pop(zone, None)
        except ServiceFault as fault:
            services.say(f"{zone}: {fault}")
            unlisted[zone] = fault
            memory.asleep[zone] = (memory.steady + ASK_AGAIN, fault)
            tpus += [tpu for tpu in fault.listed if tpu.belongs_to(state.name)]
    return tpus, unlisted


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
    state: RunState, settings: Settings, services: Services, watched: float, suspicious: bool
) -> tuple[Heartbeat | None, ExitReport | None, str, int | None, bool]:
    """Heartbeat, exit report, the log's end, the newest checkpoint's step (where training may have
    ended: listing a folder costs more than reading a file), and whether the bucket answered."""
    tail, step = "", None
    try:
        heartbeat = _if_whole(services.files.heartbeat, services)
        running = state.phase is Phase.RUNNING
        if running:
            services.follow()
        report = _if_whole(services.files.exit_report, services) if running else None
        limit = settings.stall if state.has_stepped else settings.startup
        ended = report is not None and report.attempt == state.attempt
        stopped = heartbeat is not None and heartbeat.state == "stopped"
        quiet = state.quiet_seconds + watched > limit
        if ended or quiet:
            tail = services.files.log_tail()
        if not running or suspicious or ended or quiet or (stopped and state.quiet_seconds > 60):
            step = services.files.checkpoint_step()
    except BUCKET_FAULTS as error:
        services.say(f"bucket: {error}")
        return None, None, "", None, False
    return heartbeat, report, tail, step, True


def _if_whole(read: Callable[[], T | None], services: Services) -> T | None:
    """A damaged file counts as none: a supervisor that ended over it would leave its TPU."""
    try:
        return read()
    except BadInput as error:
        services.say(str(error))
        return None


def perform(action: Action, spec: TpuSpec, services: Services) -> tuple[str, ServiceFault | None]:
    """Carries one action out: the operation's name, or why the service did not take it."""
    try:
        if isinstance(action, Create):
            metadata = services.metadata(action.zone, action.attempt, action.limit)
            tpus, zone = services.tpus, action.zone
            return tpus.create(spec, zone, action.attempt, metadata, action.limit), None
        return services.tpus.delete(action.tpu), None
    except ServiceFault as fault:
        return "", fault


def _write(state: RunState, events: Sequence[Event], memory: _Memory, services: Services) -> None:
    """Saves the state when something other than its timers changed, and new events."""
    for event in events:
        services.say(describe(event))
        line = {"event": event.event, "time": round(services.clock.wall(), 3)}
        memory.unsent.append({**line, "source": "supervisor", "run": state.name, **event.fields})
    changed = memory.saved is None or _identity(memory.saved) != _identity(state)
    changed = changed or not memory.stores
    due = memory.steady - memory.saved_at >= SAVE_EVERY
    try:
        if changed or due:
            services.files.save_state(state)
            memory.saved, memory.saved_at = state, memory.steady
            memory.stores = True
        while memory.unsent:
            services.files.append_event(memory.unsent[0])
            memory.unsent.pop(0)
    except BUCKET_FAULTS as error:
        services.say(f"bucket: {error}")  # kept in memory: the next turn tries again
        memory.stores = False


def _identity(state: RunState) -> RunState:
    """The state without its timers."""
    return replace(
        state, phase_seconds=0.0, quiet_seconds=0.0, healthy_seconds=0.0, backoff_seconds=0.0,
        delete_wait=0.0, billed_seconds=0.0, elapsed_seconds=0.0, cost_usd=0.0, saved_wall=0.0,
        machine_seconds=0.0, trouble_seconds=0.0, last_heartbeat=0.0, best_step=0,
        last_step=min(state.last_step, 0),
    )  # fmt: skip


def describe(event: Event) -> str:
    """One line for people; what it quotes may hold secrets."""
    details = ", ".join(
        f"{key} {f'{value:.2f}' if key == 'cost_usd' else value}"
        for key, value in event.fields.items()
        if value != "" and key != "log"
    )
    line = event.event.replace("_", " ") + (f": {details}" if details else "")
    log = str(event.fields.get("log", ""))
    return redact(line + ("\n  | " + "\n  | ".join(log.splitlines()[-10:]) if log else ""))
