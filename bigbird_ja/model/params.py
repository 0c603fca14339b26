"""Lists the model's parameters: shapes, first values, and the FLOPs of a step.

They are named as in Google's BigBird checkpoints; ModernBERT's have the same names where they are
the same.

Kernels are stored two-dimensional, [in, out] (the checkpoints split the head axis of the attention
kernels; the numbers are the same after a reshape). `cls/seq_relationship/output_weights` is
[2, hidden], as there.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from bigbird_ja.model import pattern
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import train_predictions

SEGMENTS = 2  # rows of the segment table: A and B
WORDS = "bert/embeddings/word_embeddings"
POSITIONS = "bert/embeddings/position_embeddings"
SEGMENT_TABLE = "bert/embeddings/token_type_embeddings"


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


def initial_parameters(config: Config, data: Data, seed: int) -> dict[str, np.ndarray]:
    """Draw first values, float32: each parameter's depend on (seed, name, shape) alone."""
    params = {
        name: initial_value(config, name, spec, seed)
        for name, spec in parameter_specs(config, data).items()
    }
    if config.model.initializer == "subspaces":
        is_rotary = config.model.architecture == "modernbert"
        (_aim_rotary_heads if is_rotary else _separate_positions)(params, config, seed)
    return params


def initial_value(config: Config, name: str, spec: ParameterSpec, seed: int) -> np.ndarray:
    """Draw first values of one parameter, before `model.initializer` changes some."""
    if spec.kind == "zeros":
        return np.zeros(spec.shape, np.float32)
    if spec.kind == "ones":
        return np.ones(spec.shape, np.float32)
    generator = _generator(seed, name)
    values = generator.standard_normal(spec.shape, np.float32)
    outside = np.abs(values) > 2
    while outside.any():
        values[outside] = generator.standard_normal(int(outside.sum()), np.float32)
        outside = np.abs(values) > 2
    model = config.model
    deviation = model.initializer_range
    if spec.kind == "scaled":  # outputs added to the residual stream, by depth
        deviation /= math.sqrt(2 * model.num_layers)
    return values * np.float32(deviation)


def _generator(seed: int, name: str) -> np.random.Generator:
    """Make a generator for one name; NumPy's global one would be replayed by all its users."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


# In subspaces: the score of a key at a head's distance, and the gain of the output kernels. By
# trials on the demo's corpus.
_PEAK = 20.0
_OUTPUT_GAIN = 1.5


def _separate_positions(params: dict[str, np.ndarray], config: Config, seed: int) -> None:
    """Change first values so that attention knows positions from pieces, for small models.

    From random first values a masked language model learns for thousands of steps nothing but how
    frequent each piece is, as no attention looks anywhere yet. A model that has to learn in minutes
    starts with attention that does (after Trockman and Kolter 2023, arXiv:2305.09828). Where
    positions and pieces share numbers, the pieces' embeddings drown the positions as they grow;
    here the first (hidden / heads) numbers of an embedding hold the position alone, the others the
    piece alone:

    - positions are sines and cosines (Vaswani et al. 2017, section 3.5), at random rates, so that
      no two distances within a sequence are alike;
    - each head of each layer looks at one distance: -1, 1, -2, 2, ... through all layers. Its query
      kernel is its key kernel after the rotation that moves every position by that distance, and
      both read the position alone;
    - values read the piece alone, each head by another random map with orthonormal columns; the
      output kernel is orthogonal times a gain, so that neighbours count more than the token itself.

    Args:
        params: with `normal` first values, changed in place.
        config: completed by a data set; an even number of hidden numbers per head, 2 heads or more.
        seed: of the random rates and maps.
    """
    model, columns = config.model, config.model.hidden_size // config.model.num_attention_heads
    rates = _generator(seed, "rates").uniform(0, np.pi, columns // 2)  # radians per token
    angles = np.arange(model.max_position_embeddings or 0)[:, None] * rates
    for name in (WORDS, SEGMENT_TABLE):
        params[name][:, :columns] = 0
    params[POSITIONS][:, columns:] = 0
    # Of the pieces' deviation, as half of a square of a sine is.
    waves = np.sqrt(2) * np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    params[POSITIONS][:, :columns] = model.initializer_range * waves
    # The normalised position of a token has the squared length `columns`.
    deviation = np.sqrt(_PEAK / np.sqrt(columns))
    for layer in range(model.num_layers):
        scope = f"bert/encoder/layer_{layer}/attention"
        generator = _generator(seed, scope)
        query, key, value = (params[f"{scope}/self/{n}/kernel"] for n in ("query", "key", "value"))
        query[columns:] = key[columns:] = value[:columns] = 0
        for head in range(model.num_attention_heads):
            number = layer * model.num_attention_heads + head
            distance = (number // 2 + 1) * (1 if number % 2 else -1)
            part = slice(head * columns, (head + 1) * columns)
            key[:columns, part] = deviation * _orthogonal(generator, columns, columns)
            query[:columns, part] = _rotation(rates, distance) @ key[:columns, part]
            value[columns:, part] = _orthogonal(generator, model.hidden_size - columns, columns)
        params[f"{scope}/output/dense/kernel"][:] = _OUTPUT_GAIN * _orthogonal(
            generator, model.hidden_size, model.hidden_size
        )


def _orthogonal(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Draw random orthonormal columns: float64 [rows, columns]."""
    return np.linalg.qr(generator.standard_normal((rows, columns)))[0]


