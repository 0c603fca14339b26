"""Values of all variables at the first step of a process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bigbird_ja.model.initialization import draw_parameters
from bigbird_ja.model_dir.variables import STEP, name_slot, read_variables
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config

if TYPE_CHECKING:
    from bigbird_ja.model_dir.checkpoints import Checkpoint


def make_first_state(
    config: Config, data: Data, checkpoint: Checkpoint | None, initial: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Return the values with which a process begins to train, by the variables' names.

    They come from the checkpoint. Without one, they are the initial values of a new run.

    Args:
        config: config of the run.
        data: facts of the run's data set.
        checkpoint: checkpoint from which training continues, or None.
        initial: parameters that replace the random ones of a new run, float32 arrays by name.
    """
    if checkpoint is not None:
        return read_variables(checkpoint.prefix)
    from bigbird_ja.train.optimizer import list_slot_parameters  # This imports TensorFlow.

    state: dict[str, Any] = dict(draw_parameters(config, data, config.training.seed))
    state.update(initial)
    for slot, names in list_slot_parameters(config, data).items():
        state |= {name_slot(name, slot): np.zeros_like(state[name]) for name in names}
    return state | {STEP: np.int64(0)}
