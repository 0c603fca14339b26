"""What Hugging Face's classes (PyTorch) call our parameters and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from bigbird_ja.model.params import WORDS
from bigbird_ja.settings.schema import ModelConfig

# Names in config.json of settings of `model` that are not ours; all others have one name.
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


def hugging_face_name(model: ModelConfig, name: str) -> str:
    """The name in the state dict of `BigBirdForPreTraining` or `BigBirdForMaskedLM`, or of
    `ModernBertForMaskedLM`.

    Raises:
        KeyError: not a parameter of ours.
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
    """Whether PyTorch keeps this parameter the other way round: its linear layers are [out, in]."""
    return name.endswith("/kernel")


def to_hugging_face(model: ModelConfig, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights as a state dict, without those that Hugging Face ties to others: the decoder's
    kernel, which is the word embeddings, and `cls.predictions.decoder.bias`."""
    return {
        hugging_face_name(model, name): np.ascontiguousarray(
            value.T if is_transposed(name) else value
        )
        for name, value in params.items()
    }
