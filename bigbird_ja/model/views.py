"""Views of the keys: what each piece of block-sparse attention lays beside the query tiles.

A view rearranges or copies rows of [b, heads, S, d] into [b, heads, tiles, keys, d]; its adjoint
adds gradients of such an arrangement back to where the rows came from. All indices are static.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

Arrange = Callable[[tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class View:
    """One piece's keys: how they are laid out, and back."""

    rows: int  # query rows per tile
    arrange: Arrange  # [b, heads, S, d] -> [b, heads, S / rows or 1, keys, d]
    restore: Arrange  # its adjoint
    positions: np.ndarray  # int [heads or 1, S / rows or 1, keys]: where each key comes from
    seen: np.ndarray  # bool [1, 1, rows, keys]: which query rows of a tile see which keys


def shifted(length: int, block: int, offset: int) -> View:
    """Tiles of two blocks beside the two key blocks that start `offset` blocks (1 or -1) further.

    For -1 the keys are the block before the tile and its first block; for 1 its second block and
    the one after it: together the window of both query blocks. What wraps around is the first or
    the last block, which the global piece counts.
    """
    tile = 2 * block
    tiles = length // tile
    positions = (np.arange(length) + offset * block) % length
    own, other = (1, 0) if offset < 0 else (0, 1)  # the half that both query blocks see
    seen = np.zeros((2, block, 2, block), bool)
    seen[:, :, own] = True
    seen[0 if offset < 0 else 1, :, other] = True

    def arrange(x: tf.Tensor) -> tf.Tensor:
        return _tiles(tf.roll(x, -offset * block, axis=2), tile)

    def restore(x: tf.Tensor) -> tf.Tensor:
        return tf.roll(_flat(x), offset * block, axis=2)

    return View(
        tile, arrange, restore, positions.reshape(1, tiles, tile), seen.reshape(1, 1, tile, tile)
    )


def gathered(length: int, block: int, blocks: np.ndarray) -> View:
    """Query block r of head h beside its own random key blocks; rows 0 and n-1 get any.

    Args:
        length: tokens.
        block: tokens per block.
        blocks: int [heads, n - 2, random], for rows 1..n-2.
    """
    heads, _, random = blocks.shape
    num_blocks = length // block
    # The first and last rows see everything and are computed apart: what stands here is not used.
    index = np.concatenate([blocks[:, :1], blocks, blocks[:, -1:]], axis=1)
    positions = (index[..., None] * block + np.arange(block)).reshape(heads, num_blocks, -1)
    chosen = index.reshape(heads, -1)
    flat_index = tf.constant(chosen + np.arange(heads)[:, None] * num_blocks, tf.int32)
    selection = (chosen[:, None, :] == np.arange(num_blocks)[None, :, None]).astype(np.float32)

    def arrange(x: tf.Tensor) -> tf.Tensor:
        batch, _, _, size = x.shape
        rows = tf.reshape(x, [batch, heads * num_blocks, block, size])
        rows = tf.gather(rows, tf.reshape(flat_index, [-1]), axis=1)
        return tf.reshape(rows, [batch, heads, num_blocks, random * block, size])

    def restore(x: tf.Tensor) -> tf.Tensor:
        batch, _, _, _, size = x.shape
        rows = tf.reshape(x, [batch, heads, num_blocks * random, block * size])
        # A matmul with a 0/1 matrix: a scatter would run row after row on a TPU.
        summed = tf.einsum("hnm,bhmx->bhnx", tf.constant(selection, x.dtype), rows)
        return tf.reshape(summed, [batch, heads, length, size])

    seen = np.ones((1, 1, block, random * block), bool)
    return View(block, arrange, restore, positions, seen)


def ends(length: int, block: int) -> View:
    """All queries beside the first and the last key block."""
    positions = np.concatenate([np.arange(block), np.arange(length - block, length)])

    def arrange(x: tf.Tensor) -> tf.Tensor:
        return tf.concat([x[:, :, :block], x[:, :, -block:]], axis=2)[:, :, None]

    def restore(x: tf.Tensor) -> tf.Tensor:
        gap = tf.zeros([x.shape[0], x.shape[1], length - 2 * block, x.shape[4]], x.dtype)
        return tf.concat([x[:, :, 0, :block], gap, x[:, :, 0, block:]], axis=2)

    seen = np.ones((1, 1, length, 2 * block), bool)
    return View(length, arrange, restore, positions.reshape(1, 1, -1), seen)


def _tiles(x: tf.Tensor, rows: int) -> tf.Tensor:
    batch, heads, length, size = x.shape
    return tf.reshape(x, [batch, heads, length // rows, rows, size])


def _flat(x: tf.Tensor) -> tf.Tensor:
    batch, heads, tiles, rows, size = x.shape
    return tf.reshape(x, [batch, heads, tiles * rows, size])
