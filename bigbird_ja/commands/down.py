"""delete what is left

  bigbird-ja down --project MY-PROJECT [--name base-1]

Lists the TPUs and queued resources that `launch` made, asks, deletes them, and waits until they are
gone. Data and checkpoints on the bucket stay. Takes a minute or two per TPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.command_flags import Flags
from bigbird_ja.errors import BadInput, StorageError

if TYPE_CHECKING:
    from bigbird_ja.cloud.tpu import Tpu, Tpus

EXAMPLE = "bigbird-ja down --project MY-PROJECT --name base-1"


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    flags.text("project", "Id of the Google Cloud project.", required=True)
    flags.text("name", "One run.", none="all of `launch`'s")
    flags.words("zones", ["-"], "Zones to look in (-: every zone).")
    flags.path("bucket", "gs://BUCKET[/FOLDER] of `launch`: refuses what a live `launch` watches.")
    flags.switch("yes", "Does not ask.")
    flags.switch("dry_run", "Shows, deletes nothing.")
    flags.number(
        "timeout_minutes", 15.0, "Waits so long for deletion.", unit="minutes", low=0, high=1e5
    )


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Shows, asks, deletes."""
    from bigbird_ja.cloud import tpu as tpu_lib
    from bigbird_ja.commands.status import list_tpus

    found = _wanted(list_tpus(args.project, args.zones), args.name)
    for tpu in found:
        print(f"{tpu.name}: {tpu.accelerator_type} {tpu.state} in {tpu.zone} (run {tpu.run})")
    if not found:
        print("nothing is left")
        return {"deleted": [], "left": []}
    if args.dry_run:
        return {"deleted": [], "left": [_where(tpu) for tpu in found]}
    _check_unwatched(args.bucket, found)
    if not args.yes:
        _confirm(len(found))
    service = tpu_lib.connect(args.project)
    left = delete_all(service, found, args.timeout_minutes * 60, time.monotonic, time.sleep)
    deleted = [_where(tpu) for tpu in found if _where(tpu) not in left]
    if left:
        raise StorageError(
            f"still there and perhaps billed: {', '.join(left)}: run again, or use the console",
            results={"deleted": deleted, "left": left},
        )
    print(f"deleted {len(deleted)}")
    return {"deleted": deleted, "left": []}


def delete_all(
    service: Tpus,
    tpus: list[Tpu],
    timeout: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[str]:
    """Deletes until a listing shows that nothing is left; returns what still is."""
    from bigbird_ja.cloud.faults import ServiceFault
    from bigbird_ja.cloud.tpu import Presence
    from bigbird_ja.console import log

    start, remaining, pause = clock(), list(tpus), 1.0
    wanted = {_where(tpu) for tpu in tpus}
    while remaining:
        for tpu in remaining:
            if tpu.presence is Presence.DELETING:
                continue
            try:
                service.delete(tpu)
            except ServiceFault as fault:
                log(f"{_where(tpu)}: {fault}")
        if clock() - start > timeout:
            break
        sleep(pause)
        pause = min(pause * 1.5, 15.0)
        try:
            zones = {tpu.zone for tpu in tpus}
            listed = [tpu for zone in sorted(zones) for tpu in service.list(zone)]
            remaining = [tpu for tpu in listed if _where(tpu) in wanted]
        except ServiceFault as fault:
            log(str(fault))
    return [_where(tpu) for tpu in remaining]


def _wanted(tpus: list[Tpu], name: str | None) -> list[Tpu]:
    return [tpu for tpu in tpus if name is None or tpu.run == name]


def _where(tpu: Tpu) -> str:
    return f"{tpu.zone}/{tpu.name}"


def _check_unwatched(bucket: str | None, tpus: list[Tpu]) -> None:
    """A living `launch` would create again what is deleted under its hands."""
    from bigbird_ja.cloud import run_story

    for name in sorted({tpu.run for tpu in tpus}) if bucket else ():
        story = run_story.read(str(bucket), name, (), 0)
        if story.watched_by:
            raise BadInput(
                f"{name} is watched by a `launch` ({story.watched_by}): stop that one with Ctrl-C,"
                " which deletes the TPU"
            )


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise BadInput("deleting needs --yes where nobody can be asked")
    try:
        answer = input(f"delete {'it' if count == 1 else f'these {count}'}? [y/N] ")
    except EOFError:
        answer = ""
    if not answer.strip().lower().startswith("y"):
        raise BadInput("nothing was deleted")
