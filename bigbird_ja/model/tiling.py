"""How a rolled sequence falls into tiles, and which random tiles each tile sees.

See `rolled` for the layout: arrays are [b, T, heads, size, rows], tile 0 holds the global blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Tiling:
    """T tiles of two blocks."""

    tiles: int  # T, tile 0 included
    rows: int  # of a tile: two blocks

    def low(self) -> np.ndarray:
        """bool [rows]: the first block of a tile."""
        return np.arange(self.rows) < self.rows // 2

    def is_first(self) -> np.ndarray:
        """bool [T, 1, 1, 1]: tile 0."""
        return (np.arange(self.tiles) == 0)[:, None, None, None]


class RandomTiles(Protocol):
    """The random keys of every tile, as m tiles each. What tile 0 sees does not matter."""

    def keys(self, keys: tf.Tensor) -> tf.Tensor:
        """[b, T, heads, size, rows] -> [b, T, heads, m, size, rows]."""

    def keys_back(self, parts: tf.Tensor) -> list[tf.Tensor]:
        """The adjoint of `keys`: what to add up, each [b, T, heads, size, rows]."""

    def numbers(self, rows: tf.Tensor) -> tf.Tensor:
        """A number per token, [b, T, rows] -> [b, T, heads or 1, m, rows]."""

    def unseen(self) -> np.ndarray | None:
        """bool, broadcasts to [b, T, heads, query rows, m, key rows]: not seen after all."""


@dataclass(frozen=True)
class RolledTiles:
    """Tile j sees tiles 1 + (j - 1 + s) mod (T - 1) for each shift s of the head."""

    shifts: np.ndarray  # int32 [heads, m]
    tiles: int

    def keys(self, keys: tf.Tensor) -> tf.Tensor:
        return tf.gather(_flatten(keys, 3), self._flat(int(keys.shape[0]), self._others(1)))

    def keys_back(self, parts: tf.Tensor) -> list[tf.Tensor]:
        # The gradient of a gather would be a scatter; a permutation's is a gather too. Tile 0's own
        # parts are zero, so it may see itself.
        batch, shifts = int(parts.shape[0]), self.shifts.shape[1]
        places = self._flat(batch, self._others(-1)) * shifts + np.arange(shifts, dtype=np.int32)
        flat = _flatten(parts, 4)
        return [tf.gather(flat, places[..., shift]) for shift in range(shifts)]

    def numbers(self, rows: tf.Tensor) -> tf.Tensor:
        return tf.gather(rows, self._others(1), axis=1)

    def unseen(self) -> None:
        return None

    def _others(self, sign: int) -> np.ndarray:
        """int32 [T, heads, m]: the tiles seen (1), or those that see (-1); of tile 0 itself."""
        middle = np.arange(self.tiles - 1)[:, None, None]
        others = 1 + (middle + sign * self.shifts) % (self.tiles - 1)
        return np.concatenate([np.zeros_like(others[:1]), others]).astype(np.int32)

    def _flat(self, batch: int, tile: np.ndarray) -> np.ndarray:
        """Tiles [T, heads, m] as places in [b * T * heads]: int32 [b, T, heads, m]."""
        heads = len(self.shifts)
        sequence = np.arange(batch, dtype=np.int32)[:, None, None, None] * self.tiles
        return (sequence + tile) * heads + np.arange(heads, dtype=np.int32)[:, None]


def _flatten(values: tf.Tensor, leading: int) -> tf.Tensor:
    return tf.reshape(values, [-1, *values.shape[leading:]])
