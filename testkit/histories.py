"""Seeded histories of a rented run, months of virtual time each, in which anything can fail.

Looking up, creating, deleting, reading, storing and the lock's renewals fail for a moment or
for ever; clocks are wrong by hours, others' machines have the run's name; machines are
preempted, hang, crash and go mute; the supervisor is killed or detached, and comes back after
minutes or days, or never. `broken` says which invariants a history has broken. Two supervisors
at once, and lost files, are `explore`'s.
"""

import math
import random
from dataclasses import dataclass

from bigbird_ja.errors import StorageError
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import ATTEMPT_LABEL, ID_LABEL, RUN_LABEL
from bigbird_ja.launch.state import MAX_LIFETIME, Phase
from bigbird_ja.launch.supervise import Detached, Stop, supervise
from testkit.simulated_cloud import SimulatedCloud, TrainerModel

HOUR, DAY = 3600.0, 86_400.0
ZONES = ("zone-a", "zone-b", "zone-c")
USD_PER_HOUR = 2.4
POLL = 300.0  # seconds; the bounds below are in terms of it
# Turns of one supervisor: more than months of polls.
TURNS = 40_000
SERVICE_ACTS = ("find", "create", "delete", "operation")
ACTS = (*SERVICE_ACTS, "read", "write", "renew_lock")
# Labels of other owners' machines that have the run's name.
FOREIGN = (
    {},
    {"owner": "someone-else", "purpose": "serving"},
    {RUN_LABEL: "run", ID_LABEL: "id-of-a-colleague", ATTEMPT_LABEL: "3"},
    {RUN_LABEL: "run", ID_LABEL: "id-1", ATTEMPT_LABEL: "1"},  # a copy of the folder
)
WORDS = (
    "stockout",
    "stockout",
    "internal",
    "unavailable",
    "lost",
    "slow",
    "stuck",
    "freeze",
    "mute",
    "dead",
    "exit:1",
    "exit:71",
    "exit:75",
)


@dataclass(frozen=True)
class Trouble:
    """Failures of an act with probability `p`, from `start` to `end`, in one zone or all."""

    act: str
    zone: str
    start: float
    end: float
    p: float
    kind: Kind


class _Killed(BaseException):
    """SIGKILL."""


class _Unending(BaseException):
    """Signal more turns than any history has."""


