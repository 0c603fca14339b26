"""Kinds of models from which a run can start."""

from typing import Literal

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import state_dict
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.model_dir.model import CONFIG


def find_kind(source: str) -> Literal["folder", "run", "checkpoint"]:
    """Return the kind of model that `init_from` names.

    Args:
        source: Hugging Face folder, MODEL_DIR of a run, or prefix of a TensorFlow checkpoint, with
            or without `.index`, on disk or gs://.

    Raises:
        BadInput: The source is none of the three.
    """
    if state_dict.has_weights(source):
        return "folder"
    if storage.exists(storage.join(source, CONFIG)) and CheckpointStore(source).list_steps():
        return "run"
    if storage.exists(f"{source.removesuffix('.index')}.index"):
        return "checkpoint"
    raise BadInput(
        f"`init_from` {source} is neither a Hugging Face folder with weights, nor a MODEL_DIR,"
        " nor a TensorFlow checkpoint (give PREFIX of PREFIX.index)"
    )
