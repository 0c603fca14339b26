"""The state machine that keeps one TPU training: pure functions of (state, observation, settings).

    IDLE ──create──▶ CREATING ──READY──▶ RUNNING
      ▲                 │ no capacity, stuck   │ preempted, failed, lease over, ending
      └──────absent─────┴──────REMOVING◀───────┘            REMOVING ──ending──▶ ENDED

No clock, no randomness, no input or output: `loop.py` observes, saves the decision, then acts. The
rules that cost people money when they are missing:

- What a machine may cost is decided and stored before it is asked for: Create carries the most that
  it may live, and the cloud or its own watcher deletes it then, whatever has become of us.
- Reality comes from listing every zone that the run ever used. Nothing is created in a zone that
  does not answer, and nothing counts as deleted before a listing of its zone shows nothing.
- Health is a new global step on the bucket. READY only says that the VM is up, not that it trains.
- What is not READY or on its way there is dead, whatever it is called.
- A checkpoint at the last step is the end, whatever heartbeat or exit status say.
- Preemptions and ends of leases are expected and unlimited. Failures are told apart by reason: what
  would come again at the same step ends the run, the same reason three times in a row as well.
- The service's own trouble is no failure: it is waited out, for hours.
"""

from __future__ import annotations

from dataclasses import replace

from bigbird_ja.cloud.accounts import check_endings, longest_life
from bigbird_ja.cloud.faults import Kind, advice
from bigbird_ja.cloud.removing import OVERTIME, removing
from bigbird_ja.cloud.run_state import (
    ActionResult,
    Create,
    Decision,
    Delete,
    Ending,
    Event,
    Observation,
    Phase,
    RunState,
    Settings,
)
from bigbird_ja.cloud.service import Presence, Tpu
from bigbird_ja.cloud.transitions import (
    creation_failed,
    end,
    enter,
    failed,
    lease_over,
    pause_before_next,
    preempted,
)


def decide(state: RunState, seen: Observation, settings: Settings) -> Decision:
    """One turn: what to do now, and how long to pause after it.

    Args:
        state: with this look's time and money in it (`accounts.account`).
    """
    state, events = check_endings(state, seen, settings)
    decision = _TURNS[state.phase](state, seen, settings)
    return replace(decision, events=(*events, *decision.events))


def after_action(state: RunState, result: ActionResult, settings: Settings) -> Decision:
    """What an act's answer changes; `pause` is the decision's own and stays."""
    if isinstance(result.action, Delete):
        if result.fault is None:
            return Decision(replace(state, operation=result.operation, operation_kind="delete"))
        if result.fault.kind is Kind.NOT_FOUND:
            return Decision(state)  # the next listing shows that it is gone
        event = Event("delete_failed", {"zone": result.action.tpu.zone, "error": str(result.fault)})
        return Decision(state, events=(event,))
    if result.fault is None:
        return Decision(replace(state, operation=result.operation, operation_kind="create"))
    if result.fault.kind in (Kind.EXISTS, Kind.UNAVAILABLE, Kind.INTERNAL):
        # It exists, or may yet appear: the listing decides after `settle` seconds.
        state = replace(state, in_trouble=result.fault.is_passing)
        event = Event("create_unclear", {"zone": result.action.zone, "error": str(result.fault)})
        return Decision(state, events=(event,))
    return creation_failed(state, result.fault, settings)


# --- IDLE ----------------------------------------------------------------------------------------


def _idle(state: RunState, seen: Observation, settings: Settings) -> Decision:
    if seen.tpus:
        return _adopt(state, seen, settings)
    refused = _refused_everywhere(state, seen, settings)
    if refused:
        return refused
    if state.backoff_seconds > 0:
        return Decision(state, pause=min(settings.poll, state.backoff_seconds))
    if not seen.bucket_seen or seen.checkpoint_step is None:
        # It may have finished, or be another supervisor's: nothing is rented blindly.
        return Decision(state, pause=settings.poll)
    open_zones = [zone for zone in settings.zones if zone not in state.struck_zones]
    if not open_zones:
        why = "; ".join(dict.fromkeys(state.struck_zones.values()))
        state, events = end(state, Ending.GAVE_UP, "bad_input", why)
        return Decision(state, events=tuple(events))
    # Not where a TPU of ours could be that a listing does not show.
    open_zones = [zone for zone in open_zones if zone not in seen.unlisted]
    if not open_zones:
        return Decision(state, pause=settings.poll)
    return _create(state, seen, settings, open_zones)


