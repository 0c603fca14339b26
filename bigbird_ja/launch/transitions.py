"""State changes that several phases share: begin a phase, end the run, lose a machine, wait."""

import math
from dataclasses import replace

from bigbird_ja.launch.record import LaunchedRun
from bigbird_ja.launch.rest import Kind
from bigbird_ja.launch.state import Decision, Ending, Event, Phase, RunState, View

BACKOFF_FIRST, BACKOFF_MAX = 30.0, 900.0  # seconds, after a round over all zones without a TPU
REFUSALS = (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND)  # repeat until the user acts


def enter(state: RunState, phase: Phase, is_made: bool = True) -> RunState:
    """Begin a phase with its timers at zero.

    Args:
        state: state at the end of the last phase.
        phase: next phase.
        is_made: whether the requested creation is over. If not, REMOVING follows it, since it may
            still put a machine there.
    """
    keeps = phase is Phase.REMOVING and state.operation_kind == "create" and not is_made
    return replace(
        state,
        phase=phase,
        phase_seconds=0.0,
        quiet_seconds=0.0,
        delete_tries=0,
        delete_wait=0.0,
        absences=0,
        operation=state.operation if keeps else "",
        operation_kind=state.operation_kind if keeps else "",
    )


def end_run(state: RunState, ending: Ending, reason: str, message: str) -> Decision:
    """End the run once its machines are deleted."""
    state = replace(state, ending=ending, ending_reason=reason, ending_message=message)
    state = enter(state, Phase.REMOVING, is_made=False)
    event = Event("ending", {"ending": ending.value, "reason": reason, "message": message})
    return Decision(state, events=(event,))


def preempted(state: RunState, service_state: str) -> Decision:
    """Count a preemption: expected, and unlimited."""
    state = replace(state, preemptions=state.preemptions + 1)
    fields = {**where(state), "state": service_state, "preemptions": state.preemptions}
    return Decision(enter(state, Phase.REMOVING), events=(Event("preempted", fields),))


def lease_over(state: RunState, service_state: str) -> Decision:
    """Remove a machine that has reached its maximum lifetime, which is no failure."""
    state = replace(state, leases_over=state.leases_over + 1)
    event = Event("lease_over", {**where(state), "state": service_state})
    return Decision(enter(state, Phase.REMOVING), events=(event,))


def lost(view: View) -> Decision:
    """Count the end of a machine: at its limit, or before it by preemption."""
    end = lease_over if view.is_life_over else preempted
    return end(view.state, view.service_state)


def wait_for_answer(view: View) -> Decision:
    """Wait for a zone that does not answer, until its TPU must be gone."""
    if view.is_certainly_over:
        return lease_over(view.state, "no answer")
    return wait(view)


def wait(view: View, maximum: float = math.inf) -> Decision:
    """Poll again after the usual pause, or after `maximum` seconds if that is shorter."""
    return Decision(view.state, pause=min(view.run.poll, maximum))


def pause_before_next(state: RunState, run: LaunchedRun) -> RunState:
    """Go to the next zone at once within a round; back off after each round."""
    misses = state.misses + 1
    zones = max(1, len([zone for zone in run.zones if zone not in state.struck_zones]))
    pause = 0.0 if misses % zones else backoff(misses // zones, run)
    return replace(state, misses=misses, backoff_seconds=pause)


def backoff(rounds: int, run: LaunchedRun) -> float:
    """Return the pause in seconds after the `rounds`-th round without a TPU."""
    return min(BACKOFF_MAX, min(BACKOFF_FIRST, run.poll) * 2.0 ** min(rounds - 1, 16))


def adopt_or_remove(view: View) -> Decision:
    """Watch the TPU that was requested last, if it is alive; remove all others.

    The state no longer has service and price of TPUs that were requested before the last one.
    """
    state, alive = view.state, view.alive
    tpu = next((one for one in alive if not state.machine or one.attempt == state.attempt), None)
    if tpu is None:
        return Decision(enter(state, Phase.REMOVING, is_made=False))
    state = replace(
        unobserved(enter(state, Phase.CREATING), tpu.zone),
        attempt=max(state.attempt, tpu.attempt),
        machine_limit=state.machine_limit if tpu.attempt == state.attempt else 0.0,
    )
    event = Event("adopted", {"zone": tpu.zone, "state": tpu.state, "attempt": state.attempt})
    return Decision(state, tuple(one for one in alive if one is not tpu), (event,))


def unobserved(state: RunState, zone: str) -> RunState:
    """Return the state for a TPU in `zone` without any observation of another TPU."""
    return replace(
        state,
        zone=zone,
        used_zones=tuple(dict.fromkeys((*state.used_zones, zone))),
        incarnation=0.0,
        last_step=-1,
        has_stepped=False,
        healthy_seconds=0.0,
    )


def where(state: RunState) -> dict[str, object]:
    """Return the fields of an event that locate it: zone, attempt, step."""
    return {"zone": state.zone, "attempt": state.attempt, "step": state.best_step}
