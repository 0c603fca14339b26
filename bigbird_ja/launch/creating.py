"""Rules of phase CREATING: a TPU was requested, but has not been READY yet."""

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
    """Return the decision for one poll.

    The first condition in this function that is true determines the decision.
    """
    state = view.state
    # The zone does not answer: wait, since the machine may exist, and a second one must not be
    # rented. Stop waiting long after the machine's maximum lifetime, since the cloud or the watcher
    # must have deleted the machine by then (next phase: removing).
    if view.is_silent:
        return wait_for_answer(view)
    # The zone in the stored state contains no machine of this run, but another zone does. So the
    # state is outdated: adopt the machine in the other zone (next phases: creating or removing).
    if view.tpu is None and view.seen.tpus:
        return adopt_or_remove(view)
    # The creation is complete, but one poll did not find the machine: poll again, since a single
    # answer may be wrong.
    if view.is_perhaps_absent and view.is_operation_done:
        return wait(view)
    # The machine is READY: watch the steps of its trainer from now on (next phase: running).
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
    # The run's record has changed since the machine was requested: delete the machine, since it was
    # requested with the old record, and does not train yet (next phase: removing).
    if state.machine is not None and not state.machine.is_as(view.run):
        return Decision(state.enter(Phase.REMOVING, is_made=False))
    fault = view.operation_fault or (view.tpu.fault if view.tpu else None)
    if fault is not None and fault.kind is Kind.EXISTS and view.tpu is not None:
        fault = None
    # The creation failed: delete any machine that it left (next phase: removing). The kind of the
    # fault determines whether the run tries the next zone, excludes this zone, or ends.
    if fault is not None:
        return handle_refusal(state, fault, view.run)
    is_made = view.is_operation_done and state.operation_kind == "create"
    # The creation succeeded, but the machine is absent, so it was preempted between two polls:
    # count a preemption (next phase: removing).
    if view.tpu is None and is_made:
        return count_preemption(state, view.service_state)
    is_being_made = view.seen.operation is not None and not view.seen.operation.done
    # The machine is absent, but was requested recently or is still being created: wait, since it
    # may appear late. After a timeout, use the next zone (next phase: removing).
    if view.tpu is None and (state.phase_seconds < SETTLE or is_being_made):
        return wait_for_creation(view)
    # The machine has not appeared in time, so the request was lost: use the next zone, perhaps
    # after a pause (next phase: idle).
    if view.tpu is None:
        event = Event("create_lost", state.place)
        return Decision(state.enter(Phase.IDLE).pause_before_next(view.run), events=(event,))
    # The machine was lost before it was READY: count a preemption, or the end of its lease if its
    # maximum lifetime is reached (next phase: removing).
    if view.is_gone:
        return count_loss(view)
    # The machine is being created: wait for up to 20 minutes, or up to 6 hours in a queue. After
    # this timeout, use the next zone, which may have capacity (next phase: removing).
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
    """Return the decision after a refused or failed creation, depending on the kind of fault."""
    state = replace(state.enter(Phase.REMOVING), in_trouble=fault.is_passing)
    name = {Kind.STOCKOUT: "stockout", Kind.QUOTA: "no_quota"}.get(fault.kind, "create_unclear")
    advice, zone = advise(fault, run, state.zone), state.zone
    refused = Event("creation_refused", {**state.place, "error": fault.message})
    if fault.kind is Kind.PERMISSION and not fault.is_switched_off:
        return end(state, Ending.GAVE_UP, "bad_input", advice, refused)
    if fault.kind in (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND):
        # Exclude the zone, since it does not offer the TPU type or the image. If the API is off,
        # exclude all zones.
        zones = run.zones if fault.is_switched_off else (zone,)
        excluded = {**state.excluded_zones, **dict.fromkeys(zones, advice)}
        state = replace(state, excluded_zones=excluded)
        return Decision(state.pause_before_next(run), events=(refused,))
    if fault.kind is Kind.QUOTA:
        count, excluded = state.quota_refusals.get(zone, 0) + 1, dict(state.excluded_zones)
        # A zone that has provided a TPU is excluded only after several refusals. There a refusal
        # may be temporary, since the quota of a deleted TPU is released with a delay.
        if count >= (QUOTA_REFUSALS if zone in state.ready_zones else 1):
            excluded[zone] = advice
        quota_refusals = {**state.quota_refusals, zone: count}
        state = replace(state, quota_refusals=quota_refusals, excluded_zones=excluded)
    event = Event(name, {**state.place, "error": fault.message})
    # After a stock-out, lack of quota, a name in use or a failure of the service, the run requests
    # another machine, perhaps after a pause. `decide.SERVICE_TIMEOUT` limits the time of failures
    # of the service. None of these faults counts as a failure of training.
    return Decision(state.pause_before_next(run), events=(event,))


def record_creation(state: RunState, answer: str | ServiceFault, run: LaunchedRun) -> Decision:
    """Return the decision after a creation request.

    `answer` is the name of the operation that the service started, or the fault.
    """
    if isinstance(answer, str):
        return Decision(replace(state, operation=answer, operation_kind="create"))
    if answer.kind in (Kind.EXISTS, Kind.UNAVAILABLE, Kind.INTERNAL):
        # The machine may exist now, or appear later. Polls in the next `SETTLE` seconds find it.
        event = Event("create_unclear", {"zone": state.zone, "error": str(answer)})
        return Decision(replace(state, in_trouble=answer.is_passing), events=(event,))
    return handle_refusal(state, answer, run)
