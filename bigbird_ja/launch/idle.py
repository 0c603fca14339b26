"""Rules of phase IDLE: the run has no TPU, and requests one."""

from dataclasses import replace

from bigbird_ja.launch.account import compute_remaining_lifetime
from bigbird_ja.launch.advice import advise
from bigbird_ja.launch.launched_run import Machine
from bigbird_ja.launch.rest import Kind
from bigbird_ja.launch.state import Decision, Ending, Event, Phase, View
from bigbird_ja.launch.transitions import adopt_or_remove, end, wait

# Faults whose cause only the user can remove.
_REFUSALS = (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND)


def decide(view: View) -> Decision:
    """Return the decision for one poll.

    The first condition in this function that is true determines the decision.
    """
    state, seen, run = view.state, view.seen, view.run
    # Machines of this run exist, although none is expected in this phase. A reply of the service
    # was lost, or a supervisor was killed. Adopt the machine that was requested last, and delete
    # the others, which use quota (next phases: creating or removing).
    if seen.tpus:
        return adopt_or_remove(view)
    # A machine of another owner has the run's name in one of the zones, so the run cannot use the
    # name: end the run, with the owner's labels in the message (next phase: removing).
    if seen.taken:
        tpu = seen.taken[0]
        text = f"{tpu.resource} belongs to another owner ({tpu.owner}): choose another `name`"
        return end(state, Ending.GAVE_UP, "bad_input", text)
    faults = [seen.silent.get(zone) for zone in run.zones]
    # No machine was requested yet, and every zone refuses the poll: end the run with advice, since
    # the user must correct a permission or a name (next phase: ended). After the first request,
    # such refusals may be temporary, so they do not end the run.
    if not state.attempt and all(fault and fault.kind in _REFUSALS for fault in faults):
        first = seen.silent[run.zones[0]]
        text = advise(first, run, run.zones[0])
        # The API is off: exclude all zones, so that `launch` tries another service.
        if first.is_switched_off:
            state = replace(state, excluded_zones=dict.fromkeys(run.zones, text))
        ended = end(state, Ending.GAVE_UP, "bad_input", text)
        return Decision(ended.state.enter(Phase.ENDED))
    # The backoff has not ended: wait, since more requests do not create capacity.
    if state.backoff_seconds > 0:
        return wait(view, state.backoff_seconds)
    # The lock was not renewed, or the newest checkpoint is unknown: wait, since another supervisor
    # may have taken the run over, or the run may be finished.
    if not seen.bucket_seen or seen.checkpoint_step is None:
        return wait(view)
    # The record names a new service or project, and a zone of the old service or project does not
    # answer: wait, since a machine may still exist there, and two machines must not be rented.
    if state.has_moved(run) and any(zone in seen.silent for zone in state.used_zones):
        return wait(view)
    zones = [zone for zone in run.zones if zone not in state.excluded_zones]
    # Every zone is excluded, for lack of quota or by a refusal: end the run with advice, since the
    # next request would be refused, too (next phase: removing).
    if not zones:
        why = "; ".join(dict.fromkeys(state.excluded_zones.values()))
        return end(state, Ending.GAVE_UP, "bad_input", why)
    zones = [zone for zone in zones if zone not in seen.silent]
    # None of the remaining zones answers: wait, since a TPU of this run may exist in one of them.
    if not zones:
        return wait(view)
    # No machine of this run exists: request one in the next zone that answers (next phase:
    # creating). The state contains the maximum lifetime, and is stored before the request.
    return create(view, zones)


def create(view: View, zones: list[str]) -> Decision:
    """Return the decision to request a TPU, with its maximum lifetime, in one of `zones`.

    The first choice is the zone of the last TPU. If the last request provided no TPU, the first
    choice is the next zone in `run.zones`.
    """
    state, seen, run = view.state, view.seen, view.run
    last = run.zones.index(state.zone) if state.zone in run.zones else -1
    first = (last + 1 if state.misses or last < 0 else last) % len(run.zones)
    zone = next(z for z in run.zones[first:] + run.zones[:first] if z in zones)
    # If the run uses a new service or project, forget the zones of the old one. `decide` has
    # verified that no machine is left in those zones.
    if state.has_moved(run):
        state = replace(state, used_zones=(), ready_zones=())
    state = replace(
        state.enter(Phase.CREATING).forget_tpu(zone),
        machine=Machine.of(run, seen.service_time or 0.0),
        attempt=state.attempt + 1,
        machine_seconds=0.0,
        machine_limit=compute_remaining_lifetime(state, run),
        stale_heartbeat=seen.heartbeat.signature if seen.heartbeat else "",
    )
    event = Event("creating", state.place)
    return Decision(state, events=(event,), pause=min(run.poll, 5.0), rents=True)
