"""The state machine that keeps one TPU training: pure functions of (state, observation, settings).

    IDLE ──create──▶ CREATING ──READY──▶ RUNNING
      ▲                 │ no capacity, stuck   │ preempted, failed, lease over, ending
      └──────absent─────┴──────REMOVING◀───────┘            REMOVING ──ending──▶ ENDED

No clock, no randomness, no input or output: `loop.py` observes, saves the decision, then acts. Each
phase is a table of rules, in order, each with its reason; the first whose condition holds decides.
`docs/design/launch.md` shows the tables, and a test holds both in step. Before them come the ends
that do not depend on the phase (`accounts.check_endings`). What the tables rest on:

- What a machine may cost is decided and stored before it is asked for: Create carries the most that
  it may live, and the cloud or its own watcher deletes it then, whatever has become of us.
- Reality comes from listing every zone that the run ever used.
- Preemptions and ends of leases are expected and unlimited. Failures are told apart by reason.
- The service's own trouble is no failure: it is waited out, for hours.
"""

from __future__ import annotations

from dataclasses import replace

from bigbird_ja.launch import turns
from bigbird_ja.launch.billing import check_endings
from bigbird_ja.launch.faults import Kind
from bigbird_ja.launch.removing import REMOVING
from bigbird_ja.launch.rules import Rule, View, always, decide_by, wait
from bigbird_ja.launch.run_state import (
    ActionResult,
    Decision,
    Delete,
    Event,
    Observation,
    Phase,
    RunState,
    Settings,
)
from bigbird_ja.launch.transitions import creation_failed

_UNLISTED = (
    Rule(
        "its zone has not answered until well after the end of the TPU's life",
        "lease over",
        (Phase.REMOVING,),
        "it cannot be there any more: the cloud or its watcher has deleted it",
        lambda view: view.is_unlisted and view.is_certainly_over,
        lambda view: turns.end_of_lease(view, "not listed"),
    ),
    Rule(
        "its zone does not answer",
        "wait",
        (),
        "it may be there, and nothing is rented twice",
        lambda view: view.is_unlisted,
        wait,
    ),
)

IDLE = (
    Rule(
        "something of ours is there or on its way",
        "adopt it, delete what is beyond one",
        (Phase.CREATING,),
        "an earlier supervisor asked for it, or a reply was lost",
        lambda view: bool(view.alive),
        turns.adopt,
    ),
    Rule(
        "something dead of ours is listed",
        "remove",
        (Phase.REMOVING,),
        "it holds its name and quota",
        lambda view: bool(view.seen.tpus),
        turns.remove_leftover,
    ),
    Rule(
        "every zone refuses to be listed, before anything was rented",
        "end, with advice",
        (Phase.ENDED,),
        "a permission or a name is wrong, which only a person mends; later ones are waited out",
        turns.is_refused_everywhere,
        turns.refused,
    ),
    Rule(
        "the back-off is not over",
        "wait",
        (),
        "capacity does not come faster by asking",
        lambda view: view.state.backoff_seconds > 0,
        lambda view: Decision(
            view.state, pause=min(view.settings.poll, view.state.backoff_seconds)
        ),
    ),
    Rule(
        "lock, bucket or newest checkpoint cannot be seen",
        "wait",
        (),
        "the run may have finished, or be another supervisor's: nothing is rented blindly",
        lambda view: not view.seen.bucket_seen or view.seen.checkpoint_step is None,
        wait,
    ),
    Rule(
        "every zone is struck off",
        "end, with advice",
        (Phase.REMOVING,),
        "none of them has quota",
        lambda view: not turns.open_zones(view),
        turns.out_of_zones,
    ),
    Rule(
        "no zone that is left answers",
        "wait",
        (),
        "a TPU of ours could be there that no listing shows",
        lambda view: not turns.listed_zones(view),
        wait,
    ),
    Rule(
        "nothing of ours is there",
        "create, in the next zone that answers",
        (Phase.CREATING,),
        "its limit is part of what is stored before",
        always,
        turns.create,
    ),
)

CREATING = (
    *_UNLISTED,
    Rule(
        "it is absent, and one of ours is in another zone",
        "adopt that one",
        (Phase.CREATING, Phase.REMOVING),
        "it came up elsewhere than this state knows",
        lambda view: view.tpu is None and bool(view.seen.tpus),
        turns.take_over,
    ),
    Rule(
        "READY",
        "watch it",
        (Phase.RUNNING,),
        "the machine is up; whether it trains, its steps will tell",
        lambda view: view.is_ready,
        turns.became_ready,
    ),
    Rule(
        "the creation has failed",
        "remove: next zone, strike the zone off, or end",
        (Phase.REMOVING,),
        "stock-out, quota, refusal and trouble of the service are told apart by their words",
        lambda view: turns.creation_fault(view) is not None,
        turns.creation_has_failed,
    ),
    Rule(
        "absent, although its creation is over and has not failed",
        "preemption",
        (Phase.REMOVING,),
        "it was there, and was taken away before it was seen",
        turns.was_made,
        turns.taken_away,
    ),
    Rule(
        "absent, and asked for lately or still being made",
        "wait; in the end the next zone",
        (Phase.REMOVING,),
        "a TPU that was asked for may appear late",
        turns.may_still_appear,
        turns.wait_for_creation,
    ),
    Rule(
        "absent",
        "next zone, or a pause",
        (Phase.IDLE,),
        "the request was lost",
        lambda view: view.tpu is None,
        turns.lost,
    ),
    Rule(
        "gone",
        "preemption, or end of lease at its limit",
        (Phase.REMOVING,),
        "it was taken away before it was READY; the dead one holds its name",
        lambda view: view.is_gone,
        turns.went,
    ),
    Rule(
        "on its way",
        "wait 20 minutes, 6 hours in a queue; then the next zone",
        (Phase.REMOVING,),
        "others may have capacity",
        always,
        turns.wait_for_creation,
    ),
)

