"""Lists the model's parameters: shapes, kinds of first values, and the FLOPs of a step.

They are named as in Google's BigBird checkpoints; ModernBERT's have the same names where they are
the same.

Kernels are stored two-dimensional, [in, out] (the checkpoints split the head axis of the attention
kernels; the numbers are the same after a reshape). `cls/seq_relationship/output_weights` is
[2, hidden], as there.
"""

import math
from dataclasses import dataclass

from bigbird_ja.model import pattern
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import train_predictions

SEGMENTS = 2  # rows of the segment table: A and B
WORDS = "bert/embeddings/word_embeddings"
POSITIONS = "bert/embeddings/position_embeddings"
SEGMENT_TABLE = "bert/embeddings/token_type_embeddings"
# Matrices of a ModernBERT's layer in one kernel: query, key, value; both halves of the gated MLP.
_SIDE_BY_SIDE = {"Wqkv": 3, "Wi": 2}


@dataclass(frozen=True)
class ParameterSpec:
    """Describes one parameter: its shape and its first values."""

    shape: tuple[int, ...]
    # normal (truncated at two deviations) | scaled (normal over sqrt(2 layers)) | zeros | ones
    kind: str

    @property
    def decay(self) -> bool:
        """Return whether AdamW decays it: neither biases nor layer norms."""
        return len(self.shape) > 1


def parameter_specs(config: Config, data: Data) -> dict[str, ParameterSpec]:
    """Return every parameter in order of use, all float32.

    The pooler and `cls/seq_relationship` exist only with next-sentence prediction.
    """
    specs, hidden = _specs(config), config.model.hidden_size
    if data.nsp:
        specs |= _dense("bert/pooler/dense", hidden, hidden)
        specs["cls/seq_relationship/output_weights"] = ParameterSpec((2, hidden), "normal")
        specs["cls/seq_relationship/output_bias"] = ParameterSpec((2,), "zeros")
    return specs


def _specs(config: Config) -> dict[str, ParameterSpec]:
    """List the parameters of the encoder and the masked-LM head."""
    if config.model.architecture == "modernbert":
        return _modernbert_specs(config)
    return _bigbird_specs(config)


@dataclass(frozen=True)
class MatrixSpec:
    """Describes the matrices side by side in one kernel, each [rows, columns]."""

    count: int
    rows: int
    columns: int


