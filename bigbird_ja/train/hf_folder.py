"""Weights and settings of a Hugging Face folder, without importing or running anything of it.

Encoders that a run can start from: ModernBERT (as a ModernBERT), BERT, RoBERTa and BigBird (as a
BigBird). Weights are read from safetensors or from PyTorch's zip format, in one file or several.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.evaluation.trained_model import MOST_WEIGHTS, from_bfloat16, read_safetensors
from bigbird_ja.model.hf_names import hugging_face_name, is_transposed
from bigbird_ja.model.params import POSITIONS, SEGMENTS, ParameterSpec
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import ModelConfig
from bigbird_ja.storage import decode

_ARCHITECTURES = {
    "modernbert": "modernbert",
    "bert": "bigbird",
    "roberta": "bigbird",
    "xlm-roberta": "bigbird",
    "big_bird": "bigbird",
}
_ROBERTAS = ("roberta", "xlm-roberta")
# RoBERTa numbers positions from its padding id + 1 on; the rows below are never read.
_FIRST_POSITION = 2
_SEGMENTS_OF = "bert/embeddings/token_type_embeddings"
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
# Of config.json: what only one value of is supported, with that value.
_FIXED = {
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_bias": True,
    "classifier_bias": False,
    "tie_word_embeddings": True,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "rope_scaling": None,
}
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_ADVICE = "is this a Hugging Face folder?"


@dataclass(frozen=True)
class _Rope:
    rope_theta: float | None = None
    rope_type: str = "default"


@dataclass(frozen=True)
class _Ropes:
    full_attention: _Rope
    sliding_attention: _Rope


@dataclass(frozen=True)
class FolderConfig:
    """The keys of config.json that are read."""

    model_type: str = "unknown"
    vocab_size: decode.Count | None = None
    hidden_size: decode.Count | None = None
    num_hidden_layers: decode.Count | None = None
    num_attention_heads: decode.Count | None = None
    intermediate_size: decode.Count | None = None
    hidden_act: str | None = None
    hidden_activation: str | None = None
    layer_norm_eps: float | None = None
    norm_eps: float | None = None
    local_attention: decode.Count | None = None
    global_attn_every_n_layers: decode.Count | None = None
    layer_types: list[str] | None = None
    global_rope_theta: float | None = None
    local_rope_theta: float | None = None
    rope_parameters: _Ropes | None = None
    quantization_config: dict[str, Any] | None = None

    def settings(self) -> dict[str, Any]:
        """Our settings of the model: what the weights fix, as far as config.json has it."""
        values: dict[str, Any] = {
            "architecture": _ARCHITECTURES[self.model_type],
            "hidden_size": self.hidden_size,
            "num_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": self.intermediate_size,
            "hidden_act": _ACTIVATIONS.get(self.hidden_activation or self.hidden_act or ""),
            "layer_norm_eps": self.norm_eps if self.layer_norm_eps is None else self.layer_norm_eps,
        }
        if self.model_type == "modernbert":
            ropes = self.rope_parameters
            values["local_attention"] = self.local_attention
            values["global_attn_every_n_layers"] = self._global_every()
            values["global_rope_theta"] = self.global_rope_theta
            values["local_rope_theta"] = self.local_rope_theta
            if ropes is not None:  # transformers 5's names
                values["global_rope_theta"] = ropes.full_attention.rope_theta
                values["local_rope_theta"] = ropes.sliding_attention.rope_theta
        return {key: value for key, value in values.items() if value is not None}

    def _global_every(self) -> int | None:
        """Which layers are global, where every n-th is; 0 where they follow no such rule."""
        if not self.layer_types:
            return self.global_attn_every_n_layers
        places = [i for i, kind in enumerate(self.layer_types) if kind == "full_attention"]
        every = places[1] if len(places) > 1 else len(self.layer_types)
        return every if places == list(range(0, len(self.layer_types), every)) else 0


def is_folder(path: str) -> bool:
    """Whether a folder holds weights in one of the forms that are read."""
    names = [*_WEIGHTS, *(f"{name}.index.json" for name in _WEIGHTS)]
    return any(storage.exists(storage.join(path, name)) for name in names)


def read_config(folder: str) -> FolderConfig:
    """Reads config.json.

    Raises:
        BadInput: missing, of an architecture that no run can start from, or of a variant of one
            that is not supported.
    """
    path = storage.join(folder, "config.json")
    try:
        config = decode.read_json(path, FolderConfig, _ADVICE)
        content = decode.read_json(path, dict[str, Any], _ADVICE)
    except FileNotFoundError as error:
        raise BadInput(f"{path}: missing: {_ADVICE}") from error
    if config.model_type not in _ARCHITECTURES:
        raise BadInput(
            f"{path}: a {config.model_type} model; a run can start from {', '.join(_ARCHITECTURES)}"
        )
    if config.quantization_config is not None:
        raise BadInput(f"{path}: quantised weights: take the folder of the full ones")
    activation = config.hidden_activation or config.hidden_act
    if activation is not None and activation not in _ACTIVATIONS:
        raise BadInput(
            f"{path}: the activation {activation!r}; supported are {', '.join(_ACTIVATIONS)}"
        )
    for key, value in _FIXED.items():
        if content.get(key, value) != value:
            raise BadInput(f"{path}: {key}={content[key]!r}; only {value!r} is supported")
    ropes = config.rope_parameters
    kinds = {ropes.full_attention.rope_type, ropes.sliding_attention.rope_type} if ropes else set()
    if kinds - {"default"}:
        raise BadInput(f"{path}: rope_parameters other than of rope_type 'default'")
    if config.settings().get("global_attn_every_n_layers") == 0:
        raise BadInput(f"{path}: layer_types: only every n-th layer can be 'full_attention'")
    return config


def read_state(folder: str) -> dict[str, np.ndarray]:
    """All weights by their names there.

    Raises:
        BadInput: missing or damaged files, or tensors that are no plain numbers.
    """
    for name in _WEIGHTS:
        path, index = storage.join(folder, name), storage.join(folder, f"{name}.index.json")
        read: Callable[[str], dict[str, np.ndarray]] = _read_pytorch
        if name.endswith(".safetensors"):
            read = _read_safetensors
        if storage.exists(path):
            return read(path)
        if storage.exists(index):
            return _read_parts(folder, index, read)
    raise BadInput(f"{folder}: no {' or '.join(_WEIGHTS)}: {_ADVICE}")


def _read_safetensors(path: str) -> dict[str, np.ndarray]:
    return read_safetensors(path, "save the model again")


@dataclass(frozen=True)
class _Index:
    weight_map: dict[str, str]


def _read_parts(
    folder: str, index: str, read: Callable[[str], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The tensors of the files that an index lists."""
    places = decode.read_json(index, _Index, "copy the folder again").weight_map
    state: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(places.values()):
        if storage.base_name(name) != name:
            raise BadInput(f"{index}: {name!r} is not a file beside it: copy the folder again")
        state.update(read(storage.join(folder, name)))
    if lacking := sorted(places.keys() - state.keys()):
        raise BadInput(f"{folder}: {lacking[0]} stands in {index} and in no file: copy it again")
    return state


