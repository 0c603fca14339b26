"""Refuse a step that does not fit into memory, before it is tried."""

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from bigbird_ja.model.params import count_parameters, count_state
from bigbird_ja.process.console import human_bytes
from bigbird_ja.process.errors import OutOfMemory
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config

_CGROUP = Path("/sys/fs/cgroup")


def state_bytes(config: Config, data: Data) -> int:
    """Count the bytes that the state alone takes in a step of TensorFlow's executor on a CPU.

    Nothing refuses a step that is too large there: the machine swaps, or the kernel kills the
    process. The state is there four times (variables, results of the step, a snapshot that is
    written, first values), and beside it the gradients.
    """
    return 4 * (4 * count_state(config, data) + count_parameters(config, data))


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
    """Find the bytes this process can still get: of the machine, its container, its own limits."""
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
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            yield soft - pages * os.sysconf("SC_PAGESIZE")
