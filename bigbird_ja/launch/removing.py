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
    """Return the decision for one poll, by the first condition that is true.

    A zone that does not answer does not delay the others: their machines are deleted, and the
    silent zone's machine is deleted by its name.
    """
    state = view.state
    is_absent = not view.seen.tpus and not view.is_silent
    limit = min(SETTLE, 2 * view.run.poll) if view.is_operation_done else CREATE_TIMEOUT
    is_asked_for = state.operation_kind == "create" and state.operation
    # No machine is found, but its creation is pending: wait, since it may still appear.
    if is_absent and is_asked_for and state.phase_seconds < limit:
        return wait(view, DELETE_POLL)
    # No machine is found, but its deletion was never requested: request the deletion by the full
    # name, since a single answer may be wrong.
    if is_absent and state.attempt and not state.delete_tries:
        return delete(view)
    # No machine was found, but in only one poll: poll again, since a single answer may be wrong.
    if is_absent and state.attempt and view.is_perhaps_absent:
        return wait(view, DELETE_POLL)
    # No machine has the run's name: request the next one, or end the run (next phases: idle or
    # ended).
    if is_absent:
        return finish_removal(view)
    is_timeout = state.phase_seconds > DELETE_TIMEOUT
    # The run is ending, and deletion failed for 30 minutes: end the run, and list the machines, so
    # that the user can check the console (next phase: ended). Without a supervisor, the machines'
    # leases expire, and the machines then delete themselves.
    if is_timeout and state.ending is not None:
        return give_up_deleting(view)
    # The zone has not answered until long after the machine's maximum lifetime, so the cloud or the
    # watcher has deleted the machine: request the next one (next phase: idle).
    if is_timeout and view.is_certainly_over and not view.seen.tpus:
        return Decision(state.enter(Phase.IDLE), events=(_make_not_deleted(state),))
    # The deletion failed: log this, and decide as if it had not been requested, since deletion is
    # retried until no machine has the name.
    if state.operation_kind == "delete" and view.operation_fault is not None:
        event = Event("delete_failed", {"zone": state.zone, "error": str(view.operation_fault)})
        unasked = replace(state, operation="", operation_kind="")
        decision = decide(replace(view, state=unasked))
        return replace(decision, events=(event, *decision.events))
    # A deletion is pending, or all machines are being deleted: wait, since a machine counts as
    # deleted only when it is absent.
    if _is_deletion_under_way(view):
        return wait(view, DELETE_POLL)
    # The pause after the last request has not ended: wait. The pause grows up to two minutes.
    if state.delete_wait > 0:
        return wait(view, state.delete_wait)
    # A machine of this run exists, or may exist in a zone that does not answer: delete it. This
    # requires neither the bucket nor the other zones.
    return delete(view)


def _is_deletion_under_way(view: View) -> bool:
    """Return whether a deletion is in progress, and has not timed out."""
    state = view.state
    if state.phase_seconds > CREATE_TIMEOUT * (state.delete_tries + 1):
        return False
    is_pending = state.operation_kind == "delete" and not view.is_operation_done
    return not view.deletion_targets or (is_pending and not view.seen.silent)


def finish_removal(view: View) -> Decision:
    """Return the decision after the last machine was deleted: IDLE, or ENDED if the run ends."""
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
    """Return the decision to delete all machines that are not being deleted yet, with a backoff."""
    state = view.state
    tries = state.delete_tries + 1
    deletions = tuple(view.deletion_targets or view.deletable)
    pause = min(10.0 * 2 ** min(tries - 1, 8), 120.0)
    state = replace(state, delete_tries=tries, delete_wait=pause, operation="", operation_kind="")
    return replace(wait(replace(view, state=state), DELETE_POLL), deletions=deletions)


def record_deletion(state: RunState, tpu: Tpu, answer: str | ServiceFault) -> Decision:
    """Return the decision after a deletion request.

    The answer to the request is the name of an operation, or a fault.
    """
    if isinstance(answer, str):
        return Decision(replace(state, operation=answer, operation_kind="delete"))
    if answer.kind is Kind.NOT_FOUND:
        # The next poll will not find the machine.
        return Decision(state)
    event = Event("delete_failed", {"zone": tpu.zone, "error": str(answer)})
    return Decision(state, events=(event,))
