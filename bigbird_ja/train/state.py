"""The state that training carries from step to step, as arrays by the names of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bigbird_ja.model.params import initial_parameters, parameter_specs
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import file_names
from bigbird_ja.run.checkpoints import Checkpoint, read_variables
from bigbird_ja.settings.schema import Config

State = dict[str, np.ndarray]


def first_state(
    config: Config, checkpoint: Checkpoint | None, warm_start: Mapping[str, np.ndarray] | None
) -> State:
    """Every variable where training begins: a checkpoint's, or those of a new run.

    Args:
        config: completed by a data set.
        checkpoint: where training continues, or None.
        warm_start: parameters of another model that replace the random ones of a new run.

    Raises:
        BadInput: the checkpoint is of another model.
    """
    if checkpoint is not None:
        state = read_variables(checkpoint.prefix)
        _check(config, state, checkpoint.prefix)
        return state
    params: State = initial_parameters(config, config.training.seed)
    params.update(warm_start or {})
    slots = {
        file_names.slot_name(name, slot): np.zeros_like(value)
        for slot in file_names.SLOTS
        for name, value in params.items()
    }
    return {**params, **slots, file_names.STEP: np.int64(0)}  # type: ignore[dict-item]


def _check(config: Config, state: State, where: str) -> None:
    specs = parameter_specs(config)
    for name in file_names.variable_names(specs):
        spec = specs.get(name) or specs.get(name.rpartition("/")[0])
        shape = spec.shape if spec else ()
        if name not in state or np.shape(state[name]) != shape:
            found = np.shape(state[name]) if name in state else "missing"
            raise BadInput(f"{where}: {name} is {found} and the config's model has {shape}")
