"""Decide in phase REMOVING: every machine of the run is deleted, before the next or the end."""

from dataclasses import replace

from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import Tpu
from bigbird_ja.launch.state import CREATE_TIMEOUT, SETTLE, Decision, Event, Phase, RunState, View
from bigbird_ja.launch.transitions import wait

DELETE_TIMEOUT = 1800.0  # seconds before an ending run reports that it could not delete
DELETE_POLL = 10.0  # seconds between polls while a machine is being deleted


def decide(view: View) -> Decision:
    """Decide one poll.

    A zone that does not answer delays no other. Machines in other zones are deleted, and the
    machine of the silent zone is deleted by its name. The comments have the form that `decide.py`
    states.
    """
    state = view.state
    is_absent = not view.seen.tpus and not view.is_silent
    limit = min(SETTLE, 2 * view.run.poll) if view.is_operation_done else CREATE_TIMEOUT
    is_asked_for = state.operation_kind == "create" and state.operation
    # Absent, but its creation is under way: wait. Why: it could still put a machine there.
    if is_absent and is_asked_for and state.phase_seconds < limit:
        return wait(view, DELETE_POLL)
    # Absent, and its deletion was never requested: delete it by its full name.
    # Why: one poll without it proves nothing.
    if is_absent and state.attempt and not state.delete_tries:
        return delete(view)
    # Absent in only one poll: poll again. Why: an answer may be wrong once.
    if is_absent and state.attempt and view.is_perhaps_absent:
        return wait(view, DELETE_POLL)
    # Absent: next TPU, or end -> idle, ended. Why: nothing has its name.
    if is_absent:
        return finish_removal(view)
    is_timeout = state.phase_seconds > DELETE_TIMEOUT
    # An ending run could not delete for 30 minutes: end, and list what may be there -> ended.
    # Why: the user can check the console; its lease ends without us.
    if is_timeout and state.ending is not None:
        return give_up_deleting(view)
    # Its zone has not answered until well after its maximum lifetime: next TPU -> idle.
    # Why: it cannot be there any more.
    if is_timeout and view.is_certainly_over and not view.seen.tpus:
        return Decision(state.enter(Phase.IDLE), events=(_not_deleted(state),))
    # The deletion has failed: report it, and ask again.
    # Why: it is tried again until nothing has its name.
    if state.operation_kind == "delete" and view.operation_fault is not None:
        event = Event("delete_failed", {"zone": state.zone, "error": str(view.operation_fault)})
        unasked = replace(state, operation="", operation_kind="")
        decision = decide(replace(view, state=unasked))
        return replace(decision, events=(event, *decision.events))
    # A deletion is under way, or nothing is left to ask for: wait.
    # Why: nothing counts as deleted before it is absent.
    if _is_deletion_under_way(view):
        return wait(view, DELETE_POLL)
    # The last try was just now: wait.
    # Why: retries back off, to two minutes at most.
    if state.delete_wait > 0:
        return wait(view, state.delete_wait)
    # A machine of this run is there, or may be in a zone that does not answer: delete it, there by
    # its name. Why: a deletion waits neither for the bucket nor for other zones.
    return delete(view)


def _is_deletion_under_way(view: View) -> bool:
    """Return whether a deletion is in progress, and not for too long."""
    state = view.state
    if state.phase_seconds > CREATE_TIMEOUT * (state.delete_tries + 1):
        return False
    is_pending = state.operation_kind == "delete" and not view.is_operation_done
    return not view.deletion_targets or (is_pending and not view.seen.silent)


def finish_removal(view: View) -> Decision:
    """Go to the next TPU, or to the end of the run: no machine is left."""
    state = view.state
    was_there = state.operation_kind == "delete" or state.incarnation
    events = (Event("deleted", state.place),) if was_there else ()
    if state.ending is None:
        return Decision(state.enter(Phase.IDLE), events=events)
    fields = {"ending": state.ending.value, "reason": state.ending_reason, "step": state.best_step}
    event = Event("ended", {**fields, "cost_usd": round(state.cost_usd, 2)})
    return Decision(state.enter(Phase.ENDED), events=(*events, event))


def give_up_deleting(view: View) -> Decision:
    """End, and list the machines that may still be there, and the end of their lease."""
    state, tpus = view.state, view.seen.tpus
    hours = max(0.0, state.machine_limit - state.machine_seconds) / 3600
    lease = f"; at the latest it is deleted at the end of its lease, in {hours:.1f} hours"
    if tpus:
        where = ", ".join(sorted({tpu.zone for tpu in tpus}))
        problem = f"STILL THERE AND BILLED: {view.run.name} in {where} could not be deleted"
    else:
        problem = f"{state.zone} does not answer, so {view.run.name} may be there and billed"
    message = (
        f"{state.ending_message}; {problem}: run `bigbird-ja down`, or look on the console"
        f"{lease if hours else ''}"
    )
    ended = replace(state.enter(Phase.ENDED), ending_reason="io_error", ending_message=message)
    return Decision(ended, events=(_not_deleted(state),))


def _not_deleted(state: RunState) -> Event:
    return Event("not_deleted", {"zone": state.zone, "seconds": round(state.phase_seconds)})


def delete(view: View) -> Decision:
    """Request the deletion of all machines that are not being deleted, with a backoff."""
    state = view.state
    tries = state.delete_tries + 1
    deletions = tuple(view.deletion_targets or view.deletable)
    pause = min(10.0 * 2 ** min(tries - 1, 8), 120.0)
    state = replace(state, delete_tries=tries, delete_wait=pause, operation="", operation_kind="")
    return replace(wait(replace(view, state=state), DELETE_POLL), deletions=deletions)


def after_deletion(state: RunState, tpu: Tpu, answer: str | ServiceFault) -> Decision:
    """Return the state after the answer to a deletion: an operation's name, or a fault."""
    if isinstance(answer, str):
        return Decision(replace(state, operation=answer, operation_kind="delete"))
    if answer.kind is Kind.NOT_FOUND:
        # The next poll shows that the machine is gone.
        return Decision(state)
    event = Event("delete_failed", {"zone": tpu.zone, "error": str(answer)})
    return Decision(state, events=(event,))
