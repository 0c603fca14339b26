"""List runs and TPUs.

  bigbird-ja status --bucket gs://MY-BUCKET --project MY-PROJECT

Reads the runs' states and heartbeats from the bucket. With --project, also lists the TPUs
of the Cloud TPU API and of Compute Engine. Shows for each run its state, step, rate, ETA,
preemptions and cost so far. `report` draws a run's curves. Changes nothing. Takes a second or two.
"""

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.launch.status import StatusResult, status
from bigbird_ja.process.console import format_time, table

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
    flags.text("name", "Name of one run.", none="all")
    flags.text("project", "Google Cloud project whose TPUs are listed too.")


def run(args: Args) -> StatusResult:
    """List runs and TPUs."""
    result = status(bucket=args.bucket, name=args.name, project=args.project)
    _print(result, args.bucket, has_listed=bool(args.project))
    return result


def _print(result: StatusResult, bucket: str | None, has_listed: bool) -> None:
    rows, none = [], "none" if has_listed else "not listed (--project)"
    for run in result.runs:
        step = f"{run.step:,}/{run.target_step:,}"
        waits = "-" if run.eta_seconds is None else format_time(run.eta_seconds)
        counts = (step, f"{run.tokens_per_second:,.0f}", waits, run.preemptions, run.failures)
        sums = (f"{run.tpu_hours:.1f}", f"{run.cost_usd:.2f}")
        seen = ("; ".join(run.tpus) or none, run.watched_by or "nobody")
        rows.append([run.name, run.state, *counts, *sums, *seen])
    print(table(rows, _HEADER) if rows else "no runs")
    for run in result.runs:
        if run.message:
            print(f"{run.name}: {run.message}")
        if run.tpus and run.watched_by is None:
            print(f"{run.name}: no supervisor watches its TPU: run `launch` or `bigbird-ja down`")
    for tpu in result.list_strays(bucket):
        print(f"{tpu.name}: {tpu.accelerator_type} {tpu.state} in {tpu.zone}, of another run")
