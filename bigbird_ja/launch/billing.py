"""Time, money and progress of a run, and the ends that do not depend on its phase: pure."""

from __future__ import annotations

import math
from dataclasses import replace

from bigbird_ja.launch.outcomes import end_run
from bigbird_ja.launch.run_state import (
    Decision,
    Ending,
    Event,
    Observation,
    Phase,
    RunState,
    Settings,
    View,
    longest_life,
)
from bigbird_ja.launch.services import Presence

_BILLED = (Presence.READY, Presence.DELETING)
_ASKED_FOR = (Phase.CREATING, Phase.RUNNING)
_MACHINE_PHASES = (Phase.CREATING, Phase.RUNNING, Phase.REMOVING)


def accrue(state: RunState, seen: Observation, settings: Settings) -> RunState:
    """Adds this look's time and money. What was READY at either end was billed throughout; what
    cannot be listed counts as READY for as long as it may live."""
    has_machine = state.phase in _MACHINE_PHASES
    is_unseen = state.zone in seen.unlisted and has_machine
    now_billing = is_unseen or any(tpu.presence in _BILLED or tpu.is_partly_up for tpu in seen.tpus)
    # What was asked for when we were last seen may have been READY and gone since.
    was_billing = state.billing or (seen.resumed and state.phase in _ASKED_FOR)
    billed = seen.elapsed if was_billing or now_billing else 0.0
    if seen.resumed and was_billing and not now_billing:
        billed = min(billed, _unwatched(state, seen, settings))
    if is_unseen and state.machine_limit:
        billed = min(billed, max(0.0, state.machine_limit - state.machine_seconds))
    heartbeat = seen.heartbeat
    return replace(
        state,
        elapsed_seconds=state.elapsed_seconds + seen.elapsed,
        billed_seconds=state.billed_seconds + billed,
        cost_usd=state.cost_usd + billed / 3600 * settings.usd_per_hour,
        billing=now_billing,
        machine_seconds=state.machine_seconds + seen.elapsed if has_machine else 0.0,
        trouble_seconds=_trouble(state, seen, settings),
        phase_seconds=state.phase_seconds + seen.watched,
        backoff_seconds=max(0.0, state.backoff_seconds - seen.elapsed),
        delete_wait=max(0.0, state.delete_wait - seen.elapsed),
        best_step=max(state.best_step, heartbeat.global_step if heartbeat else -1),
        last_heartbeat=heartbeat.time if heartbeat else state.last_heartbeat,
        saved_wall=seen.wall,
    )


def _unwatched(state: RunState, seen: Observation, settings: Settings) -> float:
    """The most that a machine was billed which went away while nobody watched: it was there a bit
    longer than its last sign of life, but no longer than it was allowed to be."""
    alive = (seen.heartbeat.time if seen.heartbeat else 0.0) - state.saved_wall
    most = max(alive, 0.0) + settings.silence
    if state.machine_limit:
        most = min(most, max(0.0, state.machine_limit - state.machine_seconds))
    return most


def _trouble(state: RunState, seen: Observation, settings: Settings) -> float:
    """Seconds in a row in which nothing could be done because service or bucket failed."""
    if state.phase in _MACHINE_PHASES:
        blind = state.zone in seen.unlisted
    else:
        blind = all(zone in seen.unlisted for zone in settings.zones)
    stuck = state.phase is Phase.REMOVING and state.delete_tries > 3
    troubled = blind or stuck or state.in_trouble or not seen.bucket_seen
    return state.trouble_seconds + seen.watched if troubled else 0.0


def with_progress(view: View) -> tuple[View, tuple[Event, ...]]:
    """The view with what our TPU's trainer has done since the last look; only of one that is READY
    and whose life is not over."""
    if view.is_unlisted or not view.is_ready or view.is_another or view.is_life_over:
        return view, ()
    state = view.state
    fields = {"zone": state.zone, "attempt": state.attempt}
    events = (Event("repaired", fields),) if state.in_repair else ()
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


def check_endings(state: RunState, seen: Observation, settings: Settings) -> Decision | None:
    """The end of the run, whatever its phase; None where it continues."""
    if state.ending is not None or state.phase is Phase.ENDED:
        return None
    step = _finished_at(seen, settings)
    if step is not None:
        state = replace(state, best_step=max(state.best_step, step))
        return end_run(state, Ending.FINISHED, "finished", f"finished at step {step:,}")
    if seen.stop:
        return end_run(state, Ending.INTERRUPTED, "interrupted", "interrupted; the TPU is deleted")
    if settings.max_seconds is not None and state.elapsed_seconds >= settings.max_seconds:
        hours = settings.max_seconds / 3600
        text = f"--max_hours={hours:g} reached: run again with more to continue"
        return end_run(state, Ending.BUDGET, "interrupted", text)
    ahead = settings.usd_per_hour * settings.poll / 3600 if state.billing else 0.0
    if settings.max_usd is not None and state.cost_usd + ahead >= settings.max_usd:
        text = f"--max_cost={settings.max_usd:.2f} reached: run again with more to continue"
        return end_run(state, Ending.BUDGET, "interrupted", text)
    if (
        state.phase is Phase.IDLE
        and state.attempt
        and longest_life(state, settings) < settings.shortest
    ):
        minutes = math.ceil(settings.shortest / 60)
        text = (
            f"what is left of --max_hours or --max_cost does not pay for {minutes} minutes:"
            " run again with more to continue"
        )
        return end_run(state, Ending.BUDGET, "interrupted", text)
    if state.trouble_seconds > settings.service_patience:
        why = [f"{zone}: {fault}" for zone, fault in seen.unlisted.items()]
        why += [] if seen.bucket_seen else ["the bucket fails"]
        hours = settings.service_patience / 3600
        text = f"nothing worked for {hours:g} hours ({'; '.join(why) or 'the service refuses'})"
        return end_run(state, Ending.GAVE_UP, "io_error", f"{text}: run again later")
    return None


def _finished_at(seen: Observation, settings: Settings) -> int | None:
    """The last step where the run has finished, by its checkpoints or by the last heartbeat."""
    if seen.checkpoint_step is not None and seen.checkpoint_step >= settings.target_step:
        return seen.checkpoint_step
    heartbeat = seen.heartbeat
    if (
        heartbeat
        and heartbeat.state == "stopped"
        and heartbeat.reason == "finished"
        and heartbeat.global_step >= settings.target_step
    ):
        return heartbeat.global_step
    return None
