"""The supervising loop: look, decide, write down, act, pause.

TPUs, files, clocks and the terminal are arguments (`Services`), so that the tests run this very
loop in virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from bigbird_ja.launch.decide import after_action, decide
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.run_files import BucketFiles
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
    accrue,
)
from bigbird_ja.launch.services import Operation, Presence, Tpu, Tpus, TpuSpec
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
    files: BucketFiles
    steady: Callable[[], float]
    wall: Callable[[], float]  # UNIX seconds; may jump
    sleep: Callable[[float], None]
    beat: Callable[[], None] = lambda: None  # keeps the lock; raises LeaseLost
    stop: Callable[[], Stop] = lambda: Stop.NO
    say: Callable[[str], None] = lambda text: None
    follow: Callable[[], None] = lambda: None  # shows the trainer's progress; may read the bucket
    metadata: Callable[[str, int, float], Mapping[str, str]] = lambda zone, attempt, limit: {}


def supervise(spec: TpuSpec, settings: Settings, services: Services) -> RunState:
    """Runs until the run has ended; returns its last state.

    Run again after any interruption, it continues from what is on the bucket and what is listed.

    Raises:
        Detached: Ctrl-C, answered with "detach".
        LeaseLost: another supervisor took over.
    """
    return _Supervisor(spec, settings, services).run()


class _Supervisor:
    """What the loop itself remembers between two turns."""

    def __init__(self, spec: TpuSpec, settings: Settings, services: Services) -> None:
        self._spec, self._settings, self._services = spec, settings, services
        self._state, self._away_since = load(spec.name, services)
        self._now = services.steady()
        self._watched = 0.0  # seconds since the beginning
        self._is_first = True
        self._saved: RunState | None = None
        self._saved_at = 0.0
        self._renewed_at = -math.inf  # the machine's lease
        self._is_holder = False  # the lock was renewed in this turn
        self._stores = True  # the bucket took what was last to be stored
        self._unsent: list[dict[str, Any]] = []  # events the bucket did not take
        self._asleep: dict[str, tuple[float, ServiceFault]] = {}  # zones, until when, and why

    def run(self) -> RunState:
        services, settings = self._services, self._settings
        while self._state.phase is not Phase.ENDED:
            stop = services.stop()
            if stop is Stop.DETACH:
                self._write(self._state, [Event("detached")])
                raise Detached
            seen = self._observe(stop is Stop.DELETE)
            self._state = accrue(self._state, seen, settings)
            decision = decide(self._state, seen, settings)
            if decision.rents and not self._may_rent(decision.state):
                services.say("nothing is rented: the decision could not be stored")
                services.sleep(settings.poll)
                continue
            # Written before acting: whoever comes after us knows what we were about to do.
            self._write(decision.state, decision.events)
            for action in decision.actions:
                operation, fault = self._perform(action)
                follow_up = after_action(self._state, action, operation, fault, settings)
                self._write(follow_up.state, follow_up.events)
            if decision.pause and self._state.phase is not Phase.ENDED:
                services.sleep(decision.pause)
        self._write(self._state, [])
        return self._state

    # --- looking -----------------------------------------------------------------------------

    def _observe(self, stop: bool) -> Observation:
        """One look at the service, the bucket and the clocks."""
        now, first = self._services.steady(), self._is_first
        elapsed = max(0.0, now - self._now)
        self._now, self._is_first = now, False
        watched = 0.0 if first else min(elapsed, 2 * self._settings.poll)
        self._keep_lock_and_lease()
        tpus, unlisted, taken = self._list()
        service_time = service_clock(self._services.tpus)
        self._watched += elapsed
        resumed = bool(self._away_since) and service_time is not None
        if resumed:
            # Both times are the service's: two supervisors' clocks may differ by hours.
            elapsed += max(0.0, (service_time or 0.0) - self._away_since - self._watched)
            self._away_since = 0.0
        ready = any(tpu.presence is Presence.READY for tpu in tpus)
        heartbeat, report, tail, step, bucket_seen = self._read_bucket(watched, not ready)
        return Observation(
            elapsed=elapsed,
            watched=watched,
            service_time=service_time,
            tpus=tpus,
            unlisted=unlisted,
            taken=taken,
            operation=self._look_at_operation(),
            heartbeat=heartbeat,
            checkpoint_step=step,
            bucket_seen=bucket_seen and self._is_holder and self._stores,
            exit_report=report,
            log_tail=tail,
            stop=stop,
            resumed=resumed,
        )

    def _keep_lock_and_lease(self) -> None:
        """Keeps the lock, and renews the lease of the machine that we want to keep.

        A bucket that fails ends nothing: without a renewal the machine's lease runs out by itself.
        """
        state, services = self._state, self._services
        self._is_holder = False
        try:
            services.beat()
            self._is_holder = True
            keeps = state.phase in (Phase.CREATING, Phase.RUNNING) and state.ending is None
            due = self._renewed_at + min(RENEW_EVERY, self._settings.lease / 4)
            if keeps and self._now >= due:
                services.files.renew_machine(state.attempt, services.wall())
                self._renewed_at = self._now
        except LeaseLost:
            raise
        except BUCKET_FAULTS as error:
            services.say(f"bucket: {error}")

    def _list(self) -> tuple[list[Tpu], dict[str, ServiceFault], list[Tpu]]:
        """This run's TPUs in every zone that matters, the zones that did not answer, and others'
        machines that have the run's name. Where nothing of ours is listed the name is looked up.

        While a TPU runs, the zones that were used are enough; before anything is created, and
        before anything is called deleted, every zone is asked. One that does not answer, where the
        run's TPU is not, is asked again later: each try takes its time, and holds the others up.
        """
        state = self._state
        zones = state.used_zones
        if state.phase is not Phase.RUNNING:
            zones = tuple(dict.fromkeys((*zones, *self._settings.zones)))
        tpus: list[Tpu] = []
        taken: list[Tpu] = []
        unlisted: dict[str, ServiceFault] = {}
        for zone in zones:
            until, before = self._asleep.get(zone, (0.0, None))
            if before is not None and self._now < until and zone != state.zone:
                unlisted[zone] = before
                continue
            try:
                ours = self._ours(self._services.tpus.list(zone))
                named = None if ours else self._services.tpus.find(zone, state.name)
                self._asleep.pop(zone, None)
                if named is not None and named.belongs_to(self._spec.run_id):
                    unlisted[zone] = ServiceFault(Kind.EXISTS, "there, and not listed")
                elif named is not None:
                    taken.append(named)
            except ServiceFault as fault:
                self._services.say(f"{zone}: {fault}")
                unlisted[zone], ours = fault, self._ours(fault.listed)
                self._asleep[zone] = (self._now + ASK_AGAIN, fault)
            tpus += ours
        return tpus, unlisted, taken

    def _ours(self, tpus: Sequence[Tpu]) -> list[Tpu]:
        return [tpu for tpu in tpus if tpu.belongs_to(self._spec.run_id)]

    def _look_at_operation(self) -> Operation | None:
        if not self._state.operation:
            return None
        try:
            return self._services.tpus.operation(self._state.operation)
        except ServiceFault as fault:
            if fault.kind is Kind.NOT_FOUND:  # forgotten: long over
                return Operation(done=True)
            return None

    def _read_bucket(
        self, watched: float, suspicious: bool
    ) -> tuple[Heartbeat | None, ExitReport | None, str, int | None, bool]:
        """Heartbeat, exit report, the log's end, the newest checkpoint's step (where training may
        have ended: listing a folder costs more than reading a file), and whether the bucket
        answered."""
        state, settings, services = self._state, self._settings, self._services
        tail, step = "", None
        try:
            heartbeat = self._if_whole(services.files.heartbeat)
            running = state.phase is Phase.RUNNING
            if running:
                services.follow()
            report = self._if_whole(services.files.exit_report) if running else None
            limit = settings.stall if state.has_stepped else settings.startup
            ended = report is not None and report.attempt == state.attempt
            stopped = heartbeat is not None and heartbeat.state == "stopped"
            quiet = state.quiet_seconds + watched > limit
            if ended or quiet:
                tail = services.files.log_tail()
            if not running or suspicious or ended or quiet or stopped:
                step = services.files.checkpoint_step()
        except BUCKET_FAULTS as error:
            services.say(f"bucket: {error}")
            return None, None, "", None, False
        return heartbeat, report, tail, step, True

    def _if_whole(self, read: Callable[[], T | None]) -> T | None:
        """A damaged file counts as none: a supervisor that ended over it would leave its TPU."""
        try:
            return read()
        except BadInput as error:
            self._services.say(str(error))
            return None

    # --- acting ------------------------------------------------------------------------------

    def _may_rent(self, state: RunState) -> bool:
        """Stores the decision to rent, and asks once more whether this is the one supervisor."""
        try:
            self._services.files.save_state(state)
            self._services.beat()
        except LeaseLost:
            raise
        except BUCKET_FAULTS as error:
            self._services.say(f"bucket: {error}")
            self._stores = False
            return False
        self._saved, self._saved_at = state, self._now
        return True

    def _perform(self, action: Action) -> tuple[str, ServiceFault | None]:
        """Carries one action out: the operation's name, or why the service did not take it."""
        tpus = self._services.tpus
        try:
            if isinstance(action, Create):
                zone, attempt, limit = action.zone, action.attempt, action.limit
                metadata = self._services.metadata(zone, attempt, limit)
                return tpus.create(self._spec, zone, attempt, metadata, limit), None
            return tpus.delete(action.tpu), None
        except ServiceFault as fault:
            return "", fault

    def _write(self, state: RunState, events: Sequence[Event]) -> None:
        """Goes to a state: saves it when something other than its timers changed, and events."""
        self._state = state
        for event in events:
            self._services.say(describe(event))
            line = {"event": event.event, "time": round(self._services.wall(), 3)}
            self._unsent.append({**line, "source": "supervisor", "run": state.name, **event.fields})
        changed = self._saved is None or _identity(self._saved) != _identity(state)
        due = self._now - self._saved_at >= SAVE_EVERY
        try:
            if changed or due or not self._stores:
                self._services.files.save_state(state)
                self._saved, self._saved_at = state, self._now
                self._stores = True
            while self._unsent:
                self._services.files.append_event(self._unsent[0])
                self._unsent.pop(0)
        except BUCKET_FAULTS as error:
            self._services.say(f"bucket: {error}")  # kept in memory: the next turn tries again
            self._stores = False


