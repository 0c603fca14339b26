"""Decides what to do next: plain functions of (state, observation, record of the run).

    IDLE ──create──▶ CREATING ──READY──▶ RUNNING
      ▲                 │ no capacity, stuck   │ preempted, failed, lease over, ending
      └──────absent─────┴──────REMOVING◀───────┘            REMOVING ──ending──▶ ENDED

No clock, no randomness, no input or output: `supervise.py` observes, saves the decision, then acts.
In each phase the first `if` that holds decides. The comment above it has a fixed form, "what is
observed: what is done -> the phases that may follow. Why: the reason".
Before the phases come the ends that do not depend on them (`check_endings`).

- The cost of a machine is limited and stored before it is requested: `machine_limit` is the most
  that it may live, and the cloud or its own watcher deletes it then, whatever has become of us.
- A machine counts as absent after two empty listings in which its name was not found either.
"""

from dataclasses import replace

from bigbird_ja.launch import LaunchedRun, Tpu, outcomes
from bigbird_ja.launch.account import limit_reached, with_progress
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.state import (
    CREATE_TIMEOUT,
    SETTLE,
    Decision,
    Ending,
    Event,
    Observation,
    Phase,
    RunState,
    View,
)

DELETE_PATIENCE = 1800.0  # before an ending run reports that it could not delete
SERVICE_PATIENCE = 24 * 3600.0  # with a service or a bucket that only fails


def decide(state: RunState, seen: Observation, run: LaunchedRun) -> Decision:
    """Decide one turn: what to do now, and how long to pause after it.

    Args:
        state: with this look's time and money in it (`account.accrue`).
        seen: the look.
        run: the record of the run.
    """
    ending = check_endings(state, seen, run)
    view = View(ending.state if ending else state, seen, run)
    events = ending.events if ending else ()
    if view.state.phase is Phase.RUNNING:
        view = with_progress(view)
    decision = PHASES[view.state.phase](view)
    return replace(decision, events=(*events, *decision.events))


def check_endings(state: RunState, seen: Observation, run: LaunchedRun) -> Decision | None:
    """End the run, whatever its phase; None where it continues."""
    if state.ending is not None or state.phase is Phase.ENDED:
        return None
    end = outcomes.end_run
    step = seen.checkpoint_step
    if step is not None and step >= run.target_step:
        state = replace(state, best_step=max(state.best_step, step))
        return end(state, Ending.FINISHED, "finished", f"finished at step {step:,}")
    if seen.stop:
        return end(state, Ending.INTERRUPTED, "interrupted", "interrupted; the TPU is deleted")
    limit = limit_reached(state, run)
    if limit:
        text = f"{limit}: run again with more to continue"
        return end(state, Ending.BUDGET, "interrupted", text)
    if state.trouble_seconds > SERVICE_PATIENCE:
        why = [f"{zone}: {fault}" for zone, fault in seen.unlisted.items()]
        why += [] if seen.bucket_seen else ["the bucket fails"]
        hours = SERVICE_PATIENCE / 3600
        text = f"nothing worked for {hours:g} hours ({'; '.join(why) or 'the service refuses'})"
        return end(state, Ending.GAVE_UP, "io_error", f"{text}: run again later")
    return None


# --- the phases ------------------------------------------------------------------------------


def idle(view: View) -> Decision:
    """Decide while no TPU is there and one is wanted."""
    state, seen, run = view.state, view.seen, view.run
    # A machine of this run is there or on its way: adopt it, delete all but one -> creating.
    # Why: an earlier supervisor requested it, or a reply was lost.
    if view.alive:
        return outcomes.adopt(view)
    # A dead machine of this run is listed: remove it -> removing.
    # Why: it holds its name and quota.
    if seen.tpus:
        return outcomes.adopt_or_remove(view)
    # Another's machine has the run's name in one of its zones: end, with its owner's words
    # -> removing. Why: it is never touched, and two of one name would be mixed up.
    if seen.taken:
        return outcomes.name_taken(view)
    # A machine of this run is there, and its zone's listing lacks it: wait.
    # Why: it is listed again soon, and nothing is rented twice.
    if any(fault.kind is Kind.EXISTS for fault in seen.unlisted.values()):
        return outcomes.wait(view)
    # Every zone refuses to be listed, before anything was rented: end, with advice -> ended.
    # Why: a permission or a name is wrong, which only a person mends; later ones are waited out.
    if _is_refused_everywhere(view):
        return outcomes.refused(view)
    # The back-off is not over: wait. Why: capacity does not come faster by asking.
    if state.backoff_seconds > 0:
        return outcomes.wait(view, state.backoff_seconds)
    # Lock, bucket or newest checkpoint cannot be seen: wait.
    # Why: the run may have finished, or be another supervisor's, and nothing is rented blindly.
    if not seen.bucket_seen or seen.checkpoint_step is None:
        return outcomes.wait(view)
    zones = [zone for zone in run.zones if zone not in state.struck_zones]
    # Every zone is struck off: end, with advice -> removing. Why: none of them has quota.
    if not zones:
        why = "; ".join(dict.fromkeys(state.struck_zones.values()))
        return outcomes.end_run(state, Ending.GAVE_UP, "bad_input", why)
    zones = [zone for zone in zones if zone not in seen.unlisted]
    # None of the other zones answers: wait. Why: a TPU of this run may be there, unlisted.
    if not zones:
        return outcomes.wait(view)
    # No machine of this run is there: create, in the next zone that answers -> creating.
    # Why: a machine is wanted; its limit is part of what is stored before.
    return outcomes.create(view, zones)


