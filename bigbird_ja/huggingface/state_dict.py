"""State dicts of Hugging Face's models: names of parameters, and readers of the files.

Weights are read from safetensors files. If PyTorch is installed, they are also read from files in
PyTorch's own format. Weights may be in several files. No code of a folder is executed.
"""

import hashlib
import io
import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.model.params import WORDS
from bigbird_ja.settings.schema import ModelConfig
from bigbird_ja.storage import decode

# Names of settings of `model` by key of config.json, if the two names differ.
SETTINGS = {
    "num_hidden_layers": "num_layers",
    "hidden_activation": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "mlp_dropout": "hidden_dropout_prob",
}
_EMBEDDINGS = re.compile(r"bert/embeddings/(\w+_embeddings)")
_LAYER = re.compile(r"bert/encoder/layer_(\d+)/(.+)/(kernel|bias|gamma|beta)")
_PARTS = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
_BIGBIRD = {
    "bert/encoder/LayerNorm/gamma": "bert.embeddings.LayerNorm.weight",
    "bert/encoder/LayerNorm/beta": "bert.embeddings.LayerNorm.bias",
    "bert/pooler/dense/kernel": "bert.pooler.weight",
    "bert/pooler/dense/bias": "bert.pooler.bias",
    "cls/predictions/transform/kernel": "cls.predictions.transform.dense.weight",
    "cls/predictions/transform/bias": "cls.predictions.transform.dense.bias",
    "cls/predictions/transform/gamma": "cls.predictions.transform.LayerNorm.weight",
    "cls/predictions/transform/beta": "cls.predictions.transform.LayerNorm.bias",
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
}
# Prefixes of parameter names in BigBird, and the equivalent prefixes in BERT and in RoBERTa.
_BERT = {"bert.pooler.": "bert.pooler.dense."}
_ROBERTA = {
    "bert.pooler.": "roberta.pooler.dense.",
    "bert.": "roberta.",
    "cls.predictions.transform.dense.": "lm_head.dense.",
    "cls.predictions.transform.LayerNorm.": "lm_head.layer_norm.",
    "cls.predictions.": "lm_head.",
}
_MODERNBERT = {
    WORDS: "model.embeddings.tok_embeddings.weight",
    "bert/embeddings/LayerNorm/gamma": "model.embeddings.norm.weight",
    "bert/final/LayerNorm/gamma": "model.final_norm.weight",
    "cls/predictions/transform/kernel": "head.dense.weight",
    "cls/predictions/transform/gamma": "head.norm.weight",
    "cls/predictions/output_bias": "decoder.bias",
}
_MODERNBERT_LAYER = {
    "attention/LayerNorm": "attn_norm",
    "attention/Wqkv": "attn.Wqkv",
    "attention/Wo": "attn.Wo",
    "mlp/LayerNorm": "mlp_norm",
    "mlp/Wi": "mlp.Wi",
    "mlp/Wo": "mlp.Wo",
}


def to_hugging_face_name(model: ModelConfig, name: str) -> str:
    """Return a parameter's name in the state dict of transformers' BigBird or ModernBERT.

    Raises:
        KeyError: `name` is not the name of a parameter.
    """
    is_modernbert = model.architecture == "modernbert"
    fixed = _MODERNBERT if is_modernbert else _BIGBIRD
    if name in fixed:
        return fixed[name]
    if match := _LAYER.fullmatch(name):
        number, place, part = match[1], match[2], _PARTS[match[3]]
        if is_modernbert:
            return f"model.layers.{number}.{_MODERNBERT_LAYER[place]}.{part}"
        return f"bert.encoder.layer.{number}.{place.replace('/', '.')}.{part}"
    if match := _EMBEDDINGS.fullmatch(name):
        return f"bert.embeddings.{match[1]}.weight"
    raise KeyError(name)


def is_transposed(name: str) -> bool:
    """Return whether PyTorch stores this parameter transposed, as [out, in]."""
    return name.endswith("/kernel")


