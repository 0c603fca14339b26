"""Kernel for the context and the softmax statistics of each query."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from bigbird_ja.model.kernels import tiles as t
from bigbird_ja.model.kernels.layer_shape import LayerShape


def forward(shape: LayerShape, interpret: Any = False) -> Any:
    """Return the kernel that computes context and statistics, in the shapes of `LayerShape`.

    The statistic of a query is the logarithm of its sum of exponentials. The kernel's arguments are
    the scaled query, the key, the value, and the arguments that `make_mark_specs` describes.
    """
    sequence = t.make_sequence_spec(shape)
    return t.call(
        _kernel,
        shape,
        interpret,
        in_specs=[sequence] * 3 + t.make_mark_specs(shape),
        out_specs=[sequence, t.make_statistics_spec(shape)],
        out_shape=[
            jax.ShapeDtypeStruct(shape.sequence, shape.dtype),
            jax.ShapeDtypeStruct(shape.statistics, "float32"),
        ],
        scratch_shapes=[
            pltpu.VMEM((shape.tiles + 1, shape.rows, shape.group * shape.size), shape.dtype)
        ],
    )


_State = tuple[jax.Array, jax.Array, jax.Array]


@dataclass
class _SeesAll:
    """Online softmax of one head's queries over the key tiles that are processed so far.

    Attributes:
        queries: queries of a tile, with zeros for all other heads.
        maximum: [1, rows], maximum of the scores.
        total: [1, rows], sum of the exponentials.
        summed: [size, rows], sum of the values, weighted by the exponentials.
        shrunk: queue of factors by which `add` rescales `summed`, one for each call of
            `compute_weights`.
    """

    queries: jax.Array
    maximum: jax.Array
    total: jax.Array
    summed: jax.Array
    shrunk: list[jax.Array] = field(default_factory=list)

    @property
    def state(self) -> _State:
        """Maximum, total and weighted sum, as the state of a loop."""
        return self.maximum, self.total, self.summed

    def compute_weights(self, scores: list[jax.Array], dtype: Any) -> list[jax.Array]:
        """Return the exponentials of each tile's scores, and update `maximum` and `total`."""
        highest = jnp.max(functools.reduce(jnp.maximum, scores), axis=0, keepdims=True)
        higher = jnp.maximum(self.maximum, highest)
        total, weights = jnp.zeros_like(scores[0]), []
        for part in scores:
            exact = jnp.exp2(part - higher)
            total += exact
            weights.append(exact.astype(dtype))
        shrunk = jnp.exp2(self.maximum - higher)
        self.maximum = higher
        self.total = self.total * shrunk + jnp.sum(total, axis=0, keepdims=True)
        self.shrunk.append(shrunk)
        return weights

    def add(self, values: list[jax.Array], weights: list[jax.Array]) -> None:
        """Add the weighted values of some tiles to `summed`."""
        added = functools.reduce(jnp.add, map(t.matmul, values, weights))
        self.summed = self.summed * self.shrunk.pop(0) + added


@dataclass(frozen=True)
class _Tiles:
    """Arrays that the kernel reads and writes in one step of its grid."""

    shape: LayerShape
    seen: t.Masks
    query: Any
    key: Any
    value: Any
    context: Any
    statistics: Any
    keys: Any  # Transposed, with an additional tile of zeros.

    def write(self, j: Any, head: int, maximum: Any, total: Any, summed: Any) -> None:
        """Write context and statistics of a tile of one head's queries."""
        shape, total = self.shape, jnp.maximum(total, 1e-30)
        context = (summed * (1.0 / total)).astype(shape.dtype)
        self.context[j, t.slice_rows(shape, head)] = context
        self.statistics[j, :, t.slice_lanes(shape, head)] = maximum + jnp.log2(total)


def _kernel(
    shape: LayerShape, query: Any, key: Any, value: Any, key_marks: Any, *rest: Any
) -> None:
    query_marks, bounds, shifts = t.split_refs(shape, rest)
    context, statistics, keys = rest[-3:]
    tiles = _Tiles(
        shape, t.Masks(shape, key_marks, query_marks), query, key, value, context, statistics, keys
    )

    @functools.partial(lax.fori_loop, 0, shape.tiles, init_val=None)
    def _transpose(j: Any, _: None) -> None:
        keys[j] = t.transpose(key[j])

    keys[shape.tiles] = jnp.zeros(keys.shape[1:], keys.dtype)
    if shape.is_full:
        lax.fori_loop(0, shape.tiles, functools.partial(_process_all_keys, tiles, bounds), None)
    else:
        _process_seen_keys(tiles, shifts)


def _process_all_keys(tiles: _Tiles, bounds: Any, j: Any, _: None) -> None:
    """Compute the context of the queries of tile j from all key tiles.

    With `bounds`, key tiles without documents of tile j are skipped.
    """
    heads = range(tiles.shape.group)
    queries = [t.mask_to_head(tiles.shape, tiles.query[j], head) for head in heads]

    def step(these: list[Any], states: list[_State]) -> list[_State]:
        all_ = [_SeesAll(queries[head], *states[head]) for head in heads]
        # Two tiles share one maximum, so that sums are rescaled once for both.
        pairs = [these[place : place + 2] for place in range(0, len(these), 2)]
        tasks = [
            _process_key_tiles(tiles, all_[head], j, pair, head) for pair in pairs for head in heads
        ]
        t.emit_pipelined(tasks, tiles.shape.order.lag)
        return [one.state for one in all_]

    states = t.loop_over_keys(tiles.shape, step, _make_initial_states(tiles.shape), bounds, j)
    for head, state in enumerate(states):
        tiles.write(j, head, *state)


