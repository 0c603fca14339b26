"""The status of a launched run, from its files on the bucket and the machines that are listed."""

from collections.abc import Sequence
from typing import Any

from bigbird_ja.errors import BadInput
from bigbird_ja.launch.files import RunFiles, read_run, watched_by
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.service import Presence, Tpu
from bigbird_ja.launch.state import Phase, RunState, TrainerBeat
from bigbird_ja.plan.estimate import tokens_per_step
from bigbird_ja.settings.config_file import read_config


def read_status(bucket: str, name: str, tpus: Sequence[Tpu], now: float) -> dict[str, Any]:
    """Read one run, as an item of `runs` in the `--json` results.

    Args:
        bucket: value of `launch --bucket`.
        name: name of the run.
        tpus: listed machines of all runs; empty without --project.
        now: UNIX seconds, with --project by the service's clock.
    """
    launched = read_run(bucket, name) or LaunchedRun(bucket, name)
    files = RunFiles(launched)
    state, heartbeat = files.load_state() or RunState(), files.heartbeat()
    mine = [tpu for tpu in tpus if tpu.belongs_to(launched)]
    target, copy_of = launched.target_step, launched.copy_of
    usd = (state.machine or launched).usd_per_hour
    note = f"a copy of {copy_of}: `launch` has the remedy" if copy_of else state.ending_message
    step = max(state.best_step, heartbeat.global_step if heartbeat else 0, 0)
    rate = heartbeat.tokens_per_second if heartbeat else 0.0
    has_ended = state.phase is Phase.ENDED
    eta = None
    if rate and target > step and not has_ended:
        eta = (target - step) * _tokens_per_step(launched.config_path) / rate or None
    # A READY TPU is billed without a supervisor, too.
    is_ready = any(tpu.presence is Presence.READY for tpu in mine)
    unwatched = max(0.0, now - state.saved_at) if state.saved_at and is_ready else 0.0
    return {
        "name": name,
        "run_id": launched.run_id,
        "state": _state_of(state, heartbeat),  # training, creating, ..., or its ending
        "step": step,
        "target_step": target,
        "tokens_per_second": rate,
        "compile_seconds": heartbeat.compile_seconds if heartbeat else 0.0,
        "eta_seconds": eta,
        "preemptions": state.preemptions,
        "failures": state.failures,
        "cost_usd": state.cost_usd + unwatched / 3600 * usd,
        "tpu_hours": (state.billed_seconds + unwatched) / 3600,
        "usd_per_hour": usd,
        "tpus": [f"{tpu.accelerator_type} {tpu.state} in {tpu.zone}" for tpu in mine],
        "watched_by": watched_by(launched.run_dir, now),  # None: no supervisor is alive
        "heartbeat_age": now - heartbeat.time if heartbeat else None,
        "ending": state.ending.value if state.ending and has_ended else None,
        "message": note,
    }


def _state_of(state: RunState, heartbeat: TrainerBeat | None) -> str:
    if state.phase is Phase.ENDED and state.ending:
        return state.ending.value
    if state.phase is Phase.RUNNING:
        return (heartbeat.state if heartbeat and state.has_stepped else "") or "starting"
    return state.phase.value


def _tokens_per_step(config_path: str) -> int:
    """Return the tokens of a step; 0 if the config can't be read."""
    try:
        return tokens_per_step(*read_config(config_path))
    except BadInput:
        return 0
