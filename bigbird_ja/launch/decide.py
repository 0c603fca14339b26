"""Rules of the supervisor: pure functions of (state, observation, record of the run).

    IDLE ──create──▶ CREATING ──READY──▶ RUNNING
      ▲                 │ no capacity, stuck   │ preempted, failed, lease over, ending
      └──────absent─────┴──────REMOVING◀───────┘            REMOVING ──ending──▶ ENDED

The functions use no clock, no randomness and no I/O: `supervise.py` observes, stores the decision,
then acts. First, `check_endings` applies the endings that are possible in any phase. Then the
module of the phase decides: `idle.py`, `creating.py`, `running.py` or `removing.py`. In its
function `decide`, the first condition that is true determines the decision. The comment above each
condition states the case, the action with its reason, and in parentheses the next phases.

- The cost of a machine is limited before the machine is requested. `machine_limit` is its maximum
  lifetime. At the end of that time, the cloud or the watcher, a program on the machine, deletes the
  machine, with or without a supervisor.
- A machine counts as absent after two successive polls that did not find its name.
"""

from dataclasses import replace

from bigbird_ja.launch import creating, idle, removing, running
from bigbird_ja.launch.account import add_progress, find_reached_limit
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.state import Decision, Ending, Observation, Phase, RunState, View
from bigbird_ja.launch.transitions import end

# The run ends if the service or the bucket has failed at every poll for this many seconds.
SERVICE_TIMEOUT = 24 * 3600.0

PHASES = {
    Phase.IDLE: idle.decide,
    Phase.CREATING: creating.decide,
    Phase.RUNNING: running.decide,
    Phase.REMOVING: removing.decide,
    # To continue an ended run, the user reruns the command. Before the first decision,
    # `account.resume` then resets the phase to IDLE.
    Phase.ENDED: lambda view: Decision(view.state),
}


def decide(state: RunState, seen: Observation, run: LaunchedRun) -> Decision:
    """Decide on the actions and the pause after one poll.

    Args:
        state: state to which `account.accrue` has added the time and cost since the last poll.
        seen: observation of this poll.
        run: record of the run.
    """
    ending = check_endings(state, seen, run)
    view = View(ending.state if ending else state, seen, run)
    events = ending.events if ending else ()
    if view.state.phase is Phase.RUNNING:
        view = add_progress(view)
    decision = PHASES[view.state.phase](view)
    return replace(decision, events=(*events, *decision.events))


def check_endings(state: RunState, seen: Observation, run: LaunchedRun) -> Decision | None:
    """Return the decision to end the run, or None if the run continues.

    The conditions are the same in every phase.
    """
    if state.ending is not None or state.phase is Phase.ENDED:
        return None
    step = seen.checkpoint_step
    if step is not None and step >= run.target_step:
        state = replace(state, best_step=max(state.best_step, step))
        return end(state, Ending.FINISHED, "finished", f"finished at step {step:,}")
    if seen.stop:
        return end(state, Ending.INTERRUPTED, "interrupted", "interrupted; the TPU is deleted")
    limit = find_reached_limit(state, run)
    if limit:
        text = f"{limit}: rerun the command with a higher limit to continue"
        return end(state, Ending.BUDGET, "interrupted", text)
    if state.trouble_seconds > SERVICE_TIMEOUT:
        why = [f"{zone}: {fault}" for zone, fault in seen.silent.items()]
        why += [] if seen.bucket_seen else ["the bucket fails"]
        hours = SERVICE_TIMEOUT / 3600
        text = f"every request failed for {hours:g} hours ({'; '.join(why) or 'service error'})"
        return end(state, Ending.GAVE_UP, "io_error", f"{text}: rerun the same command later")
    return None


def is_refused_everywhere(state: RunState, run: LaunchedRun) -> bool:
    """Return whether a run has ended because every zone refused to provide its first machine."""
    is_refused = all(zone in state.excluded_zones for zone in run.zones)
    return state.ending is Ending.GAVE_UP and is_refused and not state.ready_zones
