"""What each decision of `decide.py` makes of the state: pure functions, by phase."""

from __future__ import annotations

import math
from dataclasses import replace

from bigbird_ja.launch.rest import Kind, ServiceFault, advice
from bigbird_ja.launch.run_state import (
    Create,
    Decision,
    Delete,
    Ending,
    Event,
    Phase,
    RunState,
    Settings,
    View,
    longest_life,
)
from bigbird_ja.launch.services import ATTEMPT_LABEL, ID_LABEL, RUN_LABEL, Presence, Tpu

LOOK_AGAIN = 10.0  # seconds, while something is being deleted


def enter(state: RunState, phase: Phase, cause: str = "", is_made: bool = True) -> RunState:
    """The state at the beginning of a phase, its timers at zero. A creation that may not be over
    (not `is_made`) is followed into REMOVING: it may still put something there."""
    keeps = phase is Phase.REMOVING and state.operation_kind == "create" and not is_made
    return replace(
        state,
        phase=phase,
        cause=cause or state.cause,
        phase_seconds=0.0,
        quiet_seconds=0.0,
        delete_tries=0,
        delete_wait=0.0,
        in_repair=False,
        absences=0,
        operation=state.operation if keeps else "",
        operation_kind=state.operation_kind if keeps else "",
    )


def end_run(state: RunState, ending: Ending, reason: str, message: str) -> Decision:
    """The run ends: what is there is deleted first."""
    state = replace(state, ending=ending, ending_reason=reason, ending_message=message)
    state = enter(state, Phase.REMOVING, "ending", is_made=False)
    event = Event("ending", {"ending": ending.value, "reason": reason, "message": message})
    return Decision(state, events=(event,))


def preempted(state: RunState, service_state: str) -> Decision:
    """It was taken away: expected, and unlimited."""
    state = replace(state, preemptions=state.preemptions + 1)
    fields = {**_where(state), "state": service_state, "preemptions": state.preemptions}
    return Decision(enter(state, Phase.REMOVING, "preempted"), events=(Event("preempted", fields),))


def lease_over(state: RunState, service_state: str) -> Decision:
    """It has lived as long as it may: no failure either."""
    state = replace(state, leases_over=state.leases_over + 1)
    event = Event("lease_over", {**_where(state), "state": service_state})
    return Decision(enter(state, Phase.REMOVING, "lease_over"), events=(event,))


def failed(state: RunState, reason: str, log_tail: str, settings: Settings) -> Decision:
    """Another machine after a pause, or the end of the run where the same comes again."""
    again = reason == state.last_failure and state.healthy_seconds < settings.healthy
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
    if repeats or in_a_row >= settings.same_failure_limit:
        message = f"{reason}, {in_a_row} times in a row" if in_a_row > 1 else reason
        if repeats:
            message += f" at step {max(state.best_step, 0):,}, where it would come again"
        if log_tail:
            message += f"; the log ends: {log_tail[-600:]}"
        ended = end_run(state, Ending.GAVE_UP, reason, message)
        return replace(ended, events=(event, *ended.events))
    state = enter(state, Phase.REMOVING, "failed")
    pause = backoff(in_a_row, settings)
    return Decision(replace(state, backoff_seconds=pause), events=(event,))


def creation_failed(state: RunState, fault: ServiceFault, settings: Settings) -> Decision:
    """The service has not made a TPU. Capacity and quota share a code and differ in their words."""
    state = enter(state, Phase.REMOVING, "no_capacity")
    state = replace(state, in_trouble=fault.is_passing)
    name = {Kind.STOCKOUT: "stockout", Kind.QUOTA: "no_quota"}.get(fault.kind, "create_unclear")
    if fault.kind is Kind.QUOTA:
        state = _strike(state, fault, settings)
    if fault.kind in (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND):
        name = "creation_refused"
    event = Event(name, {**_where(state), "error": fault.message})
    if name == "creation_refused":
        message = advice(fault, settings.project, state.zone, settings.accelerator_type)
        ended = end_run(state, Ending.GAVE_UP, "bad_input", message)
        return replace(ended, events=(event, *ended.events))
    # Unclear: it exists already, or the service has trouble of its own. That is waited out, for
    # hours (`service_patience`), and is no failure of the run.
    return Decision(pause_before_next(state, settings), events=(event,))