# What a state dict's pickle may name, beside storages; anything else ends the reading.
_REBUILD = {("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter")}
_STORAGES = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "BoolStorage": "bool",
}


class _StateDictReader(pickle.Unpickler):
    """Reads a state dict's pickle as data: it makes dicts and arrays and calls nothing else."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
        self._archive, self._root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) in _REBUILD:
            return _rebuilt
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no tensor")

    def persistent_load(self, pid: Any) -> np.ndarray:
        _, dtype, key, _, count = pid
        data = self._archive.read(f"{self._root}/data/{key}")
        if dtype == "bfloat16":
            return from_bfloat16(data)[:count]
        return np.frombuffer(data, dtype, count)


def _rebuilt(storage_or_tensor: np.ndarray, *layout: Any) -> np.ndarray:
    """What torch's `_rebuild_tensor_v2(storage, offset, size, stride, ...)` makes; a parameter is
    its tensor."""
    if len(layout) < 3:
        return storage_or_tensor
    offset, size, stride = layout[:3]
    item = storage_or_tensor.itemsize
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if min((offset, *size, *stride)) < 0 or (0 not in size and last >= storage_or_tensor.size):
        raise pickle.UnpicklingError("a tensor lies outside its storage")
    strides = [step * item for step in stride]
    return np.lib.stride_tricks.as_strided(storage_or_tensor[offset:], size, strides)


def _read_pytorch(path: str) -> dict[str, np.ndarray]:
    advice = "save the model with safe_serialization=True, as model.safetensors"
    try:
        with zipfile.ZipFile(io.BytesIO(storage.read_bytes(path, MOST_WEIGHTS))) as archive:
            (root,) = [n[:-9] for n in archive.namelist() if n.endswith("/data.pkl")]
            state = _StateDictReader(archive, root).load()
        return {str(name): np.array(value) for name, value in dict(state).items()}
    except FileNotFoundError as error:
        raise BadInput(f"{path}: missing: copy the folder again") from error
    except (pickle.UnpicklingError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{path}: not a state dict in PyTorch's zip format ({error}): {advice}"
        ) from error


def values_of(
    folder: str, config: FolderConfig, model: ModelConfig, specs: Mapping[str, ParameterSpec]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Parameters by our names, and the name of each in the folder.

    Raises:
        BadInput: as `read_config` and `read_state`; or the folder's encoder has tensors that ours
            has no place for.
    """
    state = read_state(folder)
    values: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    for name in specs:
        usual = hugging_face_name(model, name)
        names[name] = next((n for n in _names_of(usual, config.model_type) if n in state), usual)
        if names[name] in state:
            value = state[names[name]]
            values[name] = value.T if is_transposed(name) else value
    if config.model_type in _ROBERTAS:
        if POSITIONS in values:
            values[POSITIONS] = values[POSITIONS][_FIRST_POSITION:]
        if _SEGMENTS_OF in values:  # one row, which every token has
            values[_SEGMENTS_OF] = np.repeat(values[_SEGMENTS_OF][:1], SEGMENTS, axis=0)
    surplus = [n for n in _encoders(state) if n not in names.values()]
    if surplus:
        raise BadInput(
            f"{folder}: {len(surplus)} tensors of its encoder have no place in"
            f" model.architecture={model.architecture} with {model.num_layers} layers, first"
            f" {surplus[0]}: use its model.* settings"
        )
    return values, names


