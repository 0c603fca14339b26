"""Evaluate models on held-out records."""

from bigbird_ja.evaluation.load import TrainedModel, load_run
from bigbird_ja.evaluation.masked_lm import BatchShare, batch_size, evaluate_model
from bigbird_ja.evaluation.tensorboard import write_tensorboard

__all__ = [
    "BatchShare",
    "TrainedModel",
    "batch_size",
    "evaluate_model",
    "load_run",
    "write_tensorboard",
]