def creating(view: View) -> Decision:
    """Decide after a TPU was requested."""
    state = view.state
    # Its zone does not answer: wait; long after the end of its life, lease over -> removing.
    # Why: it may be there, and nothing is rented twice; by then cloud or watcher have deleted it.
    if view.is_unlisted:
        return _out_of_sight(view)
    # It is absent, and one of ours is in another zone: adopt that one -> creating, removing.
    # Why: it came up elsewhere than this state knows.
    if view.tpu is None and view.seen.tpus:
        return outcomes.adopt_or_remove(view)
    # Absent in one look alone: look again. Why: listings blink.
    if view.is_perhaps_absent and view.is_operation_done:
        return outcomes.wait(view)
    # READY: watch it -> running.
    # Why: the machine is up; whether it trains, its steps will show.
    if view.is_ready:
        return outcomes.became_ready(view)
    fault = view.creation_fault
    # The creation has failed: remove it, then next zone, strike the zone off, or end -> removing.
    # Why: stock-out, quota, refusal and trouble of the service need different answers.
    if fault is not None:
        return outcomes.creation_failed(state, fault, view.run)
    is_made = view.is_operation_done and state.operation_kind == "create"
    # Absent, although its creation is over and has not failed: preemption -> removing.
    # Why: it was there, and was taken away before it was seen.
    if view.tpu is None and is_made:
        return outcomes.preempted(state, view.service_state)
    is_being_made = view.seen.operation is not None and not view.seen.operation.done
    # Absent, and requested lately or still being made: wait; in the end the next zone -> removing.
    # Why: a TPU that was requested may appear late.
    if view.tpu is None and (state.phase_seconds < SETTLE or is_being_made):
        return outcomes.wait_for_creation(view)
    # Absent: next zone, or a pause -> idle. Why: the request was lost.
    if view.tpu is None:
        return outcomes.request_lost(view)
    # Gone: preemption, or end of lease at its limit -> removing.
    # Why: it was taken away before it was READY; the dead one holds its name.
    if view.is_gone:
        return outcomes.gone(view)
    # On its way: wait 20 minutes, 6 hours in a queue; then the next zone -> removing.
    # Why: others may have capacity.
    return outcomes.wait_for_creation(view)


def running(view: View) -> Decision:
    """Decide while a TPU was READY when last seen."""
    state = view.state
    # Its zone does not answer: wait; long after the end of its life, lease over -> removing.
    # Why: it may be there, and nothing is rented twice; by then cloud or watcher have deleted it.
    if view.is_unlisted:
        return _out_of_sight(view)
    # Another TPU of its name: adopt it -> creating, removing.
    # Why: the creation time distinguishes two machines of one name.
    if view.is_another:
        return outcomes.adopt_or_remove(view)
    # Absent in one look alone: look again. Why: listings blink.
    if view.is_perhaps_absent:
        return outcomes.wait(view)
    # Gone, and it reported how training ended: as reported -> removing.
    # Why: it may have deleted itself, and only the report can show a failure.
    if view.is_gone and view.report is not None:
        return outcomes.training_ended(view)
    # Gone: preemption, or end of lease at its limit -> removing.
    # Why: a state that is neither READY nor on its way there is dead, by any name.
    if view.is_gone:
        return outcomes.gone(view)
    # In repair or restarting for more than 20 minutes: preemption -> removing.
    # Why: the service does not bring it back.
    if not view.is_ready and state.phase_seconds > CREATE_TIMEOUT:
        return outcomes.preempted(state, view.service_state)
    # In repair or restarting: wait. Why: the service may bring it back.
    if not view.is_ready:
        return outcomes.watch_on(view)
    # Its life is over: lease over -> removing. Why: it deletes itself; we are here and do it now.
    if view.is_life_over:
        return outcomes.lease_over(state, "READY")
    # Training has ended, and not at the last step: preemption, end of lease, or failure, as its
    # reason demands -> removing. Why: the same reason three times in a row, or what would come
    # again at once, ends the run.
    if view.has_training_ended:
        return outcomes.training_ended(view)
    # READY, and no new step for 15 minutes (45 until the first): failure, stalled or never
    # started -> removing. Why: READY only means that the VM is up, and one that hangs is billed.
    if state.quiet_seconds > state.patience:
        return outcomes.stalled(view)
    # READY: watch on, delete all but one.
    # Why: health is a new global step; a newer time stamp alone is none.
    return outcomes.watch_on(view)


