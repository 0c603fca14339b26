"""Matmuls, masks and access to tiles, for both kernels.

A kernel processes one sequence of one group of heads at a time. All tiles of the sequence are in
the chip's vector memory, so that a random tile is read by its index, without a copy.

Scores are transposed, [keys, queries]. So the softmax reduces over sublanes. This reduction is
elementwise work, except for the last eight sublanes. The softmax statistics have one number per
lane, as the queries do. The product of values and probabilities needs no transpose.

The heads of a group are adjacent in the lanes of transposed keys, [rows, heads * size]. A product
selects one head if the queries, [heads * size, rows], are zero for all other heads. The zeros cost
nothing, as the matrix unit would pad the shorter contraction of a single head with zeros.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bigbird_ja.model.kernels.layer_shape import LayerShape

# Score of a hidden key, as in `model.tiled`. The kernels raise the maximum of a query's scores to
# at least UNSEEN / 2. So the weight of a hidden key is zero even if all keys are hidden.
UNSEEN = -1e9
# Chips compute powers of 2. So queries are scaled by log2(e), and the gradients of queries and keys
# by ln(2).
LN_2 = math.log(2.0)


def make_sequence_spec(shape: LayerShape) -> Any:
    """Return the BlockSpec of an array of shape `LayerShape.sequence`.

    A block contains all tiles of one sequence, for one group of heads.
    """
    block = (shape.tiles, shape.group * shape.size, shape.rows)
    return pl.BlockSpec(block, lambda i, g: (i, g, 0))


def make_statistics_spec(shape: LayerShape) -> Any:
    """Return the BlockSpec of an array of shape `LayerShape.statistics`.

    A block contains all tiles of one sequence, for one group of heads.
    """
    groups = shape.groups
    return pl.BlockSpec((shape.tiles, 1, shape.width), lambda i, g: (i * groups + g, 0, 0))


def make_mark_specs(shape: LayerShape) -> list[Any]:
    """Return the BlockSpecs of the kernel's arguments that state which keys a query sees.

    These are key marks, query marks, bounds and shifts. Only the key marks always exist. The specs
    of other arguments are left out if the layer does not need them.
    """
    marks = (shape.tiles + 1, *shape.key_marks[1:])
    keys = pl.BlockSpec(marks, lambda i, g: (i, 0, 0))
    queries = pl.BlockSpec((shape.tiles, 1, shape.rows), lambda i, g: (i, 0, 0))
    numbers = pl.BlockSpec(memory_space=pltpu.SMEM)
    optional = ((queries, shape.has_documents), (numbers, shape.runs), (numbers, shape.num_shifts))
    return [keys, *(spec for spec, is_there in optional if is_there)]


class Bounds:
    """For each query tile, the range of key tiles that contain the query tile's documents."""

    def __init__(self, shape: LayerShape, bounds: Any) -> None:
        """Store bounds of the shape `LayerShape.bounds`."""
        self._bounds, self._first = bounds, pl.program_id(0) * shape.tiles

    def get(self, query: Any) -> tuple[Any, Any]:
        """Return the first key tile of a query tile, and the number of its key tiles."""
        place = 2 * (self._first + query)
        return self._bounds[place], self._bounds[place + 1]


# Shifts of the random tiles, indexed by the number of the shift, then by the head of the group.
Shifts = list[list[Any]]


def split_refs(shape: LayerShape, refs: Sequence[Any]) -> tuple[Any, Bounds | None, Shifts]:
    """Return the query marks, the bounds, and the shifts of the heads in this step of the grid.

    If the layer needs no query marks, bounds or shifts, the result contains None, None or [].

    Args:
        shape: shape of the layer.
        refs: arguments of the kernel after its key marks.
    """
    left = iter(refs)
    query_marks = next(left) if shape.has_documents else None
    bounds = Bounds(shape, next(left)) if shape.runs else None
    return query_marks, bounds, _load_shifts(shape, next(left)) if shape.num_shifts else []


def _load_shifts(shape: LayerShape, shifts: Any) -> Shifts:
    first, many = pl.program_id(1) * shape.group, shape.num_shifts or 0
    places, heads = range(many), range(shape.group)
    return [[shifts[(first + head) * many + place] for head in heads] for place in places]


