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

import math
from dataclasses import replace

from bigbird_ja.launch import LaunchedRun, Machine, Presence, Tpu
from bigbird_ja.launch.account import limit_reached, longest_life, with_progress
from bigbird_ja.launch.advice import advise
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.state import (
    CREATE_TIMEOUT,
    SETTLE,
    SILENT_EXIT,
    Decision,
    Ending,
    Event,
    Observation,
    Phase,
    RunState,
    View,
)

# Seconds, and counts: the same for every run.
DELETE_PATIENCE = 1800.0  # before an ending run reports that it could not delete
SERVICE_PATIENCE = 24 * 3600.0  # with a service or a bucket that only fails
QUEUE_TIMEOUT = 6 * 3600.0  # a queued resource waits longer before another zone is asked
BACKOFF_FIRST, BACKOFF_MOST = 30.0, 900.0  # after a round over all zones without a TPU
SAME_FAILURES = 3  # in a row end the run
HEALTHY = 3600.0  # training this long makes the next failure a first one
QUOTA_STRIKES = 3  # in zones that have served us
LOOK_AGAIN = 10.0  # between two polls while a machine is being deleted
_REFUSALS = (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND)


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
    step = seen.checkpoint_step
    if step is not None and step >= run.target_step:
        state = replace(state, best_step=max(state.best_step, step))
        return end_run(state, Ending.FINISHED, "finished", f"finished at step {step:,}")
    if seen.stop:
        return end_run(state, Ending.INTERRUPTED, "interrupted", "interrupted; the TPU is deleted")
    limit = limit_reached(state, run)
    if limit:
        text = f"{limit}: run again with more to continue"
        return end_run(state, Ending.BUDGET, "interrupted", text)
    if state.trouble_seconds > SERVICE_PATIENCE:
        why = [f"{zone}: {fault}" for zone, fault in seen.unlisted.items()]
        why += [] if seen.bucket_seen else ["the bucket fails"]
        hours = SERVICE_PATIENCE / 3600
        text = f"nothing worked for {hours:g} hours ({'; '.join(why) or 'the service refuses'})"
        return end_run(state, Ending.GAVE_UP, "io_error", f"{text}: run again later")
    return None


# --- the phases ------------------------------------------------------------------------------


