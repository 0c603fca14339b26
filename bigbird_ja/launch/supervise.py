"""The supervisor's loop: observe, decide, store the decision, act, pause.

Services, files, clocks and the terminal are arguments (`SupervisorIO`), so that tests run the loop
in virtual time. Display code is called by `display.contain`, so that its errors do not end the
loop.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from bigbird_ja.errors import BadInput, CommandError
from bigbird_ja.launch.account import accrue, resume
from bigbird_ja.launch.creating import record_creation
from bigbird_ja.launch.decide import decide
from bigbird_ja.launch.display import contain
from bigbird_ja.launch.files import RunFiles
from bigbird_ja.launch.launched_run import LaunchedRun, Machine
from bigbird_ja.launch.removing import record_deletion
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import Operation, Presence, Tpu, Tpus
from bigbird_ja.launch.state import Decision, Event, Observation, Phase, RunState, TrainerBeat
from bigbird_ja.storage.lease import LeaseLost

T = TypeVar("T")

# Seconds between renewals of the machine's lease.
RENEW_EVERY = 300.0
# Seconds until a zone that did not answer is polled again, unless it is the TPU's zone.
RETRY_ZONE = 600.0
# Maximum number of events that are kept while the bucket fails.
MAX_UNSENT = 1000


class Stop(Enum):
    """User's choice after Ctrl-C."""

    NO = "no"
    DELETE = "delete"
    DETACH = "detach"


class Detached(Exception):
    """The user detached. The TPU trains until the end of its lease."""


@dataclass(kw_only=True)
class SupervisorIO:
    """Services, files, clocks and terminal of a supervisor.

    Attributes:
        tpus: Client of the service and project in the run's record.
        connect: Callback that returns the client of a service and project.
        files: Files of the run.
        monotonic: Monotonic clock, in seconds.
        wall: UNIX seconds by this machine's clock.
        sleep: Callback that waits some seconds.
        renew_lock: Callback that renews the run's lock; it may raise LeaseLost.
        stop: Callback that returns the user's choice after Ctrl-C.
        log: Callback that prints a line.
        metadata: Callback that returns the metadata of the machine to request.
    """

    tpus: Tpus
    connect: Callable[[str, str], Tpus]
    files: RunFiles
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    sleep: Callable[[float], None]
    renew_lock: Callable[[], None] = lambda: None
    stop: Callable[[], Stop] = lambda: Stop.NO
    log: Callable[[str], None] = lambda text: None
    metadata: Callable[[RunState], Mapping[str, str]] = lambda state: {}


def supervise(run: LaunchedRun, io: SupervisorIO) -> RunState:
    """Supervise a run until it has ended.

    If an earlier supervisor has stopped, the new one continues with the run's state and machines.

    Returns:
        The last state.

    Raises:
        Detached: The user chose to detach.
        LeaseLost: Another supervisor has taken the run over.
    """
    return _Supervisor(run, io).supervise()


