"""Accounting after each poll: time, cost, and the trainer's progress."""

import math
from dataclasses import replace

from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.machine.watcher import STALLED_SECONDS
from bigbird_ja.launch.service import Presence
from bigbird_ja.launch.state import MAX_LIFETIME, Observation, Phase, RunState, View

# Minimum lifetime of a new machine, in seconds. If the run's limits leave less time, the run ends.
MIN_LIFETIME = 600.0
_BILLED = (Presence.READY, Presence.DELETING)
_ASKED_FOR = (Phase.CREATING, Phase.RUNNING)
_MACHINE_PHASES = (Phase.CREATING, Phase.RUNNING, Phase.REMOVING)


def accrue(state: RunState, seen: Observation, run: LaunchedRun) -> RunState:
    """Add the time and cost since the last poll to a run's state, and return the new state.

    If a machine was READY or being deleted at the last poll or at this poll, the time between the
    two polls counts as billed. A machine in a zone that does not answer counts as billed until its
    maximum lifetime.
    """
    has_machine = state.phase in _MACHINE_PHASES
    # A queued request has no machine yet, so no lifetime is counted, and nothing is billed.
    waits = any(t.zone == state.zone and t.presence is Presence.WAITING for t in seen.tpus)
    lived = 0.0 if waits else seen.elapsed
    is_unseen = state.zone in seen.silent and has_machine
    now_billing = is_unseen or any(tpu.presence in _BILLED for tpu in seen.tpus)
    # In a long gap between two polls, a requested machine may have been READY and then deleted. So
    # the gap counts as billed.
    is_gap = seen.resumed or seen.elapsed > seen.watched
    was_billing = state.billing or (is_gap and state.phase in _ASKED_FOR and not waits)
    billed = seen.elapsed if was_billing or now_billing else 0.0
    if is_gap and was_billing and not now_billing:
        billed = min(billed, _bound_unwatched_seconds(state, seen))
    if is_unseen and state.machine_limit:
        billed = min(billed, max(0.0, state.machine_limit - state.machine_seconds))
    heartbeat = seen.heartbeat
    is_there = state.zone in seen.silent or any(tpu.zone == state.zone for tpu in seen.tpus)
    return replace(
        state,
        elapsed_seconds=state.elapsed_seconds + seen.elapsed,
        billed_seconds=state.billed_seconds + billed,
        cost_usd=state.cost_usd + billed / 3600 * (state.machine or run).usd_per_hour,
        billing=now_billing,
        machine_seconds=state.machine_seconds + lived if has_machine else 0.0,
        trouble_seconds=_count_trouble(state, seen, run),
        phase_seconds=state.phase_seconds + seen.watched,
        backoff_seconds=max(0.0, state.backoff_seconds - seen.elapsed),
        delete_wait=max(0.0, state.delete_wait - seen.elapsed),
        best_step=max(state.best_step, heartbeat.global_step if heartbeat else -1),
        saved_at=seen.service_time or (state.saved_at and state.saved_at + seen.elapsed),
        absences=state.absences + 1 if has_machine and not is_there else 0,
    )


def _bound_unwatched_seconds(state: RunState, seen: Observation) -> float:
    """Return an upper bound on the billed seconds of a machine that was deleted between two polls.

    The watcher, a program on the machine, deletes the machine at most `STALLED_SECONDS` after the
    last step of training, or at the machine's maximum lifetime.
    """
    alive = (seen.heartbeat.time if seen.heartbeat else 0.0) - state.saved_at
    seconds = max(alive, 0.0) + STALLED_SECONDS if seen.bucket_seen else math.inf
    if state.machine_limit:
        seconds = min(seconds, max(0.0, state.machine_limit - state.machine_seconds))
    return seconds


