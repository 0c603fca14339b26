"""Defines the state of a run that outlives its supervisor, one observation, and a decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Annotated, Any

from msgspec import Meta

from bigbird_ja.launch.record import LaunchedRun, Machine
from bigbird_ja.launch.rest import ServiceFault
from bigbird_ja.launch.service import Operation, Presence, Tpu, labels_of
from bigbird_ja.storage.decode import Amount, Count

_Step = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]  # -1: none yet

# Patience in seconds, and counts: the same for every run.
CREATE_TIMEOUT = 1200.0  # requested, or in repair, and not READY
SETTLE = 120.0  # a requested TPU may appear this late
STALL = 900.0  # READY, has stepped before, no new step
STARTUP = 2700.0  # READY, no step yet: boot, install, compile
LONGEST = 7 * 86_400.0  # a machine lives so long in all, where no budget is shorter
ABSENT_LOOKS = 2  # in a row, before a machine that is not shown counts as absent
# A machine may be there so long after its limit, until watcher and service have deleted it.
OVERTIME = 900.0
SILENT_EXIT = 60.0  # after a trainer's last heartbeat its exit report may come so late


class Phase(str, Enum):
    """The phases of a run."""

    IDLE = "idle"  # no TPU is there; one is wanted, perhaps after a pause
    CREATING = "creating"  # one is requested
    RUNNING = "running"  # it was READY when last seen
    REMOVING = "removing"  # every machine must go; then IDLE or ENDED
    ENDED = "ended"


class Ending(str, Enum):
    """The ends of a run."""

    FINISHED = "finished"
    GAVE_UP = "gave_up"  # the same failure too often, or something only a person can change
    BUDGET = "budget"  # --max_hours or --max_cost
    INTERRUPTED = "interrupted"  # Ctrl-C or SIGTERM, with deletion


@dataclass(frozen=True)
class RunState:
    """All that must outlive the supervisor.

    Timers add up observed seconds and hold no times of day, so setting a clock changes nothing.
    """

    phase: Phase = Phase.IDLE
    phase_seconds: Amount = 0.0
    # --- the TPU that was requested last
    machine: Machine | None = None  # None: none yet, or by 0.1.0
    zone: str = ""
    attempt: Count = 0
    operation: str = ""
    operation_kind: str = ""  # create | delete
    machine_seconds: Amount = 0.0  # since it was requested
    machine_limit: Amount = 0.0  # it lives so long at most: stored before it is requested
    incarnation: Amount = 0.0  # its creation time, by the service
    absences: Count = 0  # looks in a row that did not show it
    stale_heartbeat: str = ""  # signature of the file from before it was requested
    last_step: _Step = -1
    has_stepped: bool = False
    quiet_seconds: Amount = 0.0  # READY without a new step
    healthy_seconds: Amount = 0.0  # with steps coming
    delete_tries: Count = 0
    delete_wait: Amount = 0.0  # left until the next try
    # --- where and when to ask for the next one
    used_zones: tuple[str, ...] = ()  # zones of all requests: a TPU may be left in any
    ready_zones: tuple[str, ...] = ()  # zones that gave us a TPU once
    strikes: Mapping[str, Count] = field(default_factory=dict)  # refusals for want of quota
    struck_zones: Mapping[str, str] = field(default_factory=dict)  # zone -> why it is out
    misses: Count = 0  # creations in a row without a TPU: set the back-off
    backoff_seconds: Amount = 0.0  # left to wait
    trouble_seconds: Amount = 0.0  # in a row, in which the service or the bucket only failed
    in_trouble: bool = False  # the service answered the last creation with a fault of its own
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
    saved_at: Amount = 0.0  # UNIX seconds by the service's clock, whoever saved it
    ending: Ending | None = None
    ending_reason: str = ""  # as in exit statuses: finished, diverged, bad_input, ...
    ending_message: str = ""

    def moves(self, run: LaunchedRun) -> bool:
        """Tell whether the next machine comes from another service or project than the last."""
        last = self.machine or run
        return (last.service, last.project) != (run.service, run.project)

    @property
    def patience(self) -> float:
        """Return how many seconds a READY machine may make no new step."""
        return STALL if self.has_stepped else STARTUP


@dataclass(frozen=True)
class TrainerBeat:
    """The part of `MODEL_DIR/heartbeat.json` that decisions depend on."""

    global_step: int
    time: float
    state: str  # starting | training | saving | stopped
    reason: str = ""
    tokens_per_second: float = 0.0
    host: str = ""
    pid: int = 0

    @property
    def signature(self) -> str:
        """Make a text that differs whenever the trainer wrote again."""
        return f"{self.time}/{self.host}/{self.pid}/{self.global_step}/{self.state}"


@dataclass(frozen=True)
class ExitReport:
    """The watcher's report of how training ended, or of why it deleted its own TPU."""

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
    heartbeat: TrainerBeat | None = None
    checkpoint_step: int | None = None  # of the newest; -1: none; None: not looked for, or unseen
    bucket_seen: bool = True
    exit_report: ExitReport | None = None
    log_tail: str = ""
    stop: bool = False  # Ctrl-C, answered with "delete"
    resumed: bool = False  # the look that counts the time in which nobody watched


