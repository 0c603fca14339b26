"""The backward kernel: gradients of query, key and value, with probabilities computed again."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from bigbird_ja.model.kernels import tiles as t
from bigbird_ja.model.kernels.shape import Shape


def backward(shape: Shape, interpret: Any = False) -> Any:
    """A function of query, key, value, context, its gradient, statistics and marks, that returns
    the gradients of query (scaled), key and value."""
    sequence = t.sequence_spec(shape)
    kept = (shape.tiles + 1, shape.rows, shape.group * shape.size)
    summed = (shape.tiles + 1, shape.group * shape.size, shape.rows)
    return t.call(
        _kernel,
        shape,
        interpret,
        in_specs=[sequence] * 5 + [t.statistics_spec(shape)] + t.mark_specs(shape),
        out_specs=[sequence] * 3,
        out_shape=[jax.ShapeDtypeStruct(shape.sequence, shape.dtype)] * 3,
        scratch_shapes=[pltpu.VMEM(kept, shape.dtype)] * 2 + [pltpu.VMEM(summed, "float32")] * 2,
    )


@dataclass(frozen=True)
class _Tiles:
    """The arrays of one step of the grid."""

    shape: Shape
    seen: t.Seen
    query: Any
    key: Any
    value: Any
    context: Any
    upstream: Any
    statistics: Any
    keys: Any  # transposed, with the tile of nothing
    values: Any
    d_keys: Any  # float32, not transposed
    d_values: Any

    def queries(self, j: Any, head: int) -> _Queries:
        """What one head's tile of queries brings to every piece."""
        shape, own = self.shape, t.rows_of(self.shape, head)
        upstream = self.upstream[j]
        product = upstream[own].astype(jnp.float32) * self.context[j, own].astype(jnp.float32)
        return _Queries(
            t.alone(shape, self.query[j], head),
            t.alone(shape, upstream, head),
            self.query[j, own],
            upstream[own],
            self.statistics[j, :, t.lanes_of(shape, head)],
            jnp.sum(product, axis=0, keepdims=True),
        )


@dataclass(frozen=True)
class _Queries:
    queries: jax.Array  # of `alone`
    upstream: jax.Array
    own_queries: jax.Array  # [size, rows]
    own_upstream: jax.Array
    statistics: jax.Array  # [1, rows]
    inner: jax.Array

    def weights(self, scores: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Probabilities and the gradients of scores, from masked scores and transposed values."""
        exact = jnp.exp2(scores - self.statistics)
        slopes = exact * (t.matmul(values, self.upstream) - self.inner)
        return exact.astype(values.dtype), slopes.astype(values.dtype)

    def to_keys(self, exact: jax.Array, slopes: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What a head's tile of keys and of values gets: float32 [size, keys]."""
        return (
            t.matmul_transposed(self.own_queries, slopes),
            t.matmul_transposed(self.own_upstream, exact),
        )


def _kernel(shape: Shape, *refs: Any) -> None:
    given, rest = refs[:6], refs[6:]
    key_marks, query_marks = rest[0], rest[1] if shape.has_documents else None
    d_query, d_key, d_value, *kept = rest[-7:]
    tiles = _Tiles(shape, t.Seen(shape, key_marks, query_marks), *given, *kept)

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
        near = t.Neighbours(shape, shifts, j)
        _one_tile(tiles, near, j, d_query)

    @functools.partial(lax.fori_loop, 0, shape.tiles, init_val=None)
    def _write(j: Any, _: None) -> None:
        d_key[j] = (tiles.d_keys[j] * t.LN_2).astype(shape.dtype)
        d_value[j] = tiles.d_values[j].astype(shape.dtype)


def _first_tile(tiles: _Tiles, d_query: Any) -> None:
    """Tile 0, which sees everything; it writes first what the others add to."""
    shape, heads = tiles.shape, range(tiles.shape.group)
    queries = [tiles.queries(0, head) for head in heads]

    def add(tile: Any, before: list[jax.Array]) -> list[jax.Array]:
        summed = []
        for head in heads:
            own, ours = t.rows_of(shape, head), queries[head]
            scores = tiles.seen.tile(t.matmul(tiles.keys[tile], ours.queries), 0, tile)
            exact, slopes = ours.weights(scores, tiles.values[tile])
            tiles.d_keys[tile, own], tiles.d_values[tile, own] = ours.to_keys(exact, slopes)
            summed.append(before[head] + t.matmul(tiles.key[tile, own], slopes))
        return summed

    nothing = jnp.zeros((shape.size, shape.rows), jnp.float32)
    summed = lax.fori_loop(0, shape.tiles, add, [nothing for _ in heads])
    d_query[0] = (jnp.concatenate(summed, axis=0) * t.LN_2).astype(shape.dtype)


def _one_tile(tiles: _Tiles, near: t.Neighbours, j: Any, d_query: Any) -> None:
    """Tile j >= 1: its queries' gradient, and its part in the keys and values that it saw."""
    shape, seen, half = tiles.shape, tiles.seen, tiles.shape.rows // 2
    heads = range(shape.group)
    queries = [tiles.queries(j, head) for head in heads]
    found: list[list[jax.Array]] = [[] for _ in heads]
    for chosen in ([j for _ in heads], [0 for _ in heads], *near.random):
        for head, tile in enumerate(chosen):
            own, ours = t.rows_of(shape, head), queries[head]
            scores = seen.tile(t.matmul(tiles.keys[tile], ours.queries), j, tile)
            exact, slopes = ours.weights(scores, tiles.values[tile])
            found[head].append(t.matmul(tiles.key[tile, own], slopes))
            d_keys, d_values = ours.to_keys(exact, slopes)
            tiles.d_keys[tile, own] += d_keys
            tiles.d_values[tile, own] += d_values

    def outer(array: Any) -> jax.Array:
        return jnp.concatenate([array[near.after, :half], array[near.before, half:]], axis=0)

    keys, values = outer(tiles.keys), outer(tiles.values)
    joined = t.joined_lanes(tiles.key[near.after_there], tiles.key[near.before_there])
    for head in heads:
        own, ours = t.rows_of(shape, head), queries[head]
        scores = seen.outer(t.matmul(keys, ours.queries), j, near.after, near.before)
        exact, slopes = ours.weights(scores, values)
        found[head].append(t.matmul(joined[own], slopes))
        for array, part in zip(
            (tiles.d_keys, tiles.d_values), ours.to_keys(exact, slopes), strict=True
        ):
            nothing = jnp.zeros_like(part)
            array[near.after, own] += t.joined_lanes(part, nothing)
            array[near.before, own] += t.joined_lanes(nothing, part)
        d_query[j, own] = (functools.reduce(jnp.add, found[head]) * t.LN_2).astype(shape.dtype)
