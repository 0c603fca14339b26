"""The memory that a training step needs, estimated before it begins, and what this machine has.

On a CPU nothing refuses a step that is too large: the machine swaps, or the kernel kills the
process. TensorFlow's executor keeps most of what a step computes until the backward pass uses it.
The counts below are fitted to the peaks of 11 small models on two cores (0.7 to 6.3 GB), which they
meet within 25 %.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from bigbird_ja.model import pattern
from bigbird_ja.model.params import count_parameters
from bigbird_ja.process.console import human_bytes
from bigbird_ja.process.errors import OutOfMemory
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import train_predictions

_FLOAT = 4  # bytes; on CPU bfloat16 saves nothing
# Copies of each parameter's size: values and two slots, three times (as they are, as they come out
# of the step, as a snapshot is written), first values, gradients.
_COPIES = 13
# The estimate may be too high by a quarter: a step is refused only where even this share of it
# is more than there is.
_TOLERANCE = 0.75
_CGROUP = Path("/sys/fs/cgroup")


def estimate(config: Config, sequences: int) -> int:
    """Bytes at the peak of a step of TensorFlow's executor on CPU.

    Args:
        config: completed.
        sequences: in one micro-batch.
    """
    model, length = config.model, config.make_data.seq_length
    keys = length  # that a query sees, padding of the pattern included
    if not pattern.is_full(config, length):
        keys = min(length, (5 + model.num_random_blocks) * model.block_size)
    per_layer = 16 * model.hidden_size + 3 * model.intermediate_size
    per_layer += 2 * model.num_attention_heads * keys
    layers: float = model.num_layers
    if config.training.gradient_checkpointing:
        layers = 1 + layers * 2 * model.hidden_size / per_layer
    predictions = sequences * train_predictions(config)
    floats = _COPIES * count_parameters(config)
    floats += round(sequences * length * layers * per_layer)
    floats += 3 * predictions * (model.vocab_size or 0)
    return floats * _FLOAT


def refuse_if_too_large(needed: int, available: int | None = None) -> None:
    """Refuses a step that this machine's memory cannot hold.

    Args:
        needed: bytes, estimated.
        available: bytes; by default what this process can still get.

    Raises:
        OutOfMemory: with the figures and what to lower.
    """
    available = available_bytes() if available is None else available
    if available is not None and needed * _TOLERANCE > available:
        raise out_of_memory(needed, available, "this machine")


def out_of_memory(needed: int, available: int, where: str) -> OutOfMemory:
    """The error that a step does not fit, with what to lower."""
    return OutOfMemory(
        f"a step of this model needs about {human_bytes(needed)} of memory and {where} has"
        f" {human_bytes(available)} left: use a smaller training.global_batch_size or more"
        " training.gradient_accumulation_steps, training.gradient_checkpointing=true, or a smaller"
        " model"
    )


def available_bytes() -> int | None:
    """What this process can still get: of the machine, of its container, of its own limits."""
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