def _rotation(rates: np.ndarray, distance: int) -> np.ndarray:
    """Make the matrix that moves sines and cosines of position i to those of i + distance."""
    sine, cosine = np.diag(np.sin(rates * distance)), np.diag(np.cos(rates * distance))
    return np.block([[cosine, -sine], [sine, cosine]])


# Of rotary heads in subspaces: the constant number's size in standard deviations of the others;
# radians per token of the pairs that read it; what one pair adds to the score at a head's distance;
# the gain of the output kernels; the heads' distances.
_CONSTANT = 7.5
_RATES = (1.0, 0.68, 0.46, 0.32, 0.21, 0.147)
_PAIR_PEAK = 5.0
_ROTARY_GAIN = 0.7
_DISTANCES = (-1, 1, -2, 2)


def _aim_rotary_heads(params: dict[str, np.ndarray], config: Config, seed: int) -> None:
    """Change first values of a ModernBERT so that each head looks at one distance.

    Positions are no embeddings here, so number 0 of every embedding is a constant that keys and
    queries read: a rotary pair then holds the same vector at every token, turned by the token's
    position, and the query's is turned by the head's distance beforehand. The pairs of large rates
    tell neighbours apart. Values do not read the constant, and no output writes to it.

    Args:
        params: with `normal` first values, changed in place.
        config: completed by a data set.
        seed: of the random maps.
    """
    model, hidden = config.model, config.model.hidden_size
    size = hidden // model.num_attention_heads
    params[WORDS][:, 0] = _CONSTANT * model.initializer_range
    words = params[WORDS].astype(np.float64)
    number = ((words[:, 0] - words.mean(1)) / words.std(1)).mean()  # as it comes to the layers
    others = 1 - number**2 / hidden  # the other numbers' part of the mean square, grows by depth
    for layer in range(model.num_layers):
        scope = f"bert/encoder/layer_{layer}/attention"
        generator = _generator(seed, scope)
        theta = (
            model.global_rope_theta if pattern.is_global(model, layer) else model.local_rope_theta
        )
        rates = theta ** (-np.arange(0, size, 2) / size)
        pairs = sorted({int(np.abs(rates - rate).argmin()) for rate in _RATES})
        power = number**2 / hidden + others
        height = np.sqrt(_PAIR_PEAK * np.sqrt(size) * power) / number
        kernel = params[f"{scope}/Wqkv/kernel"].reshape(hidden, 3, model.num_attention_heads, size)
        kernel[0] = 0
        for head in range(model.num_attention_heads):
            place = layer * model.num_attention_heads + head
            for pair in pairs:
                angle = rates[pair] * _DISTANCES[place % len(_DISTANCES)]
                kernel[0, 0, head, [pair, pair + size // 2]] = (
                    height * np.cos(angle),
                    height * np.sin(angle),
                )
                kernel[0, 1, head, pair] = height
        values = _orthogonal(generator, hidden, hidden).reshape(hidden, -1, size)
        kernel[1:, 2] = values[1:]
        output = params[f"{scope}/Wo/kernel"]
        output[:] = _ROTARY_GAIN * _orthogonal(generator, hidden, hidden)
        output[:, 0] = 0
        others += _ROTARY_GAIN**2 * others / power
