"""Random connections of `tiled` attention: the random key tiles that each query tile sees.

Arrays are [b, T, heads, size, rows] for T tiles of `rows` tokens. Tile 0 contains the global
blocks, as in `tiled`.
"""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf


def make_random_tiles(plan: np.ndarray, tiles: int) -> "RandomTiles":
    """Return the random key tiles of each query tile in one layer.

    Args:
        plan: the layer's shifts (rolled) or random key blocks (independent), from
            `pattern.random_plan`.
        tiles: number of tiles of a sequence.
    """
    return RolledTiles(plan, tiles) if plan.ndim == 2 else IndependentTiles(plan, tiles)


@dataclass(frozen=True)
class RolledTiles:
    """Random attention pattern of whole tiles, in which shifts determine the key tiles.

    For each shift s of a head, queries of tile j see the keys of tile 1 + (j - 1 + s) mod (T - 1),
    where T is the number of tiles. Tile 0 sees no random tiles.
    """

    shifts: np.ndarray  # int32 [heads, m]
    tiles: int

    def keys(self, keys: tf.Tensor) -> tf.Tensor:
        """Return the keys of the m random tiles that each tile sees: [b, T, heads, m, ...].

        Tile 0 sees no random tiles, so its m tiles in the result are arbitrary.
        """
        return tf.gather(
            _flatten(keys, 3), _flatten_places(int(keys.shape[0]), self.tiles, self._find_others(1))
        )

    def keys_back(self, parts: tf.Tensor) -> list[tf.Tensor]:
        """Return tensors whose sum is the result of the adjoint of `keys`.

        Each tensor has the shape [b, T, heads, size, rows].
        """
        # The adjoint of a gather is usually a scatter. But each shift permutes the tiles, and the
        # adjoint of a permutation is a gather, too. The parts of tile 0 are zero, so tile 0 may see
        # itself.
        batch, shifts = int(parts.shape[0]), self.shifts.shape[1]
        seen_by = _flatten_places(batch, self.tiles, self._find_others(-1))
        places = seen_by * shifts + np.arange(shifts, dtype=np.int32)
        flat = _flatten(parts, 4)
        back = [tf.gather(flat, places[..., shift]) for shift in range(shifts)]
        return back or [tf.reduce_sum(parts, axis=3)]

    def numbers(self, rows: tf.Tensor) -> tf.Tensor:
        """Gather a number per token, [b, T, rows], from the m random tiles that each tile sees.

        The result is [b, T, heads, m, rows].
        """
        return tf.gather(rows, self._find_others(1), axis=1)

    def unseen(self, rows: int) -> None:
        """Return a mask of the hidden keys in random tiles, or None if all of them are visible.

        The mask is bool, and broadcasts to [b, T, heads, query rows, m, key rows].
        """
        return None

    def _find_others(self, sign: int) -> np.ndarray:
        """Return the tiles that each tile sees: int32 [T, heads, m].

        If `sign` is -1, return the tiles that see each tile.
        """
        middle = np.arange(self.tiles - 1)[:, None, None]
        others = 1 + (middle + sign * self.shifts) % (self.tiles - 1)
        return np.concatenate([np.zeros_like(others[:1]), others]).astype(np.int32)


