"""Adds one observation to the state: time, money, and the trainer's progress."""

import math
from dataclasses import fields, replace
from typing import Any

from bigbird_ja.launch.machine.watcher import STALLED_SECONDS
from bigbird_ja.launch.record import LaunchedRun
from bigbird_ja.launch.service import Presence
from bigbird_ja.launch.state import LONGEST, Observation, Phase, RunState, View

SHORTEST = 600.0  # the rest of a budget must pay for so much of another machine
_BILLED = (Presence.READY, Presence.DELETING)
_ASKED_FOR = (Phase.CREATING, Phase.RUNNING)
_MACHINE_PHASES = (Phase.CREATING, Phase.RUNNING, Phase.REMOVING)


def accrue(state: RunState, seen: Observation, run: LaunchedRun) -> RunState:
    """Add this look's time and money.

    A machine that was READY at either end was billed throughout; one whose zone cannot be listed
    counts as READY for as long as it may live.
    """
    has_machine = state.phase in _MACHINE_PHASES
    # What waits in line was no machine until now: it has not lived, and was not billed.
    waits = any(t.zone == state.zone and t.presence is Presence.WAITING for t in seen.tpus)
    lived = 0.0 if waits else seen.elapsed
    is_unseen = state.zone in seen.unlisted and has_machine
    now_billing = is_unseen or any(tpu.presence in _BILLED for tpu in seen.tpus)
    # A machine that was requested before nobody watched may have been READY and gone since.
    is_gap = seen.resumed or seen.elapsed > seen.watched
    was_billing = state.billing or (is_gap and state.phase in _ASKED_FOR and not waits)
    billed = seen.elapsed if was_billing or now_billing else 0.0
    if is_gap and was_billing and not now_billing:
        billed = min(billed, _unwatched(state, seen))
    if is_unseen and state.machine_limit:
        billed = min(billed, max(0.0, state.machine_limit - state.machine_seconds))
    heartbeat = seen.heartbeat
    is_listed = state.zone in seen.unlisted or any(tpu.zone == state.zone for tpu in seen.tpus)
    return replace(
        state,
        elapsed_seconds=state.elapsed_seconds + seen.elapsed,
        billed_seconds=state.billed_seconds + billed,
        cost_usd=state.cost_usd + billed / 3600 * (state.machine or run).usd_per_hour,
        billing=now_billing,
        machine_seconds=state.machine_seconds + lived if has_machine else 0.0,
        trouble_seconds=_trouble(state, seen, run),
        phase_seconds=state.phase_seconds + seen.watched,
        backoff_seconds=max(0.0, state.backoff_seconds - seen.elapsed),
        delete_wait=max(0.0, state.delete_wait - seen.elapsed),
        best_step=max(state.best_step, heartbeat.global_step if heartbeat else -1),
        saved_at=seen.service_time or (state.saved_at and state.saved_at + seen.elapsed),
        absences=state.absences + 1 if has_machine and not is_listed else 0,
    )


def _unwatched(state: RunState, seen: Observation) -> float:
    """Bound the billed seconds of a machine that went away while nobody watched.

    It was there a bit longer than its last sign of life, but no longer than it was allowed to be.
    """
    alive = (seen.heartbeat.time if seen.heartbeat else 0.0) - state.saved_at
    most = max(alive, 0.0) + STALLED_SECONDS
    if state.machine_limit:
        most = min(most, max(0.0, state.machine_limit - state.machine_seconds))
    return most


def _trouble(state: RunState, seen: Observation, run: LaunchedRun) -> float:
    """Add up seconds in a row in which service or bucket failed and nothing could be done."""
    if state.phase in _MACHINE_PHASES:
        blind = state.zone in seen.unlisted
    else:
        blind = all(zone in seen.unlisted for zone in run.zones)
        blind |= state.moves(run) and any(zone in seen.unlisted for zone in state.used_zones)
    stuck = state.phase is Phase.REMOVING and state.delete_tries > 3
    troubled = blind or stuck or state.in_trouble or not seen.bucket_seen
    return state.trouble_seconds + seen.watched if troubled else 0.0


