"""Fences around leased folders on a bucket, in which only the lease's holder may write.

A lease on `FOLDER/lock.json` fences FOLDER in this process. `Fence.require` is called before each
request that changes an object in FOLDER, and the request's timeout ends before the lease does. So a
disconnected process writes nothing after another one has taken over the lease. A request that the
network delivers late has no effect either, as it contains the object's expected generation.
"""

from __future__ import annotations

from typing import Protocol

from bigbird_ja.storage import paths


class Fence(Protocol):
    """Lease of a fenced folder.

    Attributes:
        generations: Known generations of the objects in the folder, by path.
    """

    generations: dict[str, int]

    @property
    def request_seconds(self) -> float:
        """Maximum timeout, in seconds, of a request that changes an object in the folder."""

    def require(self, seconds: float) -> None:
        """Ensure that the lease will last for `request_seconds`: renew it, or wait for a renewal.

        Args:
            seconds: maximum time for which renewals are retried.

        Raises:
            LeaseLost: Another process has taken over.
            StorageError: The lease was not renewed in time.
        """

    def check(self) -> None:
        """Verify on the bucket that this process still owns the lease.

        Raises:
            LeaseLost: Another process has taken over.
        """


# Path of the lock file and the lease of each fenced folder, by the folder's path.
_fences: dict[str, tuple[str, Fence]] = {}


def add_fence(lock: str, fence: Fence) -> None:
    """Fence the folder of a lock. The lock itself is not fenced."""
    _fences[f"{paths.get_directory(lock)}/"] = (lock, fence)


def remove_fence(lock: str) -> None:
    """Remove the fence around the folder of a lock."""
    _fences.pop(f"{paths.get_directory(lock)}/", None)


def find_fence(path: str) -> Fence | None:
    """Return the fence around a folder that contains `path`, or None if there is none."""
    for folder, (lock, fence) in list(_fences.items()):
        if path.startswith(folder) and path != lock:
            return fence
    return None