def _process_seen_keys(tiles: _Tiles, shifts: t.Shifts) -> None:
    """Compute the context of each query tile from the key tiles that it sees.

    If tile 0 is global, its queries see all key tiles.
    """
    shape, is_rolled = tiles.shape, tiles.shape.num_shifts is not None
    heads = range(shape.group)
    queries = [t.mask_to_head(shape, tiles.query[0], head) for head in heads]

    def step(these: list[Any], states: list[_State]) -> list[_State]:
        firsts = [_SeesAll(queries[head], *state) for head, state in enumerate(states)]
        nears = [t.Neighbors(shape, shifts, j) for j in these]
        tasks = [
            _process_head(tiles, near, j, head, firsts[head] if is_rolled else None)
            for j, near in zip(these, nears, strict=True)
            for head in heads
        ]
        t.emit_pipelined(tasks, shape.order.lag)
        return [first.state for first in firsts]

    states = []
    for head, state in enumerate(_make_initial_states(shape) if is_rolled else []):
        first = _SeesAll(queries[head], *state)
        for _ in _process_key_tiles(tiles, first, 0, [0], head):
            pass
        states.append(first.state)
    for head, state in enumerate(t.loop_over_tiles(shape, step, states, first=int(is_rolled))):
        tiles.write(0, head, *state)


def _make_initial_states(shape: LayerShape) -> list[_State]:
    """Return the initial state of the online softmax for each head of a group."""
    nothing = (
        jnp.full((1, shape.rows), t.UNSEEN / 2, jnp.float32),
        jnp.zeros((1, shape.rows), jnp.float32),
        jnp.zeros((shape.size, shape.rows), jnp.float32),
    )
    return [nothing] * shape.group


def _process_key_tiles(
    tiles: _Tiles, queries: _SeesAll, j: Any, these: list[Any], head: int
) -> Iterator[None]:
    """Add some key tiles to the online softmax of a tile of one head's queries.

    The generator yields between the stages of the software pipeline.
    """
    scores = [t.matmul(tiles.keys[tile], queries.queries) for tile in these]
    scores = [tiles.seen.mask_tile(part, j, tile) for part, tile in zip(scores, these, strict=True)]
    yield
    weights = queries.compute_weights(scores, tiles.shape.dtype)
    yield
    own = t.slice_rows(tiles.shape, head)
    queries.add([tiles.value[tile, own] for tile in these], weights)


def _process_head(
    tiles: _Tiles, near: t.Neighbors, j: Any, head: int, first: _SeesAll | None
) -> Iterator[None]:
    """Compute the context of one head's queries of tile j from all keys that they see.

    These keys are in tile j itself and in the adjacent blocks. If tile 0 is global, the keys of
    tile 0 and of the random tiles are included. In addition, the keys of tile j are added to the
    online softmax of the head's queries of tile 0 (`first`). The generator yields between the
    stages of the software pipeline.
    """
    shape, seen, keys, value = tiles.shape, tiles.seen, tiles.keys, tiles.value
    own = t.slice_rows(shape, head)
    queries = t.mask_to_head(shape, tiles.query[j], head)
    whole = (j,) if first is None else (j, 0, *(chosen[head] for chosen in near.random))
    scores = []
    for tile in whole:
        scores.append(seen.mask_tile(t.matmul(keys[tile], queries), j, tile))
        yield
    outer = t.join_rows(shape, keys, near.after, near.before)
    scores.append(seen.mask_outer(t.matmul(outer, queries), j, near.after, near.before))
    yield
    if first is not None:
        of_first = seen.mask_tile(t.matmul(keys[j], first.queries), 0, j)
        yield
    maximum = jnp.max(functools.reduce(jnp.maximum, scores), axis=0, keepdims=True)
    maximum = jnp.maximum(maximum, t.UNSEEN / 2)
    total, weights = jnp.zeros_like(scores[0]), []
    for part in scores:
        exact = jnp.exp2(part - maximum)
        total += exact
        weights.append(exact.astype(shape.dtype))
        yield
    total = jnp.sum(total, axis=0, keepdims=True)
    if first is not None:
        weights_of_first = first.compute_weights([of_first], shape.dtype)
        yield
    summed = jnp.zeros((shape.size, shape.rows), jnp.float32)
    for tile, of_tile in zip(whole, weights, strict=False):
        summed += t.matmul(value[tile, own], of_tile)
        yield
    values = t.join_lanes(value[near.after_there, own], value[near.before_there, own])
    summed += t.matmul(values, weights[-1])
    yield
    if first is not None:
        first.add([value[j, own]], weights_of_first)
        yield
    tiles.write(j, head, maximum, total, summed)
