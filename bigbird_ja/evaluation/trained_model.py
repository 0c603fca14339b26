"""Loads the model of a folder, a run's or an exported one, in the same way.

`export --format huggingface` writes BigBirdConfig's names into config.json, and under `OURS` what
that has no name for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.model import state_dict
from bigbird_ja.model.params import parameter_specs
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import model as run_model
from bigbird_ja.run.checkpoints import Meta
from bigbird_ja.settings import Data, requested_data
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.values import validate_config, varied
from bigbird_ja.storage import decode
from bigbird_ja.text import read_tokenizer
from bigbird_ja.text.tokenizer import Tokenizer

OURS = "bigbird_ja"
_CONFIG = "config.json"
_PATTERN = ("architecture", "random_pattern", "pattern_seed", "attend_across_documents")
_ADVICE = "export again"


@dataclass(frozen=True)
class TrainedModel:
    """Holds a model with its tokenizer."""

    folder: str
    config: Config
    data: Data
    params: dict[str, np.ndarray]
    tokenizer: Tokenizer
    step: int
    meta: Meta | None  # the checkpoint's sidecar; None: an export


def is_export(folder: str) -> bool:
    """Return whether a folder is an export and no MODEL_DIR; reads names only."""
    has_config = storage.exists(storage.join(folder, _CONFIG))
    return has_config and not storage.exists(storage.join(folder, run_model.CONFIG))


def load_model(folder: str, step: int | None = None) -> TrainedModel:
    """Load a MODEL_DIR's checkpoint (the newest by default) or an exported folder.

    Raises:
        BadInput: neither of the two, or files of it are missing or not what they should be.
    """
    if not is_export(folder):
        return load_run(folder, step)
    if step is not None:
        raise BadInput(f"--step: {folder} is an export, of one step: leave it out")
    config, data, trained = _read_config(folder)
    path = storage.join(folder, "model.safetensors")
    state, _ = state_dict.read(folder)
    params = {
        name: np.ascontiguousarray(value.T if state_dict.is_transposed(name) else value)
        for name in parameter_specs(config, data)
        if (value := state.get(state_dict.hugging_face_name(config.model, name))) is not None
    }
    check_parameters(params, config, data, path, _ADVICE)
    tokenizer = read_tokenizer(folder)
    return TrainedModel(folder, config, data, params, tokenizer, trained, None)


def load_run(model_dir: str, step: int | None = None) -> TrainedModel:
    """Load a MODEL_DIR's checkpoint, the newest by default.

    Raises:
        BadInput: no checkpoint, no tokenizer, or files that do not belong together.
    """
    config, data, params, meta = run_model.load_parameters(model_dir, step)
    where = f"{model_dir}: the checkpoint of step {meta.step}"
    check_parameters(params, config, data, where, "take another checkpoint, by --step")
    tokenizer = run_model.load_tokenizer(model_dir, config, meta)
    return TrainedModel(model_dir, config, data, params, tokenizer, meta.step, meta)


def check_parameters(
    params: Mapping[str, np.ndarray], config: Config, data: Data, where: str, advice: str
) -> None:
    """Refuse values that are not all parameters of a model.

    Raises:
        BadInput: one is missing, has another shape or type, or holds numbers that are not finite.
    """
    for name, spec in parameter_specs(config, data).items():
        value = params.get(name)
        if value is None:
            problem = "is missing"
        elif value.shape != spec.shape:
            problem = f"has the shape {list(value.shape)} and the config's model {list(spec.shape)}"
        elif not np.issubdtype(value.dtype, np.floating):
            problem = "holds no floating-point numbers"
        elif not np.isfinite(value).all():
            problem = "holds NaN or infinite numbers"
        else:
            continue
        raise BadInput(f"{where}: {name} {problem}: {advice}")


def to_config_json(model: TrainedModel) -> dict[str, Any]:
    """Return what `export` writes into config.json under `OURS`."""
    pattern = {name: getattr(model.config.model, name) for name in _PATTERN}
    return {"format_version": decode.FORMAT_VERSION, "step": model.step, **pattern}


def _read_config(folder: str) -> tuple[Config, Data, int]:
    """Read the config of an exported model, and the step of its checkpoint."""
    path = storage.join(folder, _CONFIG)
    content = decode.read_json(path, dict[str, Any], "is this a folder that `export` wrote?")
    ours = content.get(OURS)
    if not isinstance(ours, dict):
        raise BadInput(f"{path}: not of a folder that `export` wrote: {_ADVICE}")
    decode.check_format(str(ours.get("format_version", "")), path, _ADVICE)
    stated: dict[str, Any] = {"training.dtype": "float32"}
    for key, value in {**content, **ours}.items():
        name = f"model.{state_dict.SETTINGS.get(key, key)}"
        if name in OPTIONS:
            stated[name] = OPTIONS[name].read(value, path)
    stated["make_data.nsp"] = "BigBirdForPreTraining" in content.get("architectures", [])
    stated["make_data.seq_length"] = stated.get("model.max_position_embeddings") or 0
    stated["tokenize.vocab_size"] = stated.get("model.vocab_size") or 0
    config = varied(Config(), stated)
    validate_config(config)
    pad_id = content.get("pad_token_id", 0)
    if type(pad_id) is not int or pad_id < 0:
        raise BadInput(f"{path}: pad_token_id={pad_id!r} is no id of a piece: {_ADVICE}")
    step = ours.get("step")
    data = requested_data(config, pad_id)
    return config, data, step if isinstance(step, int) else 0
