"""What the supervisor knows of a run (kept on the bucket), observes in one look, and may do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bigbird_ja.launch.rest import ServiceFault
from bigbird_ja.launch.services import Operation, Presence, Tpu
from bigbird_ja.storage.decode import FORMAT_VERSION, Amount, Count

_Step = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]  # -1: none yet


class Phase(str, Enum):
    """Where a run is."""

    IDLE = "idle"  # no TPU is there; one is wanted, perhaps after a pause
    CREATING = "creating"  # asked for one
    RUNNING = "running"  # it was READY when last seen
    REMOVING = "removing"  # what is there must go; then IDLE or ENDED
    ENDED = "ended"


class Ending(str, Enum):
    """Why a run ends."""

    FINISHED = "finished"
    GAVE_UP = "gave_up"  # the same failure too often, or something only a person can change
    BUDGET = "budget"  # --max_hours or --max_cost
    INTERRUPTED = "interrupted"  # Ctrl-C or SIGTERM, with deletion


@dataclass(frozen=True)
class Settings:
    """What the user and the table of prices decided. Seconds and US dollars."""

    zones: tuple[str, ...]
    target_step: Count
    usd_per_hour: Amount
    project: str = ""
    accelerator_type: str = ""
    run_id: str = ""
    queued: bool = False
    max_seconds: Amount | None = None  # since the first launch, whoever watched
    max_usd: Amount | None = None
    poll: Amount = 30.0
    stall: Amount = 900.0  # READY, has stepped before, no new step
    startup: Amount = 2700.0  # READY, no step yet: boot, install, compile
    create_timeout: Amount = 1200.0  # asked for, or in repair, not READY
    queue_timeout: Amount = 6 * 3600.0  # a queued resource waits longer before we look elsewhere
    settle: Amount = 120.0  # a TPU that was asked for may appear this late
    delete_patience: Amount = 1800.0  # before an ending run reports that it could not delete
    backoff_first: Amount = 30.0
    backoff_most: Amount = 900.0
    same_failure_limit: Count = 3
    healthy: Amount = 3600.0  # training this long makes the next failure a first one
    quota_strikes: Count = 3  # in zones that have served us: a dead TPU's quota comes back late
    lease: Amount = 12 * 3600.0  # a machine lives so long after the last sign of a supervisor
    longest: Amount = 7 * 86_400.0  # and so long in all, where no budget is shorter
    shortest: Amount = 600.0  # what is left of a budget must pay for so much of another machine
    hosts: Count = 1  # of the slice; the script on each tries again when another has gone
    silence: Amount = 5400.0  # the machine's own patience with a trainer that makes no step
    service_patience: Amount = 24 * 3600.0  # with a service or a bucket that only fails


@dataclass(frozen=True)
class RunState:
    """All that must outlive the supervisor. Timers add up observed seconds and hold no times of
    day, so setting a clock does not change them."""

    name: str
    phase: Phase = Phase.IDLE
    zone: str = ""
    zone_index: Count = 0
    used_zones: tuple[str, ...] = ()  # zones that this run ever asked: a TPU may be left in any
    ready_zones: tuple[str, ...] = ()  # zones that gave us a TPU once
    struck_zones: Mapping[str, str] = field(default_factory=dict)  # zone -> why it is out
    strikes: Mapping[str, Count] = field(default_factory=dict)
    attempt: Count = 0
    operation: str = ""
    operation_kind: str = ""  # create | delete
    phase_seconds: Amount = 0.0
    quiet_seconds: Amount = 0.0  # READY without a new step
    healthy_seconds: Amount = 0.0  # of this TPU, with steps coming
    backoff_seconds: Amount = 0.0  # left to wait
    misses: Count = 0  # creations in a row without a TPU: sets the back-off
    delete_tries: Count = 0
    delete_wait: Amount = 0.0  # left until the next try
    incarnation: Amount = 0.0  # creation time of the TPU that we watch
    machine_seconds: Amount = 0.0  # since this TPU was asked for
    machine_limit: Amount = 0.0  # it lives so long at most: stored before it is asked for
    trouble_seconds: Amount = 0.0  # in a row, in which the service or the bucket only failed
    in_trouble: bool = False  # the service answered the last creation with a fault of its own
    stale_heartbeat: str = ""  # signature of what lay there before this TPU was asked for
    in_repair: bool = False  # its group replaces lost hosts
    last_step: _Step = -1  # of this TPU
    has_stepped: bool = False
    best_step: _Step = -1
    preemptions: Count = 0
    failures: Count = 0
    last_failure: str = ""
    same_failures: Count = 0
    failure_step: _Step = -1  # best step at the last failure
    leases_over: Count = 0  # TPUs that were deleted at the end of their lease
    # Why we are REMOVING: preempted | failed | lease_over | no_capacity | ending | leftover
    cause: str = ""
    billing: bool = False
    billed_seconds: Amount = 0.0
    elapsed_seconds: Amount = 0.0
    cost_usd: Amount = 0.0
    ending: Ending | None = None
    ending_reason: str = ""  # as in exit statuses: finished, diverged, bad_input, ...
    ending_message: str = ""
    saved_at: Amount = 0.0  # UNIX seconds by the service's clock, whoever saved it
    absences: Count = 0  # looks in a row that did not show the TPU that was asked for
    format_version: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**msgspec.to_builtins(self), "format_version": FORMAT_VERSION}


def longest_life(state: RunState, settings: Settings) -> float:
    """Seconds that a machine asked for now may live: what the budget still pays for."""
    seconds = settings.longest
    if settings.max_seconds is not None:
        seconds = min(seconds, settings.max_seconds - state.elapsed_seconds)
    if settings.max_usd is not None and settings.usd_per_hour:
        left = settings.max_usd - state.cost_usd
        seconds = min(seconds, left / settings.usd_per_hour * 3600)
    return max(0.0, seconds)


@dataclass(frozen=True)
class Heartbeat:
    """`MODEL_DIR/heartbeat.json`."""

    global_step: int
    time: float
    state: str  # starting | training | saving | stopped
    reason: str = ""
    tokens_per_second: float = 0.0
    host: str = ""
    pid: int = 0

    @property
    def signature(self) -> str:
        """Differs whenever the trainer wrote again."""
        return f"{self.time}/{self.host}/{self.pid}/{self.global_step}/{self.state}"


@dataclass(frozen=True)
class ExitReport:
    """What the start-up script wrote when training ended, or when it deleted its own TPU."""

    attempt: Count = 0
    status: Count = 1
    reason: str = ""
    host: Count = 0  # of the slice


@dataclass(frozen=True)
class Observation:
    """One look at the service, the bucket and the clocks. None where it could not be seen."""

    elapsed: float  # true seconds since the last look
    watched: float  # the same, at most two polls: time in which something could have been seen
    service_time: float | None = None  # UNIX seconds by the service's clock; None: no answer yet
    tpus: Sequence[Tpu] = ()  # of this run, in the zones that answered
    # The others, and why; Kind.EXISTS where the run's TPU is there and the listing lacks it.
    unlisted: Mapping[str, ServiceFault] = field(default_factory=dict)
    taken: Sequence[Tpu] = ()  # others' machines that have the run's name
    operation: Operation | None = None
    heartbeat: Heartbeat | None = None
    checkpoint_step: int | None = None  # of the newest; -1: none; None: not looked for, or unseen
    bucket_seen: bool = True
    exit_report: ExitReport | None = None
    log_tail: str = ""
    stop: bool = False  # Ctrl-C, answered with "delete"
    resumed: bool = False  # the look that counts the time in which nobody watched


@dataclass(frozen=True)
class Create:
    """Ask for a TPU that lives `limit` seconds at most."""

    zone: str
    attempt: int
    limit: float


@dataclass(frozen=True)
class Delete:
    """Ask for the deletion of what is listed."""

    tpu: Tpu


Action = Create | Delete


@dataclass(frozen=True)
class Event:
    """A line of the supervisor's `events.jsonl`."""

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """What follows from a look: the new state (saved before acting), acts, events, and a pause."""

    state: RunState
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    pause: float = 0.0

    @property
    def rents(self) -> bool:
        """Whether it costs money: then it must be stored before it is acted on."""
        return any(isinstance(action, Create) for action in self.actions)


