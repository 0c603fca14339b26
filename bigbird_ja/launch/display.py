"""The one place in which a supervisor calls code that only displays."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def contain(make: Callable[[], T], default: T) -> T:
    """Return a value that is only displayed, or `default` if building it fails.

    A machine is billed while the supervisor decides: no text of a log, closed terminal or mistake
    in a format may end that loop.
    """
    try:
        return make()
    except Exception:
        return default
