"""States how long documents are, and counts by it what kernels that skip other documents do.

A step's code is the same whatever the data: how often its loops over the key tiles of a query
tile's documents run is a mean, of sequences as `make-data` would pack them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from bigbird_ja.data import packing
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.model.kernels.layer_shape import LayerShape

if TYPE_CHECKING:
    from bigbird_ja.settings import Data
    from bigbird_ja.settings.schema import Config

# Documents of [2**i, 2**(i + 1)) tokens: 9,954 of Japanese text at 1.5 characters a token
# (docs/lab/kernel.md).
STATED = (0, 0, 0, 0, 248, 1413, 2065, 1587, 1696, 1347, 791, 495, 203, 79, 20, 4, 5, 1)
_MOST, _TOKENS = 4000, 1 << 22  # of a sample: documents, tokens


def kernel_trips(config: Config, data: Data) -> tuple[float, ...]:
    """Return the mean trips of each loop of a resolved config's kernels over key tiles.

    () where no kernel has one that depends on documents.
    """
    shape = shape_of(config, data)
    return () if shape is None else trips(shape, of_data(data)[0])[0]


def stated(config: Config, data: Data) -> dict[str, Any]:
    """Return what a result states of the documents by which it is counted; None: they cost none."""
    shape = shape_of(config, data)
    lengths, whose = of_data(data)
    share = None if shape is None else trips(shape, lengths)[1]
    return {"key_tiles_share": share, "document_lengths": whose if shape else None}


def of_data(data: Data) -> tuple[tuple[int, ...], str]:
    """Return the documents by the power of two of their length, and whose they are."""
    own = data.statistics.get("document_tokens") if isinstance(data, Manifest) else None
    return (tuple(own), "of the data set") if own and sum(own) else (STATED, "stated")


def shape_of(config: Config, data: Data) -> LayerShape | None:
    """Describe the layers of which the kernels skip other documents; None: there are none."""
    from bigbird_ja.model import pattern
    from bigbird_ja.model.implementation import tile_rows

    model = config.model
    if model.attention_implementation != "kernel" or model.attend_across_documents:
        return None
    if model.architecture != "modernbert" and not pattern.is_full(config, data.seq_length):
        return None
    rows, heads = tile_rows(data.seq_length, None), model.num_attention_heads
    size, tiles = model.hidden_size // heads, data.seq_length // rows
    shape = LayerShape(1, tiles, heads, size, rows, None, True, config.training.dtype)
    return shape if shape.runs else None


@functools.lru_cache(maxsize=4)
def trips(shape: LayerShape, histogram: tuple[int, ...]) -> tuple[tuple[float, ...], float]:
    """Return the mean trips of each loop of `LayerShape.runs`, and the share of the key tiles."""
    import tensorflow as tf

    from bigbird_ja.model.kernels.kernel_attention import bounds

    length = shape.tiles * shape.rows
    powers = np.append(0.0, np.cumsum(histogram) / sum(histogram))
    mean = np.dot(np.diff(powers), 1.5 * 2.0 ** np.arange(len(histogram)))
    count = int(min(_MOST, _TOKENS // mean + 1))
    # Within a power of two evenly by the logarithm.
    drawn = np.interp((np.arange(count) + 0.5) / count, powers, np.arange(len(powers)))
    sequences = packing.pack((2**drawn).astype(int).tolist(), length)
    documents = np.zeros((len(sequences), length), np.int32)
    for row, fragments in zip(documents, sequences, strict=True):
        end = 1  # after [CLS]
        for number, fragment in enumerate(fragments):
            row[end - (number == 0) : end + fragment.cost] = number + 1
            end += fragment.cost
    tiled = tf.constant(documents.reshape(-1, shape.tiles, shape.rows))
    left = bounds(tiled, tiled > 0).numpy()[..., 1]
    share, means = float(left.mean()) / shape.tiles, []
    for many in shape.runs:
        means.append(float((left // many).mean()))
        left = left % many
    return tuple(means), share
