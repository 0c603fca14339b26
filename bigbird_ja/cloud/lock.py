"""One supervisor per run: a lock on the bucket with an owner and a beat."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bigbird_ja import processes, storage
from bigbird_ja.errors import BadInput, StorageError

STALE_SECONDS = 180.0  # six polls without a beat


class LostLock(Exception):
    """Another supervisor took the run over: this one must not touch it again."""


@dataclass(frozen=True)
class Owner:
    """Who holds the lock, as the file says it."""

    process: dict[str, Any]  # as `processes` records one
    token: str
    time: float  # of the last beat, UNIX seconds

    @property
    def name(self) -> str:
        return processes.name(self.process)


class SupervisorLock:
    """Held while `launch` runs.

    Taking over a stale lock is a compare-and-swap, so of two that try one wins. A beat is one too:
    whoever was taken over (a laptop that slept) learns of it at its next beat and stops.
    """

    def __init__(
        self, path: str, wall: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._path, self._wall, self._sleep = path, wall, sleep
        self._token = uuid.uuid4().hex
        self._version: str | None = None
        self._beat = 0

    def acquire(self, say: Callable[[str], None]) -> None:
        """Takes the lock.

        Raises:
            BadInput: another supervisor holds it and is alive.
        """
        for _ in range(3):
            if storage.create_exclusive(self._path, self._content()):
                self._version = storage.read_with_token(self._path)[1]
                return
            found = self._read()
            if found is None:
                continue
            owner, version = found
            if not self._is_dead(owner, version):
                raise BadInput(
                    f"another `launch` watches this run ({owner.name}):"
                    " stop it first, or use `bigbird-ja status` to look on"
                )
            taken = storage.replace_if(self._path, self._content(), version)
            if taken is not None:
                self._version = taken
                say(f"took over from a supervisor that is gone ({owner.name})")
                return
        raise BadInput("another `launch` has just taken this run")

    def beat(self) -> None:
        """Says that this supervisor lives.

        Raises:
            LostLock: another one owns the run now.
            StorageError: the bucket fails; the caller tries again at its next turn.
        """
        if self._version is None:
            raise LostLock
        self._beat += 1
        version = storage.replace_if(self._path, self._content(), self._version)
        if version is None:
            # A write whose reply was lost looks like a conflict: ask who owns it.
            found = self._read()
            if found is None or found[0].token != self._token:
                self._version = None
                raise LostLock
            version = found[1]
        self._version = version

    def release(self) -> None:
        """Frees the lock, if it still is ours."""
        if self._version is not None:
            storage.delete_if(self._path, self._version)
            self._version = None

    def _is_dead(self, owner: Owner, version: str) -> bool:
        if processes.has_ended(owner.process):
            return True
        if abs(self._wall() - owner.time) < STALE_SECONDS:
            return False
        # Two machines' clocks may differ: let the owner show a beat before calling it dead.
        self._sleep(60.0)
        try:
            return storage.read_with_token(self._path)[1] == version
        except FileNotFoundError:
            return False

    def _read(self) -> tuple[Owner, str] | None:
        try:
            content, version = storage.read_with_token(self._path)
        except FileNotFoundError:
            return None
        return parse_owner(content), version

    def _content(self) -> bytes:
        values = {"token": self._token, "beat": self._beat, "time": self._wall()}
        return json.dumps({**processes.this_process().as_dict(), **values}).encode()


def parse_owner(content: bytes) -> Owner:
    """Reads a lock file; one that is not ours or is cut counts as beaten long ago."""
    try:
        values = json.loads(content)
        return Owner(values, str(values["token"]), float(values["time"]))
    except (ValueError, KeyError, TypeError):
        return Owner({}, "", 0.0)


def read_owner(path: str) -> Owner | None:
    """Who holds the lock; None where nobody does."""
    try:
        return parse_owner(storage.read_bytes(path))
    except FileNotFoundError:
        return None
    except StorageError:
        return None
