"""The function `logs`: follow the trainer's log of a launched run."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bigbird_ja.launch.files import RunFiles, check_known
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.state import Phase

# Length of the end of the earlier copy of the log, which is searched in the later copy.
_ANCHOR = 400


@dataclass(frozen=True)
class LogsResult:
    """Outcome of a run whose log was followed.

    Attributes:
        name: Name of the run.
        ending: Description of the run's ending.
    """

    name: str
    ending: str


def logs(
    *,
    name: str,
    bucket: str,
    poll_seconds: float = 30.0,
    show: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> LogsResult:
    """Show new lines of a run's log until the run has ended.

    Args:
        name: name of the run.
        bucket: gs://BUCKET[/FOLDER] of the run.
        poll_seconds: seconds between polls of the log.
        show: callback for each line.
        sleep: callback that waits some seconds.

    Raises:
        BadInput: The run does not exist.
    """
    check_known(bucket, name)
    files, seen = RunFiles(LaunchedRun(bucket, name)), ""
    while True:
        state = files.load_state()
        seen, lines = find_new_lines(seen, files.read_log())
        for line in lines:
            show(line)
        if state is not None and state.phase is Phase.ENDED:
            show(state.ending_message)
            return LogsResult(name, state.ending_message)
        sleep(poll_seconds)


def find_new_lines(seen: str, window: str) -> tuple[str, list[str]]:
    """Find the lines that were added to a log, from two copies of its end.

    Args:
        seen: complete lines of the earlier copy, or "" at the first call.
        window: later copy, which may end within a line.

    Returns:
        The value of `seen` for the next call, and the added lines.
    """
    whole, anchor = window[: window.rfind("\n") + 1], seen[-_ANCHOR:]
    at = whole.rfind(anchor) if anchor else -1
    # If the anchor is not found, all lines count as new: the log belongs to another machine, or has
    # grown by more than the length of a copy.
    new = whole[at + len(anchor) :] if at >= 0 else whole
    return (whole if new else seen), new.splitlines()
