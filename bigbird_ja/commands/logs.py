"""Follow the trainer's log of a rented run.

  bigbird-ja logs base-1 --bucket gs://MY-BUCKET

Reads BUCKET/NAME/supervisor/training.log, to which the machine copies the log, and prints new lines
until the run has ended. Changes nothing; the run continues after Ctrl-C.
"""

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.launch.trainer_log import LogsResult, logs

EXAMPLE = "bigbird-ja logs base-1 --bucket gs://MY-BUCKET"
POSITIONAL = "name"


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.text("name", "Name of the run (`launch --name`); also without the flag.", required=True)
    flags.path("bucket", "gs://BUCKET[/FOLDER] of `launch`.", required=True)
    flags.number(
        "poll_seconds",
        30.0,
        "Time between polls of the log.",
        unit="seconds",
        low=0.05,
        high=86_400,
    )


def run(args: Args) -> LogsResult:
    """Print new lines of the log."""
    return logs(name=args.name, bucket=args.bucket, poll_seconds=args.poll_seconds)
