"""The transitions of the supervisor that more than one of its turns makes: pure functions."""

from __future__ import annotations

from dataclasses import replace

from bigbird_ja.launch.faults import Kind, ServiceFault, advice
from bigbird_ja.launch.run_state import Decision, Ending, Event, Phase, RunState, Settings


def enter(state: RunState, phase: Phase, cause: str = "") -> RunState:
    keeps_operation = phase is Phase.REMOVING and state.operation_kind == "create"
    return replace(
        state,
        phase=phase,
        cause=cause or state.cause,
        phase_seconds=0.0,
        quiet_seconds=0.0,
        delete_tries=0,
        delete_wait=0.0,
        in_repair=False,
        operation=state.operation if keeps_operation else "",
        operation_kind=state.operation_kind if keeps_operation else "",
    )


def end(state: RunState, ending: Ending, reason: str, message: str) -> tuple[RunState, list[Event]]:
    state = replace(state, ending=ending, ending_reason=reason, ending_message=message)
    event = Event("ending", {"ending": ending.value, "reason": reason, "message": message})
    return enter(state, Phase.REMOVING, cause="ending"), [event]


def preempted(state: RunState, word: str) -> Decision:
    fields = {
        "zone": state.zone,
        "attempt": state.attempt,
        "state": word,
        "step": state.best_step,
        "preemptions": state.preemptions + 1,
    }
    state = replace(state, preemptions=state.preemptions + 1)
    state = enter(state, Phase.REMOVING, cause="preempted")
    return Decision(
        replace(state, operation="", operation_kind=""), events=(Event("preempted", fields),)
    )


def lease_over(state: RunState, word: str) -> Decision:
    """The end of what a machine was allowed to live: nobody's failure."""
    fields = {"zone": state.zone, "attempt": state.attempt, "state": word, "step": state.best_step}
    state = replace(state, leases_over=state.leases_over + 1, operation="", operation_kind="")
    return Decision(
        enter(state, Phase.REMOVING, cause="lease_over"), events=(Event("lease_over", fields),)
    )


def failed(state: RunState, reason: str, log_tail: str, settings: Settings) -> Decision:
    again = reason == state.last_failure and state.healthy_seconds < settings.healthy
    same = state.same_failures + 1 if again else 1
    repeats = _repeats(state, reason, again)
    state = replace(state, failures=state.failures + 1, last_failure=reason, same_failures=same)
    state = replace(state, failure_step=state.best_step)
    fields = {
        "zone": state.zone,
        "attempt": state.attempt,
        "reason": reason,
        "in_a_row": same,
        "step": state.best_step,
        "log": log_tail[-2000:],
    }
    event = Event("failed", fields)
    state = replace(state, operation="", operation_kind="")
    if repeats or same >= settings.same_failure_limit:
        message = f"{reason}, {same} times in a row" if same > 1 else reason
        if repeats:
            message += f" at step {max(state.best_step, 0):,}, where it would come again"
        if log_tail:
            message += f"; the log ends: {log_tail[-600:]}"
        ended, events = end(state, Ending.GAVE_UP, reason, message)
        return Decision(ended, events=(event, *events))
    state = enter(state, Phase.REMOVING, cause="failed")
    return Decision(replace(state, backoff_seconds=backoff(same, settings)), events=(event,))


def _repeats(state: RunState, reason: str, again: bool) -> bool:
    """Whether another machine would end in the same way: refusals and divergence repeat exactly,
    since data order and dropout are functions of the step. A bug may have been the machine's (an
    installation that failed, say), unless it comes at the same step again."""
    if reason in ("bad_input", "diverged"):
        return True
    return reason == "bug" and again and state.failure_step == state.best_step


def creation_failed(state: RunState, fault: ServiceFault, settings: Settings) -> Decision:
    """The service said no. Capacity and quota are told apart by `faults.py`."""
    fields = {"zone": state.zone, "attempt": state.attempt, "error": fault.message}
    removing = enter(state, Phase.REMOVING, cause="no_capacity")
    # The create operation is over: nothing of it may hold REMOVING up.
    removing = replace(removing, operation="", operation_kind="")
    removing = replace(removing, in_trouble=fault.is_passing)
    if fault.kind is Kind.STOCKOUT:
        return Decision(pause_before_next(removing, settings), events=(Event("stockout", fields),))
    if fault.kind is Kind.QUOTA:
        strikes = {**state.strikes, state.zone: state.strikes.get(state.zone, 0) + 1}
        limit = settings.quota_strikes if state.zone in state.ready_zones else 1
        struck = dict(state.struck_zones)
        if strikes[state.zone] >= limit:
            struck[state.zone] = advice(
                fault, settings.project, state.zone, settings.accelerator_type
            )
        removing = replace(removing, strikes=strikes, struck_zones=struck)
        return Decision(pause_before_next(removing, settings), events=(Event("no_quota", fields),))
    if fault.kind in (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND):
        message = advice(fault, settings.project, state.zone, settings.accelerator_type)
        ended, events = end(removing, Ending.GAVE_UP, "bad_input", message)
        return Decision(ended, events=(Event("refused", fields), *events))
    # It exists already, or the service has trouble of its own: the next zone, then longer pauses,
    # for hours (`service_patience`). That is no failure of the run.
    return Decision(
        pause_before_next(removing, settings), events=(Event("create_unclear", fields),)
    )


def pause_before_next(state: RunState, settings: Settings) -> RunState:
    """Next zone at once within a round; after each round a longer pause."""
    misses = state.misses + 1
    zones = max(1, len([z for z in settings.zones if z not in state.struck_zones]))
    rounds = misses // zones
    pause = 0.0 if misses % zones else backoff(rounds, settings)
    return replace(state, misses=misses, zone_index=state.zone_index + 1, backoff_seconds=pause)


def backoff(rounds: int, settings: Settings) -> float:
    """Seconds to wait after the `rounds`-th round over all zones without a TPU."""
    return min(settings.backoff_most, settings.backoff_first * 2.0 ** min(rounds - 1, 16))