def _encoders(state: Iterable[str]) -> list[str]:
    """Names of the weights in layers; position ids and other buffers are none."""
    kinds = (".weight", ".bias", ".gamma", ".beta")
    return [n for n in state if (".layer." in n or ".layers." in n) and n.endswith(kinds)]


_ROBERTA_NAMES = {
    "cls.predictions.transform.dense.": "lm_head.dense.",
    "cls.predictions.transform.LayerNorm.": "lm_head.layer_norm.",
    "cls.predictions.bias": "lm_head.bias",
}


def _names_of(usual: str, model_type: str) -> list[str]:
    """What a parameter may be called: BERT's pooler is a layer deeper, a model that was saved
    without its heads has no prefix, and old ones have the layer norms' names of TensorFlow."""
    names = [usual, usual.replace("bert.pooler.", "bert.pooler.dense.")]
    if model_type in _ROBERTAS:
        names = [f"roberta.{name.removeprefix('bert.')}" for name in names]
        for ours, theirs in _ROBERTA_NAMES.items():
            if usual.startswith(ours):
                names = [usual.replace(ours, theirs)]
    if "LayerNorm" in usual:
        stem, _, part = usual.rpartition(".")
        names.append(f"{stem}.{'gamma' if part == 'weight' else 'beta'}")
    prefixes = ("bert.", "roberta.", "model.")
    bare = [n.removeprefix(p) for n in names for p in prefixes if n.startswith(p)]
    return [*names, *bare]
