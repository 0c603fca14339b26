"""Decide what to do next: pure functions of (state, observation, record of the run).

    IDLE ──create──▶ CREATING ──READY──▶ RUNNING
      ▲                 │ no capacity, stuck   │ preempted, failed, lease over, ending
      └──────absent─────┴──────REMOVING◀───────┘            REMOVING ──ending──▶ ENDED

No clock, no randomness, no I/O: `supervise.py` observes, saves the decision, then acts. Endings
that hold in any phase come first (`check_endings`); then the module of the phase decides:
`idle.py`, `creating.py`, `running.py`, `removing.py`. There the first `if` that holds decides. The
comment above it has a fixed form: "condition: action -> phases that may follow. Why: reason".

- The cost of a machine is limited and stored before it is requested: `machine_limit` is its maximum
  lifetime, after which the cloud or its own watcher deletes it, with or without a supervisor.
- A machine counts as absent after two polls in a row in which its name was not found.
"""

from dataclasses import replace

from bigbird_ja.launch import creating, idle, removing, running
from bigbird_ja.launch.account import limit_reached, with_progress
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.state import Decision, Ending, Observation, Phase, RunState, View
from bigbird_ja.launch.transitions import end

SERVICE_TIMEOUT = 24 * 3600.0  # seconds with a service or a bucket that only fails

PHASES = {
    Phase.IDLE: idle.decide,
    Phase.CREATING: creating.decide,
    Phase.RUNNING: running.decide,
    Phase.REMOVING: removing.decide,
    # Rerunning the command continues the run.
    Phase.ENDED: lambda view: Decision(view.state),
}


def decide(state: RunState, seen: Observation, run: LaunchedRun) -> Decision:
    """Decide one poll: what to do now, and the pause after it.

    Args:
        state: state that includes time and money of this poll (`account.accrue`).
        seen: observation of this poll.
        run: record of the run.
    """
    ending = check_endings(state, seen, run)
    view = View(ending.state if ending else state, seen, run)
    events = ending.events if ending else ()
    if view.state.phase is Phase.RUNNING:
        view = with_progress(view)
    decision = PHASES[view.state.phase](view)
    return replace(decision, events=(*events, *decision.events))


def check_endings(state: RunState, seen: Observation, run: LaunchedRun) -> Decision | None:
    """Return the decision that ends the run in any phase, or None if it continues."""
    if state.ending is not None or state.phase is Phase.ENDED:
        return None
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
    if state.trouble_seconds > SERVICE_TIMEOUT:
        why = [f"{zone}: {fault}" for zone, fault in seen.silent.items()]
        why += [] if seen.bucket_seen else ["the bucket fails"]
        hours = SERVICE_TIMEOUT / 3600
        text = f"nothing worked for {hours:g} hours ({'; '.join(why) or 'the service refuses'})"
        return end(state, Ending.GAVE_UP, "io_error", f"{text}: run again later")
    return None


def is_refused_everywhere(state: RunState, run: LaunchedRun) -> bool:
    """Return whether a run has ended because every zone has refused its first machine."""
    is_refused = all(zone in state.excluded_zones for zone in run.zones)
    return state.ending is Ending.GAVE_UP and is_refused and not state.ready_zones