# --- time and money -----------------------------------------------------------------------------

_BILLED = (Presence.READY, Presence.DELETING)
_ASKED_FOR = (Phase.CREATING, Phase.RUNNING)
_MACHINE_PHASES = (Phase.CREATING, Phase.RUNNING, Phase.REMOVING)


def accrue(state: RunState, seen: Observation, settings: Settings) -> RunState:
    """Adds this look's time and money. What was READY at either end was billed throughout; what
    cannot be listed counts as READY for as long as it may live."""
    has_machine = state.phase in _MACHINE_PHASES
    is_unseen = state.zone in seen.unlisted and has_machine
    now_billing = is_unseen or any(tpu.presence in _BILLED or tpu.is_partly_up for tpu in seen.tpus)
    # What was asked for when we were last seen may have been READY and gone since.
    was_billing = state.billing or (seen.resumed and state.phase in _ASKED_FOR)
    billed = seen.elapsed if was_billing or now_billing else 0.0
    if seen.resumed and was_billing and not now_billing:
        billed = min(billed, _unwatched(state, seen, settings))
    if is_unseen and state.machine_limit:
        billed = min(billed, max(0.0, state.machine_limit - state.machine_seconds))
    heartbeat = seen.heartbeat
    return replace(
        state,
        elapsed_seconds=state.elapsed_seconds + seen.elapsed,
        billed_seconds=state.billed_seconds + billed,
        cost_usd=state.cost_usd + billed / 3600 * settings.usd_per_hour,
        billing=now_billing,
        machine_seconds=state.machine_seconds + seen.elapsed if has_machine else 0.0,
        trouble_seconds=_trouble(state, seen, settings),
        phase_seconds=state.phase_seconds + seen.watched,
        backoff_seconds=max(0.0, state.backoff_seconds - seen.elapsed),
        delete_wait=max(0.0, state.delete_wait - seen.elapsed),
        best_step=max(state.best_step, heartbeat.global_step if heartbeat else -1),
        saved_at=seen.service_time or (state.saved_at and state.saved_at + seen.elapsed),
        absences=state.absences + 1 if has_machine and _is_absent(state, seen) else 0,
    )


