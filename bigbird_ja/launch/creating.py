"""Rules of phase CREATING: a TPU is requested, and has not been READY yet."""

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

# Maximum seconds in the queue of one zone.
QUEUE_TIMEOUT = 6 * 3600.0
# Number of quota refusals after which a zone that has provided a TPU is excluded.
QUOTA_REFUSALS = 3


def decide(view: View) -> Decision:
    """Return the decision for one poll, by the first condition that is true."""
    state = view.state
    # The zone does not answer: wait, since the machine may exist, and two must not be rented. Long
    # after the machine's maximum lifetime, assume that the cloud or the watcher has deleted the
    # machine (next phase: removing).
    if view.is_silent:
        return wait_for_answer(view)
    # The machine is absent, but a machine of this run is in another zone, so the stored state is
    # too old: adopt that machine (next phases: creating or removing).
    if view.tpu is None and view.seen.tpus:
        return adopt_or_remove(view)
    # The machine was absent in only one poll: poll again, since a single answer may be wrong.
    if view.is_perhaps_absent and view.is_operation_done:
        return wait(view)
    # The machine is READY, so it has booted: watch its steps (next phase: running).
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
    # The run's record has changed since the request: delete the machine, since it was requested
    # with other parameters, and does not train yet (next phase: removing).
    if state.machine is not None and not state.machine.is_as(view.run):
        return Decision(state.enter(Phase.REMOVING, is_made=False))
    fault = view.operation_fault or (view.tpu.fault if view.tpu else None)
    if fault is not None and fault.kind is Kind.EXISTS and view.tpu is not None:
        fault = None
    # The creation failed: delete its remains (next phase: removing). The kind of the fault decides
    # whether the run then uses the next zone, excludes this zone, or ends.
    if fault is not None:
        return handle_refusal(state, fault, view.run)
    is_made = view.is_operation_done and state.operation_kind == "create"
    # The creation succeeded, but the machine is absent: it was preempted between two polls (next
    # phase: removing).
    if view.tpu is None and is_made:
        return count_preemption(state, view.service_state)
    is_being_made = view.seen.operation is not None and not view.seen.operation.done
    # The machine is absent, but was requested recently or is still being created: wait, since it
    # may appear late. After a timeout, use the next zone (next phase: removing).
    if view.tpu is None and (state.phase_seconds < SETTLE or is_being_made):
        return wait_for_creation(view)
    # The machine is absent, so the request was lost: use the next zone, perhaps after a pause (next
    # phase: idle).
    if view.tpu is None:
        event = Event("create_lost", state.place)
        return Decision(state.enter(Phase.IDLE).pause_before_next(view.run), events=(event,))
    # The machine was lost before it was READY: count a preemption, or the end of its lease if its
    # maximum lifetime is reached (next phase: removing).
    if view.is_gone:
        return count_loss(view)
    # The machine is being created: wait 20 minutes, or 6 hours in a queue. Then use the next zone,
    # which may have capacity (next phase: removing).
    return wait_for_creation(view)


def wait_for_creation(view: View) -> Decision:
    """Return the decision to wait for a requested TPU, or to remove the TPU after a timeout."""
    state = view.state
    waits = view.tpu is not None and view.tpu.presence is Presence.WAITING
    # Time in the queue does not count: `CREATE_TIMEOUT` starts when the request leaves the queue.
    made_for = min(state.phase_seconds, state.machine_seconds)
    if state.phase_seconds <= QUEUE_TIMEOUT if waits else made_for <= CREATE_TIMEOUT:
        return wait(view)
    fields = {**state.place, "seconds": round(state.phase_seconds)}
    state = state.enter(Phase.REMOVING, is_made=False)
    return Decision(state.pause_before_next(view.run), events=(Event("create_timeout", fields),))


def handle_refusal(state: RunState, fault: ServiceFault, run: LaunchedRun) -> Decision:
    """Return the decision after a refused or failed creation, by the kind of its fault."""
    state = replace(state.enter(Phase.REMOVING), in_trouble=fault.is_passing)
    name = {Kind.STOCKOUT: "stockout", Kind.QUOTA: "no_quota"}.get(fault.kind, "create_unclear")
    advice, zone = advise(fault, run, state.zone), state.zone
    refused = Event("creation_refused", {**state.place, "error": fault.message})
    if fault.kind is Kind.PERMISSION and not fault.is_switched_off:
        return end(state, Ending.GAVE_UP, "bad_input", advice, refused)
    if fault.kind in (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND):
        # The zone does not offer the type or the image. If the API is off, no zone does.
        zones = run.zones if fault.is_switched_off else (zone,)
        excluded = {**state.excluded_zones, **dict.fromkeys(zones, advice)}
        state = replace(state, excluded_zones=excluded)
        return Decision(state.pause_before_next(run), events=(refused,))
    if fault.kind is Kind.QUOTA:
        count, excluded = state.quota_refusals.get(zone, 0) + 1, dict(state.excluded_zones)
        # The quota of a deleted TPU is released with a delay, so a refusal may be temporary.
        if count >= (QUOTA_REFUSALS if zone in state.ready_zones else 1):
            excluded[zone] = advice
        quota_refusals = {**state.quota_refusals, zone: count}
        state = replace(state, quota_refusals=quota_refusals, excluded_zones=excluded)
    event = Event(name, {**state.place, "error": fault.message})
    # After a stock-out, lack of quota, a name in use or a failure of the service, the run requests
    # again, perhaps after a pause. `decide.SERVICE_TIMEOUT` limits failures of the service. None of
    # these faults counts as a failure of the run.
    return Decision(state.pause_before_next(run), events=(event,))


def record_creation(state: RunState, answer: str | ServiceFault, run: LaunchedRun) -> Decision:
    """Return the decision after a creation request.

    The answer to the request is the name of an operation, or a fault.
    """
    if isinstance(answer, str):
        return Decision(replace(state, operation=answer, operation_kind="create"))
    if answer.kind in (Kind.EXISTS, Kind.UNAVAILABLE, Kind.INTERNAL):
        # The machine may exist or appear. Polls during `SETTLE` seconds will show it.
        event = Event("create_unclear", {"zone": state.zone, "error": str(answer)})
        return Decision(replace(state, in_trouble=answer.is_passing), events=(event,))
    return handle_refusal(state, answer, run)
