"""The forward kernel: context, and the logarithm of each row's sum of exponentials."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from bigbird_ja.model.kernels import tiles as t
from bigbird_ja.model.kernels.tiles import Shape


def forward(shape: Shape, interpret: Any = False) -> Any:
    """A function of query (scaled), key, value, key marks (and query marks, with documents), that
    returns context and statistics; all of the shapes that `Shape` names."""
    sequence = t.sequence_spec(shape)
    return t.call(
        _kernel,
        shape,
        interpret,
        in_specs=[sequence] * 3 + t.mark_specs(shape),
        out_specs=[sequence, t.statistics_spec(shape)],
        out_shape=[
            jax.ShapeDtypeStruct(shape.sequence, shape.dtype),
            jax.ShapeDtypeStruct(shape.statistics, "float32"),
        ],
        scratch_shapes=[
            pltpu.VMEM((shape.tiles + 1, shape.rows, shape.group * shape.size), shape.dtype)
        ],
    )


def _kernel(shape: Shape, query: Any, key: Any, value: Any, key_marks: Any, *rest: Any) -> None:
    query_marks, (context, statistics, keys) = (rest[0] if shape.has_documents else None), rest[-3:]
    seen, shifts = t.Seen(shape, key_marks, query_marks), t.shifts_here(shape)

    @functools.partial(lax.fori_loop, 0, shape.tiles, init_val=None)
    def _transpose(j: Any, _: None) -> None:
        keys[j] = t.transposed(key[j])

    keys[shape.tiles] = jnp.zeros(keys.shape[1:], keys.dtype)

    @functools.partial(lax.fori_loop, 1, shape.tiles, init_val=None)
    def _tile(j: Any, _: None) -> None:
        _one_tile(shape, seen, shifts, j, query, value, keys, context, statistics)

    _first_tile(shape, seen, query, value, keys, context, statistics)


def _one_tile(shape: Shape, seen: t.Seen, shifts: Any, j: Any, query: Any, value: Any, keys: Any,
              context: Any, statistics: Any) -> None:  # fmt: skip
    """Context of tile j >= 1: its own tile, the blocks beside it, the global and random tiles."""
    near, half = t.Neighbours(shape, shifts, j), shape.rows // 2
    queries = t.spread(shape, query[j])
    outer = jnp.concatenate([keys[near.after, :half], keys[near.before, half:]], axis=0)
    scores = [
        seen.tile(t.matmul(keys[j], queries), j, j),
        seen.outer(t.matmul(outer, queries), j, near.after, near.before),
        seen.tile(t.matmul(keys[0], queries), j, 0),
    ]
    for tiles in near.random:
        parts = [
            seen.tile(t.matmul(keys[tile], queries[:, t.lanes_of(shape, head)]), j, tile)
            for head, tile in enumerate(tiles)
        ]
        scores.append(jnp.concatenate(parts, axis=1))
    maximum = jnp.max(functools.reduce(jnp.maximum, scores), axis=0, keepdims=True)
    maximum = jnp.maximum(maximum, t.UNSEEN / 2)
    exact = [jnp.exp(piece - maximum) for piece in scores]
    total = jnp.sum(functools.reduce(jnp.add, exact), axis=0, keepdims=True)
    total = jnp.maximum(total, 1e-30)
    weights = [piece.astype(shape.dtype) for piece in exact]
    statistics[j] = maximum + jnp.log(total)
    outer = t.joined_lanes(value[near.after_there], value[near.before_there])
    for head in range(shape.group):
        own, lanes = t.rows_of(shape, head), t.lanes_of(shape, head)
        values = [value[j, own], outer[own], value[0, own]]
        values += [value[tiles[head], own] for tiles in near.random]
        found = [t.matmul(v, w[:, lanes]) for v, w in zip(values, weights, strict=True)]
        summed = functools.reduce(jnp.add, found) * (1.0 / total[:, lanes])
        context[j, own] = summed.astype(shape.dtype)


def _first_tile(shape: Shape, seen: t.Seen, query: Any, value: Any, keys: Any,
                context: Any, statistics: Any) -> None:  # fmt: skip
    """Context of tile 0, the global blocks, which see everything: in two passes over all keys."""
    queries = t.spread(shape, query[0])

    def scores(tile: Any) -> jax.Array:
        return seen.tile(t.matmul(keys[tile], queries), 0, tile)

    def highest(tile: Any, before: jax.Array) -> jax.Array:
        return jnp.maximum(before, jnp.max(scores(tile), axis=0, keepdims=True))

    least = jnp.full((1, shape.width), t.UNSEEN / 2, jnp.float32)
    maximum = lax.fori_loop(0, shape.tiles, highest, least)

    def add(tile: Any, before: Any) -> Any:
        total, contexts = before
        exact = jnp.exp(scores(tile) - maximum)
        weights = exact.astype(shape.dtype)
        found = [
            t.matmul(value[tile, t.rows_of(shape, h)], weights[:, t.lanes_of(shape, h)])
            for h in range(shape.group)
        ]
        total += jnp.sum(exact, axis=0, keepdims=True)
        return total, [a + b for a, b in zip(contexts, found, strict=True)]

    nothing = jnp.zeros((shape.size, shape.rows), jnp.float32)
    start = (jnp.zeros((1, shape.width), jnp.float32), [nothing] * shape.group)
    total, contexts = lax.fori_loop(0, shape.tiles, add, start)
    total = jnp.maximum(total, 1e-30)
    statistics[0] = maximum + jnp.log(total)
    for h, found in enumerate(contexts):
        scaled = found * (1.0 / total[:, t.lanes_of(shape, h)])
        context[0, t.rows_of(shape, h)] = scaled.astype(shape.dtype)
