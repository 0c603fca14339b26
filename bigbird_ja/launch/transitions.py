"""Decisions that are common to several phases."""

import math
from dataclasses import replace

from bigbird_ja.launch.state import Decision, Ending, Event, Phase, RunState, View


def end(state: RunState, ending: Ending, reason: str, message: str, *before: Event) -> Decision:
    """Return the decision to delete the run's machines, and then to end the run.

    Args:
        state: state of the run.
        ending: ending of the run.
        reason: exit reason of the run.
        message: description of the ending.
        before: events to log before the event of the ending.
    """
    state = replace(state, ending=ending, ending_reason=reason, ending_message=message)
    event = Event("ending", {"ending": ending.value, "reason": reason, "message": message})
    return Decision(state.enter(Phase.REMOVING, is_made=False), events=(*before, event))


def count_preemption(state: RunState, service_state: str) -> Decision:
    """Return the decision to remove a preempted machine. Preemptions do not end the run."""
    state = replace(state, preemptions=state.preemptions + 1)
    fields = {**state.place, "state": service_state, "preemptions": state.preemptions}
    return Decision(state.enter(Phase.REMOVING), events=(Event("preempted", fields),))


def count_lease_over(state: RunState, service_state: str) -> Decision:
    """Return the decision to remove a machine at its maximum lifetime. This is not a failure."""
    state = replace(state, leases_over=state.leases_over + 1)
    event = Event("lease_over", {**state.place, "state": service_state})
    return Decision(state.enter(Phase.REMOVING), events=(event,))


def count_loss(view: View) -> Decision:
    """Return the decision to remove a lost machine, and count a preemption or an expired lease."""
    count = count_lease_over if view.is_life_over else count_preemption
    return count(view.state, view.service_state)


def wait(view: View, maximum: float = math.inf) -> Decision:
    """Return the decision to poll again after the usual pause, at most `maximum` seconds."""
    return Decision(view.state, pause=min(view.run.poll, maximum))


def wait_for_answer(view: View) -> Decision:
    """Return the decision while the zone of the run's TPU does not answer.

    The run waits, since its TPU may exist in this zone. After the time by which the cloud or the
    watcher must have deleted the TPU, the decision is to enter the phase REMOVING.
    """
    is_over = view.is_certainly_over
    return count_lease_over(view.state, "no answer") if is_over else wait(view)


def adopt_or_remove(view: View) -> Decision:
    """Return the decision to adopt the TPU that was requested last, and to remove all others.

    If that TPU is not alive, all TPUs are removed. Earlier TPUs are not adopted, since the state
    contains only the service and price of the last TPU.
    """
    state, alive = view.state, view.alive
    tpu = next((t for t in alive if not state.machine or t.attempt == state.attempt), None)
    if tpu is None:
        return Decision(state.enter(Phase.REMOVING, is_made=False))
    state = replace(
        state.enter(Phase.CREATING).forget_tpu(tpu.zone),
        attempt=max(state.attempt, tpu.attempt),
        machine_limit=state.machine_limit if tpu.attempt == state.attempt else 0.0,
    )
    event = Event("adopted", {"zone": tpu.zone, "state": tpu.state, "attempt": state.attempt})
    return Decision(state, tuple(one for one in alive if one is not tpu), (event,))