def idle(view: View) -> Decision:
    """Decide while no TPU is there and one is wanted."""
    state, seen, run = view.state, view.seen, view.run
    # Machines of this run are listed: adopt the one that was requested last, delete the others
    # -> creating, removing. Why: its reply was lost, or its supervisor; dead ones hold quota.
    if seen.tpus:
        return adopt_or_remove(view)
    # Another's machine has the run's name in one of its zones: end, with its owner's words
    # -> removing. Why: it is never touched, and two of one name would be mixed up.
    if seen.taken:
        tpu = seen.taken[0]
        text = f"{tpu.resource} is not of this run ({tpu.owner}): choose another --name"
        return end_run(state, Ending.GAVE_UP, "bad_input", text)
    # A machine of this run is there, and its zone's listing lacks it: wait.
    # Why: it is listed again soon, and nothing is rented twice.
    if any(fault.kind is Kind.EXISTS for fault in seen.unlisted.values()):
        return wait(view)
    faults = [seen.unlisted.get(zone) for zone in run.zones]
    # Every zone refuses to be listed, before anything was rented: end, with advice -> ended.
    # Why: a permission or a name is wrong, which only a person mends; later ones are waited out.
    if not state.attempt and all(fault and fault.kind in _REFUSALS for fault in faults):
        text = advise(seen.unlisted[run.zones[0]], run, run.zones[0])
        ended = end_run(state, Ending.GAVE_UP, "bad_input", text)
        return Decision(enter(ended.state, Phase.ENDED))
    # The back-off is not over: wait. Why: capacity does not come faster by asking.
    if state.backoff_seconds > 0:
        return wait(view, state.backoff_seconds)
    # Lock, bucket or newest checkpoint cannot be seen: wait.
    # Why: the run may have finished, or be another supervisor's, and nothing is rented blindly.
    if not seen.bucket_seen or seen.checkpoint_step is None:
        return wait(view)
    # The record names another service or project now, and a zone of the former doesn't answer:
    # wait. Why: a machine may be left there, and nothing is rented twice.
    if state.moves(run) and any(zone in seen.unlisted for zone in state.used_zones):
        return wait(view)
    zones = [zone for zone in run.zones if zone not in state.struck_zones]
    # Every zone is struck off: end, with advice -> removing. Why: none of them has quota.
    if not zones:
        why = "; ".join(dict.fromkeys(state.struck_zones.values()))
        return end_run(state, Ending.GAVE_UP, "bad_input", why)
    zones = [zone for zone in zones if zone not in seen.unlisted]
    # None of the other zones answers: wait. Why: a TPU of this run may be there, unlisted.
    if not zones:
        return wait(view)
    # No machine of this run is there: create, in the next zone that answers -> creating.
    # Why: a machine is wanted; its limit is part of what is stored before.
    return create(view, zones)


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
        return adopt_or_remove(view)
    # Absent in one look alone: look again. Why: listings blink.
    if view.is_perhaps_absent and view.is_operation_done:
        return wait(view)
    # READY: watch it -> running.
    # Why: the machine is up; whether it trains, its steps will show.
    if view.tpu is not None and view.is_ready:
        fields = {**_where(state), "adopted": state.operation_kind != "create"}
        state = replace(
            enter(state, Phase.RUNNING),
            incarnation=view.tpu.created,
            ready_zones=tuple(dict.fromkeys((*state.ready_zones, view.tpu.zone))),
            strikes={},
            misses=0,
            in_trouble=False,
        )
        return Decision(state, events=(Event("created", fields),))
    # The record asks for another machine now: remove it -> removing.
    # Why: it was requested with other flags, and trains nothing yet.
    if state.machine is not None and not state.machine.is_as(view.run):
        return Decision(enter(state, Phase.REMOVING, is_made=False))
    fault = view.operation_fault or (view.tpu.fault if view.tpu else None)
    if fault is not None and fault.kind is Kind.EXISTS and view.tpu is not None:
        fault = None
    # The creation has failed: remove it, then next zone, strike the zone off, or end -> removing.
    # Why: stock-out, quota, refusal and trouble of the service need different answers.
    if fault is not None:
        return creation_failed(state, fault, view.run)
    is_made = view.is_operation_done and state.operation_kind == "create"
    # Absent, although its creation is over and has not failed: preemption -> removing.
    # Why: it was there, and was taken away before it was seen.
    if view.tpu is None and is_made:
        return preempted(state, view.service_state)
    is_being_made = view.seen.operation is not None and not view.seen.operation.done
    # Absent, and requested lately or still being made: wait; in the end the next zone -> removing.
    # Why: a TPU that was requested may appear late.
    if view.tpu is None and (state.phase_seconds < SETTLE or is_being_made):
        return wait_for_creation(view)
    # Absent: next zone, or a pause -> idle. Why: the request was lost.
    if view.tpu is None:
        event = Event("create_lost", _where(state))
        return Decision(pause_before_next(enter(state, Phase.IDLE), view.run), events=(event,))
    # Gone: preemption, or end of lease at its limit -> removing.
    # Why: it was taken away before it was READY; the dead one holds its name.
    if view.is_gone:
        return gone(view)
    # On its way: wait 20 minutes, 6 hours in a queue; then the next zone -> removing.
    # Why: others may have capacity.
    return wait_for_creation(view)


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
        return adopt_or_remove(view)
    # Absent in one look alone: look again. Why: listings blink.
    if view.is_perhaps_absent:
        return wait(view)
    # Gone, and it reported how training ended: as reported -> removing.
    # Why: it may have deleted itself, and only the report can show a failure.
    if view.is_gone and view.report is not None:
        return training_ended(view)
    # Gone: preemption, or end of lease at its limit -> removing.
    # Why: a state that is neither READY nor on its way there is dead, by any name.
    if view.is_gone:
        return gone(view)
    # In repair or restarting for more than 20 minutes: preemption -> removing.
    # Why: the service does not bring it back.
    if not view.is_ready and state.phase_seconds > CREATE_TIMEOUT:
        return preempted(state, view.service_state)
    # In repair or restarting: wait. Why: the service may bring it back.
    if not view.is_ready:
        return watch_on(view)
    # Its life is over: lease over -> removing. Why: it deletes itself; we are here and do it now.
    if view.is_life_over:
        return lease_over(state, "READY")
    is_stopped = view.heartbeat is not None and view.heartbeat.state == "stopped"
    # Training has ended, and not at the last step: preemption, end of lease, or failure, as its
    # reason demands -> removing. Why: the same reason three times in a row, or what would come
    # again at once, ends the run.
    if view.report is not None or (is_stopped and state.quiet_seconds > SILENT_EXIT):
        return training_ended(view)
    # READY, and no new step for 15 minutes (45 until the first): failure, stalled or never
    # started -> removing. Why: READY only means that the VM is up, and one that hangs is billed.
    if state.quiet_seconds > state.patience:
        reason = "stalled" if state.has_stepped else "never_started"
        text = f"READY, but no new step for {state.quiet_seconds / 60:.0f} minutes"
        return failed(state, reason, f"{text}\n{view.seen.log_tail}".strip(), view.run)
    # READY: watch on, delete all but one.
    # Why: health is a new global step; a newer time stamp alone is none.
    return watch_on(view)


