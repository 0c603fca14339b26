"""Loading of a run's model with its tokenizer."""

from dataclasses import dataclass

import numpy as np

from bigbird_ja.run import model as run_model
from bigbird_ja.run.checkpoints import Meta
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TrainedModel:
    """Trained model with its tokenizer."""

    folder: str
    config: Config
    data: Data
    params: dict[str, np.ndarray]
    tokenizer: Tokenizer
    meta: Meta  # checkpoint metadata


def load_run(model_dir: str, step: int | None = None) -> TrainedModel:
    """Load a MODEL_DIR's checkpoint, the newest by default.

    Raises:
        BadInput: no checkpoint, no tokenizer, or files that do not match.
    """
    config, data, params, meta = run_model.load_parameters(model_dir, step)
    tokenizer = run_model.load_tokenizer(model_dir, meta)
    return TrainedModel(model_dir, config, data, params, tokenizer, meta)
