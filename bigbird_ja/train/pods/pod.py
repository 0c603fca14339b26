"""What keeps the processes of a pod together while they train.

JAX's programs run on all devices together, so what concerns the state (a save, the last step) must
come at the same step in every process, however late each hears of it. Process 0 decides: it holds
all of them back for a moment, asks how far each may have gone, and names the first step beyond.

A process that dies leaves the others in a sum that never ends. Its connection closes, though, and
whoever hears of it ends at once, from a thread: within ENDS_WITHIN_SECONDS of the death of a
process, or GONE_SECONDS later where a machine vanishes with it.
"""

from __future__ import annotations

import base64
import contextlib
import io
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bigbird_ja.process import errors
from bigbird_ja.process.errors import CommandError, Stalled
from bigbird_ja.train.pods.place import Place
from bigbird_ja.train.pods.wire import PROBE_SECONDS, PROBES

if TYPE_CHECKING:
    from bigbird_ja.train.pods.meeting import Meeting

NEVER = 1 << 62  # a step that is not reached
GONE_SECONDS = PROBE_SECONDS * (PROBES + 1)  # until a machine that says nothing counts as gone
ENDS_WITHIN_SECONDS = 40.0
_CAUSE_SECONDS = 10.0  # to hear of the death that an error comes from
_GOODBYE_SECONDS = 10.0
_POLL_SECONDS = 0.1

Arrays = Mapping[str, np.ndarray]


class Alone:
    """A process that trains by itself."""

    index, count = 0, 1
    is_writer = True
    leave: Callable[[CommandError], None]  # ends this process at once; called where another failed

    def connect(self, platform: str) -> None:
        """Joins JAX's runtimes, before the devices are looked for."""

    def barrier(self, name: str) -> None:
        """Waits until all processes are here."""

    def share(self, name: str, make: Callable[[], Any]) -> Any:
        """What the writer makes, in every process; JSON."""
        return make()

    def turn(self, step: int, limit: int, ahead: int) -> int:
        """Before a turn of the engine, which may dispatch `ahead` steps beyond the finished `step`:
        how far it may go, `limit` at most."""
        return limit

    def stops_at(self, step: int, asked: bool) -> bool:
        """Whether training stops at `step`, where someone asked this process or did not."""
        return asked

    def ask(self, what: str, name: str = "") -> None:
        """Asks for a step at which all "stop" or "save"; `name` says who."""

    def agreed(self, what: str) -> int | None:
        """The last step that was agreed on for that."""
        return None

    def collect(self, key: str, own: Arrays, poll: Callable[[], None]) -> list[Arrays] | None:
        """The arrays of all processes, in the writer; None in the others."""
        return [own]

    def fail(self, reason: str, message: str) -> None:
        """Tells the others that this process ends badly."""

    def await_cause(self) -> None:
        """Waits some seconds where an error may come from another process's end."""

    def finish(self) -> None:
        """The run has ended well, and so have all."""


