"""What a person at the terminal sees of a run, its log, and wants of it, at Ctrl-C."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable

from bigbird_ja.launch.run_files import RunFiles
from bigbird_ja.launch.run_state import Phase
from bigbird_ja.launch.supervise import Stop
from bigbird_ja.process import signals

QUESTION = (
    "\nStop watching and [d]elete the TPU, or de[t]ach (it trains on; the same command watches"
    " again), or [c]ontinue? "
)
_ANCHOR = 400  # characters by which a later copy is laid against an earlier one
_PROGRESS = re.compile(r"^step +[0-9]")


class Interrupts:
    """Listens to signals while the block runs; the supervisor asks `stop` once per turn.

    Args:
        policy: `ask`, `delete` or `detach`; asking needs a terminal, else it means `delete`.
        is_terminal: whether somebody is there to answer.
        ask: shows a question and returns the answer.
        say: prints a line.
    """

    def __init__(
        self,
        policy: str,
        is_terminal: bool,
        ask: Callable[[str], str] = input,
        say: Callable[[str], None] = print,
    ) -> None:
        self._policy = "delete" if policy == "ask" and not is_terminal else policy
        self._ask, self._say = ask, say
        self._wake = threading.Event()
        self._count = 0
        self._deleting = False
        self._listener = signals.Listener(self._receive)

    def __enter__(self) -> Interrupts:
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.__exit__()

    def _receive(self, number: int) -> None:
        if self._deleting and number != signal.SIGINT:
            return  # a closed terminal may send several; a person in a hurry presses Ctrl-C
        self._count += 1
        if number != signal.SIGINT and self._policy == "ask":
            self._policy = "delete"  # the machine shuts down, or the terminal is gone
        self._wake.set()

    def nobody_reads(self) -> None:
        """The reader of the log is gone, which is as good as a closed terminal."""
        self._receive(signal.SIGHUP)

    def sleep(self, seconds: float) -> None:
        """Waits, or until a signal comes."""
        self._wake.wait(seconds)

    def stop(self) -> Stop:
        """What the person wants now."""
        if not self._count:
            return Stop.NO
        if self._deleting:
            if self._count > 1:
                self._say("left while deleting: `bigbird-ja down` shows and deletes what remains")
                return Stop.DETACH
            return Stop.DELETE
        answer = self._answer()
        self._wake.clear()
        self._count = 0
        if answer is Stop.DELETE:
            self._deleting, self._count = True, 1
            self._say("deleting the TPU; what is saved stays; Ctrl-C again leaves at once")
        return answer

    def _answer(self) -> Stop:
        if self._policy != "ask":
            return Stop(self._policy)
        try:
            text = self._ask(QUESTION).strip().lower()
        except (EOFError, KeyboardInterrupt):
            return Stop.DELETE
        if text.startswith(("t", "detach")):
            return Stop.DETACH
        return Stop.NO if text.startswith("c") else Stop.DELETE


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
    """Those that show how far training is."""
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
