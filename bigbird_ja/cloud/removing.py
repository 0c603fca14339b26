"""The supervisor's turn while what is there must go: deletes until a listing shows nothing."""

from __future__ import annotations

from dataclasses import replace

from bigbird_ja.cloud.run_state import (
    Decision,
    Delete,
    Event,
    Observation,
    Phase,
    RunState,
    Settings,
)
from bigbird_ja.cloud.tpu import Presence
from bigbird_ja.cloud.transitions import enter


def removing(state: RunState, seen: Observation, settings: Settings) -> Decision:
    """One turn: deletes what is listed, more rarely each time; then IDLE, or ENDED."""
    if seen.tpus is None:
        return _out_of_patience(state, settings) or Decision(state, pause=settings.poll)
    if not seen.tpus:
        return _absent(state, seen, settings)
    impatient = _out_of_patience(state, settings)
    if impatient:
        return impatient
    pending = state.operation_kind == "delete" and not (seen.operation and seen.operation.done)
    targets = [tpu for tpu in seen.tpus if tpu.presence is not Presence.DELETING]
    overdue = state.phase_seconds > settings.create_timeout * (state.delete_tries + 1)
    events: tuple[Event, ...] = ()
    if seen.operation and seen.operation.fault and state.operation_kind == "delete":
        fields = {"zone": state.zone, "error": str(seen.operation.fault)}
        events = (Event("delete_failed", fields),)
        state = replace(state, operation="", operation_kind="")
    if (not targets and not overdue) or (pending and not overdue):
        return Decision(state, events=events, pause=min(settings.poll, 10.0))
    if state.delete_wait > 0:
        return Decision(state, events=events, pause=min(settings.poll, state.delete_wait))
    tries = state.delete_tries + 1
    deletions = tuple(Delete(tpu) for tpu in targets or seen.tpus)
    wait = min(10.0 * 2 ** min(tries - 1, 8), 120.0)
    state = replace(state, delete_tries=tries, delete_wait=wait, operation="", operation_kind="")
    return Decision(state, deletions, events, min(settings.poll, 10.0))


def _absent(state: RunState, seen: Observation, settings: Settings) -> Decision:
    """Nothing is listed. A creation under way could still put something there."""
    if state.operation_kind == "create" and state.operation:
        over = seen.operation is not None and seen.operation.done
        if not over and state.phase_seconds < settings.create_timeout:
            return Decision(state, pause=min(settings.poll, 10.0))
        if over and state.phase_seconds < min(settings.settle, 2 * settings.poll):
            return Decision(state, pause=min(settings.poll, 10.0))
    events: list[Event] = []
    if state.delete_tries:
        events.append(Event("deleted", {"zone": state.zone, "attempt": state.attempt}))
    if state.ending is None:
        return Decision(enter(state, Phase.IDLE), events=tuple(events))
    fields = {"ending": state.ending.value, "reason": state.ending_reason, "step": state.best_step}
    events.append(Event("ended", {**fields, "cost_usd": round(state.cost_usd, 2)}))
    return Decision(enter(state, Phase.ENDED), events=tuple(events))


def _out_of_patience(state: RunState, settings: Settings) -> Decision | None:
    if state.ending is None or state.phase_seconds <= settings.delete_patience:
        return None
    event = Event("not_deleted", {"zone": state.zone, "seconds": round(state.phase_seconds)})
    message = (
        f"{state.ending_message}; STILL THERE AND BILLED: {state.name} in {state.zone} could not be"
        " deleted: run `bigbird-ja down`, or delete it on the console"
    )
    state = replace(
        enter(state, Phase.ENDED),
        ending_reason="io_error",
        ending_message=message,
    )
    return Decision(state, events=(event,))
