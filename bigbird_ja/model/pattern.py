"""Key blocks that each query block sees (window, global and the static random plan).

A sequence has n blocks of `block_size` tokens. Query blocks 0 and n-1 see all blocks. Every other
query block r sees the global blocks 0 and n-1, the window r-1, r, r+1, and random blocks. The
setting `random_pattern` selects the random blocks:

- `independent`: `num_random_blocks` blocks are drawn for each query block, head and layer. Window
  and global blocks are not drawn.
- `rolled`: blocks 1 to n-2 form m tiles of two blocks, where tile i consists of blocks 2i+1 and
  2i+2. Each head of each layer has its own static shifts, which are all different. By a shift s,
  the two blocks of tile i see tile (i + s) mod m. Shifts are from 2 to m-2, so that no shift leads
  to a block of the window.

Sequences of at most (5 + 2 * num_random_blocks) blocks get full attention, as in Hugging Face's
BigBird, so that an exported model computes the same values. Slightly longer sequences get full
attention, too, if they allow too few different shifts. The length of all other sequences must be a
multiple of two blocks.
"""

# An exported folder contains this file without the imports from bigbird_ja, which are only types.
from __future__ import annotations

import functools
from typing import TypeGuard, cast

import numpy as np

from bigbird_ja.settings.schema import BigBirdModel, Config, Model, ModernBertModel


def is_full(config: Config, seq_length: int) -> bool:
    """Return whether sequences of this length get full attention.

    Raises:
        ValueError: The length is too long for full attention and not a multiple of two blocks.
    """
    model = config.model
    if not is_sparse(model):
        return True
    if seq_length <= find_shortest_sparse(model) - 1:
        return True
    tile = 2 * model.block_size
    if seq_length % tile:
        below = seq_length // tile * tile
        raise ValueError(
            f"sequences of {seq_length} tokens are not a multiple of two attention blocks"
            f" (2 * model.block_size = {tile}): use {below} or {below + tile}, or"
            " model.attention_type=original_full"
        )
    return False


def is_sparse(model: Model) -> TypeGuard[BigBirdModel]:
    """Return whether long sequences get BigBird's sparse pattern."""
    # This checks an attribute and not the class, as exported code passes a config of another class.
    return getattr(model, "attention_type", "original_full") != "original_full"


def get_sparse_model(config: Config) -> BigBirdModel:
    """Return the settings of a model for which `is_sparse` is true."""
    return cast("BigBirdModel", config.model)


def is_full_throughout(model: Model) -> bool:
    """Return whether sequences of every length that the model accepts get full attention."""
    return not is_sparse(model) or (model.max_position_embeddings or 0) < find_shortest_sparse(
        model
    )


def is_global(model: ModernBertModel, layer: int) -> bool:
    """Return whether a layer of ModernBERT attends to all tokens, not only to neighbors."""
    return layer % model.global_attn_every_n_layers == 0


def find_shortest_sparse(model: BigBirdModel) -> int:
    """Return the shortest length in tokens for which attention is not full."""
    blocks = 5 + 2 * model.num_random_blocks
    if model.random_pattern == "rolled" and count_shifts(model):
        # A sequence of m tiles has 2 * m + 2 blocks, and allows m - 3 different shifts.
        blocks = max(blocks, 2 * (count_shifts(model) + 3) + 1)
    return blocks * model.block_size + 1


def count_shifts(model: BigBirdModel) -> int:
    """Return the number of random tiles per query tile: `num_random_blocks` / 2, rounded up."""
    return (model.num_random_blocks + 1) // 2


