"""Initial weights of a new model."""

import hashlib
import math

import numpy as np

from bigbird_ja.model.params import (
    POSITIONS,
    SEGMENT_TABLE,
    WORDS,
    ParameterSpec,
    make_parameter_specs,
)
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config


def draw_parameters(config: Config, data: Data, seed: int) -> dict[str, np.ndarray]:
    """Return the initial weights of all parameters by name, float32."""
    params = {
        name: draw_parameter(config, name, spec, seed)
        for name, spec in make_parameter_specs(config, data).items()
    }
    if config.model.initializer == "subspaces":
        _separate_positions(params, config, seed)
    return params


def draw_parameter(config: Config, name: str, spec: ParameterSpec, seed: int) -> np.ndarray:
    """Return initial weights of one parameter, before the changes of the initializer `subspaces`.

    The random numbers depend only on the seed, the name and the shape.
    """
    if spec.kind == "zeros":
        return np.zeros(spec.shape, np.float32)
    if spec.kind == "ones":
        return np.ones(spec.shape, np.float32)
    generator = _make_generator(seed, name)
    values = generator.standard_normal(spec.shape, np.float32)
    outside = np.abs(values) > 2
    while outside.any():
        values[outside] = generator.standard_normal(int(outside.sum()), np.float32)
        outside = np.abs(values) > 2
    model = config.model
    deviation = model.initializer_range
    if spec.kind == "scaled":  # The residual stream is a sum of two such outputs per layer.
        deviation /= math.sqrt(2 * model.num_layers)
    return values * np.float32(deviation)


def _make_generator(seed: int, name: str) -> np.random.Generator:
    """Return a random generator that depends only on the seed and the name."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


# Constants of the initializer `subspaces`, chosen by trials on the demo's corpus: the score of the
# key at the distance that a head attends to, and the gain of the output kernels.
_PEAK = 20.0
_OUTPUT_GAIN = 1.5


def _separate_positions(params: dict[str, np.ndarray], config: Config, seed: int) -> None:
    """Change the initial weights of a small model so that heads attend by position.

    With random weights a masked language model learns only token frequencies for thousands of
    steps, as no head attends to a fixed distance yet. With the changed weights, heads attend to
    fixed distances from the start (after Trockman and Kolter 2023, arXiv:2305.09828). The first
    (hidden / heads) dimensions of the embeddings contain only the position, and the other
    dimensions only the token. In shared dimensions the token would soon dominate the position.

    - Positions are sines and cosines (Vaswani et al. 2017, section 3.5) at random rates, so that
      every distance within a sequence is distinguishable.
    - Each head attends to one distance. The heads of all layers have the distances -1, 1, -2, 2,
      and so on. A head's query kernel is its key kernel after the rotation that moves every
      position by the head's distance. The two kernels read only the position.
    - Each head's value kernel reads only the token, by a random map with orthonormal columns. The
      output kernel is a random orthogonal matrix times a gain, so that neighboring tokens count
      more than the token at the query's own position.

    Args:
        params: initial weights of the initializer `normal`, which are changed in place.
        config: config of the run. The model must have 2 heads or more, of an even size.
        seed: seed for the random rates and maps.
    """
    model, columns = config.model, config.model.hidden_size // config.model.num_attention_heads
    rates = _make_generator(seed, "rates").uniform(0, np.pi, columns // 2)  # Radians per token.
    angles = np.arange(model.max_position_embeddings or 0)[:, None] * rates
    for name in (WORDS, SEGMENT_TABLE):
        params[name][:, :columns] = 0
    params[POSITIONS][:, columns:] = 0
    # The mean of a squared sine is 1/2. So the factor sqrt(2) gives the position embeddings the
    # standard deviation of the other initial weights.
    waves = np.sqrt(2) * np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    params[POSITIONS][:, :columns] = model.initializer_range * waves
    # After the layer norm, the position dimensions of an embedding have the squared length
    # `columns`. With this scale of the kernels, the score at a head's distance is `_PEAK`.
    deviation = np.sqrt(_PEAK / np.sqrt(columns))
    for layer in range(model.num_layers):
        scope = f"bert/encoder/layer_{layer}/attention"
        generator = _make_generator(seed, scope)
        query, key, value = (params[f"{scope}/self/{n}/kernel"] for n in ("query", "key", "value"))
        query[columns:] = key[columns:] = value[:columns] = 0
        for head in range(model.num_attention_heads):
            number = layer * model.num_attention_heads + head
            distance = (number // 2 + 1) * (1 if number % 2 else -1)
            part = slice(head * columns, (head + 1) * columns)
            key[:columns, part] = deviation * _draw_orthogonal(generator, columns, columns)
            query[:columns, part] = _make_rotation(rates, distance) @ key[:columns, part]
            value[columns:, part] = _draw_orthogonal(
                generator, model.hidden_size - columns, columns
            )
        params[f"{scope}/output/dense/kernel"][:] = _OUTPUT_GAIN * _draw_orthogonal(
            generator, model.hidden_size, model.hidden_size
        )


def _draw_orthogonal(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return random orthonormal columns, float64 [rows, columns]."""
    return np.linalg.qr(generator.standard_normal((rows, columns)))[0]


def _make_rotation(rates: np.ndarray, distance: int) -> np.ndarray:
    """Return the matrix that maps sines and cosines of position i to those of i + distance."""
    sine, cosine = np.diag(np.sin(rates * distance)), np.diag(np.cos(rates * distance))
    return np.block([[cosine, -sine], [sine, cosine]])
