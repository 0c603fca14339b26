"""Loads the model of a run."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bigbird_ja.model.params import parameter_specs
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import model as run_model
from bigbird_ja.run.checkpoints import Meta
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config
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
    _check_parameters(params, config, data, f"{model_dir}: the checkpoint of step {meta.step}")
    tokenizer = run_model.load_tokenizer(model_dir, config, meta)
    return TrainedModel(model_dir, config, data, params, tokenizer, meta)


def _check_parameters(
    params: Mapping[str, np.ndarray], config: Config, data: Data, where: str
) -> None:
    """Refuse values that are not all parameters of a model; they are finite.

    Raises:
        BadInput: one is missing, or has another shape or type.
    """
    for name, spec in parameter_specs(config, data).items():
        value = params.get(name)
        if value is None:
            problem = "is missing"
        elif value.shape != spec.shape:
            problem = f"has the shape {list(value.shape)} and the config's model {list(spec.shape)}"
        elif not np.issubdtype(value.dtype, np.floating):
            problem = "holds no floating-point numbers"
        else:
            continue
        raise BadInput(f"{where}: {name} {problem}: take another checkpoint, by --step")
