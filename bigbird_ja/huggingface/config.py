"""Conversion of a Hugging Face folder's config.json to settings of a run.

A run that starts from a ModernBERT trains a ModernBERT. A run that starts from a BERT, RoBERTa or
BigBird trains a BigBird. The BigBird's attention is full if the source is a BERT or RoBERTa with
enough positions for the data's sequences.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import state_dict
from bigbird_ja.model import pattern
from bigbird_ja.settings.schema import Model
from bigbird_ja.storage import decode

ROBERTAS = ("roberta", "xlm-roberta")
_ARCHITECTURES = {
    "modernbert": "modernbert",
    **dict.fromkeys(("bert", *ROBERTAS, "big_bird"), "bigbird"),
}
# Types of models that compute the same as a BigBird with full attention, and the prefixes of their
# class names in transformers.
STOCK = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
# Suffixes of the names of supported classes.
_HEADS = ("ForMaskedLM", "ForPreTraining", "Model")
# Row of RoBERTa's position embeddings for the first token: its padding id (1) + 1. The rows before
# this row are used only for padding.
FIRST_POSITION = 2
_ACTIVATIONS = {
    **{"gelu": "gelu", "relu": "relu"},
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_new"),
}
# Keys of config.json that become settings. layer_norm_eps and norm_eps are the same setting. If
# config.json contains both, the later key in this list has priority, because ModernBERT reads it.
_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "layer_norm_eps",
    "norm_eps",
    "local_attention",
    "global_attn_every_n_layers",
    "global_rope_theta",
    "local_rope_theta",
)
# Keys with only one supported value.
_FIXED = {
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_bias": True,
    "classifier_bias": False,
    "tie_word_embeddings": True,
    "is_decoder": False,
    "rope_scaling": None,
    # ModernBERT ignores this key, so `read_config` removes it before the check.
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
    """Keys of config.json that must be converted or checked."""

    model_type: str = "unknown"
    architectures: list[str] | None = None
    vocab_size: decode.Count = 0
    hidden_act: str | None = None
    hidden_activation: str | None = None
    classifier_activation: str | None = None
    max_position_embeddings: decode.Count | None = None
    layer_types: list[str] | None = None
    rope_parameters: _Ropes | None = None  # Key of transformers 5.
    quantization_config: dict[str, Any] | None = None


@dataclass(frozen=True)
class Encoder:
    """Encoder that a run can start from.

    Attributes:
        model_type: Hugging Face's name of the architecture.
        vocab_size: number of rows of the word embeddings.
        settings: settings `model.*` that config.json states. Their ranges are not checked.
        positions: number of learned positions of a BERT or RoBERTa, or 0 for other models.
    """

    model_type: str
    vocab_size: int
    settings: dict[str, Any]
    positions: int = 0


def read_config(folder: str) -> Encoder:
    """Read the config.json of a Hugging Face folder.

    Raises:
        BadInput: The file is missing, or no run can start from a model of this architecture, head
            or variant.
    """
    path = storage.join(folder, "config.json")
    with decode.convert_errors(path, "a model's config", _ADVICE):
        content = decode.read_json(path, dict[str, Any], _ADVICE)
    config = decode.convert(content, FolderConfig, path, _ADVICE)
    if config.model_type not in _ARCHITECTURES:
        raise BadInput(
            f"{path}: a run cannot start from a {config.model_type} model, only from"
            f" {', '.join(_ARCHITECTURES)}"
        )
    architecture = _ARCHITECTURES[config.model_type]
    if architecture == "modernbert":
        content.pop("position_embedding_type", None)
    if problem := next(_find_problems(config, content), None):
        raise BadInput(f"{path}: {problem}")
    stated = {key: content[key] for key in _KEYS if content.get(key) is not None}
    settings = {state_dict.SETTINGS.get(key, key): value for key, value in stated.items()}
    settings["architecture"] = architecture
    settings["hidden_act"] = _ACTIVATIONS[_read_activations(config)[0]]
    if architecture == "modernbert":
        settings |= _read_layers(config)
    positions = (config.max_position_embeddings or 0) if config.model_type in STOCK else 0
    if config.model_type in ROBERTAS:
        positions -= FIRST_POSITION
    return Encoder(config.model_type, config.vocab_size, settings, positions)


def find_stock_class(model_type: str | None, model: Model, nsp: bool) -> str | None:
    """Return the name of the BERT or RoBERTa class that computes the same as a run's model.

    The class is one of transformers. If there is none, return None. `model_type` is the type of the
    Hugging Face model that the run started from.
    """
    name = STOCK.get(model_type or "")
    if name is None or (nsp and name != "Bert") or not pattern.is_full_throughout(model):
        return None
    return f"{name}For{'PreTraining' if nsp else 'MaskedLM'}"


def _find_problems(config: FolderConfig, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why a model of a known architecture cannot be used, with advice."""
    for key, value in _FIXED.items():
        if content.get(key, value) != value:
            yield f"{key}={content[key]!r} is not supported, only {value!r}"
    if config.quantization_config is not None:
        yield "quantized weights are not supported. Use the folder of the unquantized model"
    classes = config.architectures or []
    if classes and not any(name.endswith(_HEADS) for name in classes):
        yield (
            f"the class {', '.join(classes)}, whose head is not supported: use the folder of the"
            " model before fine-tuning (...ForMaskedLM, ...ForPreTraining, ...Model)"
        )
    layers, head = _read_activations(config)
    for activation in (layers, head):
        if activation not in _ACTIVATIONS:
            yield f"the activation {activation!r} is not one of {', '.join(_ACTIVATIONS)}"
    if _ACTIVATIONS[layers] != _ACTIVATIONS[head]:
        yield (
            f"{layers} in its layers and {head} in its masked-LM head: the two must be the same"
            " (ModernBERT's keys are hidden_activation and classifier_activation)"
        )
    ropes = config.rope_parameters
    if ropes and {ropes.full_attention.rope_type, ropes.sliding_attention.rope_type} != {"default"}:
        yield "rope_parameters are supported only for the rope_type 'default'"
    if config.layer_types and _find_global_interval(config.layer_types) == 0:
        yield "layer_types: only every n-th layer can be 'full_attention'"


