"""The processes of a pod meet before anything is written, and compare what they were asked for.

Process 0 listens; each other comes with its card. Whatever does not fit is told to all of them in
one line, and ends all of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja.process.errors import BadInput, Interrupted
from bigbird_ja.train.pods.place import Place
from bigbird_ja.train.pods.wire import Link

_POLL_SECONDS = 0.2
_HELLO_SECONDS = 5.0
_MOST_BYTES = 1 << 20  # of a card
# What to do about a part of the cards that differs.
_TO_DO = {
    "version": "install the same bigbird-ja on every host",
    "packages": "install the same packages on every host",
    "data": "give the same --data_dir everywhere",
    "MODEL_DIR": "give the same --model_dir everywhere, on gs:// or on a disk that all hosts share",
}
_COMPLETE = "this pod is complete and at work: a process too many, or its --process_id given twice"

Card = Mapping[str, Any]


class Meeting:
    """How one process meets the others.

    Args:
        place: of this process.
        card: what all processes must agree on, by name: text, or a mapping of texts.
        seconds: to wait for the others.
        is_asked: whether someone asked to stop meanwhile.
    """

    def __init__(
        self, place: Place, card: Card, seconds: float, is_asked: Callable[[], bool]
    ) -> None:
        self._place, self._card, self._is_asked = place, card, is_asked
        self._seconds, self._end = seconds, time.monotonic() + seconds
        self.links: dict[int, Link] = {}  # of process 0: to all others; of each other: to it
        self.names: dict[int, str] = {}  # for people
        self._listener: socket.socket | None = None

    def meet(self) -> None:
        """Waits until all are there.

        Raises:
            BadInput: somebody does not come, or does not fit.
            Interrupted: someone asked to stop.
        """
        try:
            self._gather() if self._place.index == 0 else self._join()
        except BaseException:
            self.close()
            for link in self.links.values():
                link.finish()
            raise

    def close(self) -> None:
        """Process 0 stops to listen: whoever comes from now on finds nobody, and comes again."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    # Process 0.

    def _gather(self) -> None:
        self._listener = self._listen()
        self._listener.settimeout(_POLL_SECONDS)
        problem = ""
        while not problem and len(self.links) < self._place.count - 1:
            self._check_stop()
            if time.monotonic() > self._end:
                missing = set(range(1, self._place.count)) - set(self.links)
                problem = _never_came(missing, self._place.count, self._seconds)
                break
            with contextlib.suppress(TimeoutError, OSError):
                problem = self._receive(Link(self._listener.accept()[0]))
        kind, words = ("refused", problem) if problem else ("welcome", "")
        for link in self.links.values():
            link.send(kind, message=words)
        if problem:
            raise BadInput(problem)
        threading.Thread(target=self._refuse, name="latecomers", daemon=True).start()

    def _listen(self) -> socket.socket:
        place = self._place
        family = socket.AF_INET6 if ":" in place.bind_host else socket.AF_INET
        try:
            return socket.create_server((place.bind_host, place.port), family=family)
        except OSError as error:
            raise BadInput(
                f"--coordinator_address={place.address}: process 0 cannot listen there:"
                f" {error.strerror or error}: another process 0 may be at work, or give a free port"
                " of this host"
            ) from error

    def _receive(self, link: Link) -> str:
        """Takes in whoever has come; what is wrong with them, or ""."""
        try:
            hello = link.receive(_HELLO_SECONDS, _MOST_BYTES)
            index, count, name = int(hello["index"]), int(hello["count"]), str(hello["name"])[:200]
            card = dict(hello["card"])
        except (EOFError, TimeoutError, ValueError, KeyError, TypeError):
            link.close()  # nobody of ours
            return ""
        name = f"process {index} on {name}"
        problem = ""
        if count != self._place.count:
            problem = (
                f"{name} was told that there are {count} processes, and process 0"
                f" {self._place.count}: give the same --num_processes everywhere"
            )
        elif not 0 < index < count or index in self.links:
            other = self.names.get(index, f"process 0 on {_name()}")
            problem = f"{name} and {other} have the same --process_id: give each its own"
        else:
            self.names[index] = name
            problem = _difference(name, card, self._card)
        if problem:
            link.send("refused", message=problem)
            link.finish()
        if index not in self.links:
            self.links[index] = link
        return problem

    def _refuse(self) -> None:
        """For as long as this process listens: tells latecomers."""
        assert self._listener is not None
        while True:
            try:
                self._listener.settimeout(None)
                link = Link(self._listener.accept()[0])
            except OSError:
                return
            link.send("refused", message=_COMPLETE)
            link.finish()

    # The others.

    def _join(self) -> None:
        link = self._reach()
        self.links[0], self.names[0] = link, f"process 0 at {self._place.address}"
        link.send(
            "hello", index=self._place.index, count=self._place.count, name=_name(),
            card=dict(self._card),
        )  # fmt: skip
        while True:
            self._check_stop()
            try:
                answer = link.receive(_POLL_SECONDS)
            except TimeoutError:
                if time.monotonic() > self._end + _HELLO_SECONDS:
                    raise BadInput(self._nobody("nothing that answers")) from None
                continue
            except (EOFError, ValueError) as error:
                raise BadInput(
                    f"process 0 at {self._place.address} ended before all were there: see what it"
                    " says, and start all again"
                ) from error
            if answer["kind"] == "welcome":
                return
            raise BadInput(str(answer.get("message") or "process 0 refused"))

    def _reach(self) -> Link:
        """Connects, again and again until process 0 is there."""
        why = ""
        while time.monotonic() < self._end:
            self._check_stop()
            try:
                address = (self._place.host, self._place.port)
                return Link(socket.create_connection(address, timeout=_HELLO_SECONDS))
            except OSError as error:
                why = error.strerror or str(error)
                time.sleep(_POLL_SECONDS)
        raise BadInput(self._nobody(why))

    def _nobody(self, why: str) -> str:
        return (
            f"--coordinator_address={self._place.address}: no process 0 there within"
            f" {self._seconds:.0f} s ({why}): start the same command on every host, and check the"
            " address"
        )

    def _check_stop(self) -> None:
        if self._is_asked():
            raise Interrupted("stopped before training: run the same command again")


def _name() -> str:
    return f"{socket.gethostname()} (pid {os.getpid()})"


def _never_came(missing: set[int], count: int, seconds: float) -> str:
    names = ", ".join(map(str, sorted(missing)))
    which = f"process {names} of {count}" if len(missing) == 1 else f"processes {names} of {count}"
    return (
        f"{which} did not come within {seconds:.0f} s (--pod_wait_seconds): start the same command"
        " on every host"
    )


def _difference(name: str, theirs: Card, ours: Card) -> str:
    """What a card says otherwise than ours, in a line; "" where nothing."""
    for key, value in ours.items():
        other = theirs.get(key)
        if other == value:
            continue
        what = f"another {key}"
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            both = sorted(set(value) | set(other))
            named = [k for k in both if value.get(k) != other.get(k)]
            value, other = (", ".join(f"{k}={x.get(k)}" for k in named[:4]) for x in (value, other))
        to_do = _TO_DO.get(key, "give the same flags and settings everywhere")
        return (
            f"{name} has {what} ({str(other)[:200]}) than process 0 ({str(value)[:200]}): {to_do}"
        )
    return ""
