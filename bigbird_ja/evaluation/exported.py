"""The model in a Hugging Face folder that `export` wrote, read back as ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.model.params import hugging_face_name, is_transposed, parameter_specs
from bigbird_ja.process.console import Progress
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run.model import CONFIG as RUN_CONFIG
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.validate import validate_config
from bigbird_ja.settings.values import set_value
from bigbird_ja.storage import decode
from bigbird_ja.text import tokenizer as tokenizer_lib
from bigbird_ja.text.tokenizer import Tokenizer

CONFIG, WEIGHTS, TOKENIZER, RECORD = (
    "config.json", "model.safetensors", "spiece.model", "export.json",
)  # fmt: skip
OURS = "bigbird_ja"  # key of config.json for what BigBirdConfig has no name for
_MOST_WEIGHTS = 64 << 30
# Hugging Face's names that are not ours; all other settings of the model have one name.
_NAMES = {"num_hidden_layers": "num_layers"}
_PATTERN = ("random_pattern", "pattern_seed", "attend_across_documents")


@dataclass(frozen=True)
class Exported:
    """A model with its tokenizer, in an exported folder."""

    config: Config
    params: dict[str, np.ndarray]
    tokenizer: Tokenizer
    step: int


def pattern_settings(config: Config) -> dict[str, Any]:
    """What `export` writes into config.json, so that the model can be read back."""
    return {name: getattr(config.model, name) for name in _PATTERN}


def is_exported(folder: str) -> bool:
    """Whether a folder is an export and no MODEL_DIR; reads names only."""
    has = {name: storage.exists(storage.join(folder, name)) for name in (RUN_CONFIG, CONFIG)}
    return has[CONFIG] and not has[RUN_CONFIG]


def load(folder: str) -> Exported:
    """Reads the folder.

    Raises:
        BadInput: not a folder that `export --format=huggingface` wrote, or files of it are not
            what they should be.
    """
    config = _config(folder)
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load as load_weights
    except ImportError as error:
        raise BadInput(
            f"{folder} needs safetensors: pip install 'bigbird-ja[huggingface]'"
        ) from error
    path = storage.join(folder, WEIGHTS)
    try:
        state = load_weights(storage.read_bytes(path, _MOST_WEIGHTS))
        params = {name: _weight(state, name) for name in parameter_specs(config)}
    except FileNotFoundError as error:
        raise BadInput(f"{path}: missing: export again") from error
    except (SafetensorError, KeyError) as error:
        raise BadInput(f"{path}: not the weights of this model ({error}): export again") from error
    tokenizer = tokenizer_lib.load(storage.join(folder, TOKENIZER))
    return Exported(config, params, tokenizer, _step(folder))


def _weight(state: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    value = state[hugging_face_name(name)]
    return np.ascontiguousarray(value.T if is_transposed(name) else value)


def _config(folder: str) -> Config:
    path = storage.join(folder, CONFIG)
    said = decode.read_json(path, dict[str, Any], "is this a folder that `export` wrote?")
    if not isinstance(said.get(OURS), dict):
        raise BadInput(f"{path}: not of a folder that this version's `export` wrote: export again")
    config = Config()
    for key, value in {**said, **said[OURS]}.items():
        name = f"model.{_NAMES.get(key, key)}"
        if name in OPTIONS:
            set_value(config, name, OPTIONS[name].read(value, path))
    config.make_data.nsp = "BigBirdForPreTraining" in said.get("architectures", [])
    config.make_data.seq_length = config.model.max_position_embeddings or 0
    config.training.dtype = "float32"
    validate_config(config)
    return config


def _step(folder: str) -> int:
    try:
        step = decode.read_json(storage.join(folder, RECORD), dict[str, Any]).get("step")
    except FileNotFoundError:
        return 0
    return step if isinstance(step, int) else 0


def evaluate(
    folder: str, data_dir: str, manifest: Manifest, max_batches: int | None
) -> dict[str, Any]:
    """Masked-LM loss and accuracy of an exported model; writes nothing.

    Raises:
        BadInput: the data has another tokenizer or longer sequences.
    """
    from bigbird_ja.evaluation import masked_lm
    from bigbird_ja.evaluation.forward import Forward

    model = load(folder)
    if manifest.tokenizer_sha256 and manifest.tokenizer_sha256 != model.tokenizer.sha256:
        raise BadInput(
            f"{data_dir} was made with another tokenizer than {folder}: give data made with"
            f" {storage.join(folder, TOKENIZER)}"
        )
    longest = model.config.model.max_position_embeddings or 0
    if longest < manifest.seq_length:
        raise BadInput(
            f"{data_dir} has sequences of {manifest.seq_length:,} tokens, the model in {folder}"
            f" takes {longest:,}"
        )
    total = -(-manifest.eval.sequences // masked_lm.batch_size(manifest.seq_length))
    with Progress(min(total, max_batches or total), "batches") as progress:
        found = masked_lm.evaluate_model(
            Forward(model.config, model.params),
            data_dir,
            manifest,
            max_batches=max_batches,
            tick=lambda: progress.update(1),
        )
    return {"step": model.step, **found}
