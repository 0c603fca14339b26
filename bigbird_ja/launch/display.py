"""Calls of display code, whose errors must not end the supervisor."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def contain(make: Callable[[], T], default: T) -> T:
    """Return the result of `make`, or `default` if `make` raises an exception.

    The supervisor calls display code by this function. If an error in such code, such as a closed
    terminal, ended the supervisor's loop, the rented machine would remain billed.
    """
    try:
        return make()
    except Exception:
        return default
