"""Kernel for the gradients of query, key and value."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from bigbird_ja.model.kernels import tiles as t
from bigbird_ja.model.kernels.layer_shape import LayerShape


def backward(shape: LayerShape, interpret: Any = False) -> Any:
    """Return the kernel that computes the gradients of the scaled query, of key and of value.

    The kernel's arguments are query, key, value, context, gradient of the context, statistics, and
    the arguments that `make_mark_specs` describes.
    """
    shape = replace(shape, is_backward=True)
    sequence = t.make_sequence_spec(shape)
    kept = (shape.tiles + 1, shape.rows, shape.group * shape.size)
    summed = (shape.tiles + 1, shape.group * shape.size, shape.rows)
    return t.call(
        _kernel,
        shape,
        interpret,
        in_specs=[sequence] * 5 + [t.make_statistics_spec(shape)] + t.make_mark_specs(shape),
        out_specs=[sequence] * 3,
        out_shape=[jax.ShapeDtypeStruct(shape.sequence, shape.dtype)] * 3,
        scratch_shapes=[pltpu.VMEM(kept, shape.dtype)] * 2 + [pltpu.VMEM(summed, "float32")] * 2,
    )


@dataclass(frozen=True)
class _Tiles:
    """Arrays that the kernel reads and writes in one step of its grid."""

    shape: LayerShape
    seen: t.Masks
    d_query: Any
    query: Any
    key: Any
    value: Any
    context: Any
    upstream: Any
    statistics: Any
    keys: Any  # Transposed, with an additional tile of zeros.
    values: Any
    d_keys: Any  # float32, not transposed.
    d_values: Any

    def load_queries(self, j: Any, head: int) -> _Queries:
        """Return one head's queries of tile j, with their upstream gradient and statistics."""
        shape, own = self.shape, t.slice_rows(self.shape, head)
        upstream = self.upstream[j]
        product = upstream[own].astype(jnp.float32) * self.context[j, own].astype(jnp.float32)
        return _Queries(
            t.mask_to_head(shape, self.query[j], head),
            t.mask_to_head(shape, upstream, head),
            self.query[j, own],
            upstream[own],
            self.statistics[j, :, t.slice_lanes(shape, head)],
            jnp.sum(product, axis=0, keepdims=True),
        )

    def write(self, j: Any, head: int, parts: list[jax.Array]) -> None:
        """Write the gradient of one head's queries of tile j."""
        summed = functools.reduce(jnp.add, parts) * t.LN_2
        self.d_query[j, t.slice_rows(self.shape, head)] = summed.astype(self.shape.dtype)


