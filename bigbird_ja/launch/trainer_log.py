"""Follow the trainer's log of a rented run."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bigbird_ja.launch.files import RunFiles, check_known
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.state import Phase

_ANCHOR = 400  # characters by which a later copy is aligned with an earlier one


@dataclass(frozen=True)
class LogsResult:
    """Outcome of a run whose log was followed."""

    name: str
    ending: str  # the run's last message


def logs(
    *,
    name: str,
    bucket: str,
    poll_seconds: float = 30.0,
    show: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> LogsResult:
    """Show the lines of a run's log as they come, until the run has ended.

    Args:
        name: name of the run.
        bucket: gs://BUCKET[/FOLDER] of the run.
        poll_seconds: time between polls of the log.
        show: called with each line.
        sleep: waits some seconds.

    Raises:
        BadInput: No such run.
    """
    check_known(bucket, name)
    files, seen = RunFiles(LaunchedRun(bucket, name)), ""
    while True:
        state = files.load_state()
        seen, lines = new_lines(seen, files.log())
        for line in lines:
            show(line)
        if state is not None and state.phase is Phase.ENDED:
            show(state.ending_message)
            return LogsResult(name, state.ending_message)
        sleep(poll_seconds)


def new_lines(seen: str, window: str) -> tuple[str, list[str]]:
    """Compare two copies of the end of a growing log.

    Returns:
        The complete lines of the later copy, for the next comparison; and the new ones of them.
    """
    whole, anchor = window[: window.rfind("\n") + 1], seen[-_ANCHOR:]
    at = whole.rfind(anchor) if anchor else -1
    # Without the anchor it is another machine's log.
    new = whole[at + len(anchor) :] if at >= 0 else whole
    return (whole if new else seen), new.splitlines()
