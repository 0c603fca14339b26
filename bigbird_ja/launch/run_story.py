"""What a run has been through, read from its bucket: for `status`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bigbird_ja import storage
from bigbird_ja.launch.run_files import LOCK, STALE_SECONDS, BucketFiles, Run, read_run
from bigbird_ja.launch.run_state import Heartbeat, Phase, RunState
from bigbird_ja.launch.services import Presence, Tpu
from bigbird_ja.run import log as run_log
from bigbird_ja.run.records import EventRecord
from bigbird_ja.storage import lease


@dataclass(frozen=True)
class Story:
    """One run as `status` shows it."""

    name: str
    state: str  # training, creating, preempted ..., or its ending
    step: int
    target_step: int
    tokens_per_second: float
    eta_seconds: float | None
    preemptions: int
    failures: int
    cost_usd: float
    tpu_hours: float
    usd_per_hour: float
    tpus: tuple[str, ...]  # "v3-8 READY in us-central1-a"
    watched_by: str | None  # None: no supervisor is alive
    heartbeat_age: float | None
    ending: str | None
    message: str


def read(
    bucket: str, name: str, tpus: Sequence[Tpu], tokens_per_step: int, now: float | None = None
) -> Story:
    """Reads one run.

    Args:
        tpus: what the service lists, of all runs; empty where it was not asked.
        tokens_per_step: for the ETA; 0 where unknown.
        now: UNIX seconds.
    """
    now = time.time() if now is None else now
    run = read_run(bucket, name) or Run(bucket, name)
    files = BucketFiles(run)
    state = files.load_state() or RunState(name)
    heartbeat = files.heartbeat()
    holder = lease.holder_of(run.supervisor(LOCK))
    mine = [tpu for tpu in tpus if tpu.run == name]
    target, usd = run.settings.target_step, run.settings.usd_per_hour
    step = max(state.best_step, heartbeat.global_step if heartbeat else 0, 0)
    rate = heartbeat.tokens_per_second if heartbeat else 0.0
    eta = None
    if rate and tokens_per_step and target > step and state.phase is not Phase.ENDED:
        eta = (target - step) * tokens_per_step / rate
    unwatched = _unwatched_seconds(state, mine, now)
    return Story(
        name,
        _state_of(state, heartbeat, mine),
        step,
        target,
        rate,
        eta,
        state.preemptions,
        state.failures,
        state.cost_usd + unwatched / 3600 * usd,
        (state.billed_seconds + unwatched) / 3600,
        usd,
        tuple(f"{tpu.accelerator_type} {tpu.state} in {tpu.zone}" for tpu in mine),
        _watcher(holder, now),
        now - heartbeat.time if heartbeat else None,
        state.ending.value if state.ending and state.phase is Phase.ENDED else None,
        state.ending_message,
    )


def _unwatched_seconds(state: RunState, tpus: Sequence[Tpu], now: float) -> float:
    """Seconds for which a READY TPU was billed since the state was last saved."""
    if state.saved_wall and any(tpu.presence is Presence.READY for tpu in tpus):
        return max(0.0, now - state.saved_wall)
    return 0.0


def _state_of(state: RunState, heartbeat: Heartbeat | None, tpus: Sequence[Tpu]) -> str:
    if state.phase is Phase.ENDED and state.ending:
        return state.ending.value
    if state.phase is Phase.RUNNING:
        return (heartbeat.state if heartbeat and state.has_stepped else "") or "starting"
    if state.phase is Phase.REMOVING and state.cause:
        return f"removing ({state.cause.replace('_', ' ')})"
    return state.phase.value


def watcher(run_dir: str, now: float) -> str | None:
    """The living supervisor of the run in BUCKET/NAME, by name; None where there is none."""
    return _watcher(lease.holder_of(storage.join(run_dir, "supervisor", LOCK)), now)


def _watcher(holder: lease.Holder | None, now: float) -> str | None:
    if holder is None or holder.has_ended or now - holder.renewed > STALE_SECONDS:
        return None
    return holder.name


def events(bucket: str, name: str) -> list[EventRecord]:
    """All events of a run, in order of time."""
    model_dir = Run(bucket, name).model_dir
    return sorted(run_log.read_events(model_dir), key=lambda event: event["time"])
