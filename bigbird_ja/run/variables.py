"""Read and write the variables of a checkpoint: parameters, the optimizer's slots, and the step."""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from bigbird_ja.process.console import shortened
from bigbird_ja.process.errors import StorageError, classify
from bigbird_ja.run.checkpoints import Checkpoint, Damaged

T = TypeVar("T")

STEP = "global_step"
SLOTS = ("m", "v")  # see `model.params.slot_parameters`


def read_checkpoint(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Read every variable of a checkpoint of ours.

    Raises:
        Damaged: a variable holds no finite numbers, or it is of another step than its sidecar.
    """
    values, meta = read_variables(checkpoint.prefix), checkpoint.meta
    advice = "restore the checkpoint from a copy, or remove its files to use the one before"
    for name, value in values.items():
        if np.asarray(value).dtype.kind not in "fiu" or not np.isfinite(value).all():
            raise Damaged(
                f"{checkpoint.prefix}: {name} holds text, NaN or infinite numbers: {advice}"
            )
    step = int(values.get(STEP, -1))
    if step != meta.step:
        raise Damaged(
            f"{checkpoint.prefix}: its {STEP} is {step} and its sidecar states {meta.step}:"
            f" {advice}"
        )
    return values


def read_variables(prefix: str) -> dict[str, np.ndarray]:
    """Read every variable of a TensorFlow checkpoint in local files.

    Raises:
        Damaged: files are missing, cut off, or not of a checkpoint.
    """
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(prefix)
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        why = shortened(str(error), 200)
        raise Damaged(f"{prefix}: not readable as a TensorFlow checkpoint ({why})") from error


def write_variables(prefix: str, values: dict[str, np.ndarray]) -> None:
    """Write a TensorFlow checkpoint: `prefix`.index and `prefix`.data-00000-of-00001.

    Runs outside any graph, so it must be called in a thread of its own while a session trains.

    Raises:
        StorageError: the disk is full, or fails.
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
        # As an exception of ours: a session takes OutOfRangeError, which is what TensorFlow makes
        # of EFBIG, for the end of the data, and ends as if all were well.
        known = classify(error)
        raise known or StorageError(f"{prefix}: cannot be written: {error.message}") from error


def slot_name(parameter: str, slot: str) -> str:
    """Name the variable that holds one of a parameter's slots."""
    return f"{parameter}/adam_{slot}"


def parameters_of(variables: Mapping[str, T]) -> dict[str, T]:
    """Select the parameters among a checkpoint's variables."""
    endings = tuple(slot_name("", slot) for slot in SLOTS)
    return {
        name: value
        for name, value in variables.items()
        if name != STEP and not name.endswith(endings)
    }
