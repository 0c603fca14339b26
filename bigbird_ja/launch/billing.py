"""Time and money of a run, and the ends that follow from them: pure, as all of `supervisor.py`."""

from __future__ import annotations

import math
from dataclasses import replace

from bigbird_ja.launch.run_state import Ending, Event, Observation, Phase, RunState, Settings
from bigbird_ja.launch.tpu_service import Presence
from bigbird_ja.launch.transitions import end

_BILLED = (Presence.READY, Presence.DELETING)
_ASKED_FOR = (Phase.CREATING, Phase.RUNNING)
_MACHINE_PHASES = (Phase.CREATING, Phase.RUNNING, Phase.REMOVING)


def account(state: RunState, seen: Observation, settings: Settings) -> RunState:
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


def longest_life(state: RunState, settings: Settings) -> float:
    """Seconds that a machine asked for now may live: what the budget still pays for."""
    seconds = settings.longest
    if settings.max_seconds is not None:
        seconds = min(seconds, settings.max_seconds - state.elapsed_seconds)
    if settings.max_usd is not None and settings.usd_per_hour:
        left = settings.max_usd - state.cost_usd
        seconds = min(seconds, left / settings.usd_per_hour * 3600)
    return max(0.0, seconds)


def check_endings(
    state: RunState, seen: Observation, settings: Settings
) -> tuple[RunState, list[Event]]:
    """Whether the run has come to an end, whatever its phase."""
    if state.ending is not None or state.phase is Phase.ENDED:
        return state, []
    step = _finished_at(seen, settings)
    if step is not None:
        state = replace(state, best_step=max(state.best_step, step))
        return end(state, Ending.FINISHED, "finished", f"finished at step {step:,}")
    if seen.stop:
        return end(state, Ending.INTERRUPTED, "interrupted", "interrupted; the TPU is deleted")
    if settings.max_seconds is not None and state.elapsed_seconds >= settings.max_seconds:
        hours = settings.max_seconds / 3600
        text = f"--max_hours={hours:g} reached: run again with more to continue"
        return end(state, Ending.BUDGET, "interrupted", text)
    ahead = settings.usd_per_hour * settings.poll / 3600 if state.billing else 0.0
    if settings.max_usd is not None and state.cost_usd + ahead >= settings.max_usd:
        text = f"--max_cost={settings.max_usd:.2f} reached: run again with more to continue"
        return end(state, Ending.BUDGET, "interrupted", text)
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
        return end(state, Ending.BUDGET, "interrupted", text)
    if state.trouble_seconds > settings.service_patience:
        why = [f"{zone}: {fault}" for zone, fault in seen.unlisted.items()]
        why += [] if seen.bucket_seen else ["the bucket fails"]
        hours = settings.service_patience / 3600
        text = f"nothing worked for {hours:g} hours ({'; '.join(why) or 'the service refuses'})"
        return end(state, Ending.GAVE_UP, "io_error", f"{text}: run again later")
    return state, []


def _finished_at(seen: Observation, settings: Settings) -> int | None:
    """The step at which the run has finished, by its checkpoints or by the trainer's own word."""
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