class Pod(Alone):
    """A process of several; see the module.

    Args:
        place: of this process.
        meeting: that has brought them together.
        log: for people.
        stop: asked for this process too when any of them is to stop.
        leave: ends this process at once, with an error and from any thread.
        connect: joins JAX's runtimes, given this pod and the platform.
    """

    def __init__(
        self,
        place: Place,
        meeting: Meeting,
        log: Callable[[str], None],
        stop: Callable[[str], None],
        leave: Callable[[CommandError], None],
        connect: Callable[[Pod, str], None],
    ) -> None:
        self.place, self.index, self.count = place, place.index, place.count
        self.is_writer = place.index == 0
        self._meeting, self._links, self._names = meeting, meeting.links, meeting.names
        self._log, self._stop, self.leave, self._connect = log, stop, leave, connect
        self._changed = threading.Condition()
        self._heard: dict[str, dict[int, Any]] = {}  # what others said, by name and process
        self._news: CommandError | None = None
        self._is_waiting = False  # the main thread, which will raise the news
        self._has_told, self._is_over = False, False
        self._reach, self._is_held = -1, False  # the steps that this process may have dispatched
        self._agreed: dict[str, int] = {}
        self._wanted: list[tuple[str, str]] = []  # in process 0; the first is being decided
        self._reaches: dict[int, int] = {}
        self.keeps: Any = None  # what has to live as long as this

    def start(self) -> None:
        """Listens to the others from here on."""
        for index, link in self._links.items():
            threading.Thread(
                target=self._listen, args=(index, link), name=f"pod-{index}", daemon=True
            ).start()

    def connect(self, platform: str) -> None:
        self._connect(self, platform)

    # Waiting for each other.

    def barrier(self, name: str) -> None:
        if self.is_writer:
            self._wait_for(f"at {name}", set(self._links))
            self._tell_all("say", name=f"pass {name}", value=None)
        else:
            self._tell_all("say", name=f"at {name}", value=None)
            self._wait_for(f"pass {name}", {0})

    def share(self, name: str, make: Callable[[], Any]) -> Any:
        if not self.is_writer:
            return self._wait_for(name, {0})[0]
        value = make()
        self._tell_all("say", name=name, value=value)
        return value

    def collect(self, key: str, own: Arrays, poll: Callable[[], None]) -> list[Arrays] | None:
        if not self.is_writer:
            self._tell_all("say", name=key, value=_packed(own))
            return None
        found = self._wait_for(key, set(self._links), poll)
        return [own, *(_unpacked(found[index]) for index in sorted(found))]

    def _wait_for(
        self, name: str, who: set[int], poll: Callable[[], None] | None = None
    ) -> dict[int, Any]:
        """What all of `who` have said under a name. In the main thread it raises the news."""
        is_main = threading.current_thread() is threading.main_thread()
        with self._changed:
            while not who <= self._heard.get(name, {}).keys():
                if is_main and self._news is not None:
                    raise self._news
                self._is_waiting = is_main or self._is_waiting
                self._changed.wait(_POLL_SECONDS)
                if is_main:
                    self._is_waiting = False
                if poll is not None:
                    poll()
            return self._heard.pop(name)

    # Steps.

    def turn(self, step: int, limit: int, ahead: int) -> int:
        with self._changed:
            while self._is_held:
                self._changed.wait(_POLL_SECONDS)
            limit = min([limit, *(at for at in self._agreed.values() if at > step)])
            self._reach = max(self._reach, min(limit, step + ahead))
            return limit

    def stops_at(self, step: int, asked: bool) -> bool:
        with self._changed:
            while self._is_held:
                self._changed.wait(_POLL_SECONDS)
            return "stop" in self._agreed and step >= self._agreed["stop"]

    def ask(self, what: str, name: str = "") -> None:
        if self.is_writer:
            self._want(what, name)
        else:
            self._tell_all("ask", what=what, name=name)

    def agreed(self, what: str) -> int | None:
        return self._agreed.get(what)

    def _want(self, what: str, name: str) -> None:
        with self._changed:
            if any(what == wanted for wanted, _ in self._wanted) or "stop" in self._agreed:
                return
            self._wanted.append((what, name))
            if len(self._wanted) == 1:
                self._ask_reaches()

    def _ask_reaches(self) -> None:
        self._is_held, self._reaches = True, {0: self._reach}
        self._tell_all("hold")

    def _decide(self) -> None:
        """In process 0, once all reaches are known."""
        what, name = self._wanted.pop(0)
        step = max(self._reaches.values()) + 1
        self._tell_all("agreed", what=what, step=step, name=name)
        self._settle(what, step)
        if self._wanted:
            self._ask_reaches()

    def _settle(self, what: str, step: int) -> None:
        self._agreed[what], self._is_held = step, False
        self._changed.notify_all()

    # Ends.

    def fail(self, reason: str, message: str) -> None:
        with self._changed:
            if self._has_told or self._is_over:
                return
            self._has_told = True
        self._meeting.close()
        self._tell_all("ended", reason=reason, message=message)
        for link in self._links.values():
            link.finish()

    def await_cause(self) -> None:
        end = time.monotonic() + _CAUSE_SECONDS
        with self._changed:
            if self._has_told:
                return
            while time.monotonic() < end and self._news is None:
                self._changed.wait(_POLL_SECONDS)
        if self._news is not None:
            time.sleep(ENDS_WITHIN_SECONDS)  # the thread that has heard of it ends the process

    def finish(self) -> None:
        """The writer says that all is well; the others wait for that."""
        if self.is_writer:
            with self._changed:
                self._is_over = True
            self._meeting.close()
            self._tell_all("say", name="over", value=None)
        else:
            self._wait_for("over", {0})
        for link in self._links.values():
            link.finish()
        with self._changed:  # until they have read it: a connection closed too early loses it
            end = time.monotonic() + _GOODBYE_SECONDS
            while time.monotonic() < end and len(self._heard.get("gone", {})) < len(self._links):
                self._changed.wait(_POLL_SECONDS)

    def _listen(self, index: int, link: Any) -> None:
        for message in link:
            try:
                self._handle(index, message)
            except (KeyError, TypeError, ValueError) as error:
                self._log(f"{self._names[index]}: a message that cannot be read: {error}")
        with self._changed:
            self._heard.setdefault("gone", {})[index] = None
            self._changed.notify_all()
        if not self._is_over:
            self._end(
                Stalled(
                    f"{self._names[index]} is gone: it was killed, or its machine or network is:"
                    " stopped; the last checkpoint is good: run the same command again on every"
                    " host"
                )
            )

    def _handle(self, index: int, message: Mapping[str, Any]) -> None:
        kind = message["kind"]
        if kind == "ended":
            self._end(self._end_of(index, str(message["reason"]), str(message["message"])))
            return
        if kind == "ask":
            self._want(str(message["what"]), str(message["name"]))
            self._stop_too(message, index)
            return
        with self._changed:
            if kind == "say":
                self._is_over = self._is_over or message["name"] == "over"
                self._heard.setdefault(str(message["name"]), {})[index] = message["value"]
            elif kind == "hold":
                self._is_held = True
                self._tell_all("reach", step=self._reach)
            elif kind == "reach" and self._is_held:
                self._reaches[index] = int(message["step"])
                if len(self._reaches) == self.count:
                    self._decide()
            elif kind == "agreed":
                self._settle(str(message["what"]), int(message["step"]))
            self._changed.notify_all()
        if kind == "agreed":
            self._stop_too(message, index)

    def _stop_too(self, message: Mapping[str, Any], index: int) -> None:
        if message["what"] == "stop":
            self._stop(str(message["name"]) or f"asked by {self._names[index]}")

    def _end_of(self, index: int, reason: str, message: str) -> CommandError:
        """How this process ends where another one has."""
        text = f"{self._names[index]}: {message}"
        if reason in ("bug", "finished") or reason not in errors.STATUS_OF_REASON:
            return Stalled(f"{self._names[index]} ended ({reason}: {message}): see what it says")
        return errors.of_reason(reason, text)

    def _end(self, news: CommandError) -> None:
        """Ends this process too, in the main thread if that waits for the others, or here."""
        with self._changed:
            if self._news is not None or self._is_over or self._has_told:
                return
            self._news = news
            is_waiting = self._is_waiting
            self._changed.notify_all()
        if not is_waiting:
            self.leave(news)

    def _tell_all(self, kind: str, **fields: Any) -> None:
        for link in self._links.values():
            link.send(kind, **fields)


def _packed(arrays: Arrays) -> str:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpacked(text: str) -> Arrays:
    with contextlib.closing(np.load(io.BytesIO(base64.b64decode(text)))) as found:
        return {name: found[name] for name in found.files}