def to_hugging_face(model: ModelConfig, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert parameters to a state dict, without tied weights.

    Hugging Face ties the decoder's kernel to the word embeddings, and the bias of BigBird's decoder
    to `cls.predictions.bias`.
    """
    return {
        to_hugging_face_name(model, name): np.ascontiguousarray(
            value.T if is_transposed(name) else value
        )
        for name, value in params.items()
    }


def to_stock(state: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Convert a BigBird's state dict to a state dict of a BERT, RoBERTa or XLM-R.

    In a RoBERTa, the number of the first position is the padding id + 1. The rows of earlier
    positions are used only for padding, so they are filled with zeros.

    Args:
        state: result of `to_hugging_face`.
        config: content of the converted model's config.json.
    """
    is_bert, named = config["model_type"] == "bert", {}
    for name, value in state.items():
        for begin, other in (_BERT if is_bert else _ROBERTA).items():
            if name.startswith(begin):
                name = other + name.removeprefix(begin)
                break
        if name.endswith("position_embeddings.weight"):
            missing = config["max_position_embeddings"] - len(value)
            value = np.pad(value, [(missing, 0), (0, 0)])
        if name.endswith("token_type_embeddings.weight"):
            value = value[: config["type_vocab_size"]]
        named[name] = np.ascontiguousarray(value)
    return named


@dataclass(frozen=True)
class _Index:
    weight_map: dict[str, str]


def has_weights(folder: str) -> bool:
    """Return whether a folder contains weights. Only the names of its files are checked."""
    names = [*_READERS, *(f"{name}.index.json" for name in _READERS)]
    return any(storage.exists(storage.join(folder, name)) for name in names)


def read(folder: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return all weights of a folder by name, and the SHA-256 of each file of weights by file name.

    Raises:
        BadInput: Files are missing or damaged, or a tensor has an unsupported type.
    """
    for name in _READERS:
        index = storage.join(folder, f"{name}.index.json")
        if storage.exists(storage.join(folder, name)):
            return _read_files(folder, name, [name])
        if not storage.exists(index):
            continue
        places = decode.read_json(index, _Index, "copy the folder again").weight_map
        names = list(dict.fromkeys(places.values()))
        if odd := [name for name in names if storage.get_base_name(name) != name]:
            raise BadInput(
                f"{index}: {odd[0]!r} is not a file in the same folder. Copy the folder again"
            )
        return _read_files(folder, name, names)
    raise BadInput(f"{folder} contains no {' or '.join(_READERS)}. Is this a Hugging Face folder?")


def _read_files(
    folder: str, form: str, names: list[str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    state, checksums = {}, {}
    parse, kind, advice = _READERS[form]
    for name in names:
        path = storage.join(folder, name)
        with decode.convert_errors(path, kind, advice):
            data = storage.read_bytes(path, _MAX_BYTES)
            state.update(parse(data))
        checksums[name] = hashlib.sha256(data).hexdigest()
    return state, checksums


def _parse_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """Parse a safetensors file without the package safetensors.

    So the package need not be installed on a machine that trains.

    The first eight bytes are the length of a JSON header, which is followed by the data. The header
    states the offsets of each tensor in the data (huggingface/safetensors, README.md, "Format").
    """
    start = 8 + int.from_bytes(data[:8], "little")
    header = msgspec.json.decode(data[8:start], type=dict[str, dict[str, Any]])
    header.pop("__metadata__", None)
    state = {}
    for name, tensor in header.items():
        known = re.fullmatch("(B?)([FIU])(8|16|32|64)", tensor["dtype"])
        if not known:
            raise ValueError(
                f"{name} has type {tensor['dtype']}, which is none of F16, BF16, F32, F64 and the"
                " integer types"
            )
        kind = "u2" if known[1] else f"{known[2].lower()}{int(known[3]) // 8}"
        first, end = tensor["data_offsets"]
        values = np.frombuffer(data[start + first : start + end], kind)
        if len(data) < start + end or first < 0:
            raise ValueError(f"{name} is cut off")
        if known[1]:  # A bfloat16 is the upper half of a float32.
            values = (values.astype("u4") << 16).view("f4")
        state[name] = values.reshape(tensor["shape"])
    return state


def _parse_pytorch(data: bytes) -> dict[str, np.ndarray]:
    import torch

    if data.startswith(b"PK"):  # PyTorch itself never compresses its zip archives.
        entries = zipfile.ZipFile(io.BytesIO(data)).infolist()
        if any(entry.compress_type for entry in entries):
            raise ValueError("its entries are compressed")
    try:
        state = torch.load(io.BytesIO(data), "cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # PyTorch's message advises unsafe loading.
        raise ValueError("it contains other objects than tensors") from error
    return {
        str(name): (value.float() if value.is_floating_point() else value).numpy()
        for name, value in state.items()
    }


# Maximum size of a file of weights.
_MAX_BYTES = 64 << 30
# Parser of each file of weights, description of the file's kind in messages, and advice if the file
# cannot be read.
_READERS = {
    "model.safetensors": (_parse_safetensors, "a safetensors file", "save the model again"),
    "pytorch_model.bin": (
        _parse_pytorch,
        "a PyTorch state dict",
        "save the model with safe_serialization=True, as model.safetensors",
    ),
}
