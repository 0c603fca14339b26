"""The change from short sequences to whole ones: what it does to the state, and how it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bigbird_ja.model.params import POSITIONS
from bigbird_ja.run.file_names import SLOTS, slot_name
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import first_phase

CHANGED = "sequence_length_changed"  # event


def lengthened(config: Config, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with which whole sequences begin: the positions of the short ones, which alone were
    trained, repeated end to end, as in Longformer (arXiv:2004.05150, section 5), and so AdamW's
    state of them.

    Args:
        config: completed, with `training.first_seq_length`.
        state: arrays by the names of a checkpoint.
    """
    length = config.training.first_seq_length
    assert length is not None
    names = (POSITIONS, *(slot_name(POSITIONS, slot) for slot in SLOTS))
    return {**state, **{name: repeated(state[name][:length], len(state[name])) for name in names}}


def repeated(rows: np.ndarray, count: int) -> np.ndarray:
    """[count, ...]: the rows end to end, again and again."""
    copies = -(-count // len(rows))
    return np.tile(rows, (copies, *[1] * (rows.ndim - 1)))[:count]


def is_in_first_phase(config: Config, step: int) -> bool:
    """Whether the step that follows `step` is on short sequences."""
    return step < (config.training.first_seq_length_steps or 0)


def words(config: Config, step: int) -> str | None:
    """How a run that goes on at `step` is divided, for people; None where it is all whole."""
    phase = first_phase(config)
    if phase is None or not is_in_first_phase(config, step):
        return None
    batch, whole = phase.training.global_batch_size, config.make_data.seq_length
    return (
        f"up to step {config.training.first_seq_length_steps:,} a step is on"
        f" {batch:,} sequences of {phase.make_data.seq_length:,} tokens, then on"
        f" {config.training.global_batch_size:,} of {whole:,}:"
        f" {config.training.global_batch_size * whole:,} positions each"
    )
