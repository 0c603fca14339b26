"""Memory of this machine that a step may use."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from bigbird_ja.process.console import human_bytes
from bigbird_ja.process.errors import OutOfMemory

_CGROUP = Path("/sys/fs/cgroup")


def refuse_if_too_large(needed: int) -> None:
    """Refuse a step that needs so many bytes, where this process cannot get them.

    Raises:
        OutOfMemory: with the figures and what to lower.
    """
    available = available_bytes()
    if available is not None and needed > available:
        raise out_of_memory(needed, available, "this machine")


def out_of_memory(needed: int, available: int, where: str) -> OutOfMemory:
    """Compose the error that a step does not fit, with what to lower."""
    return OutOfMemory(
        f"a step of this model needs about {human_bytes(needed)} of memory and {where} has"
        f" {human_bytes(available)} left: use a smaller training.global_batch_size or more"
        " training.gradient_accumulation_steps, training.gradient_checkpointing=true, or a smaller"
        " model"
    )


def available_bytes() -> int | None:
    """Find the bytes this process can still get, of the machine and of its container."""
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
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            yield int((_CGROUP / limit).read_text()) - int((_CGROUP / used).read_text())
