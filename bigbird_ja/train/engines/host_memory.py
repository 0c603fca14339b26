"""Memory that a step may use on this machine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from bigbird_ja.errors import OutOfMemory
from bigbird_ja.process.console import human_bytes

_CGROUP = Path("/sys/fs/cgroup")


def refuse_if_too_large(needed: int) -> None:
    """Check that this process can get the bytes that a step needs.

    Raises:
        OutOfMemory: It cannot.
    """
    available = available_bytes()
    if available is not None and needed > available:
        raise out_of_memory(needed, available, "this machine")


def out_of_memory(needed: int, available: int, where: str) -> OutOfMemory:
    """Return the error for a step that does not fit, with the settings to change."""
    return OutOfMemory(
        f"a step of this model needs about {human_bytes(needed)} of memory and {where} has"
        f" {human_bytes(available)} left: use a smaller training.global_batch_size or more"
        " training.gradient_accumulation_steps, training.gradient_checkpointing=true, or a smaller"
        " model"
    )


def available_bytes() -> int | None:
    """Return the bytes that this process can still get, or None if unknown.

    Limits of its container count too.
    """
    return min(_memory_limits(), default=None)


def _memory_limits() -> Iterator[int]:
    with contextlib.suppress(OSError):
        text = Path("/proc/meminfo").read_text()
        if match := re.search(r"MemAvailable:\s+(\d+) kB", text):
            yield int(match[1]) * 1024
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" if unlimited
            yield int((_CGROUP / limit).read_text()) - int((_CGROUP / used).read_text())