class IndependentTiles:
    """Connections of each block to its own random blocks.

    A tile of two query blocks gets m joined key tiles. The first half of a joined tile is a random
    block of the first query block, and the second half is a random block of the second query block.
    For each half a whole tile is gathered, and a selection joins the two halves. This costs less
    than moving half tiles. If a random block is in the wrong half of its tile, the tile is gathered
    from a copy of the keys in which the two halves of each tile are exchanged.
    """

    def __init__(self, blocks: np.ndarray, tiles: int) -> None:
        """Compute the indices of the tiles.

        Args:
            blocks: int32 [heads, n - 2, m], random key blocks of query blocks 1 to n - 2.
            tiles: number of tiles, T = n / 2.
        """
        heads, _, self._slots = blocks.shape
        self._tiles = tiles
        wanted = blocks.reshape(heads, tiles - 1, 2, self._slots).transpose(1, 0, 2, 3)
        # Tile t contains blocks 2t - 1 and 2t, so block c is half (c + 1) % 2 of tile (c + 1) // 2.
        # Tile `tiles` + t is tile t with exchanged halves.
        exchanged = (wanted + 1) % 2 != np.arange(2)[:, None]
        source = (wanted + 1) // 2 + tiles * exchanged
        source = np.concatenate([np.zeros_like(source[:1]), source]).astype(np.int32)
        self._source = [source[:, :, half] for half in (0, 1)]  # Each is [T, heads, m].

    def keys(self, keys: tf.Tensor) -> tf.Tensor:
        """Implement `RolledTiles.keys` for independent blocks."""
        both = tf.concat([keys, _exchange(keys)], axis=1)
        batch = int(keys.shape[0])
        places = (_flatten_places(batch, 2 * self._tiles, source) for source in self._source)
        first, second = (tf.gather(_flatten(both, 3), place) for place in places)
        return tf.where(mark_low(keys), first, second)

    def keys_back(self, parts: tf.Tensor) -> list[tf.Tensor]:
        """Implement `RolledTiles.keys_back` for independent blocks."""
        batch, _, heads, _, size, rows = (int(n) for n in parts.shape)
        zero = tf.zeros([], parts.dtype)
        halves = (tf.where(mark_low(parts), parts, zero), tf.where(mark_low(parts), zero, parts))
        places = [
            _flatten_places(batch, 2 * self._tiles, source).reshape(-1) for source in self._source
        ]
        summed = tf.math.unsorted_segment_sum(
            tf.cast(tf.concat([_flatten(half, 4) for half in halves], axis=0), tf.float32),
            tf.constant(np.concatenate(places)),
            batch * 2 * self._tiles * heads,
        )
        summed = tf.reshape(summed, [batch, 2 * self._tiles, heads, size, rows])
        summed = tf.cast(summed, parts.dtype)
        return [summed[:, : self._tiles], _exchange(summed[:, self._tiles :])]

    def numbers(self, rows: tf.Tensor) -> tf.Tensor:
        """Implement `RolledTiles.numbers` for independent blocks."""
        both = tf.concat([rows, _exchange(rows)], axis=1)
        first, second = (tf.gather(both, source, axis=1) for source in self._source)
        return tf.where(mark_low(rows), first, second)

    def unseen(self, rows: int) -> np.ndarray:
        """Implement `RolledTiles.unseen` for independent blocks."""
        first = np.arange(rows) < rows // 2
        return first[:, None, None] != first


RandomTiles = RolledTiles | IndependentTiles


def _flatten_places(batch: int, tiles: int, tile: np.ndarray) -> np.ndarray:
    """Convert tile numbers [T, heads, m] to indices into an axis of b * tiles * heads elements.

    The result is int32 [b, T, heads, m].
    """
    heads = tile.shape[1]
    sequence = np.arange(batch, dtype=np.int32)[:, None, None, None] * tiles
    return (sequence + tile) * heads + np.arange(heads, dtype=np.int32)[:, None]


def _exchange(values: tf.Tensor) -> tf.Tensor:
    """Exchange the two halves of the last axis."""
    return tf.roll(values, int(values.shape[-1]) // 2, axis=-1)


def mark_low(values: tf.Tensor) -> np.ndarray:
    """Return a mask of a tile's first block, bool [rows], for `values` of shape [..., rows]."""
    rows = int(values.shape[-1])
    return np.arange(rows) < rows // 2


def is_first(values: tf.Tensor) -> np.ndarray:
    """Return a mask that is True for tile 0: bool [T, 1, 1, 1], to broadcast to [b, T, ...]."""
    return (np.arange(int(values.shape[1])) == 0)[:, None, None, None]


def _flatten(values: tf.Tensor, leading: int) -> tf.Tensor:
    return tf.reshape(values, [-1, *values.shape[leading:]])
