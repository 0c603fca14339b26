"""The trainer's log, of which the machine's watcher brings the end to the bucket now and then."""

from __future__ import annotations

import re
from collections.abc import Callable

from bigbird_ja.launch.run_files import RunFiles
from bigbird_ja.launch.run_state import Phase

_ANCHOR = 400  # characters by which a later copy is laid against an earlier one
_PROGRESS = re.compile(r"^step +[0-9]")


class LogFollower:
    """Finds what is new in a window that moves along a growing log."""

    def __init__(self) -> None:
        self._seen = ""

    def new_lines(self, window: str) -> list[str]:
        """Whole lines that no window before has had."""
        whole = window[: window.rfind("\n") + 1]
        anchor = self._seen[-_ANCHOR:]
        at = whole.rfind(anchor) if anchor else -1
        new = whole[at + len(anchor) :] if at >= 0 else whole  # else: another machine's log
        if new:
            self._seen = whole
        return new.splitlines()


def progress_lines(lines: list[str]) -> list[str]:
    """Those that say how far training is."""
    return [line for line in lines if _PROGRESS.match(line)]


def follow(
    files: RunFiles,
    show: Callable[[str], None],
    sleep: Callable[[float], None],
    seconds: float = 30.0,
) -> str:
    """Shows the log's lines as they come, until the run has ended; how it ended."""
    follower = LogFollower()
    while True:
        state = files.load_state()
        for line in follower.new_lines(files.log_window()):
            show(line)
        if state is not None and state.phase is Phase.ENDED:
            return state.ending_message
        sleep(seconds)
