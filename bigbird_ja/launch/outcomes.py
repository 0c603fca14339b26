"""Computes the state, actions and events that follow from each decision of `decide.py`."""

import math
from dataclasses import replace

from bigbird_ja.launch import LaunchedRun, Presence
from bigbird_ja.launch.account import longest_life
from bigbird_ja.launch.advice import advise
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.state import CREATE_TIMEOUT, Decision, Ending, Event, Phase, RunState, View

# Patience in seconds, and counts: the same for every run.
QUEUE_TIMEOUT = 6 * 3600.0  # a queued resource waits longer before another zone is asked
BACKOFF_FIRST, BACKOFF_MOST = 30.0, 900.0  # after a round over all zones without a TPU
SAME_FAILURES = 3  # in a row end the run
HEALTHY = 3600.0  # training this long makes the next failure a first one
QUOTA_STRIKES = 3  # in zones that have served us: a dead TPU's quota comes back late
LOOK_AGAIN = 10.0  # seconds, while a machine is being deleted


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
    """End the run, after the deletion of its machines."""
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
    if fault.kind is Kind.QUOTA:
        state = _strike(state, fault, run)
    if fault.kind in (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND):
        name = "creation_refused"
    event = Event(name, {**_where(state), "error": fault.message})
    if name == "creation_refused":
        message = advise(fault, run, state.zone)
        ended = end_run(state, Ending.GAVE_UP, "bad_input", message)
        return replace(ended, events=(event, *ended.events))
    # Unclear: it exists already, or the service has trouble of its own. That is waited out, for
    # hours (`SERVICE_PATIENCE`), and is no failure of the run.
    return Decision(pause_before_next(state, run), events=(event,))


def _strike(state: RunState, fault: ServiceFault, run: LaunchedRun) -> RunState:
    """Strike off a zone without quota, at the third try where a dead TPU's may come back."""
    count = state.strikes.get(state.zone, 0) + 1
    struck = dict(state.struck_zones)
    if count >= (QUOTA_STRIKES if state.zone in state.ready_zones else 1):
        struck[state.zone] = advise(fault, run, state.zone)
    return replace(state, strikes={**state.strikes, state.zone: count}, struck_zones=struck)


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


def refused(view: View) -> Decision:
    """End at once: nothing is there that would have to be deleted."""
    run, zone = view.run, view.run.zones[0]
    text = advise(view.seen.unlisted[zone], run, zone)
    ended = end_run(view.state, Ending.GAVE_UP, "bad_input", text)
    return Decision(enter(ended.state, Phase.ENDED))


def name_taken(view: View) -> Decision:
    """End the run where another's machine has its name, and leave that machine alone."""
    tpu = view.seen.taken[0]
    text = f"{tpu.resource} is not of this run ({tpu.owner}): choose another --name"
    return end_run(view.state, Ending.GAVE_UP, "bad_input", text)


def create(view: View, zones: list[str]) -> Decision:
    """Ask for a TPU in the next of these zones, with the most that it may live.

    The next is the zone of the last TPU, or the one after it where that one gave none.
    """
    state, seen, run = view.state, view.seen, view.run
    last = run.zones.index(state.zone) if state.zone in run.zones else -1
    first = (last + 1 if state.misses or last < 0 else last) % len(run.zones)
    zone = next(z for z in run.zones[first:] + run.zones[:first] if z in zones)
    state = replace(
        _unobserved(enter(state, Phase.CREATING), zone),
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


def adopt(view: View) -> Decision:
    """Watch a TPU of ours that this state does not know."""
    tpu, state = view.alive[0], view.state
    state = replace(
        _unobserved(enter(state, Phase.CREATING), tpu.zone),
        attempt=max(state.attempt, tpu.attempt),
        machine_limit=state.machine_limit if tpu.attempt == state.attempt else 0.0,
    )
    event = Event("adopted", {"zone": tpu.zone, "state": tpu.state, "attempt": state.attempt})
    return Decision(state, tuple(view.alive[1:]), (event,))


def adopt_or_remove(view: View) -> Decision:
    """Adopt a TPU that is alive, or remove dead ones."""
    if view.alive:
        return adopt(view)
    return Decision(enter(view.state, Phase.REMOVING, is_made=False))


def became_ready(view: View) -> Decision:
    """Watch a TPU that has become READY from now on."""
    state, tpu = view.state, view.tpu
    assert tpu is not None
    fields = {**_where(state), "adopted": state.operation_kind != "create"}
    state = replace(
        enter(state, Phase.RUNNING),
        incarnation=tpu.created,
        ready_zones=tuple(dict.fromkeys((*state.ready_zones, tpu.zone))),
        strikes={},
        misses=0,
        in_trouble=False,
    )
    return Decision(state, events=(Event("created", fields),))


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


def request_lost(view: View) -> Decision:
    """Ask again: nothing came of the request."""
    state = pause_before_next(enter(view.state, Phase.IDLE), view.run)
    return Decision(state, events=(Event("create_lost", _where(view.state)),))


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


def stalled(view: View) -> Decision:
    """Count a failure, with the end of the trainer's log."""
    state = view.state
    reason = "stalled" if state.has_stepped else "never_started"
    text = f"READY, but no new step for {state.quiet_seconds / 60:.0f} minutes"
    return failed(state, reason, f"{text}\n{view.seen.log_tail}".strip(), view.run)


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


def forget(view: View) -> Decision:
    """Go on to the next TPU: the last one must be gone, though nobody could look."""
    return Decision(enter(view.state, Phase.IDLE), events=(_not_deleted(view.state),))


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