def longest_life(state: RunState, run: LaunchedRun) -> float:
    """Compute how many seconds of a new machine the budget still pays for."""
    seconds = LONGEST
    if run.max_seconds is not None:
        seconds = min(seconds, run.max_seconds - state.elapsed_seconds)
    if run.max_usd is not None and run.usd_per_hour:
        left = run.max_usd - state.cost_usd
        seconds = min(seconds, left / run.usd_per_hour * 3600)
    return max(0.0, seconds)


def with_progress(view: View) -> View:
    """Note the steps of the trainer on a TPU that is READY since the last look.

    The quiet time ends when the global step moved; a newer time stamp alone does not end it. The
    first heartbeat of this TPU only sets the mark: it repeats the checkpoint's step. Time in which
    the bucket could not be read does not count.
    """
    if view.is_unlisted or not view.is_ready or view.is_another or view.is_life_over:
        return view
    seen, heartbeat = view.seen, view.heartbeat
    state = replace(view.state, phase_seconds=0.0)
    quiet = state.quiet_seconds + (seen.watched if seen.bucket_seen else 0.0)
    if heartbeat is None or heartbeat.global_step == state.last_step:
        state = replace(state, quiet_seconds=quiet)
    elif state.last_step < 0:
        # Past "starting" it has made steps before we looked: the shorter patience is right.
        begun = heartbeat.state != "starting"
        state = replace(
            state, quiet_seconds=quiet, last_step=heartbeat.global_step, has_stepped=begun
        )
    else:
        state = replace(
            state,
            quiet_seconds=0.0,
            last_step=heartbeat.global_step,
            has_stepped=True,
            healthy_seconds=state.healthy_seconds + seen.watched,
        )
    return replace(view, state=state)


def limit_reached(state: RunState, run: LaunchedRun) -> str:
    """Name the limit of hours or money that is reached, or leaves too little for a machine."""
    if run.max_seconds is not None and state.elapsed_seconds >= run.max_seconds:
        return f"--max_hours {run.max_seconds / 3600:g} reached"
    hourly = (state.machine or run).usd_per_hour
    ahead = hourly * run.poll / 3600 if state.billing else 0.0
    if run.max_usd is not None and state.cost_usd + ahead >= run.max_usd:
        return f"--max_cost {run.max_usd:.2f} reached"
    is_next = state.phase is Phase.IDLE and state.attempt
    if is_next and longest_life(state, run) < SHORTEST:
        minutes = math.ceil(SHORTEST / 60)
        return f"the rest of --max_hours or --max_cost does not pay for {minutes} minutes"
    return ""


# The fields that begin anew where an ended run continues.
_ENDED = (
    "phase",
    "ending",
    "ending_reason",
    "ending_message",
    "same_failures",
    "last_failure",
    "struck_zones",
    "strikes",
    "misses",
    "backoff_seconds",
    "operation",
    "operation_kind",
    "trouble_seconds",
    "in_trouble",
)
# The fields that change with every look, beside those that end with `_seconds`.
_RUNNING_SUMS = ("delete_wait", "cost_usd", "saved_at", "best_step", "absences")


def resume(state: RunState, run: LaunchedRun) -> tuple[RunState, float]:
    """Make a stored state ready to continue; refusals of another machine don't count for this one.

    Returns:
        The state; and when it was saved, by the service's clock: 0 where nothing was rented since.
    """
    is_idle = state.phase is Phase.ENDED and not state.billing
    away_since = 0.0 if is_idle else state.saved_at
    names = _ENDED if state.ending else ()
    if state.machine and not state.machine.is_as(run):
        names = (*names, "struck_zones", "strikes", "misses", "backoff_seconds")
    fresh = RunState()
    state = replace(state, **{name: getattr(fresh, name) for name in names})
    return state, away_since


def without_timers(state: RunState) -> RunState:
    """Return the state with its timers at zero: equal where nothing else has changed."""
    names = [one.name for one in fields(state) if one.name.endswith("_seconds")]
    zeros: dict[str, Any] = dict.fromkeys((*names, *_RUNNING_SUMS), 0)
    return replace(state, **zeros, last_step=min(state.last_step, 0))