def _read_activations(config: FolderConfig) -> tuple[str, str]:
    """Return the activations of the layers and of the masked-LM head, as transformers reads them.

    A missing key stands for transformers' default. RoBERTa's head always uses GELU.
    """
    if config.model_type == "modernbert":
        return config.hidden_activation or "gelu", config.classifier_activation or "gelu"
    layers = config.hidden_act or ("gelu_new" if config.model_type == "big_bird" else "gelu")
    return layers, "gelu" if config.model_type in ROBERTAS else layers


def _read_layers(config: FolderConfig) -> dict[str, Any]:
    """Return a ModernBERT's settings for its maximum length and its layers, by name.

    The layers' settings are read from keys of transformers 5.
    """
    values: dict[str, Any] = {"max_position_embeddings": config.max_position_embeddings or None}
    if config.layer_types:
        values["global_attn_every_n_layers"] = _find_global_interval(config.layer_types)
    if ropes := config.rope_parameters:
        values["global_rope_theta"] = ropes.full_attention.rope_theta
        values["local_rope_theta"] = ropes.sliding_attention.rope_theta
    return {name: value for name, value in values.items() if value is not None}


def _find_global_interval(layer_types: list[str]) -> int:
    """Return n if exactly the layers 0, n, 2n, ... have global attention, else 0."""
    places = [i for i, kind in enumerate(layer_types) if kind == "full_attention"]
    every = places[1] if len(places) > 1 else len(layer_types)
    return every if places == list(range(0, len(layer_types), every)) else 0