@dataclass(frozen=True)
class _Queries:
    queries: jax.Array  # [heads * size, rows], with zeros for all other heads.
    upstream: jax.Array
    own_queries: jax.Array  # [size, rows]
    own_upstream: jax.Array
    statistics: jax.Array  # [1, rows]
    inner: jax.Array

    def multiply(self, keys: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Multiply keys by the queries, and values by the upstream gradient.

        The first product contains the scores. The second product is the gradient of the attention
        probabilities. `keys` and `values` are transposed: [keys, heads * size].
        """
        return t.matmul(keys, self.queries), t.matmul(values, self.upstream)

    def compute_weights(self, scores: jax.Array, d_exact: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute probabilities, and gradients of the scores, in the compute dtype.

        The arguments are the results of `multiply`, after the scores have been masked.
        """
        exact = jnp.exp2(scores - self.statistics)
        slopes = exact * (d_exact - self.inner)
        dtype = self.queries.dtype
        return exact.astype(dtype), slopes.astype(dtype)

    def compute_key_terms(self, exact: jax.Array, slopes: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute what a head adds to the gradients of keys and values: float32 [size, keys]."""
        return (
            t.matmul_transposed(self.own_queries, slopes),
            t.matmul_transposed(self.own_upstream, exact),
        )


def _kernel(shape: LayerShape, *refs: Any) -> None:
    given, others = refs[:6], refs[6:]
    key_marks, (query_marks, bounds, shifts) = others[0], t.split_refs(shape, others[1:])
    d_query, d_key, d_value, *kept = others[-7:]
    tiles = _Tiles(shape, t.Masks(shape, key_marks, query_marks), d_query, *given, *kept)
    for array in kept:
        array[shape.tiles] = jnp.zeros(array.shape[1:], array.dtype)

    @functools.partial(lax.fori_loop, 0, shape.tiles, init_val=None)
    def _begin(j: Any, _: None) -> None:
        tiles.keys[j] = t.transpose(tiles.key[j])
        tiles.values[j] = t.transpose(tiles.value[j])
        for array in (tiles.d_keys, tiles.d_values):
            array[j] = jnp.zeros(array.shape[1:], array.dtype)

    if shape.is_full:
        lax.fori_loop(0, shape.tiles, functools.partial(_process_all_keys, tiles, bounds), None)
    else:
        _process_seen_keys(tiles, shifts)

    @functools.partial(lax.fori_loop, 0, shape.tiles, init_val=None)
    def _write(j: Any, _: None) -> None:
        d_key[j] = (tiles.d_keys[j] * t.LN_2).astype(shape.dtype)
        d_value[j] = tiles.d_values[j].astype(shape.dtype)


def _process_all_keys(tiles: _Tiles, bounds: Any, j: Any, _: None) -> None:
    """Compute the gradients from the queries of tile j and all key tiles.

    With `bounds`, key tiles without documents of tile j are skipped.
    """
    shape, heads = tiles.shape, range(tiles.shape.group)
    queries = [tiles.load_queries(j, head) for head in heads]

    def step(these: list[Any], sums: list[jax.Array]) -> list[jax.Array]:
        added = [[summed] for summed in sums]
        tasks = [
            _process_head(tiles, queries[head], j, [k], head, None, added[head])
            for k in these
            for head in heads
        ]
        t.emit_pipelined(tasks, shape.order.lag)
        return [functools.reduce(jnp.add, parts) for parts in added]

    nothing = jnp.zeros((shape.size, shape.rows), jnp.float32)
    sums = t.loop_over_keys(shape, step, [nothing for _ in heads], bounds, j)
    for head, summed in enumerate(sums):
        tiles.write(j, head, [summed])


def _process_seen_keys(tiles: _Tiles, shifts: t.Shifts) -> None:
    """Compute the gradients from each query tile and the key tiles that it sees.

    If tile 0 is global, its queries see every key tile. So in the step of query tile j, the queries
    of tile 0 are multiplied by the keys of tile j, too.
    """
    shape, heads = tiles.shape, range(tiles.shape.group)
    is_rolled = shape.num_shifts is not None
    global_ = [0] if is_rolled else []
    first = [tiles.load_queries(0, head) for head in heads] if is_rolled else []

    def step(these: list[Any], d_first: list[jax.Array]) -> list[jax.Array]:
        added: list[list[jax.Array]] = [[summed] for summed in d_first]
        tasks: list[Iterator[None]] = []
        parts: list[list[list[jax.Array]]] = []
        for j in these:
            parts.append([[] for _ in heads])
            near = t.Neighbors(shape, shifts, j)
            for head in heads:
                chosen = [j, *global_, *(there[head] for there in near.random)]
                queries = tiles.load_queries(j, head)
                tasks.append(_process_head(tiles, queries, j, chosen, head, near, parts[-1][head]))
            tasks += [
                _process_head(tiles, q, 0, [j], head, None, added[head])
                for head, q in enumerate(first)
            ]
        t.emit_pipelined(tasks, shape.order.lag)
        for j, of_heads in zip(these, parts, strict=True):
            for head in heads:
                tiles.write(j, head, of_heads[head])
        return [functools.reduce(jnp.add, parts) for parts in added]

    nothing = jnp.zeros((shape.size, shape.rows), jnp.float32)
    added: list[list[jax.Array]] = [[nothing] for _ in first]
    t.emit_pipelined(
        _process_head(tiles, q, 0, [0], head, None, added[head]) for head, q in enumerate(first)
    )
    d_first = [functools.reduce(jnp.add, summed) for summed in added]
    d_first = t.loop_over_tiles(shape, step, d_first, first=int(is_rolled))
    for head, summed in enumerate(d_first):
        tiles.write(0, head, [summed])


def _process_head(
    tiles: _Tiles,
    ours: _Queries,
    query: Any,
    chosen: list[Any],
    head: int,
    near: t.Neighbors | None,
    d_queries: list[jax.Array],
) -> Iterator[None]:
    """Compute the gradients from a tile of one head's queries and several key tiles.

    One product covers all key tiles and, with `near`, the adjacent blocks. The gradient of the
    queries is appended to `d_queries`. The generator yields between the stages of the software
    pipeline.
    """
    shape, seen, own = tiles.shape, tiles.seen, t.slice_rows(tiles.shape, head)
    sides = [] if near is None else [(near.after, near.before)]
    keys, values = (
        jnp.concatenate(
            [array[tile] for tile in chosen] + [t.join_rows(shape, array, *two) for two in sides]
        )
        for array in (tiles.keys, tiles.values)
    )
    scores, d_exact = ours.multiply(keys, values)
    yield
    parts = jnp.split(scores, len(chosen) + len(sides))
    limited = [seen.mask_tile(part, query, tile) for part, tile in zip(parts, chosen, strict=False)]
    limited += [seen.mask_outer(parts[-1], query, *two) for two in sides]
    exact, slopes = ours.compute_weights(jnp.concatenate(limited), d_exact)
    yield
    key = [tiles.key[tile, own] for tile in chosen]
    if near is not None:
        there = tiles.key[near.after_there, own], tiles.key[near.before_there, own]
        key.append(t.join_lanes(*there))
    d_queries.append(t.matmul(jnp.concatenate(key, axis=1), slopes))
    # One more stage is faster for full attention, and slower for other patterns.
    if shape.is_full:
        yield
    sums = ours.compute_key_terms(exact, slopes)
    yield
    for array, summed in zip((tiles.d_keys, tiles.d_values), sums, strict=True):
        parts = jnp.split(summed, len(parts), axis=1)
        for tile, part in zip(chosen, parts, strict=False):
            array[tile, own] += part
        for after, before in sides:
            nothing = jnp.zeros_like(parts[-1])
            array[after, own] += t.join_lanes(parts[-1], nothing)
            array[before, own] += t.join_lanes(nothing, parts[-1])
