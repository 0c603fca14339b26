"""First values of small models that look like learnt ones, so that context counts from the start.

From random first values a masked language model learns for thousands of steps nothing but how
frequent each piece is: a [MASK] says nothing, and neither its neighbours nor what stands where else
can be told from all the rest until attention has learnt to look somewhere. A model that has to
learn in minutes starts with attention that looks somewhere (after Trockman and Kolter 2023,
arXiv:2305.09828, who start from the shapes that trained attention has):

- positions are sines and cosines (Vaswani et al. 2017, section 3.5), of which a rotation moves
  every position by the same distance;
- each head of the first layer looks at a fixed distance: its query kernel is its key kernel after
  that rotation;
- later layers look for what is alike (query and key kernel are the same) and hand it on as it is
  (the value and output kernels undo each other).

These are first values only; all of them are trained.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bigbird_ja.settings.schema import Config

_DISTANCES = (-1, 1, -4, 4, -2, 2, -8, 8)  # tokens; heads take them in turn
_PEAK = 10.0  # the score of a key at just that distance; of one far away it is about 0


def initial_values(
    config: Config, shapes: Mapping[str, tuple[int, ...]], seed: int
) -> dict[str, np.ndarray]:
    """The parameters that do not start as usual, by name, float32.

    Args:
        config: completed by a data set; `model.hidden_size` is even.
        shapes: of all parameters, by name.
        seed: of the random projections.
    """
    model = config.model
    size, heads = model.hidden_size, model.num_attention_heads
    positions = "bert/embeddings/position_embeddings"
    rates = _rates(shapes[positions][0], size)
    generator = np.random.Generator(np.random.PCG64(seed))
    # A position is half of the normalised input, so that equal ones give
    # sqrt(size per head) x deviation^2 x size / 2.
    deviation = np.sqrt(2 * _PEAK / (size * np.sqrt(size // heads)))
    amplitude = np.sqrt(2) * model.initializer_range
    values = {positions: amplitude * sinusoids(shapes[positions][0], rates)}
    for layer in range(model.num_layers):
        scope = f"bert/encoder/layer_{layer}/attention"
        key = deviation * generator.standard_normal((size, size))
        values[f"{scope}/self/key/kernel"] = key
        if layer == 0:
            values[f"{scope}/self/query/kernel"] = _looking_aside(key, rates, heads)
        else:
            values[f"{scope}/self/query/kernel"] = key
            basis = np.linalg.qr(generator.standard_normal((size, size)))[0]
            values[f"{scope}/self/value/kernel"] = basis
            values[f"{scope}/output/dense/kernel"] = basis.T
    return {name: value.astype(np.float32) for name, value in values.items()}


def _rates(count: int, size: int) -> np.ndarray:
    """Radians per token, float64 [size / 2]: waves from 2 pi to `count` tokens long."""
    return np.geomspace(1.0, 2 * np.pi / max(count, 8), size // 2)


def sinusoids(count: int, rates: np.ndarray) -> np.ndarray:
    """Sines, then cosines, of every position: float64 [count, 2 x rates]."""
    angles = np.arange(count)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _looking_aside(key: np.ndarray, rates: np.ndarray, heads: int) -> np.ndarray:
    """The query kernel, [size, size], with which head h at position i looks at i + its distance."""
    columns = key.shape[1] // heads
    return np.concatenate(
        [
            rotation(rates, _DISTANCES[head % len(_DISTANCES)])
            @ key[:, head * columns : (head + 1) * columns]
            for head in range(heads)
        ],
        axis=1,
    )


def rotation(rates: np.ndarray, distance: int) -> np.ndarray:
    """float64 [size, size]: `sinusoids` of position i times this is that of i + distance."""
    sine, cosine = np.diag(np.sin(rates * distance)), np.diag(np.cos(rates * distance))
    return np.block([[cosine, -sine], [sine, cosine]])
