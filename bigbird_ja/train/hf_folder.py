"""Weights and settings of a Hugging Face folder, without importing or running anything of it.

Encoders that a run can start from: ModernBERT (as a ModernBERT), BERT, RoBERTa and BigBird (as a
BigBird). Weights are read from safetensors or from PyTorch's zip format, in one file or several.
"""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.evaluation.trained_model import MOST_WEIGHTS, from_bfloat16, parse_safetensors
from bigbird_ja.model.hf_names import SETTINGS, hugging_face_name, is_transposed
from bigbird_ja.model.params import POSITIONS, SEGMENTS, ParameterSpec
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import ModelConfig
from bigbird_ja.storage import decode

_ROBERTAS = ("roberta", "xlm-roberta")
_ARCHITECTURES = {
    "modernbert": "modernbert",
    **dict.fromkeys(("bert", *_ROBERTAS, "big_bird"), "bigbird"),
}
_HEADS = ("ForMaskedLM", "ForPreTraining", "Model")  # ends of their classes' names
# RoBERTa numbers positions from its padding id + 1 on; the rows below are never read.
_FIRST_POSITION = 2
_SEGMENTS_OF = "bert/embeddings/token_type_embeddings"
_ACTIVATIONS = {
    **{"gelu": "gelu", "relu": "relu"},
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_new"),
}
# Keys of config.json whose values the weights were trained with; where two stand for one setting,
# the later is ModernBERT's, which ignores the other.
_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "hidden_activation", "layer_norm_eps", "norm_eps", "local_attention",
    "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta",
)  # fmt: skip
# Those of which only one value is supported, with that value. ModernBERT does not use the last,
# which differs from model to model.
_FIXED = {
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_bias": True,
    "classifier_bias": False,
    "tie_word_embeddings": True,
    "is_decoder": False,
    "rope_scaling": None,
    "position_embedding_type": "absolute",
}
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
    """The keys of config.json that no setting of ours stands for one by one."""

    model_type: str = "unknown"
    architectures: list[str] | None = None
    vocab_size: decode.Count = 0
    hidden_act: str | None = None
    hidden_activation: str | None = None
    classifier_activation: str | None = None
    layer_types: list[str] | None = None
    rope_parameters: _Ropes | None = None  # transformers 5's names
    quantization_config: dict[str, Any] | None = None


@dataclass(frozen=True)
class Encoder:
    """A model that a run can start from.

    Attributes:
        model_type: Hugging Face's name of the architecture.
        vocab_size: rows of the word embeddings.
        settings: ours of `model`, as far as config.json states them; ranges are not checked.
    """

    model_type: str
    vocab_size: int
    settings: dict[str, Any]


def is_folder(path: str) -> bool:
    """Whether a folder holds weights in one of the forms that are read."""
    names = [*_READERS, *(f"{name}.index.json" for name in _READERS)]
    return any(storage.exists(storage.join(path, name)) for name in names)


def read_config(folder: str) -> Encoder:
    """Reads config.json.

    Raises:
        BadInput: missing, of an architecture or with a head that no run can start from, or of a
            variant of one that is not supported.
    """
    path = storage.join(folder, "config.json")
    try:
        content = decode.read_json(path, dict[str, Any], _ADVICE)
    except FileNotFoundError as error:
        raise BadInput(f"{path}: missing: {_ADVICE}") from error
    config = decode.convert(content, FolderConfig, path, _ADVICE)
    if config.model_type not in _ARCHITECTURES:
        raise BadInput(
            f"{path}: a {config.model_type} model; a run can start from {', '.join(_ARCHITECTURES)}"
        )
    architecture = _ARCHITECTURES[config.model_type]
    if architecture == "modernbert":
        content.pop("position_embedding_type", None)
    if problem := next(_problems(config, content), None):
        raise BadInput(f"{path}: {problem}")
    stated = {key: content[key] for key in _KEYS if content.get(key) is not None}
    settings = {SETTINGS.get(key, key): value for key, value in stated.items()}
    settings["architecture"] = architecture
    settings["hidden_act"] = _ACTIVATIONS[_activations(config)[0]]
    if architecture == "modernbert":
        settings |= _of_layers(config)
    return Encoder(config.model_type, config.vocab_size, settings)