RUNNING = (
    *_UNLISTED,
    Rule(
        "gone, and it reported how training ended",
        "as the report says",
        (Phase.REMOVING,),
        "it may have deleted itself: the report tells a failure from a preemption",
        lambda view: view.is_gone and view.report is not None and not turns.is_another(view),
        turns.training_ended,
    ),
    Rule(
        "gone",
        "preemption, or end of lease at its limit",
        (Phase.REMOVING,),
        "what is neither READY nor on its way there is dead, whatever it is called",
        lambda view: view.is_gone and not turns.is_another(view),
        turns.went,
    ),
    Rule(
        "another TPU of its name",
        "adopt it",
        (Phase.CREATING, Phase.REMOVING),
        "the creation time tells two lives of one name apart",
        turns.is_another,
        turns.take_over,
    ),
    Rule(
        "a slice has lost hosts",
        "count a preemption, wait for its group",
        (),
        "a group replaces its hosts by itself, and training goes on from the checkpoint",
        lambda view: not view.is_ready and turns.is_group(view) and not view.state.in_repair,
        turns.hosts_lost,
    ),
    Rule(
        "the slice's life is over while hosts are missing",
        "lease over",
        (Phase.REMOVING,),
        "its group tries in vain from now on",
        lambda view: not view.is_ready and turns.is_group(view) and view.is_life_over,
        lambda view: turns.end_of_lease(view, turns.word(view)),
    ),
    Rule(
        "the slice's hosts have not come back for 20 minutes",
        "remove, next zone",
        (Phase.REMOVING,),
        "its zone has no capacity, and hosts that wait are billed",
        lambda view: (
            not view.is_ready
            and turns.is_group(view)
            and view.state.phase_seconds > view.settings.create_timeout
        ),
        turns.give_repair_up,
    ),
    Rule(
        "in repair or restarting for more than 20 minutes",
        "preemption",
        (Phase.REMOVING,),
        "the service does not bring it back",
        lambda view: not view.is_ready and view.state.phase_seconds > view.settings.create_timeout,
        turns.taken_away,
    ),
    Rule(
        "in repair or restarting",
        "wait",
        (),
        "the service may bring it back",
        lambda view: not view.is_ready,
        turns.watch_on,
    ),
    Rule(
        "its life is over",
        "lease over",
        (Phase.REMOVING,),
        "it deletes itself; we are here and do it now",
        lambda view: view.is_life_over,
        lambda view: turns.end_of_lease(view, "READY"),
    ),
    Rule(
        "training has ended, and not at the last step",
        "preemption, end of lease, or failure, as it says",
        (Phase.REMOVING,),
        "the same reason three times in a row ends the run, what would come again at once",
        turns.has_ended,
        turns.training_ended,
    ),
    Rule(
        "READY, and no new step for 15 minutes (45 until the first)",
        "failure: stalled, or never started",
        (Phase.REMOVING,),
        "READY only says that the VM is up, and one that hangs is billed like one that works",
        turns.is_quiet_too_long,
        turns.stalled,
    ),
    Rule(
        "READY",
        "watch on, delete what is beyond one",
        (),
        "health is a new global step; a newer time stamp alone is none",
        always,
        turns.watch_on,
    ),
)

ENDED = (Rule("anything", "nothing", (), "run the same command to go on", always, turns.rest),)

TABLES: dict[Phase, tuple[Rule, ...]] = {
    Phase.IDLE: IDLE,
    Phase.CREATING: CREATING,
    Phase.RUNNING: RUNNING,
    Phase.REMOVING: REMOVING,
    Phase.ENDED: ENDED,
}


def decide(state: RunState, seen: Observation, settings: Settings) -> Decision:
    """One turn: what to do now, and how long to pause after it.

    Args:
        state: with this look's time and money in it (`accounts.account`).
    """
    state, events = check_endings(state, seen, settings)
    if state.phase is Phase.RUNNING:
        state, more = turns.follow(View(state, seen, settings))
        events = [*events, *more]
    decision = decide_by(TABLES[state.phase], View(state, seen, settings))
    return replace(decision, events=(*events, *decision.events))


def after_action(state: RunState, result: ActionResult, settings: Settings) -> Decision:
    """What an act's answer changes; `pause` is the decision's own and stays."""
    if isinstance(result.action, Delete):
        if result.fault is None:
            return Decision(replace(state, operation=result.operation, operation_kind="delete"))
        if result.fault.kind is Kind.NOT_FOUND:
            return Decision(state)  # the next listing shows that it is gone
        event = Event("delete_failed", {"zone": result.action.tpu.zone, "error": str(result.fault)})
        return Decision(state, events=(event,))
    if result.fault is None:
        return Decision(replace(state, operation=result.operation, operation_kind="create"))
    if result.fault.kind in (Kind.EXISTS, Kind.UNAVAILABLE, Kind.INTERNAL):
        # It exists, or may yet appear: the listing decides after `settle` seconds.
        state = replace(state, in_trouble=result.fault.is_passing)
        event = Event("create_unclear", {"zone": result.action.zone, "error": str(result.fault)})
        return Decision(state, events=(event,))
    return creation_failed(state, result.fault, settings)
