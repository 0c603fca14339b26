"""Memory that a step needs, and memory that this machine can provide.

On a CPU the memory of a step is checked twice:

- Before the compilation, which takes minutes for a large model, `estimate_step` adds up the sizes
  of the largest arrays: parameters, gradients, optimizer slots, activations that the backward pass
  reads, the scores of one layer's attention, and the scores of the predictions. A process needs
  `GROWTH` times the estimate, as the compiler needs as much memory as the step. Measured factors
  are 1.7 with one layer of the base model (16 sequences of 512 tokens), and 1.9 with two layers (2
  sequences).
- After the compilation the compiler's figure is used. It is multiplied by `OVERHEAD` for other
  memory that the process needs while the step runs (measured with one layer: 1.08).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path

from bigbird_ja.errors import OutOfMemory
from bigbird_ja.model import head_attention
from bigbird_ja.model.flops import count_visible_pairs
from bigbird_ja.model.params import make_parameter_specs
from bigbird_ja.process.console import format_bytes
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import count_train_predictions

GROWTH = 2
OVERHEAD = 1.1
# Bytes per number. A CPU computes in float32 even if `training.dtype` is bfloat16.
_FLOAT = 4
_CGROUP = Path("/sys/fs/cgroup")


def estimate_step(config: Config, data: Data, sequences: int) -> int:
    """Estimate the bytes that a step needs on a CPU, by the shapes of its largest arrays.

    Args:
        config: config of the run.
        data: facts of the run's data set.
        sequences: number of sequences in a micro-batch, over all devices of this machine.
    """
    model, length = config.model, data.seq_length
    hidden, tokens = model.hidden_size, sequences * length
    parameters = sum(math.prod(spec.shape) for spec in make_parameter_specs(config, data).values())
    slots = 1 if config.training.optimizer == "muon" else 2
    # Number of arrays with the MLP's inner size.
    widths = 3 if model.architecture == "modernbert" else 2
    dense = tokens * (8 * hidden + widths * model.intermediate_size)
    scores = [_scores(config, layer, sequences, length) for layer in range(model.num_layers)]
    most = max(at_once for _, at_once in scores)
    kept = sum(dense + until_backward for until_backward, _ in scores)
    if config.training.gradient_checkpointing:
        kept = model.num_layers * tokens * hidden + dense + most
    predicted = 3 * sequences * count_train_predictions(config, data) * (model.vocab_size or 0)
    return _FLOAT * (parameters * (2 + slots) + kept + most + predicted)


def _scores(config: Config, layer: int, sequences: int, length: int) -> tuple[int, int]:
    """Count the floats that a layer's attention needs.

    Returns:
        Number of floats that are kept until the backward pass, and number of floats that are needed
        while the attention is computed.
    """
    pairs, heads = count_visible_pairs(config, layer, length), config.model.num_attention_heads
    if pairs == length * length and head_attention.suits(length, length):
        # Copies of queries, keys, values and context are kept until the backward pass. Scores and
        # weights of one group of heads, and their gradients, are temporary.
        together = head_attention.count_together(sequences * heads, length, length)
        return 4 * sequences * length * config.model.hidden_size, 4 * together * pairs
    return 2 * sequences * heads * pairs, 2 * sequences * heads * pairs


def refuse_if_too_large(needed: int) -> None:
    """Check that this process can get the bytes that a step needs.

    Raises:
        OutOfMemory: Less memory is available.
    """
    available = find_available_bytes()
    if available is not None and needed > available:
        error = make_memory_error(needed, available, "this machine")
        raise OutOfMemory(f"{error}, or a TPU or GPU (`bigbird-ja plan` shows machines)")


def make_memory_error(needed: int, available: int, where: str) -> OutOfMemory:
    """Return the error for a step that does not fit in memory, with advice on settings."""
    return OutOfMemory(
        f"a step of this model needs about {format_bytes(needed)} of memory, but {where} has"
        f" {format_bytes(available)} left: use a smaller training.global_batch_size or more"
        " training.gradient_accumulation_steps, training.gradient_checkpointing=true, or a smaller"
        " model"
    )


def find_available_bytes() -> int | None:
    """Return the bytes that this process can still allocate, or None if unknown.

    The memory limit of a container (cgroup) is included.
    """
    return min(_read_memory_limits(), default=None)


def _read_memory_limits() -> Iterator[int]:
    with contextlib.suppress(OSError):
        text = Path("/proc/meminfo").read_text()
        if match := re.search(r"MemAvailable:\s+(\d+) kB", text):
            yield int(match[1]) * 1024
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # The file contains "max" if unlimited.
            yield int((_CGROUP / limit).read_text()) - int((_CGROUP / used).read_text())
