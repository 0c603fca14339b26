"""Delete the TPUs that runs have left.

  bigbird-ja down --project MY-PROJECT --name base-1

Lists the TPUs and queued resources that `launch` made, in the Cloud TPU API and in Compute Engine,
in --project and, with --bucket, in the projects that its runs have used last; asks, deletes them,
and waits until they are gone. Data and checkpoints on the bucket stay. Takes a
minute or two per TPU. The TPU of a running `launch` is refused: it would create it again.
"""

import sys
import time
from typing import Any

from bigbird_ja import storage
from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.launch.backends import NAMES, connect_all
from bigbird_ja.launch.files import projects_of, watched_by
from bigbird_ja.launch.leftovers import delete_all, list_ours
from bigbird_ja.launch.service import Tpu

EXAMPLE = "bigbird-ja down --project MY-PROJECT --name base-1"
POSITIONAL = "name"
_TIMEOUT = 900.0  # seconds for all deletions


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.text("project", "Id of the Google Cloud project.", required=True)
    flags.text("name", "One run.", none="all of `launch`'s")
    flags.path("bucket", "gs://BUCKET[/FOLDER] whose runs' TPUs are deleted.", none="any")
    flags.switch("yes", "Delete without asking.")


def run(args: Args) -> dict[str, Any]:
    """List, ask, delete."""
    folder = f"{(args.bucket or '').rstrip('/')}/"
    # A run may have been launched with another --project before.
    clients = connect_all(*{args.project, *(projects_of(args.bucket) if args.bucket else ())})
    listed, now = list_ours(clients)
    tpus = [tpu for tpu in listed if args.name in (None, tpu.run)]
    tpus = [tpu for tpu in tpus if not args.bucket or tpu.run_dir.startswith(folder)]
    for tpu in tpus:
        print(
            f"{tpu.name}: {tpu.accelerator_type} {tpu.state} in {tpu.zone}, {NAMES[tpu.service]}:"
            f" {tpu.resource} (run {tpu.run_dir or tpu.run}, id {tpu.run_id})"
        )
    _check_unwatched(tpus, now)
    if listed and not tpus:
        where = ", ".join(sorted({f"{tpu.run} in {tpu.zone}" for tpu in listed}))
        filters = [f"--{key} {args[key].value}" for key in ("name", "bucket") if args[key].value]
        raise BadInput(
            f"{' '.join(filters)}: no such TPU is listed; runs with one: {where}: check the flags"
        )
    if not tpus:
        print("nothing is left")
        return {"deleted": [], "left": []}
    if not args.yes:
        _confirm(len(tpus))
    left = delete_all(clients, tpus, _TIMEOUT, time.monotonic, time.sleep)
    deleted = [tpu.resource for tpu in tpus if tpu.resource not in left]
    if left:
        raise StorageError(
            f"still there and perhaps billed: {', '.join(left)}: run again, or use the console",
            results={"deleted": deleted, "left": left},
        )
    print(f"deleted {len(deleted)}")
    return {"deleted": deleted, "left": []}


def _check_unwatched(tpus: list[Tpu], now: float) -> None:
    """Check that no running `launch` watches one of the machines: it would create it again.

    Each machine's own metadata names the folder of its run.
    """
    for run_dir in sorted({tpu.run_dir for tpu in tpus if tpu.run_dir}):
        watcher = watched_by(run_dir, now)
        if watcher:
            raise BadInput(
                f"{storage.base_name(run_dir)} is watched by a `launch` ({watcher}), which would"
                " create its TPU again: stop that one with Ctrl-C, which deletes the TPU"
            )


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise BadInput("deleting without a terminal needs --yes")
    try:
        answer = input(f"delete {'this TPU' if count == 1 else f'these {count} TPUs'}? [y/N] ")
    except EOFError:
        answer = ""
    if not answer.strip().lower().startswith("y"):
        raise BadInput("nothing was deleted")
