"""The supervisor's state machine as a table: what is seen, what follows, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from bigbird_ja.launch.faults import ServiceFault
from bigbird_ja.launch.run_state import (
    Decision,
    ExitReport,
    Heartbeat,
    Observation,
    Phase,
    RunState,
    Settings,
)
from bigbird_ja.launch.tpu_service import Presence, Tpu

ALIVE = (Presence.WAITING, Presence.PENDING, Presence.READY)
# Seconds after its limit in which a machine is still on its way out: the watcher's turn and the
# service's deletion.
OVERTIME = 900.0


@dataclass(frozen=True)
class View:
    """One turn's state, look and settings, and what follows from them at once."""

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

    @cached_property
    def extras(self) -> list[Tpu]:
        """What is alive beside our own."""
        return [tpu for tpu in self.alive if tpu is not self.tpu]

    @property
    def is_unlisted(self) -> bool:
        """Whether our zone does not answer."""
        return self.state.zone in self.seen.unlisted

    @property
    def is_gone(self) -> bool:
        """Whether our TPU is absent, dead, or being deleted."""
        return self.tpu is None or self.tpu.presence in (Presence.GONE, Presence.DELETING)

    @property
    def is_ready(self) -> bool:
        return self.tpu is not None and self.tpu.presence is Presence.READY

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
    def operation_fault(self) -> ServiceFault | None:
        """Why the operation under way, a creation or a deletion, has failed."""
        return self.seen.operation.fault if self.seen.operation else None

    @property
    def report(self) -> ExitReport | None:
        """How training ended on this TPU."""
        report = self.seen.exit_report
        return report if report and report.attempt == self.state.attempt else None

    @property
    def heartbeat(self) -> Heartbeat | None:
        """What this TPU's trainer wrote; a slice's that is between two tries says nothing."""
        heartbeat = self.seen.heartbeat
        if heartbeat is None or heartbeat.signature == self.state.stale_heartbeat:
            return None
        tries_again = self.settings.hosts > 1 and heartbeat.reason in ("interrupted", "stalled")
        return None if heartbeat.state == "stopped" and tries_again else heartbeat


@dataclass(frozen=True)
class Rule:
    """A row of the table; the first of its phase's whose `when` is true decides."""

    seen: str  # for people
    does: str  # for people
    to: tuple[Phase, ...]  # the phases it may lead to
    why: str  # for people
    when: Callable[[View], bool]
    then: Callable[[View], Decision]


def decide_by(rules: Sequence[Rule], view: View) -> Decision:
    """What the first rule that applies says.

    Raises:
        ValueError: none applies, which is a programming error: the last of each table always does.
    """
    for rule in rules:
        if rule.when(view):
            return rule.then(view)
    raise ValueError(f"no rule for {view.state.phase}")


def always(view: View) -> bool:
    """The condition of a table's last row."""
    return True


def wait(view: View) -> Decision:
    """Looks again after the usual pause."""
    return Decision(view.state, pause=view.settings.poll)
