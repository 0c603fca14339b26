"""Delete what is left.

  bigbird-ja down --project MY-PROJECT [--name base-1]

Lists the TPUs and queued resources that `launch` made, in the Cloud TPU API and in Compute Engine,
asks, deletes them, and waits until they are gone. Data and checkpoints on the bucket stay. Takes a
minute or two per TPU. What a living `launch` watches is refused: it would create it again.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.process.errors import BadInput, StorageError

if TYPE_CHECKING:
    from bigbird_ja.launch.record import Tpu

EXAMPLE = "bigbird-ja down --project MY-PROJECT --name base-1"


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.text("project", "Id of the Google Cloud project.", required=True)
    flags.text("name", "One run.", none="all of `launch`'s")
    flags.words("zones", ["-"], "Zones to look in (-: every zone).")
    flags.path("bucket", "gs://BUCKET[/FOLDER] of `launch`: knows runs without a TPU.")
    flags.switch("yes", "Does not ask.")
    flags.switch("dry_run", "Shows, deletes nothing.")
    flags.number(
        "timeout_minutes", 15.0, "Waits so long for deletion.", unit="minutes", low=0, high=1e5
    )


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """List, ask, delete."""
    from bigbird_ja.launch.backends import NAMES, connect_all, delete_all, list_ours

    listed, now = list_ours(args.project, args.zones, args.bucket)
    tpus = [tpu for tpu in listed if args.name is None or tpu.run == args.name]
    for tpu in tpus:
        print(
            f"{tpu.name}: {tpu.accelerator_type} {tpu.state} in {tpu.zone}, {NAMES[tpu.service]}:"
            f" {tpu.resource} (run {tpu.run_dir or tpu.run}, id {tpu.run_id})"
        )
    _check_unwatched(args.bucket, args.name, tpus, now)
    if not tpus:
        if args.name:
            _check_known(args, listed)
        print("nothing is left")
        return {"deleted": [], "left": []}
    names = [tpu.resource for tpu in tpus]
    if args.dry_run:
        return {"deleted": [], "left": names}
    if not args.yes:
        _confirm(tpus)
    service = connect_all(args.project)
    left = delete_all(service, tpus, args.timeout_minutes * 60, time.monotonic, time.sleep)
    deleted = [name for name in names if name not in left]
    if left:
        raise StorageError(
            f"still there and perhaps billed: {', '.join(left)}: run again, or use the console",
            results={"deleted": deleted, "left": left},
        )
    print(f"deleted {len(deleted)}")
    return {"deleted": deleted, "left": []}


def _check_unwatched(bucket: str | None, name: str | None, tpus: list[Tpu], now: float) -> None:
    """Refuse where a living `launch` watches: it would create the deleted machine again.

    Each machine's own metadata names the folder of its run, so this needs no --bucket.
    """
    from bigbird_ja import storage
    from bigbird_ja.launch.files import watched_by

    runs = {tpu.run_dir for tpu in tpus if tpu.run_dir}
    if bucket:
        names = {tpu.run for tpu in tpus} | ({name} if name else set())
        runs |= {storage.join(bucket, run) for run in names}
    for run_dir in sorted(runs):
        watcher = watched_by(run_dir, now)
        if watcher:
            raise BadInput(
                f"{storage.base_name(run_dir)} is watched by a `launch` ({watcher}), which would"
                " create its TPU again: stop that one with Ctrl-C, which deletes the TPU"
            )


def _check_known(args: absl_flags.FlagValues, listed: list[Tpu]) -> None:
    """Check that the name is known: only then can nothing be left of it.

    Raises:
        BadInput: nobody does.
    """
    from bigbird_ja.launch.files import find_runs

    if args.bucket and args.name in find_runs(args.bucket):
        return
    others = ", ".join(sorted({tpu.run for tpu in listed})) or "none"
    hint = "" if args.bucket else ", or --bucket, on which a run without a TPU is known"
    raise BadInput(
        f"--name {args.name}: no TPU of that run is listed; runs with one: {others}: check the"
        f" name{hint}"
    )


def _confirm(tpus: list[Tpu]) -> None:
    from bigbird_ja.launch.backends import NAMES

    if not sys.stdin.isatty():
        raise BadInput("deleting needs --yes where nobody can be asked")
    where = "; ".join(
        f"{tpu.name} in {tpu.zone} from {NAMES[tpu.service]}, of run {tpu.run_dir or tpu.run}"
        for tpu in tpus
    )
    try:
        answer = input(f"delete {where}? [y/N] ")
    except EOFError:
        answer = ""
    if not answer.strip().lower().startswith("y"):
        raise BadInput("nothing was deleted")