@dataclass(frozen=True)
class Event:
    """A line of the supervisor's in `events.jsonl`."""

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The new state, saved before anything is requested, and what to do then."""

    state: RunState
    deletions: tuple[Tpu, ...] = ()  # machines that were listed, or may be there
    events: tuple[Event, ...] = ()
    pause: float = 0.0  # seconds
    rents: bool = False  # the machine that `state` states: its zone, attempt and limit


@dataclass(frozen=True)
class View:
    """One turn's state, observation and record, and what follows from them at once."""

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
    def is_unlisted(self) -> bool:
        """Tell whether our zone does not answer."""
        return self.state.zone in self.seen.unlisted

    @property
    def is_perhaps_absent(self) -> bool:
        """Tell whether one look alone has not shown our TPU."""
        return self.tpu is None and not self.is_unlisted and self.state.absences < ABSENT_LOOKS

    @property
    def is_gone(self) -> bool:
        """Tell whether our TPU is absent, dead, or being deleted."""
        return self.tpu is None or self.tpu.presence in (Presence.GONE, Presence.DELETING)

    @property
    def is_ready(self) -> bool:
        """Tell whether our TPU is READY."""
        return self.tpu is not None and self.tpu.presence is Presence.READY

    @property
    def is_another(self) -> bool:
        """Tell whether the listed TPU was created at another time than the one that we watch."""
        watched, tpu = self.state.incarnation, self.tpu
        return bool(watched and tpu is not None and tpu.created and tpu.created != watched)

    @property
    def is_life_over(self) -> bool:
        """Tell whether our TPU has lived as long as it may."""
        limit = self.state.machine_limit
        return bool(limit) and self.state.machine_seconds >= limit

    @property
    def is_certainly_over(self) -> bool:
        """Tell whether our TPU must be gone, even where nobody can look."""
        return self.is_life_over and (
            self.state.machine_seconds > self.state.machine_limit + OVERTIME
        )

    @property
    def service_state(self) -> str:
        """Return the state of our TPU as the service calls it."""
        return self.tpu.state if self.tpu is not None else "absent"

    @property
    def operation_fault(self) -> ServiceFault | None:
        """Return why the operation under way, a creation or a deletion, has failed."""
        return self.seen.operation.fault if self.seen.operation else None

    @property
    def is_operation_done(self) -> bool:
        """Tell whether the operation under way is over."""
        return self.seen.operation is not None and self.seen.operation.done

    @property
    def report(self) -> ExitReport | None:
        """Return the report of how training ended on this TPU."""
        report = self.seen.exit_report
        return report if report and report.attempt == self.state.attempt else None

    @property
    def heartbeat(self) -> TrainerBeat | None:
        """Return what this TPU's trainer wrote; not that of a slice between two tries."""
        heartbeat = self.seen.heartbeat
        if heartbeat is None or heartbeat.signature == self.state.stale_heartbeat:
            return None
        is_slice = (self.state.machine or self.run).hosts > 1
        tries_again = is_slice and heartbeat.reason in ("interrupted", "stalled")
        return None if heartbeat.state == "stopped" and tries_again else heartbeat

    @property
    def deletable(self) -> list[Tpu]:
        """List the machines that may be there.

        Beside those that are listed it is the TPU that was requested, where its zone cannot be
        listed, or shows none and its deletion was never requested.
        """
        state, run = self.state, self.run
        machine = state.machine or run
        is_shown = self.tpu is not None or (state.delete_tries and not self.is_unlisted)
        if is_shown or not state.attempt:
            return [*self.seen.tpus]
        unseen = Tpu(
            run.name,
            state.zone,
            Presence.GONE,
            "not listed",
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
        """List the machines that are not being deleted yet."""
        return [tpu for tpu in self.deletable if tpu.presence is not Presence.DELETING]