def _strike(state: RunState, fault: ServiceFault, settings: Settings) -> RunState:
    """Strikes a zone without quota off, at the third try where a dead TPU's may come back."""
    count = state.strikes.get(state.zone, 0) + 1
    struck = dict(state.struck_zones)
    if count >= (settings.quota_strikes if state.zone in state.ready_zones else 1):
        struck[state.zone] = advice(fault, settings.project, state.zone, settings.accelerator_type)
    return replace(state, strikes={**state.strikes, state.zone: count}, struck_zones=struck)


def pause_before_next(state: RunState, settings: Settings) -> RunState:
    """Next zone at once within a round; after each round a longer pause."""
    misses = state.misses + 1
    zones = max(1, len([z for z in settings.zones if z not in state.struck_zones]))
    pause = 0.0 if misses % zones else backoff(misses // zones, settings)
    return replace(state, misses=misses, zone_index=state.zone_index + 1, backoff_seconds=pause)


def backoff(rounds: int, settings: Settings) -> float:
    """Seconds to wait after the `rounds`-th round over all zones without a TPU."""
    return min(settings.backoff_most, settings.backoff_first * 2.0 ** min(rounds - 1, 16))


def wait(view: View, most: float = math.inf) -> Decision:
    """Looks again after the usual pause, or a shorter one."""
    return Decision(view.state, pause=min(view.settings.poll, most))


def refused(view: View) -> Decision:
    """Ends at once: nothing is there that would have to be deleted."""
    settings, zone = view.settings, view.settings.zones[0]
    text = advice(view.seen.unlisted[zone], settings.project, zone, settings.accelerator_type)
    ended = end_run(view.state, Ending.GAVE_UP, "bad_input", text)
    return Decision(enter(ended.state, Phase.ENDED))


def name_taken(view: View) -> Decision:
    """Another's machine has the run's name: it is left alone, and the run ends."""
    tpu = view.seen.taken[0]
    text = f"{tpu.resource} is not of this run ({tpu.owner}): choose another --name"
    return end_run(view.state, Ending.GAVE_UP, "bad_input", text)


def create(view: View, zones: list[str]) -> Decision:
    """Asks for a TPU in the next of these zones, with the most that it may live."""
    state, seen, settings = view.state, view.seen, view.settings
    first = state.zone_index % len(settings.zones)
    zone = next(z for z in settings.zones[first:] + settings.zones[:first] if z in zones)
    state = replace(
        _unobserved(enter(state, Phase.CREATING), zone),
        zone_index=settings.zones.index(zone),
        attempt=state.attempt + 1,
        machine_seconds=0.0,
        machine_limit=longest_life(state, settings),
        stale_heartbeat=seen.heartbeat.signature if seen.heartbeat else "",
    )
    request = Create(zone, state.attempt, state.machine_limit)
    event = Event("creating", _where(state))
    return Decision(state, (request,), (event,), min(settings.poll, 5.0))


def _unobserved(state: RunState, zone: str) -> RunState:
    """The state of a TPU in a zone of which nothing was seen yet."""
    return replace(
        state,
        zone=zone,
        used_zones=tuple(dict.fromkeys((*state.used_zones, zone))),
        incarnation=0.0,
        last_step=-1,
        has_stepped=False,
        healthy_seconds=0.0,
        cause="",
    )


def adopt(view: View) -> Decision:
    """Watches a TPU of ours that this state does not know."""
    tpu, state = view.alive[0], view.state
    state = replace(
        _unobserved(enter(state, Phase.CREATING), tpu.zone),
        attempt=max(state.attempt, tpu.attempt),
        machine_limit=state.machine_limit if tpu.attempt == state.attempt else 0.0,
    )
    event = Event("adopted", {"zone": tpu.zone, "state": tpu.state, "attempt": state.attempt})
    return Decision(state, tuple(map(Delete, view.alive[1:])), (event,))


def adopt_or_remove(view: View) -> Decision:
    """Adopts what is alive, or removes what is not."""
    if view.alive:
        return adopt(view)
    return Decision(enter(view.state, Phase.REMOVING, "leftover", is_made=False))


def became_ready(view: View) -> Decision:
    """Watches it from now on."""
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
    """Waits for it, but not for ever."""
    settings = view.settings
    is_queued = view.tpu is not None and view.tpu.presence is Presence.WAITING
    limit = settings.queue_timeout if is_queued else settings.create_timeout
    if view.state.phase_seconds <= limit:
        return wait(view)
    return next_zone(view, "create_timeout", "no_capacity")


def next_zone(view: View, event: str, cause: str) -> Decision:
    """Removes what does not become READY; the next one is asked for elsewhere."""
    fields = {**_where(view.state), "seconds": round(view.state.phase_seconds)}
    state = enter(view.state, Phase.REMOVING, cause, is_made=False)
    return Decision(pause_before_next(state, view.settings), events=(Event(event, fields),))


def request_lost(view: View) -> Decision:
    """Nothing came of the request."""
    state = pause_before_next(enter(view.state, Phase.IDLE), view.settings)
    return Decision(state, events=(Event("create_lost", _where(view.state)),))


def hosts_lost(view: View) -> Decision:
    """Counts it, and begins to wait: the next heartbeat is of another try."""
    state, heartbeat = view.state, view.seen.heartbeat
    state = replace(
        state,
        in_repair=True,
        preemptions=state.preemptions + 1,
        phase_seconds=0.0,
        quiet_seconds=0.0,
        last_step=-1,
        has_stepped=False,
        stale_heartbeat=heartbeat.signature if heartbeat else state.stale_heartbeat,
    )
    fields = {
        **_where(state), "state": view.service_state, "preemptions": state.preemptions,
    }  # fmt: skip
    return replace(watch_on(replace(view, state=state)), events=(Event("repairing", fields),))


def with_progress(view: View) -> tuple[View, tuple[Event, ...]]:
    """The view with what the trainer on a TPU that is READY has done since the last look."""
    if view.is_unlisted or not view.is_ready or view.is_another or view.is_life_over:
        return view, ()
    state = view.state
    events = (Event("repaired", _where(state)),) if state.in_repair else ()
    state = replace(state, phase_seconds=0.0, in_repair=False)
    state = _with_steps(replace(view, state=state))
    return replace(view, state=state), events


def _with_steps(view: View) -> RunState:
    """Resets the quiet time when the global step moved; a newer time stamp alone does not.

    The first heartbeat of this TPU only sets the mark: it repeats the checkpoint's step. Time in
    which the bucket could not be read does not count.
    """
    state, seen, heartbeat = view.state, view.seen, view.heartbeat
    quiet = state.quiet_seconds + (seen.watched if seen.bucket_seen else 0.0)
    if heartbeat is None or heartbeat.global_step == state.last_step:
        return replace(state, quiet_seconds=quiet)
    if state.last_step < 0:
        # Past "starting" it has made steps before we looked: the shorter patience is right.
        begun = heartbeat.state != "starting"
        return replace(
            state, quiet_seconds=quiet, last_step=heartbeat.global_step, has_stepped=begun
        )
    return replace(
        state,
        quiet_seconds=0.0,
        last_step=heartbeat.global_step,
        has_stepped=True,
        healthy_seconds=state.healthy_seconds + seen.watched,
    )


def training_ended(view: View) -> Decision:
    """Training ended, and it has not finished."""
    state, seen = view.state, view.seen
    reason = view.report.reason if view.report else ""
    reason = reason or (seen.heartbeat.reason if seen.heartbeat else "") or "bug"
    if reason == "interrupted":  # SIGTERM: the machine is being taken away
        return preempted(state, "interrupted")
    if reason == "lease_over":  # no renewal reached it: this supervisor, or the bucket, was away
        return lease_over(state, reason)
    if reason == "finished":  # but not at the target: pretrain was given another length
        reason = "bug"
    return failed(state, reason, seen.log_tail, view.settings)


def stalled(view: View) -> Decision:
    """A failure, with the end of the trainer's log."""
    state = view.state
    reason = "stalled" if state.has_stepped else "never_started"
    text = f"READY, but no new step for {state.quiet_seconds / 60:.0f} minutes"
    return failed(state, reason, f"{text}\n{view.seen.log_tail}".strip(), view.settings)


def watch_on(view: View) -> Decision:
    """Looks again; of a run there is one TPU."""
    extras = tuple(Delete(tpu) for tpu in view.alive if tpu is not view.tpu)
    return Decision(view.state, extras, pause=view.settings.poll)


def absent(view: View) -> Decision:
    """Nothing is there any more: the next TPU, or the end."""
    state = view.state
    was_there = state.operation_kind == "delete" or state.incarnation
    events = (Event("deleted", _where(state)),) if was_there else ()
    if state.ending is None:
        return Decision(enter(state, Phase.IDLE), events=events)
    fields = {"ending": state.ending.value, "reason": state.ending_reason, "step": state.best_step}
    event = Event("ended", {**fields, "cost_usd": round(state.cost_usd, 2)})
    return Decision(enter(state, Phase.ENDED), events=(*events, event))


def not_deleted(state: RunState) -> Event:
    return Event("not_deleted", {"zone": state.zone, "seconds": round(state.phase_seconds)})


def give_up_deleting(view: View) -> Decision:
    """Ends with what may still be there, and when it goes by itself."""
    state, tpus = view.state, view.seen.tpus
    hours = max(0.0, state.machine_limit - state.machine_seconds) / 3600
    lease = f"; at the latest it is deleted at the end of its lease, in {hours:.1f} hours"
    if tpus:
        where = ", ".join(sorted({tpu.zone for tpu in tpus}))
        what = f"STILL THERE AND BILLED: {state.name} in {where} could not be deleted"
    else:
        what = f"{state.zone} could not be listed, so {state.name} may be there and billed"
    message = (
        f"{state.ending_message}; {what}: run `bigbird-ja down`, or look on the console"
        f"{lease if hours else ''}"
    )
    event = not_deleted(state)
    state = replace(enter(state, Phase.ENDED), ending_reason="io_error", ending_message=message)
    return Decision(state, events=(event,))


def deletion_targets(view: View) -> list[Tpu]:
    """What is not on its way out yet."""
    return [tpu for tpu in _deletable(view) if tpu.presence is not Presence.DELETING]


def _deletable(view: View) -> list[Tpu]:
    """What is listed; and the TPU that was asked for, where its zone cannot be listed, or shows
    nothing and its deletion was never asked for."""
    state, settings = view.state, view.settings
    is_shown = view.tpu is not None or (state.delete_tries and not view.is_unlisted)
    if is_shown or not state.attempt:
        return [*view.seen.tpus]
    labels = {
        RUN_LABEL: state.name, ID_LABEL: settings.run_id, ATTEMPT_LABEL: str(state.attempt),
    }  # fmt: skip
    unseen = Tpu(
        state.name, state.zone, Presence.GONE, "not listed", labels=labels,
        created=state.incarnation, is_queued=settings.queued,
    )  # fmt: skip
    return [*view.seen.tpus, unseen]


def delete(view: View) -> Decision:
    """Asks for the deletion of all that is not on its way out, less often each time."""
    state = view.state
    tries = state.delete_tries + 1
    deletions = tuple(map(Delete, deletion_targets(view) or _deletable(view)))
    pause = min(10.0 * 2 ** min(tries - 1, 8), 120.0)
    state = replace(state, delete_tries=tries, delete_wait=pause, operation="", operation_kind="")
    return replace(wait(replace(view, state=state), LOOK_AGAIN), actions=deletions)


def _where(state: RunState) -> dict[str, object]:
    return {"zone": state.zone, "attempt": state.attempt, "step": state.best_step}