def removing(view: View) -> Decision:
    """Decide while every machine of the run must go.

    A zone that does not answer delays no other: machines that others list are deleted, and that of
    the silent zone is deleted by its name.
    """
    state = view.state
    is_absent = not view.seen.tpus and not view.is_unlisted
    # Absent, but its creation is under way: wait. Why: it could still put a machine there.
    if is_absent and view.is_creation_under_way:
        return outcomes.wait(view, outcomes.LOOK_AGAIN)
    # Absent, and its deletion was never requested: delete it by its full name.
    # Why: one empty listing proves nothing.
    if is_absent and state.attempt and not state.delete_tries:
        return outcomes.delete(view)
    # Absent in one look alone: look again. Why: listings blink.
    if is_absent and state.attempt and view.is_perhaps_absent:
        return outcomes.wait(view, outcomes.LOOK_AGAIN)
    # Absent: next TPU, or end -> idle, ended. Why: neither its name nor a listing shows anything.
    if is_absent:
        return outcomes.absent(view)
    is_out_of_patience = state.phase_seconds > DELETE_PATIENCE
    # An ending run could not delete for 30 minutes: end, and list what may be there -> ended.
    # Why: a person can look on the console; its lease ends without us.
    if is_out_of_patience and state.ending is not None:
        return outcomes.give_up_deleting(view)
    # Its zone has not answered until well after the end of its life: next TPU -> idle.
    # Why: it cannot be there any more.
    if is_out_of_patience and view.is_certainly_over and not view.seen.tpus:
        return outcomes.forget(view)
    # The deletion has failed: report it, and ask again.
    # Why: it is tried again until a listing shows nothing.
    if state.operation_kind == "delete" and view.operation_fault is not None:
        return _deletion_failed(view)
    # A deletion is under way, or nothing is left to ask for: wait.
    # Why: nothing counts as deleted before it is absent.
    if _is_deletion_under_way(view):
        return outcomes.wait(view, outcomes.LOOK_AGAIN)
    # The last try was just now: wait.
    # Why: each try waits longer than the one before, two minutes at most.
    if state.delete_wait > 0:
        return outcomes.wait(view, state.delete_wait)
    # A machine of this run is there, or may be in a zone that does not answer: delete it, there by
    # its name. Why: a zone that answers waits neither for the bucket nor for other zones.
    return outcomes.delete(view)


PHASES = {
    Phase.IDLE: idle,
    Phase.CREATING: creating,
    Phase.RUNNING: running,
    Phase.REMOVING: removing,
    Phase.ENDED: lambda view: Decision(view.state),  # the same command continues it
}


# --- conditions ------------------------------------------------------------------------------


def _out_of_sight(view: View) -> Decision:
    """Wait for a zone that does not answer, until its TPU cannot be there any more."""
    if view.is_certainly_over:
        return outcomes.lease_over(view.state, "not listed")
    return outcomes.wait(view)


def _is_refused_everywhere(view: View) -> bool:
    """Tell whether no zone may be listed, and nothing was ever requested."""
    refused, unlisted = (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND), view.seen.unlisted
    return not view.state.attempt and all(
        zone in unlisted and unlisted[zone].kind in refused for zone in view.run.zones
    )


def _is_deletion_under_way(view: View) -> bool:
    """Tell whether a deletion is in progress, and not for too long."""
    state = view.state
    if state.phase_seconds > CREATE_TIMEOUT * (state.delete_tries + 1):
        return False
    is_pending = state.operation_kind == "delete" and not view.is_operation_done
    return not view.deletion_targets or (is_pending and not view.seen.unlisted)


def _deletion_failed(view: View) -> Decision:
    """Decide as if no deletion had been requested."""
    event = Event("delete_failed", {"zone": view.state.zone, "error": str(view.operation_fault)})
    state = replace(view.state, operation="", operation_kind="")
    decision = removing(replace(view, state=state))
    return replace(decision, events=(event, *decision.events))


def after_creation(state: RunState, answer: str | ServiceFault, run: LaunchedRun) -> Decision:
    """Change the state by the answer to a creation: the operation's name, or why there is none."""
    if isinstance(answer, str):
        return Decision(replace(state, operation=answer, operation_kind="create"))
    if answer.kind in (Kind.EXISTS, Kind.UNAVAILABLE, Kind.INTERNAL):
        # It exists, or may yet appear: the listing decides after `SETTLE` seconds.
        event = Event("create_unclear", {"zone": state.zone, "error": str(answer)})
        return Decision(replace(state, in_trouble=answer.is_passing), events=(event,))
    return outcomes.creation_failed(state, answer, run)


def after_deletion(state: RunState, tpu: Tpu, answer: str | ServiceFault) -> Decision:
    """Change the state by the answer to the deletion of a machine."""
    if isinstance(answer, str):
        return Decision(replace(state, operation=answer, operation_kind="delete"))
    if answer.kind is Kind.NOT_FOUND:
        return Decision(state)  # the next listing shows that it is gone
    event = Event("delete_failed", {"zone": tpu.zone, "error": str(answer)})
    return Decision(state, events=(event,))
