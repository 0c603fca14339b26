"""List runs and TPUs.

  bigbird-ja status --bucket gs://MY-BUCKET --project MY-PROJECT

Reads the runs' states, heartbeats and events from the bucket and, with --project, lists the TPUs
of both services. Shows for each run its state, step, rate, ETA, preemptions and money
so far; `report` draws its curves. Changes nothing; takes a second or two.
"""

import time
from typing import Any

from bigbird_ja import storage
from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.errors import BadInput
from bigbird_ja.launch.backends import connect_all
from bigbird_ja.launch.files import check_known, find_runs
from bigbird_ja.launch.leftovers import list_ours
from bigbird_ja.launch.service import Tpu
from bigbird_ja.process.console import human_time, table

_HEADER = (
    "run",
    "state",
    "step",
    "tokens/s",
    "ETA",
    "preempted",
    "failed",
    "TPU h",
    "$",
    "TPU",
    "watched by",
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
    from bigbird_ja.launch.status import read_status  # NumPy, which --help does without

    if not args.bucket and not args.project:
        raise BadInput("--bucket or --project is needed: see `bigbird-ja status --help`")
    tpus: list[Tpu] = []
    now = time.time()
    names = find_runs(args.bucket) if args.bucket else []
    if args.project:
        tpus, now = list_ours(connect_all(args.project))
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
