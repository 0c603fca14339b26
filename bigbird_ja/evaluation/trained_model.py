"""The model that a folder holds, a run's or an exported one, read in the same way.

`export --format huggingface` writes BigBirdConfig's names into config.json, and under `OURS` what
that has no name for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.model.hf_names import SETTINGS, hugging_face_name, is_transposed
from bigbird_ja.model.params import parameter_specs
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import model as run_model
from bigbird_ja.run.checkpoints import Meta
from bigbird_ja.settings.resolve import validate_config
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.values import set_value
from bigbird_ja.storage import decode
from bigbird_ja.text import tokenizer as tokenizer_lib
from bigbird_ja.text.interface import Tokenizer

OURS = "bigbird_ja"
_CONFIG = "config.json"
# By safetensors' names.
_NUMPY_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1",
}  # fmt: skip
MOST_WEIGHTS = 64 << 30  # bytes
_PATTERN = ("architecture", "random_pattern", "pattern_seed", "attend_across_documents")
_ADVICE = "export again"


@dataclass(frozen=True)
class TrainedModel:
    """A model with its tokenizer."""

    folder: str
    config: Config
    params: dict[str, np.ndarray]
    tokenizer: Tokenizer
    step: int
    meta: Meta | None  # the checkpoint's sidecar; None: an export


def is_export(folder: str) -> bool:
    """Whether a folder is an export and no MODEL_DIR; reads names only."""
    has_config = storage.exists(storage.join(folder, _CONFIG))
    return has_config and not storage.exists(storage.join(folder, run_model.CONFIG))


def load_model(folder: str, step: int | None = None) -> TrainedModel:
    """Reads a MODEL_DIR's checkpoint (the newest by default) or an exported folder.

    Raises:
        BadInput: neither of the two, or files of it are missing or not what they should be.
    """
    if not is_export(folder):
        return load_run(folder, step)
    if step is not None:
        raise BadInput(f"--step: {folder} is an export, of one step: leave it out")
    config, trained = _read_config(folder)
    path = storage.join(folder, "model.safetensors")
    try:
        state = parse_safetensors(storage.read_bytes(path, MOST_WEIGHTS), path, _ADVICE)
    except FileNotFoundError as error:
        raise BadInput(f"{path}: missing: {_ADVICE}") from error
    params = {
        name: np.ascontiguousarray(value.T if is_transposed(name) else value)
        for name in parameter_specs(config)
        if (value := state.get(hugging_face_name(config.model, name))) is not None
    }
    check_parameters(params, config, path, _ADVICE)
    tokenizer = tokenizer_lib.load_any(folder)
    return TrainedModel(folder, config, params, tokenizer, trained, None)


def load_run(model_dir: str, step: int | None = None) -> TrainedModel:
    """Reads a MODEL_DIR's checkpoint, the newest by default.

    Raises:
        BadInput: no checkpoint, no tokenizer, or files that do not belong together.
    """
    config, params, meta = run_model.load_parameters(model_dir, step)
    where = f"{model_dir}: the checkpoint of step {meta.step}"
    check_parameters(params, config, where, "take another checkpoint, by --step")
    tokenizer = run_model.load_tokenizer(model_dir, config, meta)
    return TrainedModel(model_dir, config, params, tokenizer, meta.step, meta)


def check_parameters(
    params: Mapping[str, np.ndarray], config: Config, where: str, advice: str
) -> None:
    """Refuses values that are not all parameters of a model.

    Raises:
        BadInput: one is missing, has another shape or type, or holds numbers that are not finite.
    """
    for name, spec in parameter_specs(config).items():
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
    """What `export` writes into config.json under `OURS`."""
    pattern = {name: getattr(model.config.model, name) for name in _PATTERN}
    return {"format_version": decode.FORMAT_VERSION, "step": model.step, **pattern}


def parse_safetensors(data: bytes, path: str, advice: str) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file.

    Raises:
        BadInput: damaged, or of a type that NumPy lacks.
    """
    from safetensors import SafetensorError, deserialize

    try:
        tensors = deserialize(data)
    except SafetensorError as error:
        raise BadInput(f"{path}: not a safetensors file ({error}): {advice}") from error
    state = {}
    for name, tensor in tensors:
        dtype, data = tensor["dtype"], tensor["data"]
        if dtype not in _NUMPY_TYPES:
            raise BadInput(f"{path}: {name} holds {dtype}, no plain numbers: {advice}")
        is_bfloat16 = dtype == "BF16"
        values = from_bfloat16(data) if is_bfloat16 else np.frombuffer(data, _NUMPY_TYPES[dtype])
        state[name] = values.reshape(tensor["shape"])
    return state


def from_bfloat16(data: bytes) -> np.ndarray:
    """The same numbers as float32, of which a bfloat16 is the first half."""
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def _read_config(folder: str) -> tuple[Config, int]:
    """The config of an exported model, and the step of its checkpoint."""
    path = storage.join(folder, _CONFIG)
    content = decode.read_json(path, dict[str, Any], "is this a folder that `export` wrote?")
    ours = content.get(OURS)
    if not isinstance(ours, dict):
        raise BadInput(f"{path}: not of a folder that `export` wrote: {_ADVICE}")
    decode.check_format(str(ours.get("format_version", "")), path, _ADVICE)
    config = Config()
    for key, value in {**content, **ours}.items():
        name = f"model.{SETTINGS.get(key, key)}"
        if name in OPTIONS:
            set_value(config, name, OPTIONS[name].read(value, path))
    config.make_data.nsp = "BigBirdForPreTraining" in content.get("architectures", [])
    config.make_data.seq_length = config.model.max_position_embeddings or 0
    config.make_data.pad_id = OPTIONS["make_data.pad_id"].read(content.get("pad_token_id", 0), path)
    config.training.dtype = "float32"
    validate_config(config)
    step = ours.get("step")
    return config, step if isinstance(step, int) else 0
