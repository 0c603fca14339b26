"""Decide in phase IDLE: no TPU of the run is there, and one is wanted."""

from dataclasses import replace

from bigbird_ja.launch.account import remaining_lifetime
from bigbird_ja.launch.advice import advise
from bigbird_ja.launch.launched_run import Machine
from bigbird_ja.launch.rest import Kind
from bigbird_ja.launch.state import Decision, Ending, Event, Phase, View
from bigbird_ja.launch.transitions import adopt_or_remove, end, wait

# Faults that repeat until the user acts.
_REFUSALS = (Kind.PERMISSION, Kind.BAD_REQUEST, Kind.NOT_FOUND)


def decide(view: View) -> Decision:
    """Decide one poll.

    The comments have the form that `decide.py` states.
    """
    state, seen, run = view.state, view.seen, view.run
    # Machines of this run are found: adopt the one that was requested last, delete the others
    # -> creating, removing. Why: its reply was lost, or its supervisor; dead ones hold quota.
    if seen.tpus:
        return adopt_or_remove(view)
    # Another owner's machine has the run's name in one of its zones: end, with the owner's labels
    # -> removing. Why: it is never touched, and two machines of one name can't be told apart.
    if seen.taken:
        tpu = seen.taken[0]
        text = f"{tpu.resource} is not of this run ({tpu.owner}): choose another `name`"
        return end(state, Ending.GAVE_UP, "bad_input", text)
    faults = [seen.silent.get(zone) for zone in run.zones]
    # Every zone refuses to answer, before anything was rented: end, with advice -> ended.
    # Why: a permission or a name is wrong, which only the user can change. After the first request
    # refusals are waited out.
    if not state.attempt and all(fault and fault.kind in _REFUSALS for fault in faults):
        first = seen.silent[run.zones[0]]
        text = advise(first, run, run.zones[0])
        # Another service may rent the machine.
        if first.is_switched_off:
            state = replace(state, excluded_zones=dict.fromkeys(run.zones, text))
        ended = end(state, Ending.GAVE_UP, "bad_input", text)
        return Decision(ended.state.enter(Phase.ENDED))
    # The backoff is not over: wait. Why: capacity does not come faster by asking.
    if state.backoff_seconds > 0:
        return wait(view, state.backoff_seconds)
    # Lock, bucket or newest checkpoint cannot be seen: wait.
    # Why: the run may have finished, or be another supervisor's, and nothing is rented blindly.
    if not seen.bucket_seen or seen.checkpoint_step is None:
        return wait(view)
    # The record names another service or project now, and a zone of the former doesn't answer:
    # wait. Why: a machine may be left there, and nothing is rented twice.
    if state.moves(run) and any(zone in seen.silent for zone in state.used_zones):
        return wait(view)
    zones = [zone for zone in run.zones if zone not in state.excluded_zones]
    # Every zone lacks quota, or refuses the request: end, with advice -> removing.
    # Why: the next request would be refused, too.
    if not zones:
        why = "; ".join(dict.fromkeys(state.excluded_zones.values()))
        return end(state, Ending.GAVE_UP, "bad_input", why)
    zones = [zone for zone in zones if zone not in seen.silent]
    # None of the other zones answers: wait. Why: a TPU of this run may be there.
    if not zones:
        return wait(view)
    # No machine of this run is there: create, in the next zone that answers -> creating.
    # Why: a machine is wanted; its limit is part of the state that is stored before.
    return create(view, zones)


def create(view: View, zones: list[str]) -> Decision:
    """Request a TPU, with its maximum lifetime, in the next of these zones.

    The order continues with the zone of the last TPU, or after it if that zone had no capacity.
    """
    state, seen, run = view.state, view.seen, view.run
    last = run.zones.index(state.zone) if state.zone in run.zones else -1
    first = (last + 1 if state.misses or last < 0 else last) % len(run.zones)
    zone = next(z for z in run.zones[first:] + run.zones[:first] if z in zones)
    # No machine is left at the former service, as `decide` has verified.
    if state.moves(run):
        state = replace(state, used_zones=(), ready_zones=())
    state = replace(
        state.enter(Phase.CREATING).unobserved(zone),
        machine=Machine.of(run, seen.service_time or 0.0),
        attempt=state.attempt + 1,
        machine_seconds=0.0,
        machine_limit=remaining_lifetime(state, run),
        stale_heartbeat=seen.heartbeat.signature if seen.heartbeat else "",
    )
    event = Event("creating", state.place)
    return Decision(state, events=(event,), pause=min(run.poll, 5.0), rents=True)
