"""The model that a folder holds, a run's or an exported one, read in the same way.

`export --format=huggingface` writes BigBirdConfig's names into config.json, and under `OURS` what
that has no name for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.model.params import hugging_face_name, is_transposed, parameter_specs
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run.model import CONFIG as RUN_CONFIG
from bigbird_ja.run.model import TOKENIZER as RUN_TOKENIZER
from bigbird_ja.run.model import load_parameters, load_tokenizer
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.validate import validate_config
from bigbird_ja.settings.values import set_value
from bigbird_ja.storage import decode
from bigbird_ja.text import tokenizer as tokenizer_lib
from bigbird_ja.text.tokenizer import Tokenizer

OURS = "bigbird_ja"
_CONFIG, _WEIGHTS, _TOKENIZER, _RECORD = (
    "config.json", "model.safetensors", "spiece.model", "export.json",
)  # fmt: skip
_MOST_WEIGHTS = 64 << 30  # bytes
# Hugging Face's names that are not ours; all other settings of the model have one name.
_NAMES = {"num_hidden_layers": "num_layers"}
_PATTERN = ("random_pattern", "pattern_seed", "attend_across_documents")


@dataclass(frozen=True)
class TrainedModel:
    """A model with its tokenizer."""

    config: Config
    params: dict[str, np.ndarray]
    step: int
    tokenizer: Tokenizer | None  # None: MODEL_DIR holds none
    tokenizer_sha256: str  # of the one it was trained with; empty where unknown
    data_fingerprint: str | None  # of the data that it was trained on; None: an export


def is_export(folder: str) -> bool:
    """Whether a folder is an export and no MODEL_DIR; reads names only."""
    has = {name: storage.exists(storage.join(folder, name)) for name in (RUN_CONFIG, _CONFIG)}
    return has[_CONFIG] and not has[RUN_CONFIG]


def load_model(folder: str, step: int | None = None) -> TrainedModel:
    """Reads a MODEL_DIR's checkpoint (the newest by default) or an exported folder.

    Raises:
        BadInput: neither of the two, or files of it are missing or not what they should be.
    """
    if not is_export(folder):
        config, params, meta = load_parameters(folder, step)
        has_tokenizer = storage.exists(storage.join(folder, RUN_TOKENIZER))
        tokenizer = load_tokenizer(folder, config, meta) if has_tokenizer else None
        sha256 = tokenizer.sha256 if tokenizer else meta.tokenizer_sha256
        return TrainedModel(config, params, meta.step, tokenizer, sha256, meta.data_fingerprint)
    if step is not None:
        raise BadInput(f"--step: {folder} is an export, of one step: leave it out")
    config = _read_config(folder)
    params = _read_weights(folder, config)
    tokenizer = tokenizer_lib.load(storage.join(folder, _TOKENIZER))
    return TrainedModel(config, params, _read_step(folder), tokenizer, tokenizer.sha256, None)


def pattern_settings(config: Config) -> dict[str, Any]:
    """What `export` writes into config.json under `OURS`."""
    return {name: getattr(config.model, name) for name in _PATTERN}


def _read_config(folder: str) -> Config:
    path = storage.join(folder, _CONFIG)
    content = decode.read_json(path, dict[str, Any], "is this a folder that `export` wrote?")
    if not isinstance(content.get(OURS), dict):
        raise BadInput(f"{path}: not of a folder that this version's `export` wrote: export again")
    config = Config()
    for key, value in {**content, **content[OURS]}.items():
        name = f"model.{_NAMES.get(key, key)}"
        if name in OPTIONS:
            set_value(config, name, OPTIONS[name].read(value, path))
    config.make_data.nsp = "BigBirdForPreTraining" in content.get("architectures", [])
    config.make_data.seq_length = config.model.max_position_embeddings or 0
    config.training.dtype = "float32"
    validate_config(config)
    return config


def _read_weights(folder: str, config: Config) -> dict[str, np.ndarray]:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load as load_weights
    except ImportError as error:
        raise BadInput(
            f"{folder} needs safetensors: pip install 'bigbird-ja[huggingface]'"
        ) from error
    path = storage.join(folder, _WEIGHTS)
    params = {}
    try:
        state = load_weights(storage.read_bytes(path, _MOST_WEIGHTS))
        for name in parameter_specs(config):
            value = state[hugging_face_name(name)]
            params[name] = np.ascontiguousarray(value.T if is_transposed(name) else value)
    except FileNotFoundError as error:
        raise BadInput(f"{path}: missing: export again") from error
    except (SafetensorError, KeyError) as error:
        raise BadInput(f"{path}: not the weights of this model ({error}): export again") from error
    return params


def _read_step(folder: str) -> int:
    """The checkpoint's step, or 0: hubs' copies may lack the record."""
    path = storage.join(folder, _RECORD)
    try:
        record = decode.read_json(path, dict[str, Any])
    except FileNotFoundError:
        return 0
    decode.check_format(str(record.get("format_version", "")), path, "export again")
    step = record.get("step")
    return step if isinstance(step, int) else 0
