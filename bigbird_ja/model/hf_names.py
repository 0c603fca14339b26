"""Our parameters by the names that Hugging Face's BigBird (PyTorch) gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

_EMBEDDINGS = re.compile(r"bert/embeddings/(\w+_embeddings)")
_LAYER = re.compile(r"bert/encoder/layer_(\d+)/(.+)/(kernel|bias|gamma|beta)")
_PARTS = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
_FIXED = {
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


def hugging_face_name(name: str) -> str:
    """The name in the state dict of `BigBirdForPreTraining` or `BigBirdForMaskedLM`.

    Raises:
        KeyError: not a parameter of ours.
    """
    if name in _FIXED:
        return _FIXED[name]
    if match := _EMBEDDINGS.fullmatch(name):
        return f"bert.embeddings.{match[1]}.weight"
    if match := _LAYER.fullmatch(name):
        return f"bert.encoder.layer.{match[1]}.{match[2].replace('/', '.')}.{_PARTS[match[3]]}"
    raise KeyError(name)


def is_transposed(name: str) -> bool:
    """Whether PyTorch keeps this parameter the other way round: its linear layers are [out, in]."""
    return name.endswith("/kernel")


def to_hugging_face(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights as a state dict, without those that Hugging Face ties to others.

    (`cls.predictions.decoder.weight` is the word embeddings, `cls.predictions.decoder.bias` is
    `cls.predictions.bias`.)
    """
    return {
        hugging_face_name(name): np.ascontiguousarray(value.T if is_transposed(name) else value)
        for name, value in params.items()
    }
