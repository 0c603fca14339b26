"""The types of a supervisor's loop: state of a run, observation, decision.

The state outlives the supervisor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Annotated, Any

from msgspec import Meta

from bigbird_ja.launch.launched_run import LaunchedRun, Machine
from bigbird_ja.launch.rest import ServiceFault
from bigbird_ja.launch.service import Operation, Presence, Tpu, labels_of
from bigbird_ja.storage.decode import Amount, Count

_Step = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]  # -1 if there is none

# Seconds, and counts.
CREATE_TIMEOUT = 1200.0  # from request or repair to READY
SETTLE = 120.0  # until a requested TPU appears in a listing
STALL_TIMEOUT = 900.0  # without a new step after the first one
STARTUP_TIMEOUT = 2700.0  # from READY to the first step: boot, install, compile
MAX_LIFETIME = 7 * 86_400.0  # if no budget is shorter
ABSENT_POLLS = 2  # successive polls without a machine before it counts as absent
OVERTIME = 900.0  # after a machine's limit, for watcher and service to delete it
BACKOFF_FIRST, BACKOFF_MAX = 30.0, 900.0  # after a round over all zones without a TPU


class Phase(str, Enum):
    """Phases of a run."""

    IDLE = "idle"  # no TPU is there; one is wanted, perhaps after a pause
    CREATING = "creating"  # one is requested
    RUNNING = "running"  # it was READY when last seen
    REMOVING = "removing"  # every machine must go; then IDLE or ENDED
    ENDED = "ended"


class Ending(str, Enum):
    """Endings of a run."""

    FINISHED = "finished"
    GAVE_UP = "gave_up"  # the same failure too often, or a fault that only the user can fix
    BUDGET = "budget"  # `max_hours` or `max_cost`
    INTERRUPTED = "interrupted"  # Ctrl-C or SIGTERM, with deletion


@dataclass(frozen=True)
class RunState:
    """Content of `state.json`: everything that must outlive the supervisor.

    Timers add up observed seconds and contain no times of day, so setting a clock changes nothing.
    """

    phase: Phase = Phase.IDLE
    phase_seconds: Amount = 0.0
    # --- the TPU that was requested last
    machine: Machine | None = None  # None before the first request
    zone: str = ""
    attempt: Count = 0
    operation: str = ""
    operation_kind: str = ""  # create | delete
    machine_seconds: Amount = 0.0  # since it was requested
    machine_limit: Amount = 0.0  # maximum lifetime: stored before the request
    incarnation: Amount = 0.0  # creation time by the service's clock
    absences: Count = 0  # successive polls without it
    stale_heartbeat: str = ""  # signature of the heartbeat before the request
    last_step: _Step = -1
    has_stepped: bool = False
    quiet_seconds: Amount = 0.0  # READY without a new step
    healthy_seconds: Amount = 0.0  # with new steps
    delete_tries: Count = 0
    delete_wait: Amount = 0.0  # until the next try
    # --- zone and time of the next request
    used_zones: tuple[str, ...] = ()  # A TPU may be left in any of them.
    ready_zones: tuple[str, ...] = ()  # zones that gave us a TPU once
    quota_refusals: Mapping[str, Count] = field(default_factory=dict)  # refusals for lack of quota
    excluded_zones: Mapping[str, str] = field(
        default_factory=dict
    )  # zone -> reason why it is left out
    misses: Count = 0  # successive creations without a TPU, which set the backoff
    backoff_seconds: Amount = 0.0  # until the next request
    trouble_seconds: Amount = 0.0  # time since the service or the bucket began to fail
    in_trouble: bool = False  # the last creation failed by the service's fault
    # --- the run
    best_step: _Step = -1
    preemptions: Count = 0
    leases_over: Count = 0  # TPUs that were deleted at the end of their lease
    failures: Count = 0
    last_failure: str = ""
    same_failures: Count = 0
    failure_step: _Step = -1  # best step at the last failure
    billing: bool = False
    billed_seconds: Amount = 0.0
    elapsed_seconds: Amount = 0.0
    cost_usd: Amount = 0.0
    saved_at: Amount = 0.0  # UNIX seconds by the service's clock
    ending: Ending | None = None
    ending_reason: str = ""  # as in exit statuses: finished, diverged, bad_input, ...
    ending_message: str = ""

    def moves(self, run: LaunchedRun) -> bool:
        """Return whether the next machine comes from another service or project than the last."""
        last = self.machine or run
        return (last.service, last.project) != (run.service, run.project)

    @property
    def step_timeout(self) -> float:
        """Return the maximum of seconds that a READY machine may make no new step."""
        return STALL_TIMEOUT if self.has_stepped else STARTUP_TIMEOUT

    @property
    def place(self) -> dict[str, object]:
        """Return the fields of an event that locate it."""
        return {"zone": self.zone, "attempt": self.attempt, "step": self.best_step}

    def enter(self, phase: Phase, is_made: bool = True) -> RunState:
        """Begin a phase with its timers at zero.

        Args:
            phase: next phase.
            is_made: whether the requested creation is over. If not, REMOVING follows it, since it
                may still put a machine there.
        """
        keeps = phase is Phase.REMOVING and self.operation_kind == "create" and not is_made
        return replace(
            self,
            phase=phase,
            phase_seconds=0.0,
            quiet_seconds=0.0,
            delete_tries=0,
            delete_wait=0.0,
            absences=0,
            operation=self.operation if keeps else "",
            operation_kind=self.operation_kind if keeps else "",
        )

    def unobserved(self, zone: str) -> RunState:
        """Return the state for a TPU in `zone` without any observation of another TPU."""
        return replace(
            self,
            zone=zone,
            used_zones=tuple(dict.fromkeys((*self.used_zones, zone))),
            incarnation=0.0,
            last_step=-1,
            has_stepped=False,
            healthy_seconds=0.0,
        )

    def pause_before_next(self, run: LaunchedRun) -> RunState:
        """Go to the next zone at once within a round, and back off after each round."""
        misses = self.misses + 1
        zones = max(1, len([zone for zone in run.zones if zone not in self.excluded_zones]))
        pause = 0.0 if misses % zones else backoff(misses // zones, run)
        return replace(self, misses=misses, backoff_seconds=pause)


def backoff(rounds: int, run: LaunchedRun) -> float:
    """Return the pause in seconds after the `rounds`-th round without a TPU."""
    return min(BACKOFF_MAX, min(BACKOFF_FIRST, run.poll) * 2.0 ** min(rounds - 1, 16))


@dataclass(frozen=True)
class TrainerBeat:
    """Fields of `MODEL_DIR/heartbeat.json` that decisions depend on."""

    global_step: int
    time: float
    state: str  # starting | training | saving | stopped
    reason: str = ""
    tokens_per_second: float = 0.0
    host: str = ""
    pid: int = 0
    compile_seconds: float = 0.0  # until the engine began

    @property
    def signature(self) -> str:
        """Return an identifier of this heartbeat, which differs after each write."""
        return f"{self.time}/{self.host}/{self.pid}/{self.global_step}/{self.state}"


@dataclass(frozen=True)
class ExitReport:
    """The watcher's report: exit status of training, or the reason of its TPU's deletion."""

    attempt: Count = 0
    status: Count = 1
    reason: str = ""
    host: Count = 0  # number in the slice


@dataclass(frozen=True)
class Observation:
    """Result of polling the service, the bucket and the clocks. None: could not be read."""

    elapsed: float  # seconds since the last poll
    watched: float  # the same, limited to two polls in which a change would have been seen
    service_time: float | None = None  # UNIX seconds by the service's clock
    tpus: Sequence[Tpu] = ()  # machines of this run in the zones that answered
    # The other zones, with the fault.
    silent: Mapping[str, ServiceFault] = field(default_factory=dict)
    taken: Sequence[Tpu] = ()  # machines of other owners that have the run's name
    operation: Operation | None = None
    heartbeat: TrainerBeat | None = None
    checkpoint_step: int | None = None  # newest checkpoint: -1 for none, None if not read
    bucket_seen: bool = True
    exit_report: ExitReport | None = None
    log_tail: str = ""
    stop: bool = False  # Ctrl-C, answered with "delete"
    resumed: bool = False  # this poll counts the time without a supervisor


@dataclass(frozen=True)
class Event:
    """Line of the supervisor in `events.jsonl`."""

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """New state, stored before anything is requested, and the actions after that."""

    state: RunState
    deletions: tuple[Tpu, ...] = ()  # machines that were found, or that may be there
    events: tuple[Event, ...] = ()
    pause: float = 0.0  # seconds
    rents: bool = False  # Whether to request the machine in `state`.


@dataclass(frozen=True)
class View:
    """State, observation and record of one poll, with conditions derived from them."""

    state: RunState
    seen: Observation
    run: LaunchedRun

    @cached_property
    def tpu(self) -> Tpu | None:
        """Find the TPU of the state's zone."""
        return next((tpu for tpu in self.seen.tpus if tpu.zone == self.state.zone), None)

    @cached_property
    def alive(self) -> list[Tpu]:
        """List the TPUs that are there or on their way."""
        dead = (Presence.DELETING, Presence.GONE)
        return [tpu for tpu in self.seen.tpus if tpu.presence not in dead]

    @property
    def is_silent(self) -> bool:
        """Return whether the zone of the run's TPU does not answer."""
        return self.state.zone in self.seen.silent

    @property
    def is_perhaps_absent(self) -> bool:
        """Return whether the run's TPU is absent in fewer polls than `ABSENT_POLLS`."""
        return self.tpu is None and not self.is_silent and self.state.absences < ABSENT_POLLS

    @property
    def is_gone(self) -> bool:
        """Return whether the run's TPU is absent, dead, or being deleted."""
        return self.tpu is None or self.tpu.presence in (Presence.GONE, Presence.DELETING)

    @property
    def is_ready(self) -> bool:
        """Return whether the run's TPU is READY."""
        return self.tpu is not None and self.tpu.presence is Presence.READY

    @property
    def is_another(self) -> bool:
        """Return whether the TPU was created at another time than the watched one."""
        watched, tpu = self.state.incarnation, self.tpu
        return bool(watched and tpu is not None and tpu.created and tpu.created != watched)

    @property
    def is_life_over(self) -> bool:
        """Return whether the run's TPU has reached its maximum lifetime."""
        limit = self.state.machine_limit
        return bool(limit) and self.state.machine_seconds >= limit

    @property
    def is_certainly_over(self) -> bool:
        """Return whether the run's TPU must be gone, even if its zone does not answer."""
        return self.is_life_over and (
            self.state.machine_seconds > self.state.machine_limit + OVERTIME
        )

    @property
    def service_state(self) -> str:
        """Return the state of the run's TPU in the service's words."""
        return self.tpu.state if self.tpu is not None else "absent"

    @property
    def operation_fault(self) -> ServiceFault | None:
        """Return the fault of the last operation, a creation or a deletion."""
        return self.seen.operation.fault if self.seen.operation else None

    @property
    def is_operation_done(self) -> bool:
        """Return whether the last operation is over."""
        return self.seen.operation is not None and self.seen.operation.done

    @property
    def report(self) -> ExitReport | None:
        """Return the report on the end of training on this TPU."""
        report = self.seen.exit_report
        return report if report and report.attempt == self.state.attempt else None

    @property
    def heartbeat(self) -> TrainerBeat | None:
        """Return the heartbeat of this TPU's trainer, or None while a slice restarts."""
        heartbeat = self.seen.heartbeat
        if heartbeat is None or heartbeat.signature == self.state.stale_heartbeat:
            return None
        is_slice = (self.state.machine or self.run).hosts > 1
        tries_again = is_slice and heartbeat.reason in ("interrupted", "stalled")
        return None if heartbeat.state == "stopped" and tries_again else heartbeat

    @property
    def deletable(self) -> list[Tpu]:
        """List the machines that may be there.

        These are the machines that were found. The TPU that was requested is added if it was not
        found, and either its zone does not answer or its deletion was never requested.
        """
        state, run = self.state, self.run
        machine = state.machine or run
        is_shown = self.tpu is not None or (state.delete_tries and not self.is_silent)
        if is_shown or not state.attempt:
            return [*self.seen.tpus]
        unseen = Tpu(
            run.name,
            state.zone,
            Presence.GONE,
            "not found",
            labels=labels_of(run, state.attempt),
            created=state.incarnation,
            run_dir=run.run_dir,
            service=machine.service,
            project=machine.project,
            is_queued=machine.queued,
        )
        return [*self.seen.tpus, unseen]

    @property
    def deletion_targets(self) -> list[Tpu]:
        """List the machines to delete that are not being deleted yet."""
        return [tpu for tpu in self.deletable if tpu.presence is not Presence.DELETING]