def _problems(config: FolderConfig, content: Mapping[str, Any]) -> Iterator[str]:
    """What of a known architecture cannot be used, and what serves."""
    for key, value in _FIXED.items():
        if content.get(key, value) != value:
            yield f"{key}={content[key]!r}; only {value!r} is supported"
    if config.quantization_config is not None:
        yield "quantised weights: take the folder of the full ones"
    classes = config.architectures or []
    if classes and not any(name.endswith(_HEADS) for name in classes):
        yield (
            f"{', '.join(classes)}, a head that no run can start from: take the folder of the model"
            " that it was fine-tuned from (...ForMaskedLM, ...ForPreTraining, ...Model)"
        )
    layers, head = _activations(config)
    for activation in (layers, head):
        if activation not in _ACTIVATIONS:
            yield f"the activation {activation!r}; supported are {', '.join(_ACTIVATIONS)}"
    if _ACTIVATIONS[layers] != _ACTIVATIONS[head]:
        yield (
            f"{layers} in its layers and {head} in its masked-LM head: the two must be the same"
            " (ModernBERT's keys are hidden_activation and classifier_activation)"
        )
    ropes = config.rope_parameters
    if ropes and {ropes.full_attention.rope_type, ropes.sliding_attention.rope_type} != {"default"}:
        yield "rope_parameters other than of rope_type 'default'"
    if config.layer_types and _global_every(config.layer_types) == 0:
        yield "layer_types: only every n-th layer can be 'full_attention'"


def _activations(config: FolderConfig) -> tuple[str, str]:
    """Return the activations of the layers and of the masked-LM head, as transformers reads them:
    keys that are missing have its defaults, and RoBERTa's head has no key."""
    if config.model_type == "modernbert":
        return config.hidden_activation or "gelu", config.classifier_activation or "gelu"
    layers = config.hidden_act or ("gelu_new" if config.model_type == "big_bird" else "gelu")
    return layers, "gelu" if config.model_type in _ROBERTAS else layers


def _of_layers(config: FolderConfig) -> dict[str, Any]:
    """Settings of a ModernBERT's layers by the names of transformers 5."""
    values: dict[str, Any] = {}
    if config.layer_types:
        values["global_attn_every_n_layers"] = _global_every(config.layer_types)
    if ropes := config.rope_parameters:
        values["global_rope_theta"] = ropes.full_attention.rope_theta
        values["local_rope_theta"] = ropes.sliding_attention.rope_theta
    return {name: value for name, value in values.items() if value is not None}


def _global_every(layer_types: list[str]) -> int:
    """n where every n-th layer is global, from the first on; 0 where they follow no such rule."""
    places = [i for i, kind in enumerate(layer_types) if kind == "full_attention"]
    every = places[1] if len(places) > 1 else len(layer_types)
    return every if places == list(range(0, len(layer_types), every)) else 0


