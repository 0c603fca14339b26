"""Decisions after a TPU was requested."""

from dataclasses import replace

from bigbird_ja.launch.decide import decide
from bigbird_ja.launch.launched_run import Machine
from bigbird_ja.launch.service import Presence, Tpu, labels_of
from bigbird_ja.launch.state import Observation, Phase, RunState
from tests.launch.support import RECORD


def test_a_machine_that_was_requested_and_is_no_longer_wanted_is_removed_first():
    changed = replace(RECORD, accelerator_type="v2-8")
    tpu = Tpu("run", "zone-a", Presence.PENDING, "CREATING", labels=labels_of(RECORD, 1))
    state = RunState(Phase.CREATING, zone="zone-a", attempt=1, machine=Machine.of(RECORD))
    seen = Observation(5.0, 5.0, 0.0, tpus=[tpu])
    assert decide(state, seen, RECORD).state.phase is Phase.CREATING
    assert decide(state, seen, replace(RECORD, usd_per_hour=9.0)).state.phase is Phase.CREATING
    assert decide(state, seen, changed).state.phase is Phase.REMOVING
    ready = replace(seen, tpus=[replace(tpu, presence=Presence.READY)])
    assert decide(state, ready, changed).state.phase is Phase.RUNNING
