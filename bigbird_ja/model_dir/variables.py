"""Read and write the variables of a TensorFlow checkpoint: parameters, optimizer slots, step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from bigbird_ja.errors import StorageError
from bigbird_ja.model_dir.checkpoints import Damaged
from bigbird_ja.process.classify import classify
from bigbird_ja.process.console import shorten

T = TypeVar("T")

STEP = "global_step"
# Slots of the optimizer, which `train.optimizer.list_slot_parameters` describes.
SLOTS = ("m", "v")


def read_variables(prefix: str) -> dict[str, np.ndarray]:
    """Read all variables of a TensorFlow checkpoint in local files.

    Raises:
        Damaged: Files are missing or truncated, or are not a checkpoint.
    """
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(prefix)
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        why = shorten(str(error), 200)
        raise Damaged(f"{prefix} cannot be read as a TensorFlow checkpoint ({why})") from error


def write_variables(prefix: str, values: dict[str, np.ndarray]) -> None:
    """Write a TensorFlow checkpoint: `prefix`.index and `prefix`.data-00000-of-00001.

    The function requires eager mode. While a session trains in the main thread, call the function
    in another thread.

    Raises:
        StorageError: The disk is full, or fails.
    """
    import tensorflow as tf

    names = sorted(values)
    try:
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.convert_to_tensor(values[name]) for name in names],
        )
    except tf.errors.OpError as error:
        # For a file that is too large (EFBIG), TensorFlow raises OutOfRangeError, which a session
        # would interpret as the end of the data. So a StorageError is raised.
        known = classify(error)
        raise known or StorageError(
            f"{prefix} cannot be written ({error.message}): check the disk"
        ) from error


def name_slot(parameter: str, slot: str) -> str:
    """Return the name of the variable for a parameter's optimizer slot, such as "m"."""
    return f"{parameter}/adam_{slot}"


def select_parameters(variables: Mapping[str, T]) -> dict[str, T]:
    """Return the parameters among a checkpoint's variables."""
    endings = tuple(name_slot("", slot) for slot in SLOTS)
    return {
        name: value
        for name, value in variables.items()
        if name != STEP and not name.endswith(endings)
    }
