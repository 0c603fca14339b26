"""Decide in phase CREATING: a TPU was requested, and was not READY yet."""

from dataclasses import replace

from bigbird_ja.launch.advice import advise
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import Presence
from bigbird_ja.launch.state import (
    CREATE_TIMEOUT,
    SETTLE,
    Decision,
    Ending,
    Event,
    Phase,
    RunState,
    View,
)
from bigbird_ja.launch.transitions import (
    adopt_or_remove,
    count_loss,
    count_preemption,
    end,
    wait,
    wait_for_answer,
)

QUEUE_TIMEOUT = 6 * 3600.0  # seconds in a queue before another zone is asked
QUOTA_REFUSALS = 3  # refusals before a zone that has provided a TPU is left out


def decide(view: View) -> Decision:
    """Decide one poll.

    The comments have the form that `decide.py` states.
    """
    state = view.state
    # Its zone does not answer: wait; long after its maximum lifetime, lease over -> removing.
    # Why: it may be there, and nothing is rented twice; by then cloud or watcher have deleted it.
    if view.is_silent:
        return wait_for_answer(view)
    # It is absent, and one of ours is in another zone: adopt that one -> creating, removing.
    # Why: it came up elsewhere than this state knows.
    if view.tpu is None and view.seen.tpus:
        return adopt_or_remove(view)
    # Absent in only one poll: poll again. Why: an answer may be wrong once.
    if view.is_perhaps_absent and view.is_operation_done:
        return wait(view)
    # READY: watch it -> running.
    # Why: the machine is up; new steps show whether it trains.
    if view.tpu is not None and view.is_ready:
        fields = {**state.place, "adopted": state.operation_kind != "create"}
        state = replace(
            state.enter(Phase.RUNNING),
            incarnation=view.tpu.created,
            ready_zones=tuple(dict.fromkeys((*state.ready_zones, view.tpu.zone))),
            quota_refusals={},
            misses=0,
            in_trouble=False,
        )
        return Decision(state, events=(Event("created", fields),))
    # The record asks for another machine now: remove it -> removing.
    # Why: it was requested with other flags, and trains nothing yet.
    if state.machine is not None and not state.machine.is_as(view.run):
        return Decision(state.enter(Phase.REMOVING, is_made=False))
    fault = view.operation_fault or (view.tpu.fault if view.tpu else None)
    if fault is not None and fault.kind is Kind.EXISTS and view.tpu is not None:
        fault = None
    # The creation has failed: remove it, then next zone, leave the zone out, or end -> removing.
    # Why: stock-out, quota, refusal and trouble of the service need different answers.
    if fault is not None:
        return creation_failed(state, fault, view.run)
    is_made = view.is_operation_done and state.operation_kind == "create"
    # Absent, although its creation is over and has not failed: preemption -> removing.
    # Why: it was there, and was taken before it was seen.
    if view.tpu is None and is_made:
        return count_preemption(state, view.service_state)
    is_being_made = view.seen.operation is not None and not view.seen.operation.done
    # Absent, and requested lately or still being made: wait; in the end the next zone -> removing.
    # Why: a TPU that was requested may appear late.
    if view.tpu is None and (state.phase_seconds < SETTLE or is_being_made):
        return wait_for_creation(view)
    # Absent: next zone, or a pause -> idle. Why: the request was lost.
    if view.tpu is None:
        event = Event("create_lost", state.place)
        return Decision(state.enter(Phase.IDLE).pause_before_next(view.run), events=(event,))
    # Gone: preemption, or end of lease at its limit -> removing.
    # Why: it was taken before it was READY; the dead one holds its name.
    if view.is_gone:
        return count_loss(view)
    # On its way: wait 20 minutes, 6 hours in a queue; then the next zone -> removing.
    # Why: others may have capacity.
    return wait_for_creation(view)


def wait_for_creation(view: View) -> Decision:
    """Wait for a TPU that was requested, then remove it and ask elsewhere."""
    state = view.state
    waits = view.tpu is not None and view.tpu.presence is Presence.WAITING
    # Time in the queue doesn't count: `CREATE_TIMEOUT` begins when the request leaves it.
    made_for = min(state.phase_seconds, state.machine_seconds)
    if state.phase_seconds <= QUEUE_TIMEOUT if waits else made_for <= CREATE_TIMEOUT:
        return wait(view)
    fields = {**state.place, "seconds": round(state.phase_seconds)}
    state = state.enter(Phase.REMOVING, is_made=False)
    return Decision(state.pause_before_next(view.run), events=(Event("create_timeout", fields),))


def creation_failed(state: RunState, fault: ServiceFault, run: LaunchedRun) -> Decision:
    """React to a refused or failed creation by its kind."""
    state = replace(state.enter(Phase.REMOVING), in_trouble=fault.is_passing)
    name = {Kind.STOCKOUT: "stockout", Kind.QUOTA: "no_quota"}.get(fault.kind, "create_unclear")
    advice, zone = advise(fault, run, state.zone), state.zone
    refused = Event("creation_refused", {**state.place, "error": fault.message})
    if fault.kind is Kind.PERMISSION and not fault.is_switched_off:
        return end(state, Ending.GAVE_UP, "bad_input", advice, refused)
    if fault.kind in (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND):
        # The type, the image or the zone is not offered there, or nothing is while the API is off.
        zones = run.zones if fault.is_switched_off else (zone,)
        excluded = {**state.excluded_zones, **dict.fromkeys(zones, advice)}
        state = replace(state, excluded_zones=excluded)
        return Decision(state.pause_before_next(run), events=(refused,))
    if fault.kind is Kind.QUOTA:
        count, excluded = state.quota_refusals.get(zone, 0) + 1, dict(state.excluded_zones)
        # A dead TPU's quota comes back late.
        if count >= (QUOTA_REFUSALS if zone in state.ready_zones else 1):
            excluded[zone] = advice
        quota_refusals = {**state.quota_refusals, zone: count}
        state = replace(state, quota_refusals=quota_refusals, excluded_zones=excluded)
    event = Event(name, {**state.place, "error": fault.message})
    # Unclear: it exists already, or the service fails. That is waited out for hours
    # (`decide.SERVICE_TIMEOUT`), and is no failure of the run.
    return Decision(state.pause_before_next(run), events=(event,))


def after_creation(state: RunState, answer: str | ServiceFault, run: LaunchedRun) -> Decision:
    """Return the state after the answer to a creation: an operation's name, or a fault."""
    if isinstance(answer, str):
        return Decision(replace(state, operation=answer, operation_kind="create"))
    if answer.kind in (Kind.EXISTS, Kind.UNAVAILABLE, Kind.INTERNAL):
        # It exists, or may yet appear: the listing decides after `SETTLE` seconds.
        event = Event("create_unclear", {"zone": state.zone, "error": str(answer)})
        return Decision(replace(state, in_trouble=answer.is_passing), events=(event,))
    return creation_failed(state, answer, run)
