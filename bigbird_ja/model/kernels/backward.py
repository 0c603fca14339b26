"""The backward kernel: gradients of query, key and value, with probabilities computed again."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from bigbird_ja.model.kernels import tiles as t
from bigbird_ja.model.kernels.tiles import Shape


def backward(shape: Shape, interpret: Any = False) -> Any:
    """A function of query, key, value, context, its gradient, statistics and marks, that returns
    the gradients of query (scaled), key and value."""
    sequence = t.sequence_spec(shape)
    kept = (shape.tiles + 1, shape.rows, shape.group * shape.size)
    return t.call(
        _kernel,
        shape,
        interpret,
        in_specs=[sequence] * 5 + [t.statistics_spec(shape)] + t.mark_specs(shape),
        out_specs=[sequence] * 3,
        out_shape=[jax.ShapeDtypeStruct(shape.sequence, shape.dtype)] * 3,
        scratch_shapes=[pltpu.VMEM(kept, shape.dtype)] * 2 + [pltpu.VMEM(kept, "float32")] * 2,
    )


class _Tiles:
    """The arrays of one step of the grid, and what is done to one pair of tiles."""

    def __init__(self, shape: Shape, seen: t.Seen, given: tuple[Any, ...], kept: Any) -> None:
        self.shape, self.seen = shape, seen
        self.query, self.key, self.value, self.context, self.upstream, self.statistics = given
        self.keys, self.values, self.d_keys, self.d_values = kept

    def queries(self, j: Any) -> _Queries:
        """What one tile of queries brings to every piece."""
        shape, upstream = self.shape, self.upstream[j]
        product = upstream.astype(jnp.float32) * self.context[j].astype(jnp.float32)
        heads = range(shape.group)
        inner = [jnp.sum(product[t.rows_of(shape, h)], axis=0, keepdims=True) for h in heads]
        return _Queries(
            t.spread(shape, self.query[j]),
            t.spread(shape, upstream),
            self.statistics[j],
            jnp.concatenate(inner, axis=1),
        )


class _Queries:
    def __init__(self, queries: Any, upstream: Any, statistics: Any, inner: Any) -> None:
        self.queries, self.upstream = queries, upstream  # block-diagonal
        self._statistics, self._inner = statistics, inner  # [1, lanes]

    def of(self, lanes: slice) -> _Queries:
        """One head's lanes of them."""
        return _Queries(
            self.queries[:, lanes], self.upstream[:, lanes],
            self._statistics[:, lanes], self._inner[:, lanes],
        )  # fmt: skip

    def weights(self, scores: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Probabilities and the gradients of scores, from masked scores and transposed values."""
        dtype = values.dtype
        exact = jnp.exp(scores - self._statistics)
        slopes = exact * (t.matmul(values, self.upstream) - self._inner)
        return exact.astype(dtype), slopes.astype(dtype)

    def to_keys(self, exact: jax.Array, slopes: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What a tile of keys and of values gets: float32, transposed as they are."""
        return (
            t.matmul_transposed(slopes, self.queries),
            t.matmul_transposed(exact, self.upstream),
        )


def _kernel(shape: Shape, *refs: Any) -> None:
    given, rest = refs[:6], refs[6:]
    key_marks, query_marks = rest[0], rest[1] if shape.has_documents else None
    d_query, d_key, d_value, *kept = rest[-7:]
    tiles = _Tiles(shape, t.Seen(shape, key_marks, query_marks), given, kept)

    @functools.partial(lax.fori_loop, 0, shape.tiles, init_val=None)
    def _transpose(j: Any, _: None) -> None:
        tiles.keys[j] = t.transposed(tiles.key[j])
        tiles.values[j] = t.transposed(tiles.value[j])

    shifts = t.shifts_here(shape)
    for array in kept:
        array[shape.tiles] = jnp.zeros(array.shape[1:], array.dtype)
    _first_tile(tiles, d_query)

    @functools.partial(lax.fori_loop, 1, shape.tiles, init_val=None)
    def _tile(j: Any, _: None) -> None:
        _one_tile(tiles, shifts, j, d_query)

    @functools.partial(lax.fori_loop, 0, shape.tiles, init_val=None)
    def _write(j: Any, _: None) -> None:
        d_key[j] = tiles.d_keys[j].T.astype(shape.dtype)
        d_value[j] = tiles.d_values[j].T.astype(shape.dtype)


def _first_tile(tiles: _Tiles, d_query: Any) -> None:
    """Tile 0, which sees everything; it writes first what the others add to."""
    shape, queries = tiles.shape, tiles.queries(0)

    def add(tile: Any, before: list[jax.Array]) -> list[jax.Array]:
        scores = tiles.seen.tile(t.matmul(tiles.keys[tile], queries.queries), 0, tile)
        exact, slopes = queries.weights(scores, tiles.values[tile])
        tiles.d_keys[tile], tiles.d_values[tile] = queries.to_keys(exact, slopes)
        found = [
            t.matmul(tiles.key[tile, t.rows_of(shape, h)], slopes[:, t.lanes_of(shape, h)])
            for h in range(shape.group)
        ]
        return [a + b for a, b in zip(before, found, strict=True)]

    nothing = jnp.zeros((shape.size, shape.rows), jnp.float32)
    summed = lax.fori_loop(0, shape.tiles, add, [nothing] * shape.group)
    d_query[0] = jnp.concatenate(summed, axis=0).astype(shape.dtype)


def _one_tile(tiles: _Tiles, shifts: Any, j: Any, d_query: Any) -> None:
    """Tile j >= 1: gradient of its queries, and its part in the keys and values that it saw."""
    shape, seen = tiles.shape, tiles.seen
    near, half = t.Neighbours(shape, shifts, j), shape.rows // 2
    queries = tiles.queries(j)
    d_queries: list[list[jax.Array]] = [[] for _ in range(shape.group)]

    def to_queries(key: jax.Array, slopes: jax.Array) -> None:
        for head, found in enumerate(d_queries):
            own = slopes[:, t.lanes_of(shape, head)]
            found.append(t.matmul(key[t.rows_of(shape, head)], own))

    for tile in (j, 0):
        scores = seen.tile(t.matmul(tiles.keys[tile], queries.queries), j, tile)
        exact, slopes = queries.weights(scores, tiles.values[tile])
        to_queries(tiles.key[tile], slopes)
        d_keys, d_values = queries.to_keys(exact, slopes)
        tiles.d_keys[tile] += d_keys
        tiles.d_values[tile] += d_values

    def outer(array: Any) -> jax.Array:
        return jnp.concatenate([array[near.after, :half], array[near.before, half:]], axis=0)

    scores = t.matmul(outer(tiles.keys), queries.queries)
    scores = seen.outer(scores, j, near.after, near.before)
    exact, slopes = queries.weights(scores, outer(tiles.values))
    to_queries(t.joined_lanes(tiles.key[near.after_there], tiles.key[near.before_there]), slopes)
    for array, found in zip(
        (tiles.d_keys, tiles.d_values), queries.to_keys(exact, slopes), strict=True
    ):
        array[near.after, :half] += found[:half]
        array[near.before, half:] += found[half:]

    for chosen in near.random:
        for head, tile in enumerate(chosen):
            own = queries.of(t.lanes_of(shape, head))
            scores = seen.tile(t.matmul(tiles.keys[tile], own.queries), j, tile)
            exact, slopes = own.weights(scores, tiles.values[tile])
            d_queries[head].append(t.matmul(tiles.key[tile, t.rows_of(shape, head)], slopes))
            d_keys, d_values = own.to_keys(exact, slopes)
            tiles.d_keys[tile] += d_keys
            tiles.d_values[tile] += d_values
    summed = [functools.reduce(jnp.add, found) for found in d_queries]
    d_query[j] = jnp.concatenate(summed, axis=0).astype(shape.dtype)
