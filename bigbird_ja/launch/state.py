"""Types of the supervisor's loop: state of a run, observation, decision.

The state is stored on the bucket, so it outlives the supervisor.
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
from bigbird_ja.launch.service import Operation, Presence, Tpu, make_labels
from bigbird_ja.storage.decode import Amount, Count

# A global step, or -1 for none.
_Step = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]

# Maximum seconds from a request or the start of a repair to READY.
CREATE_TIMEOUT = 1200.0
# Seconds within which a requested TPU appears in a listing.
SETTLE = 120.0
# Maximum seconds between two steps.
STALL_TIMEOUT = 900.0
# Maximum seconds from READY to the first step: boot, installation, compilation.
STARTUP_TIMEOUT = 2700.0
# Maximum lifetime of a machine in seconds, if no limit of the run is shorter.
MAX_LIFETIME = 7 * 86_400.0
# A machine counts as absent after this many successive polls that did not find it.
ABSENT_POLLS = 2
# This many seconds after the end of a machine's maximum lifetime, the machine's watcher or the
# service must have deleted the machine.
OVERTIME = 900.0
# Minimum and maximum pause, in seconds, after every zone was tried and none provided a TPU.
BACKOFF_FIRST, BACKOFF_MAX = 30.0, 900.0


class Phase(str, Enum):
    """Phases of a run.

    Attributes:
        IDLE: No TPU exists. One is requested next, perhaps after a pause.
        CREATING: A TPU is requested.
        RUNNING: The TPU was READY in the last observation.
        REMOVING: All machines are being deleted. IDLE or ENDED follows.
        ENDED: The run has ended.
    """

    IDLE = "idle"
    CREATING = "creating"
    RUNNING = "running"
    REMOVING = "removing"
    ENDED = "ended"


class Ending(str, Enum):
    """Endings of a run.

    Attributes:
        FINISHED: The last step is saved.
        GAVE_UP: The same failure occurred too often, or only the user can remove its cause.
        BUDGET: `max_hours` or `max_cost` is reached.
        INTERRUPTED: The user chose deletion by Ctrl-C or SIGTERM.
    """

    FINISHED = "finished"
    GAVE_UP = "gave_up"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class RunState:
    """State of a run, the content of `state.json`.

    Timers are sums of observed seconds, so setting a clock does not change them. In this list, "the
    TPU" is the TPU that was requested last.

    Attributes:
        phase: Phase of the run.
        phase_seconds: Seconds in this phase.
        machine: Facts of the TPU, or None before the first request.
        zone: Zone of the TPU.
        attempt: Number of TPUs that were requested so far.
        operation: Name of the pending operation, or "".
        operation_kind: Kind of that operation: "create" or "delete", or "".
        machine_seconds: Seconds since the TPU was requested.
        machine_limit: Maximum lifetime of the TPU in seconds, which is stored before the request.
        incarnation: Creation time of the TPU by the service's clock, or 0 before READY.
        absences: Successive polls that did not find the TPU.
        stale_heartbeat: Signature of the last heartbeat before the request.
        last_step: Step in the TPU's last heartbeat.
        has_stepped: Whether the TPU has begun its first step.
        quiet_seconds: Seconds for which the TPU was READY without a new step.
        healthy_seconds: Seconds in which the TPU completed new steps.
        delete_tries: Number of deletion requests in this phase.
        delete_wait: Seconds until the next deletion request.
        used_zones: Zones in which a TPU of the run may still exist.
        ready_zones: Zones that have provided a TPU.
        quota_refusals: Refusals for lack of quota, by zone.
        excluded_zones: Reason for each zone that is no longer tried.
        misses: Number of successive requests that created no TPU. It determines the backoff.
        backoff_seconds: Seconds until the next creation request.
        trouble_seconds: Seconds since service or bucket began to fail.
        in_trouble: Whether the last creation failed because of an error of the service.
        best_step: Highest step of the run.
        preemptions: Number of preempted TPUs.
        leases_over: Number of TPUs that were deleted at the end of their lease.
        failures: Number of failures of training.
        last_failure: Exit reason of the last failure.
        same_failures: Successive failures with that reason.
        failure_step: `best_step` at the last failure.
        billing: Whether a machine was billed at the last poll.
        billed_seconds: Billed seconds of all machines.
        elapsed_seconds: Seconds since the run's first launch.
        cost_usd: Cost of all machines.
        saved_at: UNIX seconds of the last poll by the service's clock, or 0 if unknown.
        ending: Ending of the run, or None.
        ending_reason: Exit reason of the run, such as "finished" or "diverged".
        ending_message: Description of the ending.
    """

    phase: Phase = Phase.IDLE
    phase_seconds: Amount = 0.0
    # --- the TPU
    machine: Machine | None = None
    zone: str = ""
    attempt: Count = 0
    operation: str = ""
    operation_kind: str = ""
    machine_seconds: Amount = 0.0
    machine_limit: Amount = 0.0
    incarnation: Amount = 0.0
    absences: Count = 0
    stale_heartbeat: str = ""
    last_step: _Step = -1
    has_stepped: bool = False
    quiet_seconds: Amount = 0.0
    healthy_seconds: Amount = 0.0
    delete_tries: Count = 0
    delete_wait: Amount = 0.0
    # --- zone and time of the next request
    used_zones: tuple[str, ...] = ()
    ready_zones: tuple[str, ...] = ()
    quota_refusals: Mapping[str, Count] = field(default_factory=dict)
    excluded_zones: Mapping[str, str] = field(default_factory=dict)
    misses: Count = 0
    backoff_seconds: Amount = 0.0
    trouble_seconds: Amount = 0.0
    in_trouble: bool = False
    # --- the run
    best_step: _Step = -1
    preemptions: Count = 0
    leases_over: Count = 0
    failures: Count = 0
    last_failure: str = ""
    same_failures: Count = 0
    failure_step: _Step = -1
    billing: bool = False
    billed_seconds: Amount = 0.0
    elapsed_seconds: Amount = 0.0
    cost_usd: Amount = 0.0
    saved_at: Amount = 0.0
    ending: Ending | None = None
    ending_reason: str = ""
    ending_message: str = ""

    def has_moved(self, run: LaunchedRun) -> bool:
        """Return whether the next TPU's service or project differs from that of the last TPU."""
        last = self.machine or run
        return (last.service, last.project) != (run.service, run.project)

    @property
    def step_timeout(self) -> float:
        """Maximum seconds that a READY TPU may take until it completes the next step."""
        return STALL_TIMEOUT if self.has_stepped else STARTUP_TIMEOUT

    @property
    def place(self) -> dict[str, object]:
        """Fields of an event: zone and number of the last request, and the run's highest step."""
        return {"zone": self.zone, "attempt": self.attempt, "step": self.best_step}

    def enter(self, phase: Phase, is_made: bool = True) -> RunState:
        """Return the state at the beginning of a phase, with the phase's timers at zero.

        Args:
            phase: next phase.
            is_made: whether the requested creation is complete. If it is not, the phase REMOVING
                keeps polling the creation's operation, since a machine may still appear.
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

    def forget_tpu(self, zone: str) -> RunState:
        """Return the state for a new TPU in `zone`, with the last TPU's observed values reset."""
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
        """Return the state after a request that created no TPU, with the pause before the next one.

        The pause is 0 until every zone was tried since the last pause.
        """
        misses = self.misses + 1
        zones = max(1, len([zone for zone in run.zones if zone not in self.excluded_zones]))
        pause = 0.0 if misses % zones else compute_backoff(misses // zones, run)
        return replace(self, misses=misses, backoff_seconds=pause)


def compute_backoff(rounds: int, run: LaunchedRun) -> float:
    """Return the pause in seconds after `rounds` successive failures.

    The pause doubles with each failure, up to `BACKOFF_MAX`.
    """
    return min(BACKOFF_MAX, min(BACKOFF_FIRST, run.poll) * 2.0 ** min(rounds - 1, 16))


@dataclass(frozen=True)
class TrainerBeat:
    """Fields of `MODEL_DIR/heartbeat.json` that the supervisor uses.

    Attributes:
        global_step: Last completed step.
        time: UNIX seconds by the trainer's clock.
        state: "starting", "training", "saving" or "stopped".
        reason: Exit reason of a stopped trainer.
        tokens_per_second: Rate of training.
        host: Name of the trainer's host.
        pid: Process id of the trainer.
        compile_seconds: Seconds to compile or load the step.
    """

    global_step: int
    time: float
    state: str
    reason: str = ""
    tokens_per_second: float = 0.0
    host: str = ""
    pid: int = 0
    compile_seconds: float = 0.0

    @property
    def signature(self) -> str:
        """Identifier that changes with each write of heartbeat.json."""
        return f"{self.time}/{self.host}/{self.pid}/{self.global_step}/{self.state}"


@dataclass(frozen=True)
class ExitReport:
    """Report of a TPU's watcher on the end of training or on the deletion of the TPU.

    Attributes:
        attempt: Number of the run's request for this TPU, counted from 1.
        status: Exit status of training.
        reason: Reason of the deletion, or "".
        host: Number of the host in its slice.
    """

    attempt: Count = 0
    status: Count = 1
    reason: str = ""
    host: Count = 0


@dataclass(frozen=True)
class Observation:
    """Result of one poll of service, bucket and clocks. A value is None if it was not read.

    Attributes:
        elapsed: Seconds since the last poll.
        watched: `elapsed`, but at most two poll intervals, since nothing is known about a longer
            gap; 0 at a supervisor's first poll.
        service_time: UNIX seconds by the service's clock.
        tpus: Machines of this run in the zones that answered.
        silent: Fault of each zone that did not answer.
        taken: Machines that have the run's name, but belong to other owners.
        operation: State of the pending operation.
        heartbeat: Trainer's heartbeat.
        checkpoint_step: Step of the newest checkpoint, or -1 if there is none.
        bucket_seen: Whether the bucket was read, the lock renewed and the last state stored.
        exit_report: Watcher's report.
        log_tail: Last lines of the trainer's log.
        stop: Whether the user chose deletion.
        resumed: Whether `elapsed` includes a time without a supervisor.
    """

    elapsed: float
    watched: float
    service_time: float | None = None
    tpus: Sequence[Tpu] = ()
    silent: Mapping[str, ServiceFault] = field(default_factory=dict)
    taken: Sequence[Tpu] = ()
    operation: Operation | None = None
    heartbeat: TrainerBeat | None = None
    checkpoint_step: int | None = None
    bucket_seen: bool = True
    exit_report: ExitReport | None = None
    log_tail: str = ""
    stop: bool = False
    resumed: bool = False


@dataclass(frozen=True)
class Event:
    """Event that the supervisor appends to `events.jsonl`."""

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """Decision for one poll: the new state, and the actions to take after the state is stored.

    Attributes:
        state: New state.
        deletions: Machines to delete, which exist or may exist.
        events: Events to log.
        pause: Seconds until the next poll.
        rents: Whether to request the machine in `state`.
    """

    state: RunState
    deletions: tuple[Tpu, ...] = ()
    events: tuple[Event, ...] = ()
    pause: float = 0.0
    rents: bool = False


@dataclass(frozen=True)
class View:
    """Input of a decision: state, observation and record of a run, with derived properties."""

    state: RunState
    seen: Observation
    run: LaunchedRun

    @cached_property
    def tpu(self) -> Tpu | None:
        """The run's TPU, if one was found in the zone of the last request, else None."""
        return next((tpu for tpu in self.seen.tpus if tpu.zone == self.state.zone), None)

    @cached_property
    def alive(self) -> list[Tpu]:
        """TPUs that exist or are being created."""
        dead = (Presence.DELETING, Presence.GONE)
        return [tpu for tpu in self.seen.tpus if tpu.presence not in dead]

    @property
    def is_silent(self) -> bool:
        """Whether the zone of the run's TPU does not answer."""
        return self.state.zone in self.seen.silent

    @property
    def is_perhaps_absent(self) -> bool:
        """Whether the TPU is missing, but for fewer than `ABSENT_POLLS` successive polls."""
        return self.tpu is None and not self.is_silent and self.state.absences < ABSENT_POLLS

    @property
    def is_gone(self) -> bool:
        """Whether the run's TPU is absent, dead, or being deleted."""
        return self.tpu is None or self.tpu.presence in (Presence.GONE, Presence.DELETING)

    @property
    def is_ready(self) -> bool:
        """Whether the run's TPU is READY."""
        return self.tpu is not None and self.tpu.presence is Presence.READY

    @property
    def is_another(self) -> bool:
        """Whether the TPU's name now belongs to another machine, with another creation time."""
        watched, tpu = self.state.incarnation, self.tpu
        return bool(watched and tpu is not None and tpu.created and tpu.created != watched)

    @property
    def is_life_over(self) -> bool:
        """Whether the run's TPU has reached its maximum lifetime."""
        limit = self.state.machine_limit
        return bool(limit) and self.state.machine_seconds >= limit

    @property
    def is_certainly_over(self) -> bool:
        """Whether the cloud or the watcher must have deleted the run's TPU by now."""
        return self.is_life_over and (
            self.state.machine_seconds > self.state.machine_limit + OVERTIME
        )

    @property
    def service_state(self) -> str:
        """State of the run's TPU in the service's words."""
        return self.tpu.state if self.tpu is not None else "absent"

    @property
    def operation_fault(self) -> ServiceFault | None:
        """Fault of the last creation or deletion, or None."""
        return self.seen.operation.fault if self.seen.operation else None

    @property
    def is_operation_done(self) -> bool:
        """Whether the last operation is complete."""
        return self.seen.operation is not None and self.seen.operation.done

    @property
    def report(self) -> ExitReport | None:
        """Report on the end of training on the run's TPU, or None."""
        report = self.seen.exit_report
        return report if report and report.attempt == self.state.attempt else None

    @property
    def heartbeat(self) -> TrainerBeat | None:
        """Heartbeat of the trainer on the run's TPU.

        It is None before the trainer's first heartbeat, and while a slice restarts training.
        """
        heartbeat = self.seen.heartbeat
        if heartbeat is None or heartbeat.signature == self.state.stale_heartbeat:
            return None
        is_slice = (self.state.machine or self.run).hosts > 1
        tries_again = is_slice and heartbeat.reason in ("interrupted", "stalled")
        return None if heartbeat.state == "stopped" and tries_again else heartbeat

    @property
    def deletable(self) -> list[Tpu]:
        """Machines that exist or may exist.

        These are the machines that were found. If the TPU that was requested last was not found, it
        is added in two cases: its zone does not answer, or its deletion was not requested yet.
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
            labels=make_labels(run, state.attempt),
            created=state.incarnation,
            run_dir=run.run_dir,
            service=machine.service,
            project=machine.project,
            is_queued=machine.queued,
        )
        return [*self.seen.tpus, unseen]

    @property
    def deletion_targets(self) -> list[Tpu]:
        """Machines whose deletion must still be requested."""
        return [tpu for tpu in self.deletable if tpu.presence is not Presence.DELETING]
