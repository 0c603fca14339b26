"""List runs and TPUs.

  bigbird-ja status --bucket gs://MY-BUCKET --project MY-PROJECT

Reads the runs' states, heartbeats and events from the bucket and, where a project is given, what
TPUs exist, on both services. Shows for each run its state, step, rate, ETA, preemptions and money
so far; `report` draws its curves. Changes nothing; takes a second or two.
"""

import time
from collections.abc import Sequence
from typing import Any

from bigbird_ja import storage
from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.launch import LaunchedRun, Presence, Tpu
from bigbird_ja.launch.backends import connect_all, list_ours
from bigbird_ja.launch.files import RunFiles, check_known, find_runs, read_run, watched_by
from bigbird_ja.launch.state import Phase, RunState, TrainerBeat
from bigbird_ja.process.console import human_time, table
from bigbird_ja.process.errors import BadInput

_HEADER = (
    *("run", "state", "step", "tokens/s", "ETA", "preempted", "failed"),
    *("TPU h", "$", "TPU", "watched by"),
)
EXAMPLE = "bigbird-ja status --bucket gs://MY-BUCKET --project MY-PROJECT --name base-1"
POSITIONAL = "name"


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.path("bucket", "gs://BUCKET[/FOLDER] of `launch`.")
    flags.text("name", "One run.", none="all")
    flags.text("project", "Google Cloud project whose TPUs are listed too.")


def run(args: Args) -> dict[str, Any]:
    """List runs and TPUs."""
    if not args.bucket and not args.project:
        raise BadInput("--bucket or --project is needed: see `bigbird-ja status --help`")
    tpus: list[Tpu] = []
    now = time.time()
    names = find_runs(args.bucket) if args.bucket else []
    if args.project:
        tpus, now = list_ours(connect_all(args.project), args.project)
    if args.name:
        if args.bucket:
            check_known(args.bucket, args.name)
        names = [args.name] if args.bucket else []
        tpus = [tpu for tpu in tpus if tpu.run == args.name]
    runs = [read_status(args.bucket, name, tpus, now) for name in names]
    shown = {(run["run_id"], storage.join(args.bucket, run["name"])) for run in runs}
    strays = [tpu for tpu in tpus if (tpu.run_id, tpu.run_dir) not in shown]
    _print(runs, strays, has_listed=bool(args.project))
    return {"runs": runs, "tpus": [tpu.to_json() for tpu in tpus]}


def read_status(bucket: str, name: str, tpus: Sequence[Tpu], now: float) -> dict[str, Any]:
    """Read one run, as an item of `runs` in the `--json` results.

    Args:
        bucket: of `launch`.
        name: of the run.
        tpus: what the service lists, of all runs; empty without --project.
        now: UNIX seconds, by the service's clock with --project.
    """
    launched = read_run(bucket, name) or LaunchedRun(bucket, name)
    files = RunFiles(launched)
    state, heartbeat = files.load_state() or RunState(), files.heartbeat()
    mine = [tpu for tpu in tpus if tpu.belongs_to(launched)]
    target, copy_of = launched.target_step, launched.copy_of
    usd = (state.machine or launched).usd_per_hour
    note = f"a copy of {copy_of}: `launch` says what serves" if copy_of else state.ending_message
    step = max(state.best_step, heartbeat.global_step if heartbeat else 0, 0)
    rate = heartbeat.tokens_per_second if heartbeat else 0.0
    has_ended = state.phase is Phase.ENDED
    eta = None
    if rate and target > step and not has_ended:
        eta = (target - step) * _tokens_per_step(launched.config_path) / rate or None
    # A READY TPU is billed while nobody watches, too.
    is_ready = any(tpu.presence is Presence.READY for tpu in mine)
    unwatched = max(0.0, now - state.saved_at) if state.saved_at and is_ready else 0.0
    return {
        "name": name,
        "run_id": launched.run_id,
        "state": _state_of(state, heartbeat),  # training, creating, ..., or its ending
        "step": step,
        "target_step": target,
        "tokens_per_second": rate,
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
    """Return the tokens of a step; 0 where the config cannot be read."""
    from bigbird_ja.plan import estimate
    from bigbird_ja.settings.resolve import read_config

    try:
        return estimate.tokens_per_step(*read_config(config_path))
    except BadInput:
        return 0


def _print(runs: list[dict[str, Any]], strays: list[Tpu], has_listed: bool) -> None:
    rows, none = [], "none" if has_listed else "not listed (--project)"
    for s in runs:
        eta, step = s["eta_seconds"], f"{s['step']:,}/{s['target_step']:,}"
        waits = "-" if eta is None else human_time(eta)
        counts = (step, f"{s['tokens_per_second']:,.0f}", waits, s["preemptions"], s["failures"])
        sums = (f"{s['tpu_hours']:.1f}", f"{s['cost_usd']:.2f}")
        seen = ("; ".join(s["tpus"]) or none, s["watched_by"] or "nobody")
        rows.append([s["name"], s["state"], *counts, *sums, *seen])
    print(table(rows, _HEADER) if rows else "no runs")
    for s in runs:
        if s["message"]:
            print(f"{s['name']}: {s['message']}")
        if s["tpus"] and s["watched_by"] is None:
            print(f"{s['name']}: nobody watches its TPU: `launch` again, or `bigbird-ja down`")
    for tpu in strays:
        print(f"{tpu.name}: {tpu.accelerator_type} {tpu.state} in {tpu.zone}, of no run shown here")