def _is_absent(state: RunState, seen: Observation) -> bool:
    return state.zone not in seen.unlisted and all(tpu.zone != state.zone for tpu in seen.tpus)


def _unwatched(state: RunState, seen: Observation, settings: Settings) -> float:
    """The most that a machine was billed which went away while nobody watched: it was there a bit
    longer than its last sign of life, but no longer than it was allowed to be."""
    alive = (seen.heartbeat.time if seen.heartbeat else 0.0) - state.saved_at
    most = max(alive, 0.0) + settings.silence
    if state.machine_limit:
        most = min(most, max(0.0, state.machine_limit - state.machine_seconds))
    return most


def _trouble(state: RunState, seen: Observation, settings: Settings) -> float:
    """Seconds in a row in which nothing could be done because service or bucket failed."""
    if state.phase in _MACHINE_PHASES:
        blind = state.zone in seen.unlisted
    else:
        blind = all(zone in seen.unlisted for zone in settings.zones)
    stuck = state.phase is Phase.REMOVING and state.delete_tries > 3
    troubled = blind or stuck or state.in_trouble or not seen.bucket_seen
    return state.trouble_seconds + seen.watched if troubled else 0.0


# --- one turn -----------------------------------------------------------------------------------

ABSENT_LOOKS = 2  # in a row, before what is not shown counts as absent
ALIVE = (Presence.WAITING, Presence.PENDING, Presence.READY)
# Seconds after its limit in which a machine is still on its way out: the watcher's turn and the
# service's deletion.
OVERTIME = 900.0


@dataclass(frozen=True)
class View:
    """One turn's state, observation and settings, and what follows from them at once."""

    state: RunState
    seen: Observation
    settings: Settings

    @cached_property
    def tpu(self) -> Tpu | None:
        """The TPU of the state's zone."""
        return next((tpu for tpu in self.seen.tpus if tpu.zone == self.state.zone), None)

    @cached_property
    def alive(self) -> list[Tpu]:
        """What is there or on its way."""
        return [tpu for tpu in self.seen.tpus if tpu.presence in ALIVE]

    @property
    def is_unlisted(self) -> bool:
        """Whether our zone does not answer."""
        return self.state.zone in self.seen.unlisted

    @property
    def is_perhaps_absent(self) -> bool:
        """Whether one look alone has not shown our TPU."""
        return self.tpu is None and not self.is_unlisted and self.state.absences < ABSENT_LOOKS

    @property
    def is_gone(self) -> bool:
        """Whether our TPU is absent, dead, or being deleted."""
        return self.tpu is None or self.tpu.presence in (Presence.GONE, Presence.DELETING)

    @property
    def is_ready(self) -> bool:
        return self.tpu is not None and self.tpu.presence is Presence.READY

    @property
    def is_another(self) -> bool:
        """Whether what is listed was created at another time than what we watch."""
        watched, tpu = self.state.incarnation, self.tpu
        return bool(watched and tpu is not None and tpu.created and tpu.created != watched)

    @property
    def is_life_over(self) -> bool:
        """Whether our TPU has lived as long as it may."""
        limit = self.state.machine_limit
        return bool(limit) and self.state.machine_seconds >= limit

    @property
    def is_certainly_over(self) -> bool:
        """Whether it cannot be there any more, even where nobody can look."""
        limit = self.state.machine_limit
        return bool(limit) and self.state.machine_seconds > limit + OVERTIME

    @property
    def service_state(self) -> str:
        """The state of our TPU as the service calls it."""
        return self.tpu.state if self.tpu is not None else "absent"

    @property
    def operation_fault(self) -> ServiceFault | None:
        """Why the operation under way, a creation or a deletion, has failed."""
        return self.seen.operation.fault if self.seen.operation else None

    @property
    def is_operation_done(self) -> bool:
        return self.seen.operation is not None and self.seen.operation.done

    @property
    def report(self) -> ExitReport | None:
        """How training ended on this TPU."""
        report = self.seen.exit_report
        return report if report and report.attempt == self.state.attempt else None

    @property
    def heartbeat(self) -> Heartbeat | None:
        """What this TPU's trainer wrote; a slice's that is between two tries does not count."""
        heartbeat = self.seen.heartbeat
        if heartbeat is None or heartbeat.signature == self.state.stale_heartbeat:
            return None
        tries_again = self.settings.hosts > 1 and heartbeat.reason in ("interrupted", "stalled")
        return None if heartbeat.state == "stopped" and tries_again else heartbeat