class History:
    """History of a run.

    Args:
        seed: decides everything.
        service: `tpu`, `compute`, or `queue`: the first one's, with waiting in line.
    """

    def __init__(self, seed, service):
        self._rng = rng = random.Random(f"{service}/{seed}")
        mean = rng.uniform(2, 48) * HOUR
        target = int(rng.choice([0.05, 0.5, 5, 30, 60]) * rng.uniform(0.5, 1.5) * DAY)
        self.record = LaunchedRun(
            bucket="gs://b",
            name="run",
            run_id="id-1",
            project="p",
            target_step=target,
            zones=ZONES,
            usd_per_hour=USD_PER_HOUR,
            poll=POLL,
            max_seconds=rng.choice([None, rng.uniform(0.1, 60) * DAY]),
            max_usd=rng.choice([None, rng.uniform(1, 2000)]),
            queued=service == "queue",
        )
        word = rng.uniform(0, 0.5)
        self.troubles = [self._trouble() for _ in range(rng.choice([0, 1, 1, 2, 3, 5]))]
        self.cloud = SimulatedCloud(
            TrainerModel(target, 1.0),
            lambda ready: rng.expovariate(1 / mean),
            fast=True,
            service=service.replace("queue", "tpu"),
            queue_seconds=rng.choice([0.0, 600.0, rng.expovariate(1 / (4 * HOUR))]),
            script=[rng.choice(WORDS) if rng.random() < word else "ok" for _ in range(60)],
            interfere=self._interfere,
            run=self.record,
            wake=sorted({t for one in self.troubles for t in (one.start, one.end)}),
        )
        self._foreign_at = rng.choice([0.0, rng.expovariate(1 / (2 * DAY)), math.inf, math.inf])
        self._foreign = (rng.choice(ZONES), rng.choice(FOREIGN))
        self._turns, self._began, self._paused = 0, 0.0, 0.0

    def _trouble(self):
        rng = self._rng
        start = rng.choice([0.0, rng.expovariate(1 / HOUR), rng.expovariate(1 / (5 * DAY))])
        length = rng.choice([60.0, rng.expovariate(1 / HOUR), rng.expovariate(1 / DAY), math.inf])
        zone = rng.choice([*ZONES, "", ""])
        kind = rng.choice([Kind.UNAVAILABLE, Kind.INTERNAL, Kind.PERMISSION])
        return Trouble(
            rng.choice(ACTS), zone, start, start + length, rng.choice([1.0, rng.random()]), kind
        )

    def _interfere(self, act, zone):
        now, (where, labels) = self.cloud.now, self._foreign
        if now >= self._foreign_at and all(node.zone != where for node in self.cloud.nodes):
            self.cloud.foreign[where], self._foreign_at = labels, math.inf
        for one in self.troubles:
            is_met = act == one.act and one.zone in ("", zone) and one.start <= now < one.end
            if not is_met or self._rng.random() >= one.p:
                continue
            if act in SERVICE_ACTS:
                raise ServiceFault(one.kind, f"no {act}")
            if one.kind is Kind.PERMISSION:
                raise PermissionError(13, f"no {act}")
            raise StorageError(f"no {act}")

    def run(self):
        """Run the history, then let every lease expire."""
        unending, cloud = False, self.cloud
        # Minutes or days between supervisors; after the last one nobody comes any more.
        for _ in range(self._rng.choice([1, 1, 2, 3, 5])):
            gap = self._rng.choice([600.0, 5 * HOUR, 4 * DAY])
            try:
                state = self._session()
            except _Unending:
                unending = True
                break
            if state is not None and state.phase is Phase.ENDED and self._rng.random() < 0.5:
                break
            stored = cloud.state
            if stored and stored["phase"] == "ended" and not stored["billing"]:
                # The hours of an ended run do not count.
                self._paused += gap
            cloud.advance(cloud.now + gap)
        cloud.advance(cloud.now + MAX_LIFETIME + self.record.lease + DAY)
        return self.broken(unending)

    def broken(self, unending):
        """Return the names of the violated invariants."""
        return broken(self.cloud, self.record, self._began + self._paused, unending)

    def _session(self):
        """Run one supervisor to its end.

        Returns:
            None if it was killed or detached.
        """
        rng, cloud, self._turns = self._rng, self.cloud, 0
        # The run begins now.
        if cloud.state is None:
            self._began = cloud.now
        how = rng.choice(["stays", "killed", "detached"])
        leaves_at = cloud.now + (math.inf if how == "stays" else rng.expovariate(1 / (2 * DAY)))
        cloud.wake = [t for t in cloud.wake if t > cloud.now] + [leaves_at]
        # Each supervisor has a clock of its own, which may be wrong by hours.
        cloud.wall_offset = rng.choice([0.0, rng.uniform(-12, 12) * HOUR])

        def sleep(seconds):
            self._turns += 1
            if self._turns > TURNS:
                raise _Unending
            cloud.sleep(seconds)
            if how == "killed" and cloud.now >= leaves_at:
                raise _Killed

        def stop():
            leaves = how == "detached" and cloud.now >= leaves_at
            return Stop.DETACH if leaves else Stop.NO

        try:
            io = cloud.io(self.record.project, sleep=sleep, stop=stop)
            return supervise(self.record, io)
        except (_Killed, Detached, StorageError, PermissionError):
            # A StorageError or PermissionError means that the supervisor could not begin.
            return None


def broken(cloud, record, began=0.0, unending=False):
    """Return the names of the invariants that a history has violated.

    Args:
        began: virtual time from which its hours count.
    """
    nodes = [*cloud.past_nodes, *cloud.nodes]
    # A machine goes at the watcher's next turn, and its deletion takes its time.
    slack = 60.0 + cloud.delete_seconds + 1.0
    late = slack + 2 * POLL
    latest = began + (record.max_seconds or math.inf) + late
    dearest = (record.max_usd or math.inf) + len(nodes) * late / HOUR * USD_PER_HOUR
    is_over_budget = cloud.rented_seconds / HOUR * USD_PER_HOUR > dearest
    outlives = False
    for node in nodes:
        start, end = node.billed(cloud.now)
        if end > start:
            lease = max(start, node.renewed_at) + record.lease
            outlives |= end > min(start + node.limit, lease) + slack
            is_over_budget |= end > latest
    is_billed = any(node.ready_at <= cloud.now < node.ends_at for node in cloud.nodes)
    checks = {
        "a machine outlives its lease or limit": outlives,
        "hours or money are over budget": is_over_budget,
        "a foreign machine is touched": cloud.foreign_touched,
        "a finished run rents again": cloud.rented_finished,
        "it never ends, or a machine is billed at the end of all time": unending or is_billed,
    }
    return [name for name, is_broken in checks.items() if is_broken]
