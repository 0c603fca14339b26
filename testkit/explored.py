"""Simulated cloud for `testkit.explore`, and the invariants that it must satisfy."""

import copy
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

from bigbird_ja.errors import StorageError
from bigbird_ja.launch.service import check_still_there
from bigbird_ja.launch.state import Phase
from testkit.simulated_cloud import SimulatedCloud

POLL = 300.0
# Tolerance in seconds: one poll of the watcher (60), a deletion by the service (30), and a second.
SLACK = 60.0 + 30.0 + 1.0
INVARIANTS = (
    "nothing foreign is touched",
    "nothing outlives its lease",
    "nothing is over budget by more than one poll",
    "a finished run never rents",
    "no two machines for longer than two polls",
    "an ended run has no machine",
)


@dataclass
class Cloud(SimulatedCloud):
    """Simulated cloud that also contains the lock file, and measures values for the invariants.

    Attributes:
        lock: content and token of the lock file, or None if the file does not exist.
        tokens: number of writes of the lock file, modulo 8.
        two_for: seconds for which several machines have existed without interruption.
        paused: seconds that do not count for the run's time limit, since the run has not been
            polled yet, or has ended without billing.
        allowed: maximum lifetime of each machine in seconds, by attempt.
    """

    lock: tuple[bytes, str] | None = None
    tokens: int = 0
    two_for: float = 0.0
    paused: float = 0.0
    allowed: dict[int, float] = field(default_factory=dict)

    def copy(self):
        new = copy.copy(self)
        new.nodes = [copy.copy(node) for node in self.nodes]
        new.operations, new.foreign = {**self.operations}, {**self.foreign}
        new.events, new.allowed = [], {**self.allowed}
        return new

    def tick(self):
        state = self.state
        has_ended = state is not None and state.phase is Phase.ENDED and not state.billing
        # The time limit of a run starts at its first poll. A supervisor may die before this poll.
        has_begun = state is None or bool(state.saved_at) or bool(self.nodes)
        self.paused += POLL if has_ended or not has_begun else 0.0
        self.advance(self.now + POLL)
        alive = [node for node in self.nodes if node.ends_at > self.now]
        self.two_for = self.two_for + POLL if len(alive) > 1 else 0.0

    def broken(self, run):
        """Return the names of the violated invariants.

        Args:
            run: record with the run's limits. If supervisors use different records, these have the
                same limits, and `run` is the record with the highest price.
        """
        hours = run.max_seconds + self.paused + 2 * POLL + SLACK
        is_billed = any(node.ready_at <= self.now < node.ends_at for node in self.nodes)
        is_over = self.state is not None and self.state.phase is Phase.ENDED
        is_left = (
            is_over
            and self.state.ending_reason != "io_error"
            and any(node.ends_at > self.now for node in self.nodes)
        )
        dollars = run.max_usd + run.usd_per_hour * (POLL + SLACK) / 3600
        outlives = any(
            min(node.ready_at + self.allowed[node.attempt], renewed + run.lease) + SLACK < self.now
            for node in self.nodes
            for renewed in [max(node.renewed_at, node.ready_at)]
            if node.ready_at <= self.now < node.ends_at
        )
        checks = (
            self.foreign_touched,
            outlives,
            self.rented_usd > dollars or (is_billed and self.now > hours),
            self.rented_finished,
            self.two_for > 2 * POLL,
            is_left,
        )
        return [name for name, is_broken in zip(INVARIANTS, checks, strict=True) if is_broken]

    def delete(self, tpu, project=None):
        find = partial(self.find, project=project)
        there = check_still_there(SimpleNamespace(find=find), tpu)
        self.foreign_touched += there.run_dir != self.run.run_dir
        return super().delete(tpu, project)

    def load_state(self):
        if self.state is None:
            raise StorageError("lost: refused by `launch`")
        return self.state

    def append_event(self, event):
        pass

    def save_state(self, state):
        self.state, known = state, self.allowed.get(state.attempt, 0.0)
        self.allowed[state.attempt] = max(state.machine_limit, known)
        return True

    def _put(self, content):
        self.tokens = (self.tokens + 1) % 8
        self.lock = (content, f"{self.now}/{self.tokens}")
        return self.lock[1]

    def read_with_token(self, path, most=0):
        if self.lock is None:
            raise FileNotFoundError(path)
        return self.lock

    def replace_if(self, path, content, token):
        there = self.lock[1] if self.lock is not None else ""  # Token of a missing file: "".
        return self._put(content) if there == token else None

    def delete_if(self, path, token):
        if self.lock is not None and self.lock[1] == token:
            self.lock = None