def _create(
    state: RunState, seen: Observation, settings: Settings, open_zones: list[str]
) -> Decision:
    """Asks for a TPU, with the most that it may live: that is part of what is stored before."""
    count = len(settings.zones)
    index = next(
        i % count
        for i in range(state.zone_index, state.zone_index + count)
        if settings.zones[i % count] in open_zones
    )
    zone = settings.zones[index]
    state = replace(
        enter(state, Phase.CREATING),
        zone=zone,
        zone_index=index,
        used_zones=tuple(dict.fromkeys((*state.used_zones, zone))),
        attempt=state.attempt + 1,
        incarnation=0.0,
        machine_seconds=0.0,
        machine_limit=longest_life(state, settings),
        stale_heartbeat=seen.heartbeat.signature if seen.heartbeat else "",
        last_step=-1,
        has_stepped=False,
        healthy_seconds=0.0,
        cause="",
    )
    event = Event("creating", {"zone": zone, "attempt": state.attempt})
    create = Create(zone, state.attempt, state.machine_limit)
    return Decision(state, (create,), (event,), min(settings.poll, 5.0))


def _refused_everywhere(state: RunState, seen: Observation, settings: Settings) -> Decision | None:
    """A refusal before anything was rented is the person's to mend; later ones are waited out."""
    refused = (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND)
    if state.attempt or not all(
        zone in seen.unlisted and seen.unlisted[zone].kind in refused for zone in settings.zones
    ):
        return None
    zone = settings.zones[0]
    words = advice(seen.unlisted[zone], settings.project, zone, settings.accelerator_type)
    state = replace(enter(state, Phase.ENDED), ending=Ending.GAVE_UP, ending_message=words)
    return Decision(replace(state, ending_reason="bad_input"))


def _adopt(state: RunState, seen: Observation, settings: Settings) -> Decision:
    """Something of ours is there although nothing should be: take it over, or remove it."""
    alive = [tpu for tpu in seen.tpus if tpu.presence in _ALIVE]
    if not alive:
        return Decision(enter(state, Phase.REMOVING, cause="leftover"))
    tpu = alive[0]
    state = replace(
        enter(state, Phase.CREATING),
        zone=tpu.zone,
        used_zones=tuple(dict.fromkeys((*state.used_zones, tpu.zone))),
        attempt=max(state.attempt, tpu.attempt),
        machine_limit=state.machine_limit if tpu.attempt == state.attempt else 0.0,
        incarnation=0.0,
        last_step=-1,
        has_stepped=False,
        healthy_seconds=0.0,
        cause="",
    )
    event = Event("adopted", {"zone": tpu.zone, "state": tpu.state, "attempt": state.attempt})
    return Decision(state, _extra_deletions(alive[1:]), (event,))


_ALIVE = (Presence.WAITING, Presence.PENDING, Presence.READY)


def _extra_deletions(tpus: list[Tpu]) -> tuple[Delete, ...]:
    return tuple(Delete(tpu) for tpu in tpus)


# --- CREATING ------------------------------------------------------------------------------------


def _creating(state: RunState, seen: Observation, settings: Settings) -> Decision:
    if state.zone in seen.unlisted:
        return _unlisted(state, settings)
    fault = seen.operation.fault if seen.operation else None
    tpu = _ours(state, seen)
    if tpu is None and seen.tpus:
        return _adopt(state, seen, settings)  # it came up in another zone than this state knows
    if tpu is not None and tpu.presence is Presence.READY:
        return _became_ready(state, tpu)
    if fault is None and tpu is not None:
        fault = tpu.fault
    if fault is not None and not (fault.kind is Kind.EXISTS and tpu is not None):
        return creation_failed(state, fault, settings)
    if tpu is None:
        if state.phase_seconds < settings.settle or (seen.operation and not seen.operation.done):
            return _wait_for_creation(state, settings, Presence.PENDING)
        event = Event("create_lost", {"zone": state.zone, "attempt": state.attempt})
        return Decision(pause_before_next(enter(state, Phase.IDLE), settings), events=(event,))
    if tpu.presence in (Presence.GONE, Presence.DELETING):
        return _went(state, tpu.state)
    return _wait_for_creation(state, settings, tpu.presence)


def _unlisted(state: RunState, settings: Settings) -> Decision:
    """Its zone does not answer: it may be there, until its life is certainly over."""
    if state.machine_limit and state.machine_seconds > state.machine_limit + OVERTIME:
        return lease_over(state, "not listed")
    return Decision(state, pause=settings.poll)


def _went(state: RunState, word: str) -> Decision:
    """It is not there any more: taken away, or at the end of what it was allowed to live."""
    if state.machine_limit and state.machine_seconds >= state.machine_limit:
        return lease_over(state, word)
    return preempted(state, word)


