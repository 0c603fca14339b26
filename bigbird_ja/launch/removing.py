"""Rules of phase REMOVING: all machines of the run are deleted."""

from dataclasses import replace

from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import Tpu
from bigbird_ja.launch.state import CREATE_TIMEOUT, SETTLE, Decision, Event, Phase, RunState, View
from bigbird_ja.launch.transitions import wait

# Seconds after which an ending run reports that it could not delete a machine.
DELETE_TIMEOUT = 1800.0
# Seconds between polls during a deletion.
DELETE_POLL = 10.0


def decide(view: View) -> Decision:
    """Return the decision for one poll.

    The first condition in this function that is true determines the decision.

    A zone that does not answer does not delay deletions in other zones. In the silent zone, the
    deletion of the run's machine is requested by the machine's name.
    """
    state = view.state
    is_absent = not view.seen.tpus and not view.is_silent
    limit = min(SETTLE, 2 * view.run.poll) if view.is_operation_done else CREATE_TIMEOUT
    is_asked_for = state.operation_kind == "create" and state.operation
    # No machine is found, but a creation is pending: wait, since the machine may still appear.
    if is_absent and is_asked_for and state.phase_seconds < limit:
        return wait(view, DELETE_POLL)
    # No machine is found, and no deletion was requested yet: request the deletion of the machine
    # that was requested last, by its name, since a single answer may be wrong.
    if is_absent and state.attempt and not state.delete_tries:
        return delete(view)
    # Only one poll has found no machine: poll again, since a single answer may be wrong.
    if is_absent and state.attempt and view.is_perhaps_absent:
        return wait(view, DELETE_POLL)
    # No machine of the run exists: request the next machine, or end the run (next phases: idle or
    # ended).
    if is_absent:
        return finish_removal(view)
    is_timeout = state.phase_seconds > DELETE_TIMEOUT
    # The run is ending, and deletion failed for 30 minutes: end the run, and tell the user to check
    # the console (next phase: ended). Without a supervisor, the machines' leases expire, and the
    # machines then delete themselves.
    if is_timeout and state.ending is not None:
        return give_up_deleting(view)
    # The zone does not answer, and the machine's maximum lifetime ended long ago. So the cloud or
    # the watcher must have deleted the machine: request the next machine (next phase: idle).
    if is_timeout and view.is_certainly_over and not view.seen.tpus:
        return Decision(state.enter(Phase.IDLE), events=(_make_not_deleted(state),))
    # The deletion failed: log the failure, and decide as if no deletion had been requested, since
    # deletion is retried until no machine of the run exists.
    if state.operation_kind == "delete" and view.operation_fault is not None:
        event = Event("delete_failed", {"zone": state.zone, "error": str(view.operation_fault)})
        unasked = replace(state, operation="", operation_kind="")
        decision = decide(replace(view, state=unasked))
        return replace(decision, events=(event, *decision.events))
    # A deletion is pending, or all machines are being deleted: wait, since a machine counts as
    # deleted only when it is absent.
    if _is_deletion_under_way(view):
        return wait(view, DELETE_POLL)
    # The pause after the last deletion request has not ended: wait. The pause grows with each
    # request, up to two minutes.
    if state.delete_wait > 0:
        return wait(view, state.delete_wait)
    # A machine of this run exists, or may exist in a zone that does not answer: delete it. The
    # deletion requires neither the bucket nor an answer of the other zones.
    return delete(view)


def _is_deletion_under_way(view: View) -> bool:
    """Return whether a deletion is in progress, and has not timed out."""
    state = view.state
    if state.phase_seconds > CREATE_TIMEOUT * (state.delete_tries + 1):
        return False
    is_pending = state.operation_kind == "delete" and not view.is_operation_done
    return not view.deletion_targets or (is_pending and not view.seen.silent)


def finish_removal(view: View) -> Decision:
    """Return the decision after all machines were deleted: enter IDLE, or ENDED if the run ends."""
    state = view.state
    was_there = state.operation_kind == "delete" or state.incarnation
    events = (Event("deleted", state.place),) if was_there else ()
    if state.ending is None:
        return Decision(state.enter(Phase.IDLE), events=events)
    fields = {"ending": state.ending.value, "reason": state.ending_reason, "step": state.best_step}
    event = Event("ended", {**fields, "cost_usd": round(state.cost_usd, 2)})
    return Decision(state.enter(Phase.ENDED), events=(*events, event))


def give_up_deleting(view: View) -> Decision:
    """Return the decision to end the run, with a message about machines that may still exist."""
    state, tpus = view.state, view.seen.tpus
    hours = max(0.0, state.machine_limit - state.machine_seconds) / 3600
    lease = f"; it is deleted at the end of its lease, in {hours:.1f} hours, at the latest"
    if tpus:
        where = ", ".join(sorted({tpu.zone for tpu in tpus}))
        problem = f"STILL BILLED: {view.run.name} in {where} could not be deleted"
    else:
        problem = f"{state.zone} does not answer, so {view.run.name} may exist and be billed"
    message = (
        f"{state.ending_message}; {problem}: run `bigbird-ja down`, or check the console"
        f"{lease if hours else ''}"
    )
    ended = replace(state.enter(Phase.ENDED), ending_reason="io_error", ending_message=message)
    return Decision(ended, events=(_make_not_deleted(state),))


def _make_not_deleted(state: RunState) -> Event:
    return Event("not_deleted", {"zone": state.zone, "seconds": round(state.phase_seconds)})


def delete(view: View) -> Decision:
    """Return the decision to delete all machines that are not being deleted yet.

    The pause until the next deletion request doubles with each request, up to two minutes.
    """
    state = view.state
    tries = state.delete_tries + 1
    deletions = tuple(view.deletion_targets or view.deletable)
    pause = min(10.0 * 2 ** min(tries - 1, 8), 120.0)
    state = replace(state, delete_tries=tries, delete_wait=pause, operation="", operation_kind="")
    return replace(wait(replace(view, state=state), DELETE_POLL), deletions=deletions)


def record_deletion(state: RunState, tpu: Tpu, answer: str | ServiceFault) -> Decision:
    """Return the decision after a deletion request.

    `answer` is the name of the operation that the service started, or the fault.
    """
    if isinstance(answer, str):
        return Decision(replace(state, operation=answer, operation_kind="delete"))
    if answer.kind is Kind.NOT_FOUND:
        # The machine is already absent, so the next poll will not find it.
        return Decision(state)
    event = Event("delete_failed", {"zone": tpu.zone, "error": str(answer)})
    return Decision(state, events=(event,))
