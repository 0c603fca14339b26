"""Draws first values of the model's parameters."""

import hashlib
import math

import numpy as np

from bigbird_ja.model import pattern
from bigbird_ja.model.params import POSITIONS, SEGMENT_TABLE, WORDS, ParameterSpec, parameter_specs
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config


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
