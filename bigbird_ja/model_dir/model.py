"""Model of a MODEL_DIR, with its parameters, config and tokenizer.

The checkpoint's metadata states the config and the tokenizer that the checkpoint was trained with.
A changed config or tokenizer is refused, as otherwise all results would be wrong without an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import CheckpointStore, Meta
from bigbird_ja.model_dir.variables import read_variables, select_parameters
from bigbird_ja.settings.config_file import read_config
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import compute_config_fingerprint
from bigbird_ja.storage.disk import create_scratch_directory

if TYPE_CHECKING:
    from bigbird_ja.text.tokenizer import Tokenizer


CONFIG, TOKENIZER = "config.yaml", "tokenizer.model"
_ADVICE = "put the tokenizer.model of the data set that the run was trained on back there"
NO_CHECKPOINT = "contains no checkpoint: give the folder of a run, not the result of `export`"
# Name of the event that records changed settings of a run.
CONTINUED = "continued_with"


@dataclass(frozen=True)
class TrainedModel:
    """Trained model with its tokenizer."""

    folder: str
    config: Config
    data: Data
    params: dict[str, np.ndarray]
    tokenizer: Tokenizer
    meta: Meta


def load_run(model_dir: str, step: int | None = None) -> TrainedModel:
    """Load a MODEL_DIR's checkpoint, the newest by default.

    Raises:
        BadInput: There is no checkpoint or no tokenizer, or the config or the tokenizer does not
            match the checkpoint.
    """
    config, data, params, meta = load_parameters(model_dir, step)
    tokenizer = load_tokenizer(model_dir, meta)
    return TrainedModel(model_dir, config, data, params, tokenizer, meta)


def load_parameters(
    model_dir: str, step: int | None = None
) -> tuple[Config, Data, dict[str, np.ndarray], Meta]:
    """Load the model of a checkpoint, without the optimizer's state.

    Args:
        model_dir: MODEL_DIR, on disk or gs://.
        step: step of the checkpoint, by default the newest.

    Returns:
        The run's config and data, parameters by name (float32), the checkpoint's metadata.

    Raises:
        BadInput: There is no such checkpoint, the checkpoint is damaged, or it was trained with
            another config than `config.yaml`.
    """
    store = CheckpointStore(model_dir)
    steps = store.list_steps()
    if not steps:
        raise BadInput(f"{model_dir} {NO_CHECKPOINT}")
    if step is not None and step not in steps:
        raise BadInput(
            f"{model_dir} contains no checkpoint of step {step}: choose one of {_shorten(steps)}"
        )
    step = steps[-1] if step is None else step
    path, meta = storage.join(model_dir, CONFIG), store.read_meta(step)
    config, data = read_config(path)
    check_config(config, data, meta, path, list_earlier_configs(run_log.read_events(model_dir)))
    with create_scratch_directory() as scratch:
        checkpoint = CheckpointStore(model_dir, scratch).fetch(step)
        values = read_variables(checkpoint.prefix)
    return config, data, select_parameters(values), checkpoint.meta


def list_earlier_configs(events: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the fingerprints of all configs that a run had before its settings were changed.

    A resumed run accepts changed settings of training, but no changed architecture of the model.
    """
    return {str(event.get("was")) for event in events if event.get("event") == CONTINUED}


def check_config(
    config: Config, data: Data, meta: Meta, where: str, earlier: Collection[str] = ()
) -> None:
    """Check that a checkpoint was trained with a config.

    Args:
        config: config of the run.
        data: data of the run.
        meta: metadata of the checkpoint.
        where: path of the config, for the message.
        earlier: fingerprints of earlier configs of the run (`list_earlier_configs`).

    Raises:
        BadInput: The checkpoint was trained with another config.
    """
    ours = compute_config_fingerprint(config, data)
    if meta.config_fingerprint not in {ours, *earlier}:
        raise BadInput(
            f"{where} is not the config that checkpoint {meta.step} was trained with (fingerprint"
            f" {ours[:12]}, not {meta.config_fingerprint[:12]}): undo the changes to the file"
        )


def load_tokenizer(model_dir: str, meta: Meta) -> Tokenizer:
    """Load MODEL_DIR's tokenizer, and check that the checkpoint was trained with it.

    Raises:
        BadInput: The tokenizer is missing, or the checkpoint was trained with another one.
    """
    from bigbird_ja.text.load import parse_tokenizer

    check_tokenizer(model_dir, meta.tokenizer_sha256)
    path = storage.join(model_dir, TOKENIZER)
    return parse_tokenizer(storage.read_bytes(path), path)


def check_tokenizer(model_dir: str, expected: str) -> None:
    """Check that a MODEL_DIR's tokenizer, if there is one, is the tokenizer of the data set.

    Args:
        model_dir: MODEL_DIR.
        expected: SHA-256 (hex) of the data set's tokenizer, empty if unknown.

    Raises:
        BadInput: The hashes differ.
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


def _shorten(steps: Sequence[int]) -> str:
    texts = [str(step) for step in steps]
    return ", ".join(texts if len(texts) <= 8 else [*texts[:3], "…", *texts[-3:]])