def call(kernel: Callable[..., None], shape: LayerShape, interpret: Any, **specs: Any) -> Any:
    """Return a `pl.pallas_call` over all sequences and groups of heads."""
    parameters = getattr(pltpu, "CompilerParams", None) or pltpu.TPUCompilerParams
    megabyte = 1 << 20
    return pl.pallas_call(
        functools.partial(kernel, shape),
        grid=(shape.batch, shape.groups),
        compiler_params=parameters(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=max(16 * megabyte, shape.vmem_bytes() * 5 // 4 + 8 * megabyte),
        ),
        interpret=interpret,
        **specs,
    )


def matmul(left: jax.Array, right: jax.Array) -> jax.Array:
    """Multiply [m, k] by [k, n], with a float32 result."""
    return lax.dot_general(
        left, right, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )


def matmul_transposed(left: jax.Array, right: jax.Array) -> jax.Array:
    """Multiply [m, k] by the transpose of [n, k], with a float32 result."""
    return lax.dot_general(
        left, right, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )


def transpose(tile: jax.Array) -> jax.Array:
    """Transpose a tile in float32, since a TPU would transpose bfloat16 in pairs of rows."""
    return tile.astype(jnp.float32).T.astype(tile.dtype)


def loop_over_tiles(
    shape: LayerShape, step: Callable[[list[Any], Any], Any], state: Any, first: int = 0
) -> Any:
    """Loop over the tiles from `first` to the last one, and return the final state.

    Each iteration calls `step(tiles, state)`, which returns the next state. A step processes
    `Order.at_once` tiles. The first and last stages of a step do not overlap with other steps, so
    fewer, longer steps are faster.
    """
    many = min(shape.order.at_once, shape.tiles)
    trips, left = divmod(shape.tiles - first, many)

    def several(i: Any, state: Any) -> Any:
        return step([first + i * many + place for place in range(many)], state)

    state = lax.fori_loop(0, trips, several, state)
    return step(list(range(shape.tiles - left, shape.tiles)), state) if left else state


def loop_over_keys(
    shape: LayerShape,
    step: Callable[[list[Any], Any], Any],
    state: Any,
    bounds: Bounds | None,
    query: Any,
) -> Any:
    """Loop over the key tiles of a query tile, and return the final state.

    Each iteration calls `step(tiles, state)`, which returns the next state. The loop processes only
    the key tiles within the query tile's `bounds`, since other tiles would only add zeros. Without
    bounds the loop processes all tiles.
    """
    if bounds is None:
        return loop_over_tiles(shape, step, state)
    for many, start, trips in shape.loops(*bounds.get(query)):

        def several(i: Any, state: Any, start: Any = start, many: int = many) -> Any:
            return step([start + i * many + place for place in range(many)], state)

        state = lax.fori_loop(0, trips, several, state)
    return state


def emit_pipelined(tasks: Iterable[Iterator[None]], lag: int = 1) -> None:
    """Emit the code of tasks as a software pipeline, with `lag` stages between their starts.

    Matrix units compute products in the order of the code. The later products of a task wait for
    results of the vector units. Meanwhile the matrix units compute products of other tasks.

    Args:
        tasks: generators that yield between their stages.
        lag: number of stages between the starts of two consecutive tasks.
    """
    under_way: list[Iterator[None]] = []
    for task in tasks:
        under_way = [task, *under_way]
        for _ in range(lag):
            under_way = [one for one in under_way if _advance(one)]
    while under_way:
        under_way = [one for one in under_way if _advance(one)]


def _advance(task: Iterator[None]) -> bool:
    """Emit the next stage of a task, and return False if it was the last stage."""
    try:
        next(task)
    except StopIteration:
        return False
    return True


def mask_to_head(shape: LayerShape, tile: jax.Array, head: int) -> jax.Array:
    """Return a tile [group * size, rows] with zeros for all heads except `head`."""
    zero = jnp.zeros((shape.size, shape.rows), tile.dtype)
    own = tile[slice_rows(shape, head)]
    return jnp.concatenate([own if h == head else zero for h in range(shape.group)], axis=0)


def slice_lanes(shape: LayerShape, head: int) -> slice:
    """Return the slice of one head's lanes in [..., group * rows], where heads are adjacent."""
    return slice(head * shape.rows, (head + 1) * shape.rows)


def slice_rows(shape: LayerShape, head: int) -> slice:
    """Return the slice of one head's rows in [group * size, ...], where heads are adjacent."""
    return slice(head * shape.size, (head + 1) * shape.size)


def join_lanes(low: jax.Array, high: jax.Array) -> jax.Array:
    """Join the first half of the lanes of tile `low` and the second half of those of tile `high`.

    The selection uses 32-bit numbers, as not every chip can select or move 16 bits.
    """
    if low.dtype == jnp.bfloat16 and low.shape[0] % 16 == 0:
        words = [pltpu.bitcast(tile, jnp.int32) for tile in (low, high)]
        return pltpu.bitcast(join_lanes(*words), low.dtype)
    return jnp.where(lax.broadcasted_iota(jnp.int32, low.shape, 1) < low.shape[1] // 2, low, high)


def join_rows(shape: LayerShape, array: Any, low: Any, high: Any) -> jax.Array:
    """Join the first half of the rows of tile `low` and the second half of those of tile `high`."""
    half = shape.rows // 2
    return jnp.concatenate([array[low, :half], array[high, half:]], axis=0)


class Masks:
    """Masks of scores, by marks of keys and queries.

    If documents limit keys, the mark of a key or query is the number of its document (int32). Keys
    in padding have the mark -1. A query sees the keys with the same mark as its own. If documents
    do not limit keys, only keys have marks (float32): 0 for a token, `UNSEEN` for padding.
    """

    def __init__(self, shape: LayerShape, key_marks: Any, query_marks: Any) -> None:
        """Store references to the marks."""
        self._shape, self._keys, self._queries = shape, key_marks, query_marks
        square = (shape.rows, shape.rows)
        row, column = (lax.broadcasted_iota(jnp.int32, square, axis) for axis in (0, 1))
        half, reach = shape.rows // 2, shape.reach
        self._near = None if reach is None else jnp.abs(row - column) <= reach
        self._too_far = (row < half) == (column < half)
        if reach is not None:
            self._too_far = jnp.abs(row - column) < shape.rows - reach

    def mask_tile(self, scores: jax.Array, query: Any, key: Any) -> jax.Array:
        """Mask the scores of a whole key tile.

        If the reach is limited, the key tile must be the queries' own tile.
        """
        limited = self._apply_limit(scores, query, self._keys[key])
        return limited if self._near is None else jnp.where(self._near, limited, UNSEEN)

    def mask_outer(self, scores: jax.Array, query: Any, after: Any, before: Any) -> jax.Array:
        """Mask the scores of the adjacent half tiles, which `join_rows` joined.

        The first half of the queries sees only the half of tile `before`, and the second half sees
        only the half of tile `after`. If the reach is limited, queries see only keys within reach.
        """
        marks = join_rows(self._shape, self._keys, after, before)
        return jnp.where(self._too_far, UNSEEN, self._apply_limit(scores, query, marks))

    def _apply_limit(self, scores: jax.Array, query: Any, marks: jax.Array) -> jax.Array:
        marks = jnp.concatenate([marks] * (self._shape.rows // marks.shape[1]), axis=1)
        if self._queries is None:
            return jnp.where(marks < 0.0, UNSEEN, scores)  # A selection is cheaper than a sum.
        return jnp.where(marks == self._queries[query], scores, UNSEEN)


class Neighbors:
    """Key tiles that the queries of tile j see, except tile j itself and the global tile.

    Args:
        shape: shape of the layer.
        shifts: shifts of `split_refs`.
        j: number of the tile.
    """

    def __init__(self, shape: LayerShape, shifts: Shifts, j: Any) -> None:
        """Compute the numbers of the key tiles."""
        # Tile T contains zeros. It replaces tiles beyond the ends, and tile 0 if tile 0 is global.
        first = 0 if shape.num_shifts is None else 1
        self.after, self.before = j + 1, jnp.where(j == first, shape.tiles, j - 1)
        # In arrays without a tile T, another tile is read in place of a missing neighbor. Its
        # values do not matter, since the attention weights of a missing neighbor's keys are zero.
        self.after_there = jnp.where(j == shape.tiles - 1, 0, j + 1)
        self.before_there = jnp.maximum(j - 1, 0)
        self.random = [[_wrap(j + shift, shape.tiles) for shift in heads] for heads in shifts]


def _wrap(tile: Any, tiles: int) -> Any:
    """Wrap a number beyond the last tile around to tiles 1, 2, ..., without a costly division."""
    return jnp.where(tile >= tiles, tile - (tiles - 1), tile)