def removing(view: View) -> Decision:
    """Decide while every machine of the run must go.

    A zone that does not answer delays no other: machines that others list are deleted, and that of
    the silent zone is deleted by its name.
    """
    state = view.state
    is_absent = not view.seen.tpus and not view.is_unlisted
    limit = min(SETTLE, 2 * view.run.poll) if view.is_operation_done else CREATE_TIMEOUT
    is_asked_for = state.operation_kind == "create" and state.operation
    # Absent, but its creation is under way: wait. Why: it could still put a machine there.
    if is_absent and is_asked_for and state.phase_seconds < limit:
        return wait(view, LOOK_AGAIN)
    # Absent, and its deletion was never requested: delete it by its full name.
    # Why: one empty listing proves nothing.
    if is_absent and state.attempt and not state.delete_tries:
        return delete(view)
    # Absent in one look alone: look again. Why: listings blink.
    if is_absent and state.attempt and view.is_perhaps_absent:
        return wait(view, LOOK_AGAIN)
    # Absent: next TPU, or end -> idle, ended. Why: neither its name nor a listing shows anything.
    if is_absent:
        return absent(view)
    is_out_of_patience = state.phase_seconds > DELETE_PATIENCE
    # An ending run could not delete for 30 minutes: end, and list what may be there -> ended.
    # Why: a person can look on the console; its lease ends without us.
    if is_out_of_patience and state.ending is not None:
        return give_up_deleting(view)
    # Its zone has not answered until well after the end of its life: next TPU -> idle.
    # Why: it cannot be there any more.
    if is_out_of_patience and view.is_certainly_over and not view.seen.tpus:
        return Decision(enter(state, Phase.IDLE), events=(_not_deleted(state),))
    # The deletion has failed: report it, and ask again.
    # Why: it is tried again until a listing shows nothing.
    if state.operation_kind == "delete" and view.operation_fault is not None:
        event = Event("delete_failed", {"zone": state.zone, "error": str(view.operation_fault)})
        asked_never = replace(state, operation="", operation_kind="")
        decision = removing(replace(view, state=asked_never))
        return replace(decision, events=(event, *decision.events))
    # A deletion is under way, or nothing is left to ask for: wait.
    # Why: nothing counts as deleted before it is absent.
    if _is_deletion_under_way(view):
        return wait(view, LOOK_AGAIN)
    # The last try was just now: wait.
    # Why: each try waits longer than the one before, two minutes at most.
    if state.delete_wait > 0:
        return wait(view, state.delete_wait)
    # A machine of this run is there, or may be in a zone that does not answer: delete it, there by
    # its name. Why: a zone that answers waits neither for the bucket nor for other zones.
    return delete(view)


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
        return lease_over(view.state, "not listed")
    return wait(view)


def _is_deletion_under_way(view: View) -> bool:
    """Tell whether a deletion is in progress, and not for too long."""
    state = view.state
    if state.phase_seconds > CREATE_TIMEOUT * (state.delete_tries + 1):
        return False
    is_pending = state.operation_kind == "delete" and not view.is_operation_done
    return not view.deletion_targets or (is_pending and not view.seen.unlisted)