def padded_length(model: Model, length: int) -> int:
    """Return the shortest length, at least `length`, that suits the pattern."""
    if not is_sparse(model) or length < find_shortest_sparse(model):
        return length
    tile = 2 * model.block_size
    return -(-length // tile) * tile


def random_plan(config: Config, seq_length: int) -> np.ndarray | None:
    """Return the static random connections of all layers, or None if attention is full.

    The connections depend only on the config and the number of blocks. They are drawn by NumPy's
    legacy generator (`RandomState`), which has the same stream in every version.

    Args:
        config: config of the run.
        seq_length: length of a sequence, in tokens.

    Returns:
        For `independent`, random key blocks of query blocks 1 to n - 2, where n is the number of
        blocks: int32 [layers, heads, n - 2, num_random_blocks]. For `rolled`, shifts in tiles:
        int32 [layers, heads, shifts].
    """
    if is_full(config, seq_length):
        return None
    model = get_sparse_model(config)
    is_rolled = model.random_pattern == "rolled"
    count = count_shifts(model) if is_rolled else model.num_random_blocks
    shape = (model.num_layers, model.num_attention_heads, count)
    draw = _draw_rolled if is_rolled else _draw_independent
    return draw(model.pattern_seed, shape, seq_length // model.block_size)


# Cached, as every layer reads the plan, and reads it again for gradient checkpointing.
@functools.lru_cache(maxsize=8)
def _draw_independent(seed: int, shape: tuple[int, int, int], num_blocks: int) -> np.ndarray:
    num_layers, heads, count = shape
    plan = np.zeros((num_layers, heads, num_blocks - 2, count), np.int32)
    for layer, head in np.ndindex(num_layers, heads):
        random = np.random.RandomState([seed, layer, head])
        for row in range(1, num_blocks - 1):
            allowed = [b for b in range(1, num_blocks - 1) if abs(b - row) > 1]
            plan[layer, head, row - 1] = random.permutation(allowed)[:count]
    return plan


@functools.lru_cache(maxsize=8)
def _draw_rolled(seed: int, shape: tuple[int, int, int], num_blocks: int) -> np.ndarray:
    """Draw shifts from a shuffled pool, so that the model uses each shift equally often."""
    num_tiles = num_blocks // 2 - 1
    random = np.random.RandomState([seed, num_tiles])
    plan = np.zeros(shape, np.int32)
    pool: list[int] = []
    for layer, head, place in np.ndindex(plan.shape):
        used = plan[layer, head, :place]
        if not set(pool) - set(used):
            pool = [*pool, *random.permutation(np.arange(2, num_tiles - 1)).tolist()]
        shift = next(shift for shift in pool if shift not in used)
        pool.remove(shift)
        plan[layer, head, place] = shift
    return plan


def block_mask(config: Config, layer: int, seq_length: int) -> np.ndarray:
    """Return the key blocks that each query block sees: bool [heads, query blocks, key blocks]."""
    model = get_sparse_model(config)
    plans = random_plan(config, seq_length)
    num_blocks = -(-seq_length // model.block_size)
    heads = model.num_attention_heads
    if plans is None:
        return np.ones((heads, num_blocks, num_blocks), bool)
    row, column = np.arange(num_blocks)[:, None], np.arange(num_blocks)[None, :]
    shared = abs(row - column) <= 1
    shared |= np.isin(row, (0, num_blocks - 1)) | np.isin(column, (0, num_blocks - 1))
    mask = np.repeat(shared[None], heads, axis=0)
    for head, plan in enumerate(plans[layer]):
        if model.random_pattern == "rolled":
            for shift in plan:
                mask[head, 1:-1, 1:-1] |= _sees_rolled(num_blocks - 2, int(shift))
        else:
            np.put_along_axis(mask[head, 1:-1], plan, True, axis=1)
    return mask


def _sees_rolled(num_inner: int, shift: int) -> np.ndarray:
    """Return a mask of the key blocks that query blocks see by one shift: bool [query, key].

    The mask covers the inner blocks, which are all blocks except the first and the last one.
    """
    tile = np.arange(num_inner) // 2
    return (tile[:, None] + shift) % (num_inner // 2) == tile[None, :]


def make_dense_mask(config: Config, layer: int, seq_length: int) -> np.ndarray:
    """Return a mask of the keys that each query sees: bool [heads, queries, keys].

    Padding is not masked. Attention with this mask is the reference for faster implementations.
    """
    size = get_sparse_model(config).block_size
    mask = block_mask(config, layer, seq_length).repeat(size, axis=1).repeat(size, axis=2)
    return mask[:, :seq_length, :seq_length]
