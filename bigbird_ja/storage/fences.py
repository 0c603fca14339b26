"""Fences around leased folders on a bucket, below which only the lease's holder writes.

A lease on `FOLDER/lock.json` fences FOLDER for this process. Each try of a request that changes an
object there begins with `Fence.require`, and is over before the lease ends. So a holder that was
cut off from the network writes nothing after another has taken over. A request that the network
delivers late replaces nothing either: it states the generation that it expects.
"""

from __future__ import annotations

from typing import Protocol

from bigbird_ja.storage import paths


class Fence(Protocol):
    """Lease that fences its folder."""

    # Current generation of objects by path, as far as this process knows them.
    generations: dict[str, int]

    @property
    def request_seconds(self) -> float:
        """Maximum silence of the bucket within a request."""

    def require(self, seconds: float) -> None:
        """Return once the lease is certain to last `request_seconds`, renewed if need be.

        Args:
            seconds: time in which a bucket that fails may recover.

        Raises:
            LeaseLost: Another process has taken over.
            StorageError: The lease cannot be renewed.
        """

    def check(self) -> None:
        """Verify on the bucket that this process still holds the lease.

        Raises:
            LeaseLost: Another process has taken over.
        """


# Path of the lock, and its lease, by folder.
_fences: dict[str, tuple[str, Fence]] = {}


def put_up(lock: str, fence: Fence) -> None:
    """Fence the folder of a lock, which itself stays outside."""
    _fences[f"{paths.directory_of(lock)}/"] = (lock, fence)


def take_down(lock: str) -> None:
    """Remove the fence around the folder of a lock."""
    _fences.pop(f"{paths.directory_of(lock)}/", None)


def fence_of(path: str) -> Fence | None:
    """Return the fence around a path, or None."""
    for folder, (lock, fence) in list(_fences.items()):
        if path.startswith(folder) and path != lock:
            return fence
    return None