def after_creation(state: RunState, answer: str | ServiceFault, run: LaunchedRun) -> Decision:
    """Change the state by the answer to a creation: the operation's name, or why there is none."""
    if isinstance(answer, str):
        return Decision(replace(state, operation=answer, operation_kind="create"))
    if answer.kind in (Kind.EXISTS, Kind.UNAVAILABLE, Kind.INTERNAL):
        # It exists, or may yet appear: the listing decides after `SETTLE` seconds.
        event = Event("create_unclear", {"zone": state.zone, "error": str(answer)})
        return Decision(replace(state, in_trouble=answer.is_passing), events=(event,))
    return creation_failed(state, answer, run)


def after_deletion(state: RunState, tpu: Tpu, answer: str | ServiceFault) -> Decision:
    """Change the state by the answer to the deletion of a machine."""
    if isinstance(answer, str):
        return Decision(replace(state, operation=answer, operation_kind="delete"))
    if answer.kind is Kind.NOT_FOUND:
        return Decision(state)  # the next listing shows that it is gone
    event = Event("delete_failed", {"zone": tpu.zone, "error": str(answer)})
    return Decision(state, events=(event,))


# --- outcomes -----------------------------------------------------------------------------------


def enter(state: RunState, phase: Phase, is_made: bool = True) -> RunState:
    """Begin a phase, its timers at zero.

    A creation that may not be over (not `is_made`) is followed into REMOVING: it may still put a
    machine there.
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
    fields = {**_where(state), "state": service_state, "preemptions": state.preemptions}
    return Decision(enter(state, Phase.REMOVING), events=(Event("preempted", fields),))


def lease_over(state: RunState, service_state: str) -> Decision:
    """Remove a machine that has lived as long as it may, which is no failure."""
    state = replace(state, leases_over=state.leases_over + 1)
    event = Event("lease_over", {**_where(state), "state": service_state})
    return Decision(enter(state, Phase.REMOVING), events=(event,))


def gone(view: View) -> Decision:
    """Count the end of a machine: by its limit, or before it by preemption."""
    end = lease_over if view.is_life_over else preempted
    return end(view.state, view.service_state)


def failed(state: RunState, reason: str, log_tail: str, run: LaunchedRun) -> Decision:
    """Ask for another machine after a pause, or end the run where the same comes again."""
    again = reason == state.last_failure and state.healthy_seconds < HEALTHY
    in_a_row = state.same_failures + 1 if again else 1
    # Refusals and divergence repeat exactly on any machine, as data order and dropout are functions
    # of the step. A bug may have been the machine's, unless it comes at the same step again.
    repeats = reason in ("bad_input", "diverged") or (
        reason == "bug" and again and state.failure_step == state.best_step
    )
    state = replace(
        state,
        failures=state.failures + 1,
        last_failure=reason,
        same_failures=in_a_row,
        failure_step=state.best_step,
    )
    fields = {"reason": reason, "in_a_row": in_a_row, "log": log_tail[-2000:]}
    event = Event("failed", {**_where(state), **fields})
    if repeats or in_a_row >= SAME_FAILURES:
        message = f"{reason}, {in_a_row} times in a row" if in_a_row > 1 else reason
        if repeats:
            message += f" at step {max(state.best_step, 0):,}, where it would come again"
        if log_tail:
            message += f"; the log ends: {log_tail[-600:]}"
        ended = end_run(state, Ending.GAVE_UP, reason, message)
        return replace(ended, events=(event, *ended.events))
    state = replace(enter(state, Phase.REMOVING), backoff_seconds=backoff(in_a_row, run))
    return Decision(state, events=(event,))


def creation_failed(state: RunState, fault: ServiceFault, run: LaunchedRun) -> Decision:
    """React to a refused or failed creation, as its kind demands."""
    state = replace(enter(state, Phase.REMOVING), in_trouble=fault.is_passing)
    name = {Kind.STOCKOUT: "stockout", Kind.QUOTA: "no_quota"}.get(fault.kind, "create_unclear")
    if fault.kind in _REFUSALS:
        event = Event("creation_refused", {**_where(state), "error": fault.message})
        ended = end_run(state, Ending.GAVE_UP, "bad_input", advise(fault, run, state.zone))
        return replace(ended, events=(event, *ended.events))
    if fault.kind is Kind.QUOTA:
        count, struck = state.strikes.get(state.zone, 0) + 1, dict(state.struck_zones)
        # A dead TPU's quota comes back late.
        if count >= (QUOTA_STRIKES if state.zone in state.ready_zones else 1):
            struck[state.zone] = advise(fault, run, state.zone)
        strikes = {**state.strikes, state.zone: count}
        state = replace(state, strikes=strikes, struck_zones=struck)
    event = Event(name, {**_where(state), "error": fault.message})
    # Unclear: it exists already, or the service has trouble of its own. That is waited out, for
    # hours (`SERVICE_PATIENCE`), and is no failure of the run.
    return Decision(pause_before_next(state, run), events=(event,))


def lacks_quota(state: RunState, run: LaunchedRun) -> bool:
    """Tell whether a run has ended because no zone has ever had quota for it."""
    is_struck = all(zone in state.struck_zones for zone in run.zones)
    return state.ending is Ending.GAVE_UP and is_struck and not state.ready_zones


def pause_before_next(state: RunState, run: LaunchedRun) -> RunState:
    """Go to the next zone at once within a round; pause longer after each round."""
    misses = state.misses + 1
    zones = max(1, len([z for z in run.zones if z not in state.struck_zones]))
    pause = 0.0 if misses % zones else backoff(misses // zones, run)
    return replace(state, misses=misses, backoff_seconds=pause)


def backoff(rounds: int, run: LaunchedRun) -> float:
    """Compute the pause after the `rounds`-th round over all zones without a TPU, in seconds."""
    return min(BACKOFF_MOST, min(BACKOFF_FIRST, run.poll) * 2.0 ** min(rounds - 1, 16))


def wait(view: View, most: float = math.inf) -> Decision:
    """Look again after the usual pause, or a shorter one."""
    return Decision(view.state, pause=min(view.run.poll, most))


def create(view: View, zones: list[str]) -> Decision:
    """Request a TPU in the next of these zones, with its maximum lifetime.

    The next is the zone of the last TPU, or the one after it where that one gave none.
    """
    state, seen, run = view.state, view.seen, view.run
    last = run.zones.index(state.zone) if state.zone in run.zones else -1
    first = (last + 1 if state.misses or last < 0 else last) % len(run.zones)
    zone = next(z for z in run.zones[first:] + run.zones[:first] if z in zones)
    if state.moves(run):  # nothing is left there: `idle`
        state = replace(state, used_zones=(), ready_zones=())
    state = replace(
        _unobserved(enter(state, Phase.CREATING), zone),
        machine=Machine.of(run, seen.service_time or 0.0),
        attempt=state.attempt + 1,
        machine_seconds=0.0,
        machine_limit=longest_life(state, run),
        stale_heartbeat=seen.heartbeat.signature if seen.heartbeat else "",
    )
    event = Event("creating", _where(state))
    return Decision(state, events=(event,), pause=min(run.poll, 5.0), rents=True)


def _unobserved(state: RunState, zone: str) -> RunState:
    """Forget what was seen of another TPU."""
    return replace(
        state,
        zone=zone,
        used_zones=tuple(dict.fromkeys((*state.used_zones, zone))),
        incarnation=0.0,
        last_step=-1,
        has_stepped=False,
        healthy_seconds=0.0,
    )


def adopt_or_remove(view: View) -> Decision:
    """Watch the TPU that was requested last, if it is alive; remove all others.

    Of a TPU that was requested before it, the state has neither the service nor the price any more.
    """
    state, alive = view.state, view.alive
    tpu = next((one for one in alive if not state.machine or one.attempt == state.attempt), None)
    if tpu is None:
        return Decision(enter(state, Phase.REMOVING, is_made=False))
    state = replace(
        _unobserved(enter(state, Phase.CREATING), tpu.zone),
        attempt=max(state.attempt, tpu.attempt),
        machine_limit=state.machine_limit if tpu.attempt == state.attempt else 0.0,
    )
    event = Event("adopted", {"zone": tpu.zone, "state": tpu.state, "attempt": state.attempt})
    return Decision(state, tuple(one for one in alive if one is not tpu), (event,))


def wait_for_creation(view: View) -> Decision:
    """Wait for a TPU that was requested, then remove it and ask elsewhere."""
    state = view.state
    waits = view.tpu is not None and view.tpu.presence is Presence.WAITING
    # Seconds in line are none of the machine's: it has its own time to come up after them.
    made_for = min(state.phase_seconds, state.machine_seconds)
    if state.phase_seconds <= QUEUE_TIMEOUT if waits else made_for <= CREATE_TIMEOUT:
        return wait(view)
    fields = {**_where(state), "seconds": round(state.phase_seconds)}
    state = enter(state, Phase.REMOVING, is_made=False)
    return Decision(pause_before_next(state, view.run), events=(Event("create_timeout", fields),))


def training_ended(view: View) -> Decision:
    """Judge by its reason how training ended before the last step."""
    state, seen = view.state, view.seen
    reason = view.report.reason if view.report else ""
    reason = reason or (seen.heartbeat.reason if seen.heartbeat else "") or "bug"
    if reason == "interrupted":  # SIGTERM: the machine is being taken away
        return preempted(state, "interrupted")
    if reason == "lease_over":  # no renewal reached it: this supervisor, or the bucket, was away
        return lease_over(state, reason)
    if reason == "finished":  # but not at the target: pretrain was given another length
        reason = "bug"
    return failed(state, reason, seen.log_tail, view.run)


def watch_on(view: View) -> Decision:
    """Look again; delete all TPUs of the run but one."""
    extras = tuple(tpu for tpu in view.alive if tpu is not view.tpu)
    return Decision(view.state, extras, pause=view.run.poll)


def absent(view: View) -> Decision:
    """Go on to the next TPU, or to the end: no machine is left."""
    state = view.state
    was_there = state.operation_kind == "delete" or state.incarnation
    events = (Event("deleted", _where(state)),) if was_there else ()
    if state.ending is None:
        return Decision(enter(state, Phase.IDLE), events=events)
    fields = {"ending": state.ending.value, "reason": state.ending_reason, "step": state.best_step}
    event = Event("ended", {**fields, "cost_usd": round(state.cost_usd, 2)})
    return Decision(enter(state, Phase.ENDED), events=(*events, event))


def give_up_deleting(view: View) -> Decision:
    """End, and list the machines that may still be there and when they go by themselves."""
    state, tpus = view.state, view.seen.tpus
    hours = max(0.0, state.machine_limit - state.machine_seconds) / 3600
    lease = f"; at the latest it is deleted at the end of its lease, in {hours:.1f} hours"
    if tpus:
        where = ", ".join(sorted({tpu.zone for tpu in tpus}))
        problem = f"STILL THERE AND BILLED: {view.run.name} in {where} could not be deleted"
    else:
        problem = f"{state.zone} could not be listed, so {view.run.name} may be there and billed"
    message = (
        f"{state.ending_message}; {problem}: run `bigbird-ja down`, or look on the console"
        f"{lease if hours else ''}"
    )
    ended = replace(enter(state, Phase.ENDED), ending_reason="io_error", ending_message=message)
    return Decision(ended, events=(_not_deleted(state),))


def _not_deleted(state: RunState) -> Event:
    return Event("not_deleted", {"zone": state.zone, "seconds": round(state.phase_seconds)})


def delete(view: View) -> Decision:
    """Ask for the deletion of all machines that are not being deleted, less often each time."""
    state = view.state
    tries = state.delete_tries + 1
    deletions = tuple(view.deletion_targets or view.deletable)
    pause = min(10.0 * 2 ** min(tries - 1, 8), 120.0)
    state = replace(state, delete_tries=tries, delete_wait=pause, operation="", operation_kind="")
    return replace(wait(replace(view, state=state), LOOK_AGAIN), deletions=deletions)


def _where(state: RunState) -> dict[str, object]:
    return {"zone": state.zone, "attempt": state.attempt, "step": state.best_step}
