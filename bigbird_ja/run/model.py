"""Load the model of a MODEL_DIR: its parameters, with the config and tokenizer that belong to them.

The variables of a checkpoint (parameters, the optimizer's slots, the step) are read and written
here too.

The checkpoint's sidecar says which config and which tokenizer it was trained with; files beside it
that are not those are refused, because everything that reads the model would go wrong silently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bigbird_ja import storage
from bigbird_ja.process.classify import classify
from bigbird_ja.process.console import shortened
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore, Damaged, Meta
from bigbird_ja.settings.config_file import read_config
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import config_fingerprint
from bigbird_ja.storage.disk import scratch_directory

if TYPE_CHECKING:
    from bigbird_ja.text.tokenizer import Tokenizer

T = TypeVar("T")

STEP = "global_step"
SLOTS = ("m", "v")  # see `train.optimizer.slot_parameters`
CONFIG, TOKENIZER = "config.yaml", "tokenizer.model"
_ADVICE = "put the tokenizer.model of the data set that the run was trained on back there"
NO_CHECKPOINT = "no checkpoint here: give a run's folder (transformers loads what `export` made)"
CONTINUED = "continued_with"  # the event of a run whose settings were changed


def load_parameters(
    model_dir: str, step: int | None = None
) -> tuple[Config, Data, dict[str, np.ndarray], Meta]:
    """Load the model of a checkpoint, without the optimizer's state; nothing is changed.

    Args:
        model_dir: MODEL_DIR, on disk or on a bucket.
        step: which; the newest by default.

    Returns:
        The run's config and data, parameters by name (float32), the sidecar.

    Raises:
        BadInput: no checkpoint there, or that one is damaged, or `config.yaml` is not its config.
    """
    store = CheckpointStore(model_dir)
    steps = store.steps()
    if not steps:
        raise BadInput(f"{model_dir}: {NO_CHECKPOINT}")
    if step is not None and step not in steps:
        raise BadInput(f"{model_dir}: no checkpoint of step {step}; there are {_short(steps)}")
    step = steps[-1] if step is None else step
    path, meta = storage.join(model_dir, CONFIG), store.read_meta(step)
    config, data = read_config(path)
    check_config(config, data, meta, path, earlier_configs(run_log.read_events(model_dir)))
    with scratch_directory() as scratch:
        checkpoint = CheckpointStore(model_dir, scratch).fetch(step)
        values = read_variables(checkpoint.prefix)
    return config, data, parameters_of(values), checkpoint.meta


def earlier_configs(events: Iterable[Mapping[str, Any]]) -> set[str]:
    """Collect fingerprints of the configs that a run had before `pretrain --set` changed them.

    The model is the same in all.
    """
    return {str(event.get("was")) for event in events if event.get("event") == CONTINUED}


def check_config(
    config: Config, data: Data, meta: Meta, where: str, earlier: Collection[str] = ()
) -> None:
    """Refuse a config that is not the checkpoint's.

    Args:
        config: the run's.
        data: the run's.
        meta: the checkpoint's sidecar.
        where: the config's file, for the message.
        earlier: fingerprints of configs that the run had before; see `earlier_configs`.

    Raises:
        BadInput: the fingerprints differ.
    """
    ours = config_fingerprint(config, data)
    if meta.config_fingerprint not in {ours, *earlier}:
        raise BadInput(
            f"{where} is not the config that checkpoint {meta.step} was trained with (fingerprint"
            f" {ours[:12]}, not {meta.config_fingerprint[:12]}): it was changed since: put the"
            " settings back as they were"
        )


def load_tokenizer(model_dir: str, meta: Meta) -> Tokenizer:
    """Load MODEL_DIR's tokenizer, checked against the checkpoint.

    Raises:
        BadInput: there is none, or it is not the one that the checkpoint was trained with.
    """
    from bigbird_ja.text.load import read_tokenizer

    check_tokenizer(model_dir, meta.tokenizer_sha256)
    return read_tokenizer(storage.join(model_dir, TOKENIZER))


def check_tokenizer(model_dir: str, expected: str) -> None:
    """Refuse a MODEL_DIR whose tokenizer is another one; there may be none.

    Args:
        model_dir: MODEL_DIR.
        expected: SHA-256 (hex) of the one that its data was made with; empty where unknown.

    Raises:
        BadInput: the hashes differ.
    """
    path = storage.join(model_dir, TOKENIZER)
    try:
        sha256 = hashlib.sha256(storage.read_bytes(path)).hexdigest()
    except FileNotFoundError:
        return
    if expected and sha256 != expected:
        raise BadInput(
            f"{path} is not the tokenizer that the run was trained with (SHA-256 {sha256[:12]}, not"
            f" {expected[:12]}): {_ADVICE}"
        )


def _short(steps: Sequence[int]) -> str:
    texts = [str(step) for step in steps]
    return ", ".join(texts if len(texts) <= 8 else [*texts[:3], "…", *texts[-3:]])


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
