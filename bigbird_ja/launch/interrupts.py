"""Reaction to Ctrl-C, a closed terminal and a shutdown while `launch` watches a run."""

import signal
import threading
from collections.abc import Callable

from bigbird_ja.launch.display import contain
from bigbird_ja.launch.supervise import Stop
from bigbird_ja.process import signals

_QUESTION = (
    "\nStop watching and [d]elete the TPU, or de[t]ach (it continues training; rerun the same"
    " command to watch it), or [c]ontinue? "
)


class Interrupts(signals.Listener):
    """Context manager that receives signals. The supervisor calls `stop` once per poll.

    Args:
        policy: reaction to a signal: `ask` the user, `delete` the TPU, or `detach` from the TPU,
            which continues training. Without a terminal, `ask` means `delete`.
        is_terminal: whether standard input is a terminal.
        ask: callback that shows a question and returns the answer.
        log: callback that prints a line.
    """

    def __init__(
        self,
        policy: str,
        is_terminal: bool,
        ask: Callable[[str], str] = input,
        log: Callable[[str], None] = print,
    ) -> None:
        super().__init__(self._receive)
        self._policy = "delete" if policy == "ask" and not is_terminal else policy
        self._ask = ask
        self._show = lambda text: contain(lambda: log(text), None)
        self._wake = threading.Event()
        self._count = 0
        self._deleting = False

    def _receive(self, number: int) -> None:
        # A closed terminal may send several signals. Only Ctrl-C stops a deletion.
        if self._deleting and number != signal.SIGINT:
            return
        self._count += 1
        # Any signal but Ctrl-C means a shutdown or a closed terminal, so the user cannot answer.
        if number != signal.SIGINT and self._policy == "ask":
            self._policy = "delete"
        self._wake.set()

    def handle_lost_reader(self) -> None:
        """React to a broken output pipe as to a closed terminal."""
        self._receive(signal.SIGHUP)

    def sleep(self, seconds: float) -> None:
        """Wait `seconds`, or until a signal arrives."""
        self._wake.wait(seconds)

    def stop(self) -> Stop:
        """Return the user's choice after a signal, or `Stop.NO` if no signal arrived."""
        if not self._count:
            return Stop.NO
        if self._deleting:
            if self._count > 1:
                self._show("deletion was stopped: `bigbird-ja down` lists and deletes the rest")
                return Stop.DETACH
            return Stop.DELETE
        answer = self._ask_user()
        self._wake.clear()
        self._count = 0
        if answer is Stop.DELETE:
            self._deleting, self._count = True, 1
            self._show("deleting the TPU, not the checkpoints; press Ctrl-C again to stop at once")
        return answer

    def _ask_user(self) -> Stop:
        if self._policy != "ask":
            return Stop(self._policy)
        try:
            text = contain(lambda: self._ask(_QUESTION), "").strip().lower()
        except KeyboardInterrupt:
            return Stop.DELETE
        if text.startswith(("t", "detach")):
            return Stop.DETACH
        return Stop.NO if text.startswith("c") else Stop.DELETE
