"""Conditions and consequences of the supervisor's rules (`supervisor.py`): pure functions."""

from __future__ import annotations

from dataclasses import replace

from bigbird_ja.launch.billing import longest_life
from bigbird_ja.launch.faults import Kind, ServiceFault, advice
from bigbird_ja.launch.rules import View
from bigbird_ja.launch.run_state import Create, Decision, Delete, Ending, Event, Phase, RunState
from bigbird_ja.launch.tpu_service import Presence, Tpu
from bigbird_ja.launch.transitions import (
    creation_failed,
    end,
    enter,
    failed,
    lease_over,
    pause_before_next,
    preempted,
)

# --- IDLE ----------------------------------------------------------------------------------------


def open_zones(view: View) -> list[str]:
    """Zones that are not struck off."""
    return [zone for zone in view.settings.zones if zone not in view.state.struck_zones]


def listed_zones(view: View) -> list[str]:
    """Those of them that answer."""
    return [zone for zone in open_zones(view) if zone not in view.seen.unlisted]


def is_refused_everywhere(view: View) -> bool:
    """Whether no zone may be listed, and nothing was ever asked for."""
    refused, unlisted = (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND), view.seen.unlisted
    return not view.state.attempt and all(
        zone in unlisted and unlisted[zone].kind in refused for zone in view.settings.zones
    )


def refused(view: View) -> Decision:
    """Ends at once: nothing is there that would have to be deleted."""
    settings, zone = view.settings, view.settings.zones[0]
    words = advice(view.seen.unlisted[zone], settings.project, zone, settings.accelerator_type)
    state = enter(view.state, Phase.ENDED)
    return Decision(
        replace(state, ending=Ending.GAVE_UP, ending_message=words, ending_reason="bad_input")
    )


def out_of_zones(view: View) -> Decision:
    """Ends with what each zone said."""
    why = "; ".join(dict.fromkeys(view.state.struck_zones.values()))
    state, events = end(view.state, Ending.GAVE_UP, "bad_input", why)
    return Decision(state, events=tuple(events))


def create(view: View) -> Decision:
    """Asks for a TPU, with the most that it may live: that is part of what is stored before."""
    state, seen, settings = view.state, view.seen, view.settings
    count, possible = len(settings.zones), listed_zones(view)
    index = next(
        i % count
        for i in range(state.zone_index, state.zone_index + count)
        if settings.zones[i % count] in possible
    )
    zone = settings.zones[index]
    state = replace(
        _unwatched(enter(state, Phase.CREATING), zone),
        zone_index=index,
        attempt=state.attempt + 1,
        machine_seconds=0.0,
        machine_limit=longest_life(state, settings),
        stale_heartbeat=seen.heartbeat.signature if seen.heartbeat else "",
    )
    event = Event("creating", {"zone": zone, "attempt": state.attempt})
    asked = Create(zone, state.attempt, state.machine_limit)
    return Decision(state, (asked,), (event,), min(settings.poll, 5.0))


def _unwatched(state: RunState, zone: str) -> RunState:
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
    """Something of ours is there although nothing should be: takes it over."""
    tpu, state = view.alive[0], view.state
    state = replace(
        _unwatched(enter(state, Phase.CREATING), tpu.zone),
        attempt=max(state.attempt, tpu.attempt),
        machine_limit=state.machine_limit if tpu.attempt == state.attempt else 0.0,
    )
    event = Event("adopted", {"zone": tpu.zone, "state": tpu.state, "attempt": state.attempt})
    return Decision(state, _deletions(view.alive[1:]), (event,))


def remove_leftover(view: View) -> Decision:
    """What is dead must go before anything of its name can be created."""
    return Decision(enter(view.state, Phase.REMOVING, cause="leftover"))


def take_over(view: View) -> Decision:
    """Adopts what is alive, or removes what is not."""
    return adopt(view) if view.alive else remove_leftover(view)


def _deletions(tpus: list[Tpu]) -> tuple[Delete, ...]:
    return tuple(Delete(tpu) for tpu in tpus)