def read_state(folder: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read all weights, by their names there, and the SHA-256 of each file of them.

    Raises:
        BadInput: missing or damaged files, or tensors that are no plain numbers.
    """
    for name, read in _READERS.items():
        index = storage.join(folder, f"{name}.index.json")
        if storage.exists(storage.join(folder, name)):
            return _read_files(folder, [name], read)
        if storage.exists(index):
            return _read_parts(folder, index, read)
    raise BadInput(f"{folder}: no {' or '.join(_READERS)}: {_ADVICE}")


Reader = Callable[[bytes, str], dict[str, np.ndarray]]  # of a file's content; its name for messages


def _read_files(
    folder: str, names: Iterable[str], read: Reader
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    state, checksums = {}, {}
    for name in names:
        path = storage.join(folder, name)
        try:
            data = storage.read_bytes(path, MOST_WEIGHTS)
        except FileNotFoundError as error:
            raise BadInput(f"{path}: missing: copy the folder again") from error
        checksums[name] = hashlib.sha256(data).hexdigest()
        state.update(read(data, path))
    return state, checksums


@dataclass(frozen=True)
class _Index:
    weight_map: dict[str, str]


def _read_parts(
    folder: str, index: str, read: Reader
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors of the files that an index lists."""
    places = decode.read_json(index, _Index, "copy the folder again").weight_map
    names = dict.fromkeys(places.values())
    if odd := [name for name in names if storage.base_name(name) != name]:
        raise BadInput(f"{index}: {odd[0]!r} is not a file beside it: copy the folder again")
    state, checksums = _read_files(folder, names, read)
    if lacking := sorted(places.keys() - state.keys()):
        raise BadInput(f"{folder}: {lacking[0]} stands in {index} and in no file: copy it again")
    return state, checksums


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
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if min((offset, *size, *stride)) < 0 or (0 not in size and last >= storage_or_tensor.size):
        raise pickle.UnpicklingError("a tensor lies outside its storage")
    strides = [step * storage_or_tensor.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage_or_tensor[offset:], size, strides)


def _read_pytorch(data: bytes, path: str) -> dict[str, np.ndarray]:
    advice = "save the model with safe_serialization=True, as model.safetensors"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            (root,) = [n[:-9] for n in archive.namelist() if n.endswith("/data.pkl")]
            state = _StateDictReader(archive, root).load()
        return {str(name): np.array(value) for name, value in dict(state).items()}
    except (pickle.UnpicklingError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{path}: not a state dict in PyTorch's zip format ({error}): {advice}"
        ) from error


_READERS: dict[str, Reader] = {
    "model.safetensors": functools.partial(parse_safetensors, advice="save the model again"),
    "pytorch_model.bin": _read_pytorch,
}


def values_of(
    folder: str, encoder: Encoder, model: ModelConfig, specs: Mapping[str, ParameterSpec]
) -> tuple[dict[str, np.ndarray], dict[str, str], dict[str, str]]:
    """Return parameters by our names, the name of each in the folder, and its files' SHA-256.

    Raises:
        BadInput: as `read_state`; or the folder's encoder has tensors that ours has no place for.
    """
    state, checksums = read_state(folder)
    theirs = {_usual(name): name for name in state}
    values: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    for name in specs:
        usual = _usual(hugging_face_name(model, name))
        names[name] = theirs.get(usual, usual)
        if usual in theirs:
            value = state[names[name]]
            values[name] = value.T if is_transposed(name) else value
    if encoder.model_type in _ROBERTAS:
        if POSITIONS in values:
            values[POSITIONS] = values[POSITIONS][_FIRST_POSITION:]
        if _SEGMENTS_OF in values:  # one row, which every token has
            values[_SEGMENTS_OF] = np.repeat(values[_SEGMENTS_OF][:1], SEGMENTS, axis=0)
    surplus = [n for n in state if _IN_LAYER.fullmatch(n) and n not in names.values()]
    if surplus:
        raise BadInput(
            f"{folder}: {len(surplus)} tensors of its encoder have no place in"
            f" model.architecture={model.architecture} with {model.num_layers} layers, first"
            f" {surplus[0]}: use its model.* settings"
        )
    return values, names, checksums


# The name of a weight in a layer; position ids and other buffers are none.
_IN_LAYER = re.compile(r".*\.layers?\..*\.(weight|bias|gamma|beta)")
# What a parameter may be called, and its usual name: a model that was saved without its heads has
# no prefix, BERT's pooler is a layer deeper, old ones have the layer norms' names of TensorFlow.
_RENAMED = {
    r"^(bert|roberta|model)\.": "",
    r"^pooler\.dense\.": "pooler.",
    r"LayerNorm\.gamma$": "LayerNorm.weight",
    r"LayerNorm\.beta$": "LayerNorm.bias",
    r"^lm_head\.dense\.": "cls.predictions.transform.dense.",
    r"^lm_head\.layer_norm\.": "cls.predictions.transform.LayerNorm.",
    r"^lm_head\.bias$": "cls.predictions.bias",
}


def _usual(name: str) -> str:
    for pattern, usual in _RENAMED.items():
        name = re.sub(pattern, usual, name)
    return name
