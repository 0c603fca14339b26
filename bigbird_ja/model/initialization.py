"""Initial weights of a new model."""

import hashlib
import math

import numpy as np

from bigbird_ja.model.params import POSITIONS, SEGMENT_TABLE, WORDS, ParameterSpec, parameter_specs
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config


def initial_parameters(config: Config, data: Data, seed: int) -> dict[str, np.ndarray]:
    """Return initial weights, float32, each a function of only (seed, name, shape)."""
    params = {
        name: initial_value(config, name, spec, seed)
        for name, spec in parameter_specs(config, data).items()
    }
    if config.model.initializer == "subspaces":
        _separate_positions(params, config, seed)
    return params


def initial_value(config: Config, name: str, spec: ParameterSpec, seed: int) -> np.ndarray:
    """Return initial weights of one parameter, before `model.initializer` changes some."""
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
    if spec.kind == "scaled":  # By depth, for outputs added to the residual stream.
        deviation /= math.sqrt(2 * model.num_layers)
    return values * np.float32(deviation)


def _generator(seed: int, name: str) -> np.random.Generator:
    """Return a generator for one name, so that no parameter depends on the order of others."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


# For `subspaces`: score of a key at a head's distance, and gain of the output kernels. Both are
# from trials on the demo's corpus.
_PEAK = 20.0
_OUTPUT_GAIN = 1.5


def _separate_positions(params: dict[str, np.ndarray], config: Config, seed: int) -> None:
    """Change initial weights so that attention tells positions from tokens, for small models.

    From random weights a masked language model learns nothing but token frequencies for thousands
    of steps, as no head attends to a place yet. A model that has to learn in minutes starts with
    heads that do (after Trockman and Kolter 2023, arXiv:2305.09828). If positions and tokens shared
    dimensions of the embeddings, the tokens' would outgrow the positions'. So here the first
    (hidden / heads) dimensions hold only the position, the others only the token:

    - positions are sines and cosines (Vaswani et al. 2017, section 3.5) at random rates, so that no
      two distances within a sequence are alike;
    - each head of each layer attends to one distance: -1, 1, -2, 2, ... through all layers. Its
      query kernel is its key kernel after the rotation that moves every position by that distance,
      and both read only the position;
    - values read only the token, each head by another random map with orthonormal columns; the
      output kernel is orthogonal times a gain, so that neighbors count more than the token itself.

    Args:
        params: `normal` initial weights, changed in place.
        config: config completed by a data set, with 2 heads or more of an even size.
        seed: seed for the random rates and maps.
    """
    model, columns = config.model, config.model.hidden_size // config.model.num_attention_heads
    rates = _generator(seed, "rates").uniform(0, np.pi, columns // 2)  # Radians per token.
    angles = np.arange(model.max_position_embeddings or 0)[:, None] * rates
    for name in (WORDS, SEGMENT_TABLE):
        params[name][:, :columns] = 0
    params[POSITIONS][:, columns:] = 0
    # With the deviation of the tokens' weights, as a squared sine is a half on average.
    waves = np.sqrt(2) * np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    params[POSITIONS][:, :columns] = model.initializer_range * waves
    # The normalized position of a token has the squared length `columns`.
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
    """Return random orthonormal columns, float64 [rows, columns]."""
    return np.linalg.qr(generator.standard_normal((rows, columns)))[0]


def _rotation(rates: np.ndarray, distance: int) -> np.ndarray:
    """Return the matrix that maps sines and cosines of position i to those of i + distance."""
    sine, cosine = np.diag(np.sin(rates * distance)), np.diag(np.cos(rates * distance))
    return np.block([[cosine, -sine], [sine, cosine]])
