"""Simulate TPUs, a trainer and a bucket in virtual time.

The simulation implements the interfaces of the real service, so that tests can run the supervisor
of `launch`. Scripts cause faults (see `SimulatedCloud.script`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from bigbird_ja.launch.backends import Vm
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.machine.startup import make_terms
from bigbird_ja.launch.machine.watcher import STALLED_SECONDS, compute_age_at_boot
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import Operation, Presence, Tpu, make_labels
from bigbird_ja.launch.state import ExitReport, RunState, TrainerBeat
from bigbird_ja.launch.supervise import SupervisorIO
from bigbird_ja.storage import decode

START = 1_700_000_000.0  # Start of virtual time, in UNIX seconds.

# Function that returns the lifetime of a TPU in seconds. Its argument is the virtual time at which
# the TPU becomes READY.
Lifetime = Callable[[float], float]


@dataclass(frozen=True)
class TrainerModel:
    """Speed of a trainer on a READY TPU. All times are in seconds."""

    target_step: int
    steps_per_second: float
    checkpoint_interval: float = 600.0
    save_seconds: float = 15.0
    restart_seconds: float = 360.0


@dataclass
class Node:
    """Simulated TPU.

    Attributes:
        ready_at: time at which billing starts (math.inf for never).
        dies_at: time of the preemption.
        base_step: step of the checkpoint from which the trainer starts.
        limit: maximum lifetime in seconds.
        renewed_at: time of the supervisor's last renewal of the machine's lease.
        is_mute: whether the trainer is killed after its last checkpoint, but before the last
            heartbeat.
        frozen_at: time at which the trainer hangs.
        exit_status: status with which the trainer exits as soon as it has started.
        in_line_until: time until which a queued resource waits (math.inf for forever).
        fault: fault of a queued resource that is FAILED.
        used: seconds of the maximum lifetime that are used up before the boot.
    """

    zone: str
    attempt: int
    created: float
    ready_at: float
    dies_at: float
    base_step: float
    labels: Mapping[str, str]
    deleted_at: float = math.inf
    limit: float = math.inf
    renewed_at: float = 0.0
    is_mute: bool = False
    frozen_at: float = math.inf
    exit_status: int | None = None
    in_line_until: float = 0.0
    fault: ServiceFault | None = None
    used: float = 0.0
    project: str = ""
    usd_per_hour: float = 0.0

    @property
    def ends_at(self):
        """Time at which billing ends."""
        return min(self.dies_at, self.deleted_at)


class InProject:
    """Client of the simulated service for one project (None: for all projects)."""

    def __init__(self, cloud, project):
        self._cloud, self._project = cloud, project

    def __getattr__(self, name):
        act = getattr(self._cloud, name)
        return partial(act, project=self._project) if name in ("find", "delete") else act


@dataclass
class SimulatedCloud:
    """Simulation of `Tpus`, `RunFiles` and the clocks.

    With `fast`, a sleep continues until the next event, so that months pass in seconds.
    """

    trainer: TrainerModel
    lifetime: Lifetime = lambda ready: math.inf
    create_seconds: float = 120.0
    queue_seconds: float = 0.0  # seconds for which a queued resource waits for capacity
    delete_seconds: float = 30.0
    fast: bool = False
    # API of the cloud. "compute" deletes a machine at its maximum lifetime and after a preemption.
    service: str = "tpu"
    lease: float = 12 * 3600.0  # seconds after which the watcher deletes a machine without renewal
    ended_timeout: float = 1200.0
    silence: float = STALLED_SECONDS
    watch_poll: float = 60.0
    # Function that is called before each request. Its arguments are the kind of the request (find,
    # create, delete, operation, read, write or renew_lock) and the zone, or "" without a zone. If
    # the function raises an exception, the request fails.
    interfere: Callable[[str, str], None] = lambda act, zone: None
    wake: Sequence[float] = ()  # virtual times at which `interfere` acts differently
    # Outcomes of the next creations, in order: "stockout", "quota", "permission", "internal",
    # "slow", "stuck" (never READY), "lost" (the answer is lost, but the TPU is created), "freeze"
    # (the trainer hangs), "exit:71" (the trainer exits with this status), "queue_failed" (a queued
    # resource becomes FAILED, since quota is missing), ...
    script: list[str] = field(default_factory=list)
    delete_script: list[str] = field(default_factory=list)

    now: float = 0.0
    wall_offset: float = 0.0
    nodes: list[Node] = field(default_factory=list)
    saved_step: float = 0.0
    useful_seconds: float = 0.0
    rented_seconds: float = 0.0
    rented_usd: float = 0.0
    creations: int = 0
    run: LaunchedRun = field(default_factory=lambda: LaunchedRun("gs://b", "run"))
    # Labels of machines of other owners with the run's name, by zone.
    foreign: dict[str, Mapping[str, str]] = field(default_factory=dict)
    foreign_touched: int = 0  # number of requests to delete a machine of another owner
    answered_at: float = -math.inf  # time of the service's last answer
    rented_finished: int = 0  # number of machines that were created for a finished run
    most_at_once: int = 0
    operations: dict[str, tuple[float, ServiceFault | None]] = field(default_factory=dict)
    state: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    report: ExitReport | None = None
    last_heartbeat: TrainerBeat | None = None

    def __post_init__(self):
        # Copy the parameter of the test, since each request removes an outcome from the script.
        self.script = [*self.script]

    def io(self, project=None, **more):
        """Return the interfaces for a supervisor in one project (None: in all projects)."""
        parts = {
            "tpus": InProject(self, project),
            "connect": lambda service, project: InProject(self, project),
            "files": self,
            "monotonic": self.monotonic,
            "wall": self.wall,
            "sleep": self.sleep,
            "renew_lock": self.renew_lock,
            "metadata": lambda state: {"state": state},
        }
        return SupervisorIO(**{**parts, **more})

    # --- Clock -------------------------------------------------------------------------------

    def monotonic(self):
        return self.now

    def wall(self):
        return START + self.now + self.wall_offset

    def sleep(self, seconds):
        until = self.now + seconds
        if self.fast:
            points = (*self._turning_points(), *self.wake)
            upcoming = [t for t in points if self.now < t < math.inf]
            if upcoming and min(upcoming) > until:
                # Wake up at the first poll after the event, as the real loop does.
                until = self.now + math.ceil((min(upcoming) - self.now) / seconds) * seconds
        self.advance(until)

    # --- Time --------------------------------------------------------------------------------

    def advance(self, until):
        """Advance virtual time to `until` (virtual seconds)."""
        for node in list(self.nodes):
            goes = self._goes_at(node)
            if goes <= until:
                node.deleted_at = min(node.deleted_at, goes)
            begin, over = max(self.now, node.ready_at), min(until, node.ends_at)
            self.rented_seconds += max(0.0, over - begin)
            self.rented_usd += max(0.0, over - begin) / 3600 * node.usd_per_hour
            self._train(node, min(until, node.ends_at, node.dies_at, node.frozen_at))
            if node.deleted_at <= until:
                self.nodes.remove(node)
        self.now = until

    def _turning_points(self):
        """Yield the times at which machines change, and at which their leases are renewed."""
        for node in self.nodes:
            yield from (node.deleted_at, node.ready_at, node.dies_at, self._goes_at(node))
            yield node.in_line_until
            yield from (self._finish_time(node), node.ready_at + self.trainer.restart_seconds)
            yield max(node.renewed_at, node.ready_at) + self.lease / 4

    def _goes_at(self, node):
        """Return the time at which the cloud or the watcher deletes a machine.

        The time is math.inf for a preempted machine of the Cloud TPU API, which neither deletes
        nor bills it.
        """
        ready = node.ready_at
        ends = min(
            ready + node.limit - node.used,
            max(node.renewed_at, ready) + self.lease,
            node.frozen_at + self.silence,
            self._finish_time(node) + self.ended_timeout,
        )
        if node.exit_status is not None:
            started = node.ready_at + self.trainer.restart_seconds
            ends = min(ends, started + self.ended_timeout)
        watched = ends + self.watch_poll + self.delete_seconds
        if self.service == "compute":
            return min(watched, node.created + node.limit + self.delete_seconds, node.dies_at)
        return watched if watched <= node.dies_at else math.inf

    def _progress(self, node, at):
        """Return the step in memory and the step of the newest checkpoint at time `at`."""
        model = self.trainer
        trained = at - node.ready_at - model.restart_seconds
        if trained <= 0 or node.exit_status is not None:
            return node.base_step, node.base_step
        cycles, partial = divmod(trained, model.checkpoint_interval + model.save_seconds)
        saved = node.base_step + cycles * model.checkpoint_interval * model.steps_per_second
        step = saved + min(partial, model.checkpoint_interval) * model.steps_per_second
        if step >= model.target_step and at >= self._finish_time(node):
            return model.target_step, model.target_step
        return min(step, model.target_step), min(saved, model.target_step)

    def _finish_time(self, node):
        model = self.trainer
        seconds = max(0.0, model.target_step - node.base_step) / model.steps_per_second
        saves = math.floor(seconds / model.checkpoint_interval) + 1
        return node.ready_at + model.restart_seconds + seconds + saves * model.save_seconds

    def _train(self, node, until):
        if until < node.ready_at:
            return
        step, saved = self._progress(node, until)
        if saved > self.saved_step:
            self.useful_seconds += (saved - self.saved_step) / self.trainer.steps_per_second
            self.saved_step = saved
        if until < node.ready_at + 60:
            return
        state, reason = "training", ""
        if until < node.ready_at + self.trainer.restart_seconds:
            state = "starting"
        elif node.exit_status is not None:
            self.report = ExitReport(node.attempt, node.exit_status, _REASONS[node.exit_status])
            state, reason = "stopped", self.report.reason
        elif saved >= self.trainer.target_step and not node.is_mute:
            state, reason = "stopped", "finished"
        time = START + until
        self.last_heartbeat = TrainerBeat(int(step), time, state, reason, 1.0, "vm", node.attempt)

    # --- Tpus --------------------------------------------------------------------------------

    def _in(self, zone, project):
        return [
            node for node in self.nodes if zone == node.zone and project in (None, node.project)
        ]

    def _as_foreign(self, zone):
        """Return a machine of another owner that has the run's name."""
        name = self.run.name
        return Tpu(
            name,
            zone,
            Presence.READY,
            "READY",
            labels=self.foreign[zone],
            created=START,
            resource=f"projects/p/zones/{zone}/{name}",
        )

    def find(self, zone, name, project=None):
        """Look up the run's name in a zone, in one project (None: in all projects)."""
        self.interfere("find", zone)
        self.answered_at = self.now
        if zone in self.foreign:
            return self._as_foreign(zone)
        return next(map(self._as_tpu, self._in(zone, project)), None)

    def time(self):
        return START + self.now if self.now - self.answered_at <= 3600 else None

    def _as_tpu(self, node):
        queued, fault = self.run.queued, None
        presence, state = Presence.READY, "ACTIVE/READY" if queued else "READY"
        if node.deleted_at < math.inf:
            presence, state = Presence.DELETING, "DELETING"
        elif node.fault is not None and node.in_line_until <= self.now:
            presence, state, fault = Presence.GONE, "FAILED", node.fault
        elif node.dies_at <= self.now:
            gone = "SUSPENDING" if self.now < node.dies_at + 60 else "SUSPENDED"
            presence, state = Presence.GONE, gone if queued else "PREEMPTED"
        elif node.in_line_until > self.now:
            presence, state = Presence.WAITING, "WAITING_FOR_RESOURCES"
        elif node.ready_at > self.now:
            presence, state = Presence.PENDING, "PROVISIONING" if queued else "CREATING"
        return Tpu(
            self.run.name,
            node.zone,
            presence,
            state,
            labels=node.labels,
            created=START + node.created,
            run_dir=self.run.run_dir,
            service=self.service,
            project=node.project,
            is_queued=queued,
            fault=fault,
        )

    def create(self, run, zone, attempt, metadata, limit):
        self.run = run
        self.interfere("create", zone)
        word = self.script.pop(0) if self.script else "ok"
        if zone in self.foreign or self._in(zone, run.project):
            raise ServiceFault(Kind.EXISTS, "already exists")
        _raise_scripted(word, "permission", "bad_request", "unavailable")
        if word in ("stockout", "quota", "internal"):
            return self._operation(60.0, ServiceFault(Kind(word), f"scripted {word}"))
        self._add_node(run, zone, attempt, word, limit, metadata.get("state"))
        if word == "lost":
            raise ServiceFault(Kind.UNAVAILABLE, "scripted: the reply was lost")
        # The operation of a queued resource is done once the resource is in the queue.
        return self._operation(1.0 if run.queued else self.create_seconds, None)

    def _add_node(self, run, zone, attempt, word, limit, state):
        self.creations += 1
        self.rented_finished += self.saved_step >= self.trainer.target_step
        never = word in ("stuck", "queue_failed")
        delay = {"slow": 900.0}.get(word, math.inf if never else self.create_seconds)
        waits = self.queue_seconds if run.queued else 0.0
        ready = self.now + waits + delay
        lifetime = 0.0 if word == "dead" else self.lifetime(ready)
        labels = make_labels(run, attempt)
        node = Node(zone, attempt, self.now, ready, ready + lifetime, self.saved_step, labels)
        node.limit, node.project, node.usd_per_hour = limit, run.project, run.usd_per_hour
        if state is not None and ready < math.inf:
            node.used = compute_age_at_boot(make_terms(run, Vm(), state), START + ready)
        node.in_line_until = math.inf if run.queued and word == "stuck" else self.now + waits
        if word == "queue_failed":
            node.fault = ServiceFault(Kind.QUOTA, "scripted: Quota limit in the queue")
        if word == "freeze":
            node.frozen_at = ready + self.trainer.restart_seconds + 300.0
        if word == "mute":
            node.is_mute, node.dies_at = True, self._finish_time(node)
        if word.startswith("exit:"):
            node.exit_status = int(word.partition(":")[2])
        self.nodes.append(node)
        self.most_at_once = max(self.most_at_once, len(self.nodes))

    def _operation(self, seconds, fault):
        name = f"operations/{len(self.operations)}"
        self.operations[name] = (self.now + seconds, fault)
        return name

    def delete(self, tpu, project=None):
        self.interfere("delete", tpu.zone)
        word = self.delete_script.pop(0) if self.delete_script else "ok"
        _raise_scripted(word, "permission", "unavailable")
        if word == "internal":
            return self._operation(10.0, ServiceFault(Kind.INTERNAL, "scripted: deletion failed"))
        if word == "ignored":
            return self._operation(10.0, None)
        # A client must check the owner before it deletes a machine. Count the wrong deletions.
        self.foreign_touched += not tpu.belongs_to(self.run)
        there = self._in(tpu.zone, project)
        if not there:
            raise ServiceFault(Kind.NOT_FOUND, "nothing of that run has that name")
        for node in there:
            if node.deleted_at == math.inf:
                node.deleted_at = self.now + self.delete_seconds
        return self._operation(self.delete_seconds, None)

    def get_operation(self, name):
        self.interfere("operation", "")
        over, fault = self.operations[name]
        return Operation(self.now >= over, fault if self.now >= over else None)

    # --- RunFiles ----------------------------------------------------------------------------

    def read_heartbeat(self):
        self.interfere("read", "")
        return self.last_heartbeat

    def read_exit_report(self):
        self.interfere("read", "")
        return self.report

    def read_log_tail(self):
        self.interfere("read", "")
        return "the last line of the log"

    def find_checkpoint_step(self):
        self.interfere("read", "")
        return int(self.saved_step) or -1

    def load_state(self):
        self.interfere("read", "")
        return self.state and decode.convert(self.state, RunState, "state")

    def save_state(self, state):
        self.interfere("write", "")
        self.state = msgspec.to_builtins(state)
        return True

    def append_event(self, event):
        self.interfere("write", "")
        self.events.append(dict(event))

    def renew_machine(self, attempt, wall):
        self.interfere("write", "")
        for node in self.nodes:
            if node.attempt == attempt and node.dies_at > self.now:
                node.renewed_at = self.now

    def renew_lock(self):
        self.interfere("renew_lock", "")


def _raise_scripted(word, *faults):
    if word in faults:
        raise ServiceFault(Kind(word), f"scripted {word}")


_REASONS = {1: "bug", 2: "bad_input", 70: "diverged", 71: "out_of_memory", 75: "interrupted"}
