"""Decide in phase RUNNING: a TPU was READY when last seen."""

from dataclasses import replace

from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.state import (
    CREATE_TIMEOUT,
    Decision,
    Ending,
    Event,
    Phase,
    RunState,
    View,
    backoff,
)
from bigbird_ja.launch.transitions import (
    adopt_or_remove,
    count_lease_over,
    count_loss,
    count_preemption,
    end,
    wait,
    wait_for_answer,
)

SILENT_EXIT = 60.0  # seconds from a trainer's last heartbeat to its exit report
SAME_FAILURES = 3  # successive equal failures that end the run
HEALTHY = 3600.0  # seconds of training after which the next failure counts as the first


def decide(view: View) -> Decision:
    """Decide one poll.

    The comments have the form that `decide.py` states.
    """
    state = view.state
    # Its zone does not answer: wait; long after its maximum lifetime, lease over -> removing.
    # Why: it may be there, and nothing is rented twice; by then cloud or watcher have deleted it.
    if view.is_silent:
        return wait_for_answer(view)
    # Another TPU of its name: adopt it -> creating, removing.
    # Why: the creation time distinguishes two machines of one name.
    if view.is_another:
        return adopt_or_remove(view)
    # Absent in only one poll: poll again. Why: an answer may be wrong once.
    if view.is_perhaps_absent:
        return wait(view)
    # Gone, and it reported how training ended: as reported -> removing.
    # Why: it may have deleted itself, and only the report can show a failure.
    if view.is_gone and view.report is not None:
        return handle_exit(view)
    # Gone: preemption, or end of lease at its limit -> removing.
    # Why: any state that is neither READY nor on its way there means dead.
    if view.is_gone:
        return count_loss(view)
    # In repair or restarting for more than 20 minutes: preemption -> removing.
    # Why: the service does not bring it back.
    if not view.is_ready and state.phase_seconds > CREATE_TIMEOUT:
        return count_preemption(state, view.service_state)
    # In repair or restarting: wait. Why: the service may bring it back.
    if not view.is_ready:
        return watch_on(view)
    # Its lifetime is over: lease over -> removing. Why: it deletes itself; this is sooner.
    if view.is_life_over:
        return count_lease_over(state, "READY")
    is_stopped = view.heartbeat is not None and view.heartbeat.state == "stopped"
    # Training has ended, and not at the last step: preemption, end of lease, or failure, by its
    # exit reason -> removing. Why: the same reason three times in a row, or one that would come
    # again at once, ends the run.
    if view.report is not None or (is_stopped and state.quiet_seconds > SILENT_EXIT):
        return handle_exit(view)
    # READY, and no new step for 15 minutes (45 until the first): failure, stalled or never
    # started -> removing. Why: READY only means that the VM is up, and one that hangs is billed.
    if state.quiet_seconds > state.step_timeout:
        reason = "stalled" if state.has_stepped else "never_started"
        text = f"READY, but no new step for {state.quiet_seconds / 60:.0f} minutes"
        return handle_failure(state, reason, f"{text}\n{view.seen.log_tail}".strip(), view.run)
    # READY: watch on, delete all but one.
    # Why: only a new global step is progress; a newer time stamp is none.
    return watch_on(view)


def handle_exit(view: View) -> Decision:
    """React to the exit reason of training that ended before the last step."""
    state, seen = view.state, view.seen
    reason = view.report.reason if view.report else ""
    reason = reason or (seen.heartbeat.reason if seen.heartbeat else "") or "bug"
    # SIGTERM: the machine is being preempted.
    if reason == "interrupted":
        return count_preemption(state, "interrupted")
    # No renewal reached the machine: this supervisor, or the bucket, was away.
    if reason == "lease_over":
        return count_lease_over(state, reason)
    # Not at the target, as `pretrain` was given another length.
    if reason == "finished":
        reason = "bug"
    return handle_failure(state, reason, seen.log_tail, view.run)


def handle_failure(state: RunState, reason: str, log_tail: str, run: LaunchedRun) -> Decision:
    """Ask for another machine after a pause, or end the run if the failure would repeat."""
    again = reason == state.last_failure and state.healthy_seconds < HEALTHY
    in_a_row = state.same_failures + 1 if again else 1
    # Refusals and divergence repeat exactly on any machine, as data order and dropout are functions
    # of the step. The cause of a bug may be the machine, unless it comes at the same step again.
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
    event = Event("failed", {**state.place, **fields})
    if repeats or in_a_row >= SAME_FAILURES:
        message = f"{reason}, {in_a_row} times in a row" if in_a_row > 1 else reason
        if repeats:
            message += f" at step {max(state.best_step, 0):,}, where it would come again"
        if log_tail:
            message += f"; the log ends: {log_tail[-600:]}"
        return end(state, Ending.GAVE_UP, reason, message, event)
    state = replace(state.enter(Phase.REMOVING), backoff_seconds=backoff(in_a_row, run))
    return Decision(state, events=(event,))


def watch_on(view: View) -> Decision:
    """Poll again, and delete all other TPUs of the run."""
    extras = tuple(tpu for tpu in view.alive if tpu is not view.tpu)
    return Decision(view.state, extras, pause=view.run.poll)
