"""Environment variables of storage, with their ranges."""

import math
import os

from bigbird_ja.errors import BadInput


def storage_timeout() -> float:
    """Return the seconds for which requests to a failing bucket are retried."""
    return _seconds("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", 300.0, 0.1, 3600.0)


def lease_seconds() -> float:
    """Return the silence on a bucket after which a holder is considered dead, in seconds.

    All processes that use a folder need the same value.
    """
    return _seconds("BIGBIRD_JA_LEASE_SECONDS", 40.0, 1.0, 86400.0)


def _seconds(name: str, default: float, low: float, high: float) -> float:
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