def service_clock(tpus: Tpus) -> float | None:
    """UNIX seconds by the service's clock; None where it has not answered."""
    try:
        return tpus.time()
    except ServiceFault:
        return None


def load(name: str, services: Services) -> tuple[RunState, float]:
    """The state on the bucket, ready to continue; and when it was saved, by the service's clock: 0
    where nothing was rented since."""
    state = services.files.load_state()
    if state is None:
        return RunState(name), 0.0
    away_since = state.saved_at
    if state.phase is Phase.ENDED and not state.billing:
        away_since = 0.0
    if state.ending is not None:
        state = replace(
            state, phase=Phase.IDLE, ending=None, ending_reason="", ending_message="",
            same_failures=0, last_failure="", struck_zones={}, strikes={}, misses=0,
            backoff_seconds=0.0, operation="", operation_kind="", trouble_seconds=0.0,
            in_trouble=False,
        )  # fmt: skip
    return state, away_since


def _identity(state: RunState) -> RunState:
    """The state without its timers."""
    return replace(
        state, phase_seconds=0.0, quiet_seconds=0.0, healthy_seconds=0.0, backoff_seconds=0.0,
        delete_wait=0.0, billed_seconds=0.0, elapsed_seconds=0.0, cost_usd=0.0, saved_at=0.0,
        machine_seconds=0.0, trouble_seconds=0.0, best_step=0, absences=0,
        last_step=min(state.last_step, 0),
    )  # fmt: skip


def describe(event: Event) -> str:
    """One line for people; what it quotes may hold secrets."""
    details = ", ".join(
        f"{key} {f'{value:.2f}' if isinstance(value, float) else value}"
        for key, value in event.fields.items()
        if value not in ("", None) and key != "log"
    )
    line = event.event.replace("_", " ") + (f": {details}" if details else "")
    log = str(event.fields.get("log", ""))
    return redact(line + ("\n  | " + "\n  | ".join(log.splitlines()[-10:]) if log else ""))
