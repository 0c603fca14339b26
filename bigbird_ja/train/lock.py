"""Keeps two trainers out of one MODEL_DIR: `lock.json`, with an owner and a heartbeat.

The owner renews the file every `RENEW_SECONDS` by compare-and-swap, so a lock that someone else
took is noticed at the next renewal. A lock is stale when its owner's process is gone (same host)
or when it was not renewed while we watched for `STALE_SECONDS` (another host: clocks are not
compared, so they need not agree).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bigbird_ja import processes, storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.processes import Process

NAME = "lock.json"
RENEW_SECONDS = 10.0
STALE_SECONDS = 40.0
_POLL_SECONDS = 2.0


class LockLost(StorageError):
    """Another trainer has taken over; nothing may be written any more."""


@dataclass(frozen=True)
class Owner(Process):
    """A process, and which of its acquisitions."""

    id: str  # random, one per acquisition


def this_owner() -> Owner:
    """The owner that this process is."""
    return Owner(**processes.this_process().as_dict(), id=secrets.token_hex(8))


class RunLock:
    """The lock of one MODEL_DIR.

    Args:
        model_dir: its directory; must exist on disk.
        log: told when a stale lock is taken over or another host's is watched.
        clock: UNIX seconds.
        sleep: waits some seconds.
        owner: who asks; this process by default.
    """

    def __init__(
        self,
        model_dir: str,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        owner: Owner | None = None,
    ) -> None:
        self._path = storage.join(model_dir, NAME)
        self._model_dir = model_dir
        self._log, self._clock, self._sleep = log, clock, sleep
        self.owner = owner or this_owner()
        self._token: str | None = None

    def acquire(self) -> dict[str, Any] | None:
        """Takes the lock; the stale owner it was taken from, or None.

        Raises:
            BadInput: another trainer is at work on this MODEL_DIR.
        """
        taken_from = None
        while not storage.create_exclusive(self._path, self._content()):
            try:
                data, token = storage.read_with_token(self._path)
            except FileNotFoundError:
                continue  # released this moment
            holder = _parse(data)
            if holder.get("id") == self.owner.id:  # created, but the answer was lost
                break
            self._wait_until_stale(holder, token)
            if storage.delete_if(self._path, token):
                taken_from = holder
        self._token = storage.read_with_token(self._path)[1]
        self._confirm()
        if taken_from is not None:
            self._log(
                f"took over the stale lock of {processes.name(taken_from)} on {self._model_dir}:"
                " that trainer is gone"
            )
        return taken_from

    def renew(self) -> None:
        """Shows that the owner lives.

        Raises:
            LockLost: another trainer has taken the lock.
        """
        if self._token is None:
            return
        token = storage.replace_if(self._path, self._content(), self._token)
        if token is None:
            self._confirm()
            token = storage.read_with_token(self._path)[1]
        self._token = token

    def check(self) -> None:
        """Raises LockLost where the lock is no longer ours; asked before each save."""
        self._confirm()

    def release(self) -> None:
        """Gives the lock back, if it is still ours."""
        if self._token is None:
            return
        token, self._token = self._token, None
        if storage.delete_if(self._path, token):
            return
        try:
            data, token = storage.read_with_token(self._path)
        except FileNotFoundError:
            return
        if _parse(data).get("id") == self.owner.id:
            storage.delete_if(self._path, token)

    def _confirm(self) -> None:
        try:
            holder = _parse(storage.read_bytes(self._path))
        except FileNotFoundError:
            holder = {}
        if holder.get("id") != self.owner.id:
            self._token = None
            raise LockLost(
                f"{self._path}: {processes.name(holder)} has taken over this model_dir while this"
                " trainer was silent: stopped without saving"
            )

    def _wait_until_stale(self, holder: dict[str, Any], token: str) -> None:
        if processes.is_here(holder):
            if processes.has_ended(holder):
                return
            raise self._refusal(holder)
        deadline = self._clock() + STALE_SECONDS
        self._log(
            f"{self._path}: held by {processes.name(holder)}; watching for"
            f" {STALE_SECONDS:.0f} s whether that trainer is alive"
        )
        while self._clock() < deadline:
            self._sleep(_POLL_SECONDS)
            try:
                now = storage.read_with_token(self._path)[1]
            except FileNotFoundError:
                return
            if now != token:
                raise self._refusal(holder)

    def _refusal(self, holder: dict[str, Any]) -> BadInput:
        return BadInput(
            f"{self._model_dir}: {processes.name(holder)} is training here: stop it first, or use"
            " another --model_dir"
        )

    def _content(self) -> bytes:
        return (json.dumps({**self.owner.as_dict(), "renewed": self._clock()}) + "\n").encode()


def _parse(data: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(data)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}