# --- CREATING ------------------------------------------------------------------------------------


def creation_fault(view: View) -> ServiceFault | None:
    """Why the creation has failed; that it exists already is none where it is listed."""
    fault = view.operation_fault
    if fault is None and view.tpu is not None:
        fault = view.tpu.fault
    if fault is not None and fault.kind is Kind.EXISTS and view.tpu is not None:
        return None
    return fault


def creation_has_failed(view: View) -> Decision:
    """Next zone, a pause, a zone struck off, or the end."""
    fault = creation_fault(view)
    assert fault is not None
    return creation_failed(view.state, fault, view.settings)


def became_ready(view: View) -> Decision:
    """Watches it from now on."""
    state, tpu = view.state, view.tpu
    assert tpu is not None
    adopted = state.operation_kind != "create"
    state = replace(
        enter(state, Phase.RUNNING),
        incarnation=tpu.created,
        ready_zones=tuple(dict.fromkeys((*state.ready_zones, tpu.zone))),
        strikes={},
        misses=0,
        in_trouble=False,
    )
    fields = {"zone": tpu.zone, "attempt": state.attempt, "adopted": adopted}
    return Decision(state, events=(Event("created", fields),))


def was_made(view: View) -> bool:
    """Whether the creation is over, without a fault, and shows nothing."""
    operation = view.seen.operation
    is_over = operation is not None and operation.done and operation.fault is None
    return view.tpu is None and view.state.operation_kind == "create" and is_over


def may_still_appear(view: View) -> bool:
    """Whether what is absent was asked for lately, or is still being made."""
    operation = view.seen.operation
    is_being_made = operation is not None and not operation.done
    is_new = view.state.phase_seconds < view.settings.settle
    return view.tpu is None and (is_new or is_being_made)


def lost(view: View) -> Decision:
    """Nothing came of the request."""
    event = Event("create_lost", {"zone": view.state.zone, "attempt": view.state.attempt})
    state = pause_before_next(enter(view.state, Phase.IDLE), view.settings)
    return Decision(state, events=(event,))


def wait_for_creation(view: View) -> Decision:
    """Waits for it, but not for ever."""
    state, settings = view.state, view.settings
    waiting = view.tpu is not None and view.tpu.presence is Presence.WAITING
    limit = settings.queue_timeout if waiting else settings.create_timeout
    if state.phase_seconds <= limit:
        return Decision(state, pause=settings.poll)
    return _next_zone(view, "create_timeout", "no_capacity")


def _next_zone(view: View, name: str, cause: str) -> Decision:
    """Removes what does not become READY; the next one is asked for elsewhere."""
    state = view.state
    fields = {"zone": state.zone, "attempt": state.attempt, "seconds": round(state.phase_seconds)}
    state = pause_before_next(enter(state, Phase.REMOVING, cause=cause), view.settings)
    return Decision(state, events=(Event(name, fields),))


# --- the end of a TPU ----------------------------------------------------------------------------


def word(view: View) -> str:
    """The service's own word for our TPU's state."""
    return view.tpu.state if view.tpu is not None else "absent"


def end_of_lease(view: View, how: str) -> Decision:
    """It has lived as long as it may."""
    return lease_over(view.state, how)


def taken_away(view: View) -> Decision:
    """Nobody's failure either."""
    return preempted(view.state, word(view))


def went(view: View) -> Decision:
    """It is not there any more: taken away, or at the end of what it was allowed to live."""
    return end_of_lease(view, word(view)) if view.is_life_over else taken_away(view)


# --- RUNNING -------------------------------------------------------------------------------------


def is_another(view: View) -> bool:
    """Whether what is listed was created at another time than what we watch."""
    watched, tpu = view.state.incarnation, view.tpu
    return bool(watched and tpu is not None and tpu.created and tpu.created != watched)


