"""Asks a person at Ctrl-C, and follows the trainer's log."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable

from bigbird_ja.launch.files import RunFiles, check_known
from bigbird_ja.launch.record import LaunchedRun
from bigbird_ja.launch.state import Phase
from bigbird_ja.launch.supervise import Stop
from bigbird_ja.process import signals

QUESTION = (
    "\nStop watching and [d]elete the TPU, or de[t]ach (it trains on; the same command watches"
    " again), or [c]ontinue? "
)
_ANCHOR = 400  # characters by which a later copy is laid against an earlier one
_PROGRESS = re.compile(r"^step +[0-9]")


def steady_clock() -> float:
    """Return seconds of a clock that nobody sets, and that counts a suspended machine."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


# --- Ctrl-C ---------------------------------------------------------------------------------------


class Interrupts:
    """A listener to signals while the block runs; the supervisor asks `stop` once per turn.

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
        self._deleting = self._by_person = False
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
        self._by_person |= number == signal.SIGINT
        if number != signal.SIGINT and self._policy == "ask":
            self._policy = "delete"  # the machine shuts down, or the terminal is gone
        self._wake.set()

    def nobody_reads(self) -> None:
        """Take a log without a reader for a closed terminal."""
        self._receive(signal.SIGHUP)

    def sleep(self, seconds: float) -> None:
        """Wait so long, or until a signal comes."""
        self._wake.wait(seconds)

    def stop(self) -> Stop:
        """Return what the person wants now."""
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
            again = "; Ctrl-C again leaves at once" if self._by_person else ""
            self._say(f"deleting the TPU; what is saved stays{again}")
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


# --- the log --------------------------------------------------------------------------------------


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


def progress_lines(lines: list[str]) -> list[str]:
    """Keep the lines that show how far training is."""
    return [line for line in lines if _PROGRESS.match(line)]


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
        for line in follower.new_lines(files.log_window()):
            show(line)
        if state is not None and state.phase is Phase.ENDED:
            show(state.ending_message)
            return state.ending_message
        sleep(seconds)