class _Supervisor:
    """Supervisor of one run: the loop of `supervise` with its variables.

    Args:
        run: record of the run.
        io: services, files, clocks and terminal.
    """

    def __init__(self, run: LaunchedRun, io: SupervisorIO) -> None:
        self._run, self._io = run, io
        stored = io.files.load_state()
        self._state, self._away_since = resume(stored, run) if stored else (RunState(), 0.0)
        self._now = io.monotonic()
        # Seconds since the first poll.
        self._watched = 0.0
        self._is_first = True
        # Step and attempt in the progress line that was logged last.
        self._shown_step = self._shown_attempt = 0
        self._saved: RunState | None = None
        # Time of the last renewal of the machine's lease.
        self._renewed_at = -math.inf
        # Whether the lock was renewed in the last poll.
        self._is_holder = False
        # Whether the last state was stored.
        self._stores = True
        # Events that could not be stored yet.
        self._unsent: list[dict[str, Any]] = []
        # For each zone that did not answer: the time of its next poll, and the fault.
        self._silent: dict[str, tuple[float, ServiceFault]] = {}

    def supervise(self) -> RunState:
        """Observe, decide, store and act until the run has ended."""
        io, run = self._io, self._run
        machine = self._state.machine
        if machine and not machine.is_as(run) and self._state.phase is not Phase.IDLE:
            stays = "trains on" if self._state.phase is Phase.RUNNING else "is deleted"
            self._show("{} {}: next {}".format, machine, stays, Machine.of(run))
        while self._state.phase is not Phase.ENDED:
            stop = io.stop()
            if stop is Stop.DETACH:
                self._write(Decision(self._state, events=(Event("detached"),)))
                raise Detached
            seen = self._poll(stop is Stop.DELETE)
            self._state = accrue(self._state, seen, run)
            decision = decide(self._state, seen, run)
            if decision.rents and not self._may_rent(decision.state):
                self._show(str, "nothing is rented: the decision could not be stored")
                io.sleep(run.poll)
                continue
            # Store the decision before acting, so that a later supervisor knows the planned action.
            self._write(decision)
            if decision.rents:
                self._write(record_creation(self._state, _send(self._create), run))
            for tpu in decision.deletions:
                answer = _send(partial(self._get_client(tpu).delete, tpu))
                self._write(record_deletion(self._state, tpu, answer))
            if decision.pause and self._state.phase is not Phase.ENDED:
                io.sleep(decision.pause)
        self._write(Decision(self._state))
        return self._state

    def _show(self, make_line: Callable[..., str], *values: object) -> None:
        """Format and log a line. Errors are ignored, since no decision depends on the line."""
        contain(lambda: self._io.log(make_line(*values)), None)

    # --- observing ---------------------------------------------------------------------------

    def _poll(self, stop: bool) -> Observation:
        """Poll the service, the bucket and the clocks."""
        before, self._now = self._now, self._io.monotonic()
        self._keep_lock_and_lease()
        tpus, silent, taken = self._find()
        # Read the clock after the answers, so that a suspension of this process during the calls
        # is part of the elapsed time.
        self._now = self._io.monotonic()
        elapsed = max(0.0, self._now - before)
        watched = 0.0 if self._is_first else min(elapsed, 2 * self._run.poll)
        self._is_first = False
        service_time = self._get_client(self._state.machine).time()
        self._watched += elapsed
        resumed = bool(self._away_since) and service_time is not None
        if resumed:
            # Both times are by the service's clock, since the clocks of the computers on which the
            # supervisors ran may differ by hours.
            elapsed += max(0.0, (service_time or 0.0) - self._away_since - self._watched)
            self._away_since = 0.0
        seen = Observation(
            elapsed=elapsed,
            watched=watched,
            service_time=service_time,
            tpus=tpus,
            silent=silent,
            taken=taken,
            operation=self._poll_operation(),
            stop=stop,
            resumed=resumed,
        )
        with self._report_failures():
            return self._add_files(seen)
        return replace(seen, bucket_seen=False)

    def _keep_lock_and_lease(self) -> None:
        """Renew the lock, and the lease of a machine that the run still needs.

        If the bucket fails, the loop continues. If no later renewal succeeds, the machine's lease
        expires.
        """
        state, io = self._state, self._io
        self._is_holder = False
        with self._report_failures():
            io.renew_lock()
            self._is_holder = True
            keeps = state.phase in (Phase.CREATING, Phase.RUNNING) and state.ending is None
            due = self._renewed_at + min(RENEW_EVERY, self._run.lease / 4)
            if keeps and self._now >= due:
                io.files.renew_machine(state.attempt, io.wall())
                self._renewed_at = self._now

    @contextlib.contextmanager
    def _report_failures(self) -> Iterator[None]:
        """Return a context manager that logs and suppresses all exceptions except LeaseLost.

        A failure of the bucket must not end the supervisor's loop, since a machine may be billed.
        """
        try:
            yield
        except LeaseLost:
            raise
        except Exception as error:
            self._show(describe_fault, error)

    def _find(self) -> tuple[list[Tpu], dict[str, ServiceFault], list[Tpu]]:
        """Look up machines with the run's name in the run's zones.

        In phase RUNNING, only zones that were used are polled. In other phases, all zones are
        polled. A zone that does not answer delays the poll, so this zone is polled again only after
        `RETRY_ZONE` seconds, unless it is the TPU's zone.

        Returns:
            This run's TPUs, the faults of zones that did not answer, and other owners' machines.
        """
        state = self._state
        zones = state.used_zones
        if state.phase is not Phase.RUNNING:
            zones = tuple(dict.fromkeys((*zones, *self._run.zones)))
        tpus: list[Tpu] = []
        taken: list[Tpu] = []
        silent: dict[str, ServiceFault] = {}
        for zone in zones:
            until, before = self._silent.get(zone, (0.0, None))
            if before is not None and self._now < until and zone != state.zone:
                silent[zone] = before
                continue
            try:
                for service in self._list_clients(zone):
                    tpu = service.find(zone, self._run.name)
                    if tpu is not None:
                        (tpus if tpu.belongs_to(self._run) else taken).append(tpu)
                self._silent.pop(zone, None)
            except ServiceFault as fault:
                self._show("{}: {}".format, zone, fault)
                silent[zone] = fault
                self._silent[zone] = (self._now + RETRY_ZONE, fault)
        return tpus, silent, taken

    def _list_clients(self, zone: str) -> list[Tpus]:
        """Return the clients of all services that may list a machine of the run in this zone."""
        state = self._state
        last = [self._get_client(state.machine)] if zone in state.used_zones else []
        if last and (state.phase is not Phase.IDLE or not state.has_moved(self._run)):
            return last
        return [*last, self._io.tpus]

    def _get_client(self, machine: Machine | Tpu | None) -> Tpus:
        """Return the client of a machine's service and project."""
        run, io = self._run, self._io
        if machine is None or (machine.service, machine.project) == (run.service, run.project):
            return io.tpus
        return io.connect(machine.service, machine.project)

    def _poll_operation(self) -> Operation | None:
        if not self._state.operation:
            return None
        try:
            return self._get_client(self._state.machine).get_operation(self._state.operation)
        except ServiceFault as fault:
            # The service forgets an operation some time after its end. So an operation that it does
            # not find counts as done.
            if fault.kind is Kind.NOT_FOUND:
                return Operation(done=True)
            return None

    def _add_files(self, seen: Observation) -> Observation:
        """Add heartbeat, exit report, log tail and checkpoint step to an observation.

        The checkpoint step is read only if no READY TPU trains or if training may have ended, since
        listing a folder costs more than reading a file.
        """
        state, files = self._state, self._io.files
        tail, step, report = "", None, None
        heartbeat = self._read_if_intact(files.read_heartbeat)
        is_running = state.phase is Phase.RUNNING
        if is_running:
            self._show_progress(heartbeat)
            report = self._read_if_intact(files.read_exit_report)
        has_ended = report is not None and report.attempt == state.attempt
        has_stopped = heartbeat is not None and heartbeat.state == "stopped"
        is_quiet = state.quiet_seconds + seen.watched > state.step_timeout
        if has_ended or is_quiet:
            tail = contain(files.read_log_tail, "")
        is_ready = any(tpu.presence is Presence.READY for tpu in seen.tpus)
        if not (is_running and is_ready) or has_ended or is_quiet or has_stopped:
            step = files.find_checkpoint_step()
        return replace(
            seen,
            heartbeat=heartbeat,
            checkpoint_step=step,
            bucket_seen=self._is_holder and self._stores,
            exit_report=report,
            log_tail=tail,
        )

    def _read_if_intact(self, read: Callable[[], T | None]) -> T | None:
        """Read a file, and treat a damaged one as missing, so that the supervisor continues."""
        try:
            return read()
        except BadInput as error:
            self._show(str, error)
            return None

    def _show_progress(self, heartbeat: TrainerBeat | None) -> None:
        """Log a new step of the trainer, and once per machine the seconds of compilation."""
        if heartbeat is None or heartbeat.global_step <= self._shown_step:
            return
        compiled = heartbeat.compile_seconds
        is_first = bool(compiled) and self._shown_attempt != self._state.attempt
        self._shown_step = heartbeat.global_step
        self._shown_attempt = self._state.attempt if compiled else self._shown_attempt
        rate = "step {:,} of {:,}, {:,.0f} tokens/s"
        rate += "; {:.0f} s to compile or load the step" if is_first else ""
        values = (heartbeat.global_step, self._run.target_step, heartbeat.tokens_per_second)
        self._show(rate.format, *values, compiled)

    # --- acting ------------------------------------------------------------------------------

    def _may_rent(self, state: RunState) -> bool:
        """Store the decision to rent, and verify that no other supervisor has taken over.

        Returns:
            Whether both succeeded. False means that the bucket failed.

        Raises:
            LeaseLost: Another supervisor has taken over.
        """
        self._stores = False
        with self._report_failures():
            self._save(state)
            self._io.renew_lock()
            self._stores = True
        return self._stores

    def _create(self) -> str:
        state, io = self._state, self._io
        where, metadata = (state.zone, state.attempt), io.metadata(state)
        return io.tpus.create(self._run, *where, metadata, state.machine_limit)

    def _write(self, decision: Decision) -> None:
        """Set and store the state of a decision, and log the decision's events."""
        state = self._state = decision.state
        for event in decision.events:
            self._show(describe, event)
            line: dict[str, Any] = {"event": event.event, "time": round(self._io.wall(), 3)}
            line |= {"source": "supervisor", "run": self._run.name}
            self._unsent.append({**line, **event.fields})
        self._stores = False
        # After a failure, state and events stay in memory, and the next poll retries.
        with self._report_failures():
            if state != self._saved:
                self._save(state)
            self._stores = True
        if self._stores:
            with self._report_failures():
                self._send_events()

    def _send_events(self) -> None:
        """Append the events to the run's log.

        If the bucket fails, the events are sent again with the next decision. If an event cannot
        be appended for another reason, it is dropped, since decisions do not depend on the log.
        """
        del self._unsent[:-MAX_UNSENT]
        while self._unsent:
            event = self._unsent.pop(0)
            try:
                self._io.files.append_event(event)
            except (CommandError, OSError):
                self._unsent.insert(0, event)
                raise

    def _save(self, state: RunState) -> None:
        """Store the state, or raise LeaseLost if another supervisor has taken over."""
        while not self._io.files.save_state(state):
            self._io.renew_lock()
        self._saved = state


def _send(request: Callable[[], str]) -> str | ServiceFault:
    """Send a request, and return the name of its operation, or the service's fault."""
    try:
        return request()
    except ServiceFault as fault:
        return fault


def describe(event: Event) -> str:
    """Format an event as a log line."""
    details = ", ".join(
        f"{key} {f'{value:.2f}' if isinstance(value, float) else value}"
        for key, value in event.fields.items()
        if value not in ("", None) and key != "log"
    )
    line = event.event.replace("_", " ") + (f": {details}" if details else "")
    log = str(event.fields.get("log", ""))
    return line + ("\n  | " + "\n  | ".join(log.splitlines()[-10:]) if log else "")


def describe_fault(error: Exception) -> str:
    """Format a failure of the bucket. The type of an unexpected exception is included."""
    is_for_users = isinstance(error, (CommandError, OSError))
    return f"bucket: {error if is_for_users else repr(error)}"
