"""Decisions of the supervisor while there is no TPU and the run needs one."""

from dataclasses import replace

from bigbird_ja.launch.decide import decide
from bigbird_ja.launch.launched_run import Machine
from bigbird_ja.launch.service import Presence, Tpu, make_labels
from bigbird_ja.launch.state import Observation, Phase, RunState
from tests.launch.support import RECORD


def test_only_the_machine_that_was_requested_last_is_adopted():
    old = Tpu("run", "zone-a", Presence.READY, "READY", labels=make_labels(RECORD, 1))
    last = replace(old, zone="zone-b", labels=make_labels(RECORD, 2))
    state = RunState(Phase.IDLE, zone="zone-b", attempt=2, machine=Machine.of(RECORD))
    decision = decide(state, Observation(5.0, 5.0, 0.0, tpus=[old, last]), RECORD)
    assert (decision.state.zone, decision.deletions) == ("zone-b", (old,))
    decision = decide(state, Observation(5.0, 5.0, 0.0, tpus=[old]), RECORD)
    assert decision.state.phase is Phase.REMOVING
