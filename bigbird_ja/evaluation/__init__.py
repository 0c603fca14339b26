"""Load the model of a run, to evaluate or export it; `masked_lm` measures it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bigbird_ja.model.params import parameter_specs
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import model as run_model
from bigbird_ja.run.checkpoints import Meta
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config

if TYPE_CHECKING:
    from bigbird_ja.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TrainedModel:
    """Holds a model with its tokenizer."""

    folder: str
    config: Config
    data: Data
    params: dict[str, np.ndarray]
    tokenizer: Tokenizer
    meta: Meta  # the checkpoint's sidecar


def load_run(model_dir: str, step: int | None = None) -> TrainedModel:
    """Load a MODEL_DIR's checkpoint, the newest by default.

    Raises:
        BadInput: no checkpoint, no tokenizer, or files that do not belong together.
    """
    config, data, params, meta = run_model.load_parameters(model_dir, step)
    shapes = {name: spec.shape for name, spec in parameter_specs(config, data).items()}
    check_shapes(params, shapes, f"{model_dir}: the checkpoint of step {meta.step}")
    tokenizer = run_model.load_tokenizer(model_dir, config, meta)
    return TrainedModel(model_dir, config, data, params, tokenizer, meta)


def check_shapes(
    values: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], where: str
) -> None:
    """Refuse variables of a checkpoint that are not all of the config's model.

    Raises:
        BadInput: one is missing, or has another shape.
    """
    for name, wanted in shapes.items():
        shape = np.shape(values[name]) if name in values else "missing"
        if shape != wanted:
            raise BadInput(
                f"{where}: {name} is {shape}, and the config's model has {wanted}: restore it from"
                " a copy, or take another checkpoint, by --step"
            )
