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
from bigbird_ja.cloud.service import ATTEMPT_LABEL, RUN_LABEL, Presence, Tpu
from bigbird_ja.cloud.transitions import enter

# Seconds after its limit in which a machine is still on its way out: the watcher's turn and the
# service's deletion.
OVERTIME = 900.0


def removing(state: RunState, seen: Observation, settings: Settings) -> Decision:
    """One turn: deletes what is listed, more rarely each time; then IDLE, or ENDED.

    A zone that does not answer holds nothing up: what others list is deleted, and in the zone where
    the TPU was asked for its deletion is asked for by name.
    """
    if not seen.tpus and state.zone not in seen.unlisted:
        return _absent(state, seen, settings)
    impatient = _out_of_patience(state, seen, settings)
    if impatient:
        return impatient
    pending = state.operation_kind == "delete" and not (seen.operation and seen.operation.done)
    known = [*seen.tpus, *_unseen(state, seen, settings)]
    targets = [tpu for tpu in known if tpu.presence is not Presence.DELETING]
    overdue = state.phase_seconds > settings.create_timeout * (state.delete_tries + 1)
    events: tuple[Event, ...] = ()
    if seen.operation and seen.operation.fault and state.operation_kind == "delete":
        fields = {"zone": state.zone, "error": str(seen.operation.fault)}
        events = (Event("delete_failed", fields),)
        state = replace(state, operation="", operation_kind="")
    if (not targets and not overdue) or (pending and not overdue and not seen.unlisted):
        return Decision(state, events=events, pause=min(settings.poll, 10.0))
    if state.delete_wait > 0:
        return Decision(state, events=events, pause=min(settings.poll, state.delete_wait))
    tries = state.delete_tries + 1
    deletions = tuple(Delete(tpu) for tpu in targets or known)
    wait = min(10.0 * 2 ** min(tries - 1, 8), 120.0)
    state = replace(state, delete_tries=tries, delete_wait=wait, operation="", operation_kind="")
    return Decision(state, deletions, events, min(settings.poll, 10.0))


def _unseen(state: RunState, seen: Observation, settings: Settings) -> list[Tpu]:
    """The TPU of a zone that cannot be listed, as it was asked for."""
    if state.zone not in seen.unlisted or not state.attempt:
        return []
    labels = {RUN_LABEL: state.name, ATTEMPT_LABEL: str(state.attempt)}
    name, zone = state.name, state.zone
    return [Tpu(name, zone, Presence.GONE, "not listed", True, settings.queued, labels=labels)]


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


def _out_of_patience(state: RunState, seen: Observation, settings: Settings) -> Decision | None:
    if state.phase_seconds <= settings.delete_patience:
        return None
    if state.ending is None:
        # A run that goes on waits: for the service, or for the end of the lease at the latest.
        certain = state.machine_limit and state.machine_seconds > state.machine_limit + OVERTIME
        if certain and not seen.tpus:
            return Decision(enter(state, Phase.IDLE), events=(_not_deleted(state),))
        return None
    hours = max(0.0, state.machine_limit - state.machine_seconds) / 3600
    lease = f"; at the latest it is deleted at the end of its lease, in {hours:.1f} hours"
    if seen.tpus:
        where = ", ".join(sorted({tpu.zone for tpu in seen.tpus}))
        what = f"STILL THERE AND BILLED: {state.name} in {where} could not be deleted"
    else:
        what = f"{state.zone} could not be listed, so {state.name} may be there and billed"
    message = (
        f"{state.ending_message}; {what}: run `bigbird-ja down`, or look on the console"
        f"{lease if hours else ''}"
    )
    event = _not_deleted(state)
    state = replace(
        enter(state, Phase.ENDED),
        ending_reason="io_error",
        ending_message=message,
    )
    return Decision(state, events=(event,))


def _not_deleted(state: RunState) -> Event:
    return Event("not_deleted", {"zone": state.zone, "seconds": round(state.phase_seconds)})
