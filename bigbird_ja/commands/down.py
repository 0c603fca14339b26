"""Delete the remaining TPUs of runs.

  bigbird-ja down --project MY-PROJECT --name base-1

Lists the TPUs and queued resources that `launch` created with the Cloud TPU API and Compute Engine.
Searches --project. With --bucket, it also searches the projects in which the bucket's runs rented
their last TPUs. Asks for confirmation, deletes the resources, and waits until they are gone. Data
and checkpoints on the bucket stay. Takes a minute or two per TPU. The TPU of a running `launch` is
not deleted, since `launch` would create it again.
"""

import sys
from collections.abc import Sequence

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.errors import BadInput
from bigbird_ja.launch.backends import NAMES
from bigbird_ja.launch.leftovers import DownResult, ListedTpu, down

EXAMPLE = "bigbird-ja down --project MY-PROJECT --name base-1"
POSITIONAL = "name"


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.text("project", "Id of the Google Cloud project.", required=True)
    flags.text("name", "Name of one run.", none="all runs of `launch`")
    flags.path("bucket", "gs://BUCKET[/FOLDER] whose runs' TPUs are deleted.", none="any")
    flags.switch("yes", "Delete without asking.")


def run(args: Args) -> DownResult:
    """List the TPUs, ask for confirmation, and delete them."""

    def confirm(tpus: Sequence[ListedTpu]) -> bool:
        for tpu in tpus:
            print(
                f"{tpu.name}: {tpu.accelerator_type} {tpu.state} in {tpu.zone},"
                f" {NAMES[tpu.service]}: {tpu.resource} (run {tpu.run_dir or tpu.run}, id"
                f" {tpu.run_id})"
            )
        return args.yes or _ask(len(tpus))

    result = down(project=args.project, name=args.name, bucket=args.bucket, confirm=confirm)
    count = len(result.deleted)
    print(f"deleted {count}" if count else "nothing is left")
    return result


def _ask(count: int) -> bool:
    if not sys.stdin.isatty():
        raise BadInput("deletion without a terminal requires --yes")
    try:
        answer = input(f"delete {'this TPU' if count == 1 else f'these {count} TPUs'}? [y/N] ")
    except EOFError:
        answer = ""
    return answer.strip().lower().startswith("y")
