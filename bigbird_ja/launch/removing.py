"""The supervisor's rules while what is there must go: deletes until a listing shows nothing.

A zone that does not answer holds nothing up: what others list is deleted, and in the zone where the
TPU was asked for its deletion is asked for by name.
"""

from __future__ import annotations

from dataclasses import replace

from bigbird_ja.launch.rules import Rule, View, always, decide_by
from bigbird_ja.launch.run_state import Decision, Delete, Event, Phase, RunState
from bigbird_ja.launch.tpu_service import ATTEMPT_LABEL, RUN_LABEL, Presence, Tpu
from bigbird_ja.launch.transitions import enter


def _is_absent(view: View) -> bool:
    """Whether a listing of its zone shows nothing of ours, there or anywhere."""
    return not view.seen.tpus and not view.is_unlisted


def _creation_is_under_way(view: View) -> bool:
    """Whether a creation could still put something there."""
    state, seen, settings = view.state, view.seen, view.settings
    if state.operation_kind != "create" or not state.operation:
        return False
    over = seen.operation is not None and seen.operation.done
    patience = min(settings.settle, 2 * settings.poll) if over else settings.create_timeout
    return state.phase_seconds < patience


def _is_out_of_patience(view: View) -> bool:
    return view.state.phase_seconds > view.settings.delete_patience


def _known(view: View) -> list[Tpu]:
    """What is listed, and the TPU of a zone that cannot be listed, as it was asked for."""
    state = view.state
    if not view.is_unlisted or not state.attempt:
        return [*view.seen.tpus]
    labels = {RUN_LABEL: state.name, ATTEMPT_LABEL: str(state.attempt)}
    unseen = Tpu(
        state.name, state.zone, Presence.GONE, "not listed", True, view.settings.queued,
        labels=labels,
    )  # fmt: skip
    return [*view.seen.tpus, unseen]


def _targets(view: View) -> list[Tpu]:
    """Those of them that are not on their way out."""
    return [tpu for tpu in _known(view) if tpu.presence is not Presence.DELETING]


def _has_failed(view: View) -> bool:
    """Whether the deletion that was asked for has failed."""
    return view.state.operation_kind == "delete" and view.operation_fault is not None


def _is_under_way(view: View) -> bool:
    """Whether a deletion goes on, and not for too long."""
    state, seen = view.state, view.seen
    if state.phase_seconds > view.settings.create_timeout * (state.delete_tries + 1):
        return False
    is_done = seen.operation is not None and seen.operation.done
    pending = state.operation_kind == "delete" and not is_done
    return not _targets(view) or (pending and not seen.unlisted)


def _look_again(view: View) -> Decision:
    return Decision(view.state, pause=min(view.settings.poll, 10.0))


def _after_failure(view: View) -> Decision:
    """Tells it, and goes on as if no deletion had been asked for."""
    event = Event("delete_failed", {"zone": view.state.zone, "error": str(view.operation_fault)})
    state = replace(view.state, operation="", operation_kind="")
    decision = decide_by(_DELETING, View(state, view.seen, view.settings))
    return replace(decision, events=(event, *decision.events))


def _absent(view: View) -> Decision:
    """Nothing is there any more: goes on, or ends."""
    state = view.state
    events: list[Event] = []
    if state.delete_tries:
        events.append(Event("deleted", {"zone": state.zone, "attempt": state.attempt}))
    if state.ending is None:
        return Decision(enter(state, Phase.IDLE), events=tuple(events))
    fields = {"ending": state.ending.value, "reason": state.ending_reason, "step": state.best_step}
    events.append(Event("ended", {**fields, "cost_usd": round(state.cost_usd, 2)}))
    return Decision(enter(state, Phase.ENDED), events=tuple(events))


def _take_as_gone(view: View) -> Decision:
    return Decision(enter(view.state, Phase.IDLE), events=(_not_deleted(view.state),))


def _give_up(view: View) -> Decision:
    """Ends, and says what may still be there and when it goes by itself."""
    state, seen = view.state, view.seen
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


def _delete(view: View) -> Decision:
    """Asks for the deletion of all that is not on its way out, more rarely each time."""
    state, settings = view.state, view.settings
    tries = state.delete_tries + 1
    deletions = tuple(Delete(tpu) for tpu in _targets(view) or _known(view))
    wait = min(10.0 * 2 ** min(tries - 1, 8), 120.0)
    state = replace(state, delete_tries=tries, delete_wait=wait, operation="", operation_kind="")
    return Decision(state, deletions, pause=min(settings.poll, 10.0))


def _not_deleted(state: RunState) -> Event:
    return Event("not_deleted", {"zone": state.zone, "seconds": round(state.phase_seconds)})


_DELETING = (
    Rule(
        "a deletion is under way, or nothing is left to ask for",
        "wait",
        (),
        "nothing counts as deleted before it is absent",
        _is_under_way,
        _look_again,
    ),
    Rule(
        "the last try was just now",
        "wait",
        (),
        "each try waits longer than the one before, two minutes at most",
        lambda view: view.state.delete_wait > 0,
        lambda view: Decision(view.state, pause=min(view.settings.poll, view.state.delete_wait)),
    ),
    Rule(
        "something of ours is there, or may be in a zone that does not answer",
        "delete it, there by its name",
        (),
        "what answers is deleted, whatever the bucket or other zones say",
        always,
        _delete,
    ),
)

REMOVING = (
    Rule(
        "absent, but its creation is under way",
        "wait",
        (),
        "it could still put something there",
        lambda view: _is_absent(view) and _creation_is_under_way(view),
        _look_again,
    ),
    Rule(
        "absent",
        "go on, or end",
        (Phase.IDLE, Phase.ENDED),
        "a listing of its zone shows nothing",
        _is_absent,
        _absent,
    ),
    Rule(
        "an ending run could not delete for 30 minutes",
        "end, and say what may be there",
        (Phase.ENDED,),
        "a person can look on the console; its lease ends without us",
        lambda view: _is_out_of_patience(view) and view.state.ending is not None,
        _give_up,
    ),
    Rule(
        "its zone has not answered until well after the end of its life",
        "go on",
        (Phase.IDLE,),
        "it cannot be there any more",
        lambda view: _is_out_of_patience(view) and view.is_certainly_over and not view.seen.tpus,
        _take_as_gone,
    ),
    Rule(
        "the deletion has failed",
        "say so, then as below",
        (),
        "it is tried again until a listing shows nothing",
        _has_failed,
        _after_failure,
    ),
    *_DELETING,
)
