"""Follow the trainer's log of a rented run."""

from collections.abc import Callable

from bigbird_ja.launch.files import RunFiles, check_known
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.state import Phase

_ANCHOR = 400  # characters by which a later copy is aligned with an earlier one


def follow(
    bucket: str,
    name: str,
    show: Callable[[str], None],
    sleep: Callable[[float], None],
    seconds: float = 30.0,
) -> str:
    """Show the log's lines as they come, until the run has ended; return its last message.

    Raises:
        BadInput: no such run.
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
            return state.ending_message
        sleep(seconds)


def new_lines(seen: str, window: str) -> tuple[str, list[str]]:
    """Compare two copies of the end of a growing log.

    Returns:
        The complete lines of the later copy, for the next comparison; and the new ones of them.
    """
    whole, anchor = window[: window.rfind("\n") + 1], seen[-_ANCHOR:]
    at = whole.rfind(anchor) if anchor else -1
    new = whole[at + len(anchor) :] if at >= 0 else whole  # else: another machine's log
    return (whole if new else seen), new.splitlines()
