"""Decisions of the supervisor while a TPU trains."""

from dataclasses import replace

import pytest

from bigbird_ja.launch.decide import decide
from bigbird_ja.launch.service import ID_LABEL, Presence, Tpu, make_labels
from bigbird_ja.launch.state import Observation, Phase, RunState, TrainerBeat
from tests.launch.support import RECORD


@pytest.mark.parametrize(("quiet", "failure"), [(50.0, ""), (60.0, "out_of_memory")])
def test_a_trainer_that_stops_without_a_report_has_ended_by_its_heartbeat(quiet, failure):
    tpu = Tpu("run", "zone-a", Presence.READY, "READY", labels={ID_LABEL: "id-1"}, created=9.0)
    state = RunState(Phase.RUNNING, zone="zone-a", attempt=1, incarnation=9.0)
    state = replace(state, last_step=4, quiet_seconds=quiet)
    beat = TrainerBeat(4, 1.0, "stopped", "out_of_memory")
    decision = decide(state, Observation(5.0, 5.0, 0.0, tpus=[tpu], heartbeat=beat), RECORD)
    assert decision.state.last_failure == failure


def test_another_machine_of_its_name_is_adopted_and_nothing_is_counted_for_it_before():
    tpu = Tpu("run", "zone-a", Presence.READY, "READY", labels=make_labels(RECORD, 1), created=9.0)
    state = RunState(Phase.RUNNING, zone="zone-a", attempt=1, incarnation=9.0, last_step=4)
    seen = Observation(5.0, 5.0, 0.0, tpus=[tpu])
    assert decide(state, seen, RECORD).state.last_step == 4
    another = replace(seen, tpus=[replace(tpu, created=10.0)])
    decision = decide(state, another, RECORD)
    assert (decision.state.phase, decision.state.last_step) == (Phase.CREATING, -1)
    assert [event.event for event in decision.events] == ["adopted"]