def is_group(view: View) -> bool:
    """Whether the service replaces lost hosts of our TPU by itself."""
    return view.tpu is not None and view.tpu.is_group


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
        "zone": state.zone,
        "attempt": state.attempt,
        "state": word(view),
        "step": state.best_step,
        "preemptions": state.preemptions,
    }
    return replace(watch_on(replace(view, state=state)), events=(Event("repairing", fields),))


def give_repair_up(view: View) -> Decision:
    """The group goes, and another is asked for; the preemption was counted when it began."""
    return _next_zone(view, "repair_timeout", "preempted")


def follow(view: View) -> tuple[RunState, list[Event]]:
    """The state with what our TPU's trainer has done since the last look; only of one that is
    READY and whose life is not over."""
    if view.is_unlisted or not view.is_ready or is_another(view) or view.is_life_over:
        return view.state, []
    state = replace(view.state, phase_seconds=0.0, in_repair=False)
    fields = {"zone": state.zone, "attempt": state.attempt}
    events = [Event("repaired", fields)] if view.state.in_repair else []
    return _follow_heartbeat(replace(view, state=state)), events


def _follow_heartbeat(view: View) -> RunState:
    """Resets the quiet time when the global step moved; a newer time stamp alone does not.

    The first heartbeat of this TPU only sets the mark: it repeats the checkpoint's step. Time in
    which the bucket could not be read does not count.
    """
    state, seen, heartbeat = view.state, view.seen, view.heartbeat
    quiet = state.quiet_seconds + (seen.watched if seen.bucket_seen else 0.0)
    if heartbeat is None:
        return replace(state, quiet_seconds=quiet)
    if state.last_step < 0:
        # Past "starting" it has made steps before we looked: the shorter patience is right.
        begun = heartbeat.state != "starting"
        return replace(
            state, quiet_seconds=quiet, last_step=heartbeat.global_step, has_stepped=begun
        )
    if heartbeat.global_step == state.last_step:
        return replace(state, quiet_seconds=quiet)
    return replace(
        state,
        quiet_seconds=0.0,
        last_step=heartbeat.global_step,
        has_stepped=True,
        healthy_seconds=state.healthy_seconds + seen.watched,
    )


def has_ended(view: View) -> bool:
    """Whether training has ended on a TPU that still is READY."""
    if view.report is not None:
        return True
    # The exit report follows within seconds, with the log.
    heartbeat, patience = view.heartbeat, 60.0
    is_stopped = heartbeat is not None and heartbeat.state == "stopped"
    return is_stopped and view.state.quiet_seconds > patience


def training_ended(view: View) -> Decision:
    """Training ended, and it has not finished."""
    state, seen = view.state, view.seen
    reason = view.report.reason if view.report else ""
    reason = reason or (seen.heartbeat.reason if seen.heartbeat else "") or "bug"
    if reason == "interrupted":  # SIGTERM: the machine is being taken away
        return preempted(state, "interrupted")
    if reason == "lease_over":  # it heard of no renewal: this supervisor, or the bucket, was away
        return lease_over(state, reason)
    if reason == "finished":  # but not at the target: pretrain was told another length
        reason = "bug"
    return failed(state, reason, seen.log_tail, view.settings)


def is_quiet_too_long(view: View) -> bool:
    """Whether no step came for longer than a healthy trainer takes."""
    state, settings = view.state, view.settings
    return state.quiet_seconds > (settings.stall if state.has_stepped else settings.startup)


def stalled(view: View) -> Decision:
    """A failure, with what the trainer said last."""
    state = view.state
    reason = "stalled" if state.has_stepped else "never_started"
    text = f"READY, but no new step for {state.quiet_seconds / 60:.0f} minutes"
    return failed(state, reason, f"{text}\n{view.seen.log_tail}".strip(), view.settings)


def watch_on(view: View) -> Decision:
    """Looks again; there is one TPU of a run."""
    return Decision(view.state, _deletions(view.extras), pause=view.settings.poll)


def rest(view: View) -> Decision:
    """The run has ended."""
    return Decision(view.state)
