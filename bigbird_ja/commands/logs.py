"""Follow the trainer's log of a rented run.

  bigbird-ja logs base-1 --bucket gs://MY-BUCKET

Reads the machine's copy of it, BUCKET/NAME/supervisor/training.log, and prints each line once, as
it comes, until the run has ended. Changes nothing; Ctrl-C leaves the run as it is.
"""

import time
from collections.abc import Callable
from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.launch import LaunchedRun
from bigbird_ja.launch.files import RunFiles, check_known
from bigbird_ja.launch.state import Phase

EXAMPLE = "bigbird-ja logs base-1 --bucket gs://MY-BUCKET"
POSITIONAL = "name"
_ANCHOR = 400  # characters by which a later copy is laid against an earlier one


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.text("name", "The run, as `launch --name` called it; also without --name.", required=True)
    flags.path("bucket", "gs://BUCKET[/FOLDER] of `launch`.", required=True)
    flags.number("poll_seconds", 30.0, "Between two looks.", unit="seconds", low=0.05, high=86_400)


def run(args: Args) -> dict[str, Any]:
    """Print the log as it comes."""
    ending = follow(args.bucket, args.name, print, time.sleep, args.poll_seconds)
    return {"name": args.name, "ending": ending}


def follow(
    bucket: str,
    name: str,
    show: Callable[[str], None],
    sleep: Callable[[float], None],
    seconds: float = 30.0,
) -> str:
    """Show the log's lines as they come, until the run has ended; return how it ended.

    Raises:
        BadInput: no such run.
    """
    check_known(bucket, name)
    files, follower = RunFiles(LaunchedRun(bucket, name)), LogFollower()
    while True:
        state = files.load_state()
        for line in follower.new_lines(files.log()):
            show(line)
        if state is not None and state.phase is Phase.ENDED:
            show(state.ending_message)
            return state.ending_message
        sleep(seconds)


class LogFollower:
    """A reader of what is new in a window that moves along a growing log."""

    def __init__(self) -> None:
        self._seen = ""

    def new_lines(self, window: str) -> list[str]:
        """Return the whole lines that no window before has had."""
        whole = window[: window.rfind("\n") + 1]
        anchor = self._seen[-_ANCHOR:]
        at = whole.rfind(anchor) if anchor else -1
        new = whole[at + len(anchor) :] if at >= 0 else whole  # else: another machine's log
        if new:
            self._seen = whole
        return new.splitlines()