def muon_matrices(config: Config) -> dict[str, MatrixSpec]:
    """Return the parameters that Muon updates, the layers' kernels; none with AdamW."""
    if config.training.optimizer != "muon":
        return {}
    matrices = {}
    for name, spec in _specs(config).items():
        if name.startswith("bert/encoder/layer_") and name.endswith("/kernel"):
            count, (rows, columns) = _SIDE_BY_SIDE.get(name.split("/")[-2], 1), spec.shape
            matrices[name] = MatrixSpec(count, rows, columns // count)
    return matrices


def slot_parameters(config: Config, data: Data) -> dict[str, list[str]]:
    """Return the parameters that have each slot of the optimiser's state.

    All have a running mean of their gradients (m), and all but Muon's one of their squares (v).
    """
    names, matrices = list(parameter_specs(config, data)), muon_matrices(config)
    return {"m": names, "v": [name for name in names if name not in matrices]}


def layer_parameter_names(config: Config, layer: int) -> list[str]:
    """Return the parameters of one layer, in order of use."""
    scope = f"bert/encoder/layer_{layer}/"
    return [name for name in _specs(config) if name.startswith(scope)]


def _modernbert_specs(config: Config) -> dict[str, ParameterSpec]:
    """List ModernBERT's parameters as transformers' class has them, first values too.

    There are no biases but the decoder's, one kernel for query, key and value, and one for both
    halves of the gated MLP.
    """
    model, hidden = config.model, config.model.hidden_size
    assert model.vocab_size is not None
    square = ParameterSpec((hidden, hidden), "scaled")
    norm = ParameterSpec((hidden,), "ones")
    specs = {
        WORDS: ParameterSpec((model.vocab_size, hidden), "normal"),
        "bert/embeddings/LayerNorm/gamma": norm,
    }
    for layer in range(model.num_layers):
        scope = f"bert/encoder/layer_{layer}"
        if layer:  # before the first stand the embeddings, which come normalised
            specs[f"{scope}/attention/LayerNorm/gamma"] = norm
        specs[f"{scope}/attention/Wqkv/kernel"] = ParameterSpec((hidden, 3 * hidden), "normal")
        specs[f"{scope}/attention/Wo/kernel"] = square
        specs[f"{scope}/mlp/LayerNorm/gamma"] = norm
        inner = model.intermediate_size
        specs[f"{scope}/mlp/Wi/kernel"] = ParameterSpec((hidden, 2 * inner), "normal")
        specs[f"{scope}/mlp/Wo/kernel"] = ParameterSpec((inner, hidden), "scaled")
    specs["bert/final/LayerNorm/gamma"] = norm
    specs["cls/predictions/transform/kernel"] = square
    specs["cls/predictions/transform/gamma"] = norm
    specs["cls/predictions/output_bias"] = ParameterSpec((model.vocab_size,), "zeros")
    return specs


def _bigbird_specs(config: Config) -> dict[str, ParameterSpec]:
    """List BigBird's parameters."""
    model, hidden = config.model, config.model.hidden_size
    assert model.vocab_size is not None and model.max_position_embeddings is not None
    specs = {
        WORDS: ParameterSpec((model.vocab_size, hidden), "normal"),
        SEGMENT_TABLE: ParameterSpec((SEGMENTS, hidden), "normal"),
        POSITIONS: ParameterSpec((model.max_position_embeddings, hidden), "normal"),
        **_layer_norm("bert/encoder/LayerNorm", hidden),
    }
    for layer in range(model.num_layers):
        scope = f"bert/encoder/layer_{layer}"
        for name in ("self/query", "self/key", "self/value", "output/dense"):
            specs |= _dense(f"{scope}/attention/{name}", hidden, hidden)
        specs |= _layer_norm(f"{scope}/attention/output/LayerNorm", hidden)
        specs |= _dense(f"{scope}/intermediate/dense", hidden, model.intermediate_size)
        specs |= _dense(f"{scope}/output/dense", model.intermediate_size, hidden)
        specs |= _layer_norm(f"{scope}/output/LayerNorm", hidden)
    specs |= _dense("cls/predictions/transform", hidden, hidden)
    specs |= _layer_norm("cls/predictions/transform", hidden)
    specs["cls/predictions/output_bias"] = ParameterSpec((model.vocab_size,), "zeros")
    return specs


def _dense(scope: str, rows: int, columns: int) -> dict[str, ParameterSpec]:
    kernel, bias = ParameterSpec((rows, columns), "normal"), ParameterSpec((columns,), "zeros")
    return {f"{scope}/kernel": kernel, f"{scope}/bias": bias}


def _layer_norm(scope: str, size: int) -> dict[str, ParameterSpec]:
    gamma, beta = ParameterSpec((size,), "ones"), ParameterSpec((size,), "zeros")
    return {f"{scope}/gamma": gamma, f"{scope}/beta": beta}


def count_parameters(config: Config, data: Data) -> int:
    """Count the scalars in all parameters."""
    return sum(math.prod(spec.shape) for spec in parameter_specs(config, data).values())


def count_state(config: Config, data: Data) -> int:
    """Count the scalars in all parameters and the optimiser's slots: what a checkpoint holds."""
    specs = parameter_specs(config, data)
    slots = (name for names in slot_parameters(config, data).values() for name in names)
    return sum(math.prod(specs[name].shape) for name in (*specs, *slots))


def model_flops(config: Config, data: Data, batch_per_core: int, share: float = 1.0) -> float:
    """Count the FLOPs that one core's step needs: forward once, backward twice.

    Per token and layer 2 x (4 h^2 + 2 h i) for the projections and the MLP (3 h i where it is
    gated), that of the last layer for the predicted tokens alone; 4 h per visible pair of query and
    key (scores and context); per prediction 2 x (h^2 + h v) for the masked-LM head; with NSP
    2 x (h^2 + 2 h) per sequence. Sparse attention counts the pairs that its pattern lets see each
    other, and nothing else; full attention `share` of its pairs, as others are of other documents.
    Additions, softmax, norms and the optimiser count nothing.
    """
    model = config.model
    hidden, length = model.hidden_size, data.seq_length
    predictions = train_predictions(config, data)
    is_gated = model.architecture == "modernbert"
    projections = model.num_layers * length * 2 * 4 * hidden**2
    visible = [visible_pairs(config, layer, length) for layer in range(model.num_layers)]
    pairs = sum(pairs * share if pairs == length**2 else pairs for pairs in visible)
    tokens = (model.num_layers - 1) * length + predictions + (1 if data.nsp else 0)
    mlps = tokens * 2 * (3 if is_gated else 2) * hidden * model.intermediate_size
    head = predictions * 2 * (hidden**2 + hidden * (model.vocab_size or 0))
    pooler = 2 * (hidden**2 + 2 * hidden) if data.nsp else 0
    forward = projections + 4 * hidden * pairs + mlps + head + pooler
    return 3.0 * batch_per_core * forward


def visible_pairs(config: Config, layer: int, length: int) -> int:
    """Count the pairs of query and key that one head of a layer lets see each other.

    Padding of the sequence is left aside.

    Raises:
        BadInput: a sequence length that the attention pattern cannot be laid over.
    """
    model = config.model
    if model.architecture == "modernbert" and not pattern.is_global(model, layer):
        reach = min(model.local_attention // 2, length - 1)
        return length * (2 * reach + 1) - reach * (reach + 1)
    try:
        if pattern.is_full(config, length):
            return length * length
        blocks = pattern.block_mask(config, 0, length)
    except ValueError as error:
        raise BadInput(str(error)) from error
    return round(float(blocks.sum()) / len(blocks)) * model.block_size**2
