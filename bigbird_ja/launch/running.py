"""Rules of phase RUNNING: the TPU was READY in the last observation."""

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
    compute_backoff,
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

# Maximum seconds from a trainer's last heartbeat to its exit report.
SILENT_EXIT = 60.0
# Number of successive failures with the same reason after which the run ends.
SAME_FAILURES = 3
# After this many seconds of training on a TPU, a failure starts a new count of successive failures.
HEALTHY = 3600.0


def decide(view: View) -> Decision:
    """Return the decision for one poll.

    The body checks conditions in a fixed order. The first true condition determines the decision.
    """
    state = view.state
    # The zone does not answer: wait, since the machine may exist, and a second one must not be
    # rented. Stop waiting long after the machine's maximum lifetime, since the cloud or the watcher
    # must have deleted the machine by then (next phase: removing).
    if view.is_silent:
        return wait_for_answer(view)
    # The TPU's creation time has changed, so another machine of the run now has the TPU's name:
    # adopt that machine (next phases: creating or removing).
    if view.is_another:
        return adopt_or_remove(view)
    # Only one poll did not find the machine: poll again, since a single answer may be wrong.
    if view.is_perhaps_absent:
        return wait(view)
    # The machine is lost, and has reported the end of training: react to the report, since only the
    # report shows whether the machine deleted itself after a failure (next phase: removing).
    if view.is_gone and view.report is not None:
        return handle_exit(view)
    # The machine is lost without a report: count a preemption, or the end of its lease if its
    # maximum lifetime is reached (next phase: removing).
    if view.is_gone:
        return count_loss(view)
    # The machine has been in repair or restarting for more than 20 minutes: count a preemption,
    # since the service has not restored it (next phase: removing).
    if not view.is_ready and state.phase_seconds > CREATE_TIMEOUT:
        return count_preemption(state, view.service_state)
    # The machine is in repair or restarting: wait, since the service may restore it.
    if not view.is_ready:
        return watch_on(view)
    # The machine has reached its maximum lifetime: delete it now, since it is billed until it is
    # deleted (next phase: removing).
    if view.is_life_over:
        return count_lease_over(state, "READY")
    is_stopped = view.heartbeat is not None and view.heartbeat.state == "stopped"
    # Training ended before the last step: the exit reason decides whether this is a preemption, the
    # end of a lease or a failure (next phase: removing). The run ends if the same failure occurs
    # three times in a row, or would certainly occur again.
    if view.report is not None or (is_stopped and state.quiet_seconds > SILENT_EXIT):
        return handle_exit(view)
    # The machine is READY, but has completed no step for 15 minutes (45 before the first step):
    # count a failure, since a machine whose trainer hangs is billed (next phase: removing).
    if state.quiet_seconds > state.step_timeout:
        reason = "stalled" if state.has_stepped else "never_started"
        text = f"READY, but no new step for {state.quiet_seconds / 60:.0f} minutes"
        return handle_failure(state, reason, f"{text}\n{view.seen.log_tail}".strip(), view.run)
    # The machine trains: continue, and delete all other machines of the run.
    return watch_on(view)


def handle_exit(view: View) -> Decision:
    """Return the decision after training that ended before the last step."""
    state, seen = view.state, view.seen
    reason = view.report.reason if view.report else ""
    reason = reason or (seen.heartbeat.reason if seen.heartbeat else "") or "bug"
    # The trainer received SIGTERM, since the machine is being preempted.
    if reason == "interrupted":
        return count_preemption(state, "interrupted")
    # The machine reached its maximum lifetime, or its lease was not renewed because the supervisor
    # or the bucket was unavailable.
    if reason == "lease_over":
        return count_lease_over(state, reason)
    # Training finished before the target step, so `pretrain` ran with a smaller number of steps
    # than the run's record contains.
    if reason == "finished":
        reason = "bug"
    return handle_failure(state, reason, seen.log_tail, view.run)


def handle_failure(state: RunState, reason: str, log_tail: str, run: LaunchedRun) -> Decision:
    """Return the decision after a failure of training: request another machine, or end the run.

    The run ends if the failure would certainly occur again, or if it is the third in a row with the
    same reason.
    """
    again = reason == state.last_failure and state.healthy_seconds < HEALTHY
    in_a_row = state.same_failures + 1 if again else 1
    # Bad input and divergence repeat on any machine, since data order and dropout are functions of
    # the step. A bug may be caused by the machine, unless it occurs twice at the same step.
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
            message += f" at step {max(state.best_step, 0):,}, where it would occur again"
        if log_tail:
            message += f"; the log ends: {log_tail[-600:]}"
        return end(state, Ending.GAVE_UP, reason, message, event)
    state = replace(state.enter(Phase.REMOVING), backoff_seconds=compute_backoff(in_a_row, run))
    return Decision(state, events=(event,))


def watch_on(view: View) -> Decision:
    """Return the decision to keep the run's TPU, and to delete the run's TPUs in other zones."""
    extras = tuple(tpu for tpu in view.alive if tpu is not view.tpu)
    return Decision(view.state, extras, pause=view.run.poll)
