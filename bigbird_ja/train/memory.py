"""What training needs of memory, estimated before it begins, and what there is.

On a CPU a step that is too large is not refused by anybody: the machine swaps or the kernel kills
the process. TensorFlow's executor keeps most of what a step computes until it is used backwards;
the counts below are fitted to the peaks of 11 small models on two cores (0.7 to 6.3 GB), which they
meet within 25 %.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterable
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
    tokens = sequences * length
    per_layer = 16 * model.hidden_size + 3 * model.intermediate_size
    per_layer += 2 * model.num_attention_heads * _keys_per_query(config)
    layers: float = model.num_layers
    if config.training.gradient_checkpointing:
        layers = 1 + layers * 2 * model.hidden_size / per_layer
    predictions = sequences * train_predictions(config)
    floats = _COPIES * count_parameters(config)
    floats += round(tokens * layers * per_layer) + 3 * predictions * (model.vocab_size or 0)
    return floats * _FLOAT


def check(config: Config, sequences: int, available: int | None = None) -> None:
    """Refuses a step that this machine's memory cannot hold.

    Args:
        config, sequences: as for `estimate`.
        available: bytes; by default what this process can still get.

    Raises:
        OutOfMemory: with the figures and what to lower.
    """
    refuse_if_too_large(estimate(config, sequences), available)


def refuse_if_too_large(needed: int, available: int | None = None) -> None:
    """Refuses where `needed` bytes, estimated, are clearly more than there are.

    Raises:
        OutOfMemory: with the figures and what to lower.
    """
    there = available_bytes() if available is None else available
    if there is not None and needed * _TOLERANCE > there:
        raise OutOfMemory(message(needed, there, "this machine"))


def message(needed: int, there: int, where: str) -> str:
    """That a step does not fit, and what to lower."""
    return (
        f"a step of this model needs about {human_bytes(needed)} of memory and {where} has"
        f" {human_bytes(there)} left: use a smaller training.global_batch_size or more"
        " training.gradient_accumulation_steps, training.gradient_checkpointing=true, or a smaller"
        " model"
    )


def available_bytes() -> int | None:
    """What this process can still get: of the machine, of its container, of its own limits."""
    found = [*_of_machine(), *_of_container(), *_of_process()]
    return min(found, default=None)


def _keys_per_query(config: Config) -> int:
    """Keys that a query sees, padding of the pattern included."""
    model, length = config.model, config.make_data.seq_length
    if pattern.is_full(config, length):
        return length
    return min(length, (5 + model.num_random_blocks) * model.block_size)


def _of_machine() -> Iterable[int]:
    with contextlib.suppress(OSError):
        text = Path("/proc/meminfo").read_text()
        if found := re.search(r"MemAvailable:\s+(\d+) kB", text):
            yield int(found[1]) * 1024


def _of_container() -> Iterable[int]:
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            yield int((_CGROUP / limit).read_text()) - int((_CGROUP / used).read_text())


def _of_process() -> Iterable[int]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            yield limit - pages * os.sysconf("SC_PAGESIZE")
