"""Calls of code that only displays, whose failures must not end the supervisor."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def contain(make: Callable[[], T], default: T) -> T:
    """Return a value that is only displayed, or `default` if an exception is raised.

    If the supervisor's loop ended, a machine would remain billed. So a log's content, a closed
    terminal or an error in a format must not end it.
    """
    try:
        return make()
    except Exception:
        return default
