"""The forward kernel: context, and the logarithm of each row's sum of exponentials."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from bigbird_ja.model.kernels import tiles as t
from bigbird_ja.model.kernels.shape import Shape

# Maximum [1, rows], sum of exponentials [1, rows] and sum of values [size, rows] so far.
_Running = tuple[jax.Array, jax.Array, jax.Array]


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
    heads = range(shape.group)
    first = [t.alone(shape, query[0], head) for head in heads]

    def first_scores(tile: Any) -> list[jax.Array]:
        """Of tile 0, which is global: it sees every tile, one after the other."""
        return [seen.tile(t.matmul(keys[tile], first[head]), 0, tile) for head in heads]

    def add_to_first(tile: Any, before: list[_Running], scores: list[jax.Array]) -> list[_Running]:
        values = [value[tile, t.rows_of(shape, head)] for head in heads]
        return [_grown(*each) for each in zip(before, scores, values, strict=True)]

    def one_tile(j: Any, running: list[_Running]) -> list[_Running]:
        # Products run in this order: the scores of what comes next before values times weights,
        # which wait for the softmax. Tile 0 depends on nothing here, and fills the last gap.
        near = t.Neighbours(shape, shifts, j)
        following = _scores(shape, seen, near, j, 0, query, keys)
        for head in heads:
            scores = following
            if head + 1 < shape.group:
                following = _scores(shape, seen, near, j, head + 1, query, keys)
            else:
                following = first_scores(j)
            result = _context(shape, near, j, head, scores, value)
            context[j, t.rows_of(shape, head)], statistics[j, :, t.lanes_of(shape, head)] = result
        return add_to_first(j, running, following)

    nothing = (
        jnp.full((1, shape.rows), t.UNSEEN / 2, jnp.float32),
        jnp.zeros((1, shape.rows), jnp.float32),
        jnp.zeros((shape.size, shape.rows), jnp.float32),
    )
    running = add_to_first(0, [nothing] * shape.group, first_scores(0))
    running = lax.fori_loop(1, shape.tiles, one_tile, running)
    for head, (maximum, total, summed) in enumerate(running):
        result = _divided(shape, maximum, total, summed)
        context[0, t.rows_of(shape, head)], statistics[0, :, t.lanes_of(shape, head)] = result


def _scores(shape: Shape, seen: t.Seen, near: t.Neighbours, j: Any, head: int, query: Any,
            keys: Any) -> list[jax.Array]:  # fmt: skip
    """Of tile j >= 1 and one head: with its own tile, the global one, the random ones and the
    blocks beside it."""
    half = shape.rows // 2
    queries = t.alone(shape, query[j], head)
    outer = jnp.concatenate([keys[near.after, :half], keys[near.before, half:]], axis=0)
    tiles = (j, 0, *(chosen[head] for chosen in near.random))
    scores = [seen.tile(t.matmul(keys[tile], queries), j, tile) for tile in tiles]
    return [*scores, seen.outer(t.matmul(outer, queries), j, near.after, near.before)]


def _context(shape: Shape, near: t.Neighbours, j: Any, head: int, scores: list[jax.Array],
             value: Any) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Context and statistics from those scores."""
    own = t.rows_of(shape, head)
    maximum = jnp.max(functools.reduce(jnp.maximum, scores), axis=0, keepdims=True)
    maximum = jnp.maximum(maximum, t.UNSEEN / 2)
    exact = [jnp.exp2(piece - maximum) for piece in scores]
    total = jnp.sum(functools.reduce(jnp.add, exact), axis=0, keepdims=True)
    values = [value[tile, own] for tile in (j, 0, *(chosen[head] for chosen in near.random))]
    values.append(t.joined_lanes(value[near.after_there, own], value[near.before_there, own]))
    found = [t.matmul(v, w.astype(v.dtype)) for v, w in zip(values, exact, strict=True)]
    return _divided(shape, maximum, total, functools.reduce(jnp.add, found))


def _divided(
    shape: Shape, maximum: jax.Array, total: jax.Array, summed: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Context and statistics of one head's tile."""
    total = jnp.maximum(total, 1e-30)
    return (summed * (1.0 / total)).astype(shape.dtype), maximum + jnp.log2(total)


def _grown(before: _Running, scores: jax.Array, values: jax.Array) -> _Running:
    """More keys: what was summed below another maximum shrinks."""
    maximum, total, summed = before
    higher = jnp.maximum(maximum, jnp.max(scores, axis=0, keepdims=True))
    shrunk, exact = jnp.exp2(maximum - higher), jnp.exp2(scores - higher)
    return (
        higher,
        total * shrunk + jnp.sum(exact, axis=0, keepdims=True),
        summed * shrunk + t.matmul(values, exact.astype(values.dtype)),
    )
