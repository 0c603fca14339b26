"""A sample of `make bench-leaks`: months in which anything fails, and nothing may be left."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from bigbird_ja.launch import decide
from bigbird_ja.launch.run_state import Decision, Phase, RunState, View
from bigbird_ja.launch.services import Kind, ServiceFault
from scripts import make_state_tables
from testkit.histories import HOUR, History, Verdict, total
from testkit.simulated_cloud import SimulatedCloud
from tests.launch.test_supervisor import SPEC, TRAINER, run, settings_with

SERVICES = pytest.mark.parametrize("service", ["tpu", "compute", "slice"])


@SERVICES
def test_nothing_is_left_and_no_limit_is_passed(service: str) -> None:
    for seed in range(15):
        assert History(seed, service).run() == Verdict(), seed


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@SERVICES
def test_nothing_is_left_in_a_thousand_histories(service: str) -> None:
    verdicts = [History(seed, service).run() for seed in range(1_000)]
    row = total(verdicts)
    assert row.pop("histories") == 1_000
    assert set(row.values()) == {0}


def test_seeds_decide() -> None:
    first, again = History(7, "tpu"), History(7, "tpu")
    assert first.run() == again.run()
    assert first.cloud.events == again.cloud.events


def test_a_machine_without_a_watcher_is_noticed() -> None:
    """The old service without the lease: what the table must show."""
    found = 0
    for seed in range(6):
        history = History(seed, "tpu")
        history.cloud.watch_poll = math.inf
        found += not _judged(history).is_clean
    assert found > 0


def test_what_a_slice_leaves_is_noticed() -> None:
    """Deletions that leave template and policy: what the table must show."""
    found = 0
    for seed in range(6):
        history = History(seed, "slice")
        history.cloud.leftovers = _Sticky()
        history.cloud.list = lambda zone, cloud=history.cloud: [  # type: ignore[method-assign]
            cloud._as_tpu(node) for node in cloud.nodes if zone in (node.zone, "-")
        ]
        found += history.run().littered
    assert found > 0


class _Sticky(dict[str, int]):
    """Parts that no deletion removes."""

    def pop(self, *_: object) -> int:  # type: ignore[override]
        return 0


def test_decisions_are_as_the_comments_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever phase a branch leads to, the comment above it names; and nearly all are taken: what
    is in repair for ever, and what is lost between two looks, has no model."""
    rules = {phase: make_state_tables.rules(phase) for phase in make_state_tables.PHASES}
    reached: set[tuple[str, str]] = set()

    def followed(phase: str, function: Callable[[View], Decision]) -> Callable[[View], Decision]:
        codes = (function.__code__, decide._not_ready.__code__)

        def follow(frame: FrameType, event: str, decision: Any) -> Any:
            if event == "return" and decision is not None and frame.f_code in codes:
                for rule in rules[phase]:
                    if frame.f_lineno in rule.lines:
                        assert decision.state.phase.value in (phase, *rule.phases), rule
                        reached.add((phase, rule.observed))
            return follow

        def call(view: View) -> Decision:
            sys.settrace(follow)
            try:
                return function(view)
            finally:
                sys.settrace(None)

        return call

    for phase in rules:
        function = decide.PHASES[Phase(phase)]
        monkeypatch.setitem(decide.PHASES, Phase(phase), followed(phase, function))
    for service in ("tpu", "compute", "slice"):
        for seed in range(15):
            History(seed, service).run()
    live_through_rare_situations()
    every = {(phase, rule.observed) for phase, table in rules.items() for rule in table}
    assert len(every - reached) <= 6, every - reached


def live_through_rare_situations() -> None:
    """What the seeded histories hardly ever meet."""
    for script in (["stockout"] * 4, ["quota"] * 3, ["stuck"]):
        run(SimulatedCloud(TRAINER, script=script, fast=True))
    for state in (
        None,
        RunState("run", Phase.CREATING, "zone-b", attempt=1),
        RunState("run", Phase.RUNNING, "zone-a", used_zones=("zone-a",), incarnation=1.0),
    ):
        cloud = SimulatedCloud(TRAINER, state=None if state is None else state.to_json(), fast=True)
        cloud.create(SPEC, "zone-a", 1, {}, math.inf)
        run(cloud)
    cloud = SimulatedCloud(TRAINER, delete_script=["internal"], fast=True)
    run(cloud, settings_with(longest=3 * HOUR))
    cloud = SimulatedCloud(TRAINER, fast=True)
    cloud.wake = (HOUR,)

    def interfere(act: str, zone: str) -> None:
        if act in ("list", "delete") and zone == "zone-a" and cloud.now > HOUR:
            raise ServiceFault(Kind.UNAVAILABLE, "no answer")
        if act == "list" and refused:
            raise ServiceFault(Kind.PERMISSION, "denied")

    refused = False
    cloud.interfere = interfere
    run(cloud, settings_with(longest=3 * HOUR))
    refused, cloud = True, SimulatedCloud(TRAINER, interfere=interfere)
    run(cloud)


def _judged(history: History) -> Verdict:
    verdict = history.run()
    history.cloud.watch_poll = 60.0
    return history.verdict(verdict.unending)