def _wait_for_creation(state: RunState, settings: Settings, presence: Presence) -> Decision:
    waiting = presence is Presence.WAITING
    limit = settings.queue_timeout if waiting else settings.create_timeout
    if state.phase_seconds <= limit:
        return Decision(state, pause=settings.poll)
    fields = {"zone": state.zone, "attempt": state.attempt, "seconds": round(state.phase_seconds)}
    event = Event("create_timeout", fields)
    state = pause_before_next(enter(state, Phase.REMOVING, cause="no_capacity"), settings)
    return Decision(state, events=(event,))


def _became_ready(state: RunState, tpu: Tpu) -> Decision:
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


# --- RUNNING -------------------------------------------------------------------------------------


def _running(state: RunState, seen: Observation, settings: Settings) -> Decision:
    if state.zone in seen.unlisted:
        return _unlisted(state, settings)
    tpu = _ours(state, seen)
    extras = _extra_deletions([t for t in seen.tpus if t is not tpu and t.presence in _ALIVE])
    if tpu is None:
        if seen.exit_report and seen.exit_report.attempt == state.attempt:
            return _ended_training(state, seen, settings)
        return _went(state, "absent")
    if state.incarnation and tpu.created and tpu.created != state.incarnation:
        return _adopt(replace(state, phase=Phase.IDLE), seen, settings)
    if tpu.presence in (Presence.GONE, Presence.DELETING):
        if seen.exit_report and seen.exit_report.attempt == state.attempt:
            return _ended_training(state, seen, settings)
        return _went(state, tpu.state)
    if tpu.presence is not Presence.READY:
        if state.phase_seconds > settings.create_timeout:
            return preempted(state, tpu.state)
        return Decision(state, extras, pause=settings.poll)
    if state.machine_limit and state.machine_seconds >= state.machine_limit:
        return lease_over(state, "READY")  # it deletes itself; we are here and do it now
    state = _follow_heartbeat(replace(state, phase_seconds=0.0), seen)
    if _has_ended(state, seen):
        return _ended_training(state, seen, settings)
    limit = settings.stall if state.has_stepped else settings.startup
    if state.quiet_seconds > limit:
        reason = "stalled" if state.has_stepped else "never_started"
        text = f"READY, but no new step for {state.quiet_seconds / 60:.0f} minutes"
        return failed(state, reason, f"{text}\n{seen.log_tail}".strip(), settings)
    return Decision(state, extras, pause=settings.poll)


def _follow_heartbeat(state: RunState, seen: Observation) -> RunState:
    """Resets the quiet time when the global step moved; a newer time stamp alone does not.

    The first heartbeat of this TPU only sets the mark: it repeats the checkpoint's step. Time in
    which the bucket could not be read does not count.
    """
    heartbeat = seen.heartbeat
    quiet = state.quiet_seconds + (seen.watched if seen.bucket_seen else 0.0)
    if heartbeat is None or heartbeat.signature == state.stale_heartbeat:
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


def _has_ended(state: RunState, seen: Observation) -> bool:
    if seen.exit_report and seen.exit_report.attempt == state.attempt:
        return True
    heartbeat = seen.heartbeat
    return (
        heartbeat is not None
        and heartbeat.signature != state.stale_heartbeat
        and heartbeat.state == "stopped"
        and state.quiet_seconds > 60  # the exit report follows within seconds, with the log
    )


def _ended_training(state: RunState, seen: Observation, settings: Settings) -> Decision:
    """Training ended on a TPU that still is READY, and it has not finished."""
    report, heartbeat = seen.exit_report, seen.heartbeat
    reason = report.reason if report and report.attempt == state.attempt else ""
    reason = reason or (heartbeat.reason if heartbeat else "") or "bug"
    if reason == "interrupted":  # SIGTERM: the machine is being taken away
        return preempted(state, "interrupted")
    if reason == "lease_over":  # it heard of no renewal: this supervisor, or the bucket, was away
        return lease_over(state, reason)
    if reason == "finished":  # but not at the target: pretrain was told another length
        reason = "bug"
    return failed(state, reason, seen.log_tail, settings)


def _ended(state: RunState, seen: Observation, settings: Settings) -> Decision:
    return Decision(state)


def _ours(state: RunState, seen: Observation) -> Tpu | None:
    """The TPU of this state's zone, else None."""
    return next((tpu for tpu in seen.tpus if tpu.zone == state.zone), None)


_TURNS = {
    Phase.IDLE: _idle,
    Phase.CREATING: _creating,
    Phase.RUNNING: _running,
    Phase.REMOVING: removing,
    Phase.ENDED: _ended,
}