def _count_trouble(state: RunState, seen: Observation, run: LaunchedRun) -> float:
    """Return the seconds since failures of the service or the bucket began to block the run."""
    if state.phase in _MACHINE_PHASES:
        blind = state.zone in seen.silent
    else:
        blind = all(zone in seen.silent for zone in run.zones)
        blind |= state.has_moved(run) and any(zone in seen.silent for zone in state.used_zones)
    stuck = state.phase is Phase.REMOVING and state.delete_tries > 3
    troubled = blind or stuck or state.in_trouble or not seen.bucket_seen
    return state.trouble_seconds + seen.watched if troubled else 0.0


def compute_remaining_lifetime(state: RunState, run: LaunchedRun) -> float:
    """Return the maximum lifetime of a new machine within the run's limits, in seconds."""
    seconds = MAX_LIFETIME
    if run.max_seconds is not None:
        seconds = min(seconds, run.max_seconds - state.elapsed_seconds)
    if run.max_usd is not None and run.usd_per_hour:
        left = run.max_usd - state.cost_usd
        seconds = min(seconds, left / run.usd_per_hour * 3600)
    return max(0.0, seconds)


def add_progress(view: View) -> View:
    """Add the progress of the trainer on a READY TPU to the state in `view`. Return the new view.

    `quiet_seconds` counts the time since the last new global step. A heartbeat with only a newer
    time stamp does not reset it. The first heartbeat of a TPU does not reset it either, since this
    heartbeat contains the step of the restored checkpoint. Time in which the bucket could not be
    read is not counted.
    """
    if view.is_silent or not view.is_ready or view.is_another or view.is_life_over:
        return view
    seen, heartbeat = view.seen, view.heartbeat
    state = replace(view.state, phase_seconds=0.0)
    quiet = state.quiet_seconds + (seen.watched if seen.bucket_seen else 0.0)
    if heartbeat is None or heartbeat.global_step == state.last_step:
        state = replace(state, quiet_seconds=quiet)
    elif state.last_step < 0:
        # The trainer leaves the state "starting" when the first step begins. From then on, the
        # shorter timeout applies.
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


def find_reached_limit(state: RunState, run: LaunchedRun) -> str:
    """Describe a limit of the run that is reached, or that leaves too little time for a machine.

    Returns:
        A text for the user, or "" if there is no such limit.
    """
    if run.max_seconds is not None and state.elapsed_seconds >= run.max_seconds:
        return f"`max_hours` {run.max_seconds / 3600:g} reached"
    hourly = (state.machine or run).usd_per_hour
    ahead = hourly * run.poll / 3600 if state.billing else 0.0
    if run.max_usd is not None and state.cost_usd + ahead >= run.max_usd:
        return f"`max_cost` {run.max_usd:.2f} reached"
    is_next = state.phase is Phase.IDLE and state.attempt
    if is_next and compute_remaining_lifetime(state, run) < MIN_LIFETIME:
        minutes = math.ceil(MIN_LIFETIME / 60)
        return f"`max_hours` or `max_cost` leaves less than {minutes} minutes of another machine"
    return ""


# Fields that are reset when an ended run continues.
_ENDED = (
    "phase",
    "ending",
    "ending_reason",
    "ending_message",
    "same_failures",
    "last_failure",
    "excluded_zones",
    "quota_refusals",
    "misses",
    "backoff_seconds",
    "operation",
    "operation_kind",
    "trouble_seconds",
    "in_trouble",
)


def resume(state: RunState, run: LaunchedRun) -> tuple[RunState, float]:
    """Prepare a stored state to continue the run.

    If the run's record now requests a machine of another type, service, project or pricing than
    before (`Machine.is_as`), the stored refusals and the backoff are reset.

    Returns:
        The state, and the UNIX time of its last poll by the service's clock. The time is 0 if the
        run had ended and no machine was billed, since the time after such an ending does not count.
    """
    is_idle = state.phase is Phase.ENDED and not state.billing
    away_since = 0.0 if is_idle else state.saved_at
    names = _ENDED if state.ending or state.phase is Phase.ENDED else ()
    if state.machine and not state.machine.is_as(run):
        names = (*names, "excluded_zones", "quota_refusals", "misses", "backoff_seconds")
    fresh = RunState()
    state = replace(state, **{name: getattr(fresh, name) for name in names})
    return state, away_since
