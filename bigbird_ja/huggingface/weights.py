"""Read the weights of a Hugging Face folder, and name them like this package's parameters."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import state_dict
from bigbird_ja.huggingface.config import FIRST_POSITION, ROBERTAS, read_config
from bigbird_ja.model.initialization import draw_parameter
from bigbird_ja.model.params import POSITIONS, SEGMENT_TABLE, SEGMENTS, WORDS, ParameterSpec
from bigbird_ja.settings.schema import Config

_BY_TOKEN = (WORDS, "cls/predictions/output_bias")


@dataclass(frozen=True)
class Source:
    """Weights of the model that a run starts from, named like this package's parameters."""

    kind: str
    weights: Mapping[str, str]  # SHA-256 (or a checkpoint's CRC32C) by file of weights.
    values: Mapping[str, np.ndarray]
    names: Mapping[str, str]  # Maps this package's name of a parameter to its name in the source.
    settings: Mapping[str, Any] = field(default_factory=dict)  # The source's settings of `model`.
    origin: dict[str, Any] | None = None  # The record of `init_from`, if the source is a run.


def read_folder(folder: str, config: Config, specs: Mapping[str, ParameterSpec]) -> Source:
    """Read the weights of a Hugging Face folder for a new run.

    Args:
        folder: path on disk or gs://.
        config: config of the new run.
        specs: specifications of the new run's parameters, by name.

    Raises:
        BadInput: `read_config` or `state_dict.read` raises it. Or the encoder's architecture is not
            the run's, or the encoder contains tensors that the run's model lacks.
    """
    encoder, model = read_config(folder), config.model
    if (architecture := encoder.settings["architecture"]) != model.architecture:
        raise BadInput(
            f"`init_from` {folder}: a {encoder.model_type} model becomes a {architecture}, but"
            f" model.architecture is {model.architecture}. Leave that setting out"
        )
    state, checksums = state_dict.read(folder)
    theirs = {_normalize_name(name): name for name in state}
    values: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    for name in specs:
        usual = _normalize_name(state_dict.to_hugging_face_name(model, name))
        names[name] = theirs.get(usual, usual)
        if usual in theirs:
            value = state[names[name]]
            values[name] = value.T if state_dict.is_transposed(name) else value
    if encoder.model_type in ROBERTAS:
        if POSITIONS in values:
            values[POSITIONS] = values[POSITIONS][FIRST_POSITION:]
        if SEGMENT_TABLE in values:  # RoBERTa uses one row for every token.
            values[SEGMENT_TABLE] = np.repeat(values[SEGMENT_TABLE][:1], SEGMENTS, axis=0)
    surplus = [n for n in state if _IN_LAYER.fullmatch(n) and n not in names.values()]
    if surplus:
        raise BadInput(
            f"{folder}: {len(surplus)} tensors of its encoder, such as {surplus[0]}, have no place"
            f" in model.architecture={model.architecture} with {model.num_layers} layers. Use the"
            " folder's model.* settings"
        )
    _add_tokens(values, names, config, specs)
    kind = f"a Hugging Face folder, {encoder.model_type}"
    return Source(kind, checksums, values, names, encoder.settings)


def _add_tokens(
    values: dict[str, np.ndarray],
    names: dict[str, str],
    config: Config,
    specs: Mapping[str, ParameterSpec],
) -> None:
    """Add random rows of embeddings for tokens that follow the folder's own tokens.

    `make-data` adds such tokens.
    """
    for name in (n for n in _BY_TOKEN if n in values):
        old = values[name]
        new = draw_parameter(config, name, specs[name], config.training.seed)
        if len(old) < len(new) and old.shape[1:] == new.shape[1:]:
            new[: len(old)] = old
            values[name] = new
            names[name] = f"{names[name]}: {len(old):,} of {len(new):,} tokens"


# Name of a weight in a layer. Position ids and other buffers do not match.
_IN_LAYER = re.compile(r".*\.layers?\..*\.(weight|bias|gamma|beta)")


# Patterns in names of parameters, and replacements that result in one name for each parameter. The
# prefix is missing in a model that was saved without heads. The pooler of BERT and RoBERTa is one
# level deeper than BigBird's. Old models use TensorFlow's names of layer norms.
_RENAMED = {
    r"^(bert|roberta|model)\.": "",
    r"^pooler\.dense\.": "pooler.",
    r"LayerNorm\.gamma$": "LayerNorm.weight",
    r"LayerNorm\.beta$": "LayerNorm.bias",
    r"^lm_head\.dense\.": "cls.predictions.transform.dense.",
    r"^lm_head\.layer_norm\.": "cls.predictions.transform.LayerNorm.",
    r"^lm_head\.bias$": "cls.predictions.bias",
}


def _normalize_name(name: str) -> str:
    for form, usual in _RENAMED.items():
        name = re.sub(form, usual, name)
    return name
