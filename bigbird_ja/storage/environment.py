"""Environment variables for storage, with their ranges."""

import math
import os

from bigbird_ja.errors import BadInput


def get_storage_timeout() -> float:
    """Return the seconds during which requests to a failing bucket are retried."""
    return _read_seconds("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", 300.0, 0.1, 3600.0)


def get_lease_seconds() -> float:
    """Return the seconds without a renewal after which the holder of a lease counts as dead.

    All processes that use a folder must have the same value.
    """
    return _read_seconds("BIGBIRD_JA_LEASE_SECONDS", 40.0, 1.0, 86400.0)


def _read_seconds(name: str, default: float, low: float, high: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text or default)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise BadInput(
            f"{name}={text!r} in the environment is invalid: use seconds from {low:g} to {high:g}"
        )
    return value
