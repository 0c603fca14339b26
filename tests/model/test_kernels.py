"""The attention kernels, by Pallas' interpreters, against dense attention with the same mask."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model import pattern
from bigbird_ja.model.attention import dense_attention
from tests.model.tiny import tiny_config

jnp = pytest.importorskip("jax.numpy")
# Where libtpu is installed, jax would look for a TPU first: minutes, on some networks.
pytest.importorskip("jax").config.update("jax_platforms", "cpu")

from bigbird_ja.model.kernels.backward_kernel import backward  # noqa: E402
from bigbird_ja.model.kernels.forward_kernel import forward  # noqa: E402
from bigbird_ja.model.kernels.kernel_attention import marks_of  # noqa: E402
from bigbird_ja.model.kernels.tiles import Shape  # noqa: E402

# Block size, blocks, random blocks, heads, size of a head; two heads of 64 share one step.
SHAPES = {
    "small": (4, 12, 3, 2, 16),
    "group": (8, 10, 1, 2, 64),
    "no random": (4, 8, 0, 2, 16),
    "larger": (8, 16, 3, 2, 16),
    "long": (4, 22, 2, 2, 16),
    "three shifts": (4, 24, 5, 4, 64),
    "several tiles at once": (4, 34, 3, 2, 16),  # one alone, then three at a time
}


class Case:
    """One shape's config and arrays."""

    def __init__(self, name: str, documents: bool = False, dtype: str = "float32") -> None:
        block, blocks, num_random, heads, size = SHAPES[name]
        length = block * blocks
        sets = {"block_size": block, "num_random_blocks": num_random, "hidden_size": heads * size}
        sets |= {"num_attention_heads": heads}
        self.config = tiny_config(length, **{f"model.{k}": v for k, v in sets.items()})
        assert not pattern.is_full(self.config, length)
        random = np.random.default_rng(0)
        self.block, self.dtype = block, dtype
        four = random.standard_normal((4, 2, length, heads, size)).astype(np.float32)
        self.query, self.key, self.value, self.upstream = four
        self.mask = np.ones((2, length), np.float32)
        self.mask[0, length * 2 // 3 - 3 :] = 0  # ends inside a block; the last ones are empty
        ids = 1 + np.sort(random.integers(0, 4, (2, length)), axis=1)
        self.ids = np.where(self.mask > 0, ids, 0).astype(np.int32) if documents else None

    def tiled(self, values: np.ndarray) -> np.ndarray:
        """[b, S, ...] as [b, T, ..., rows], rotated by one block."""
        rows = 2 * self.block
        rotated = np.roll(values, self.block, axis=1)
        return np.moveaxis(rotated.reshape(len(values), -1, rows, *values.shape[2:]), 2, -1)

    def untiled(self, values: np.ndarray) -> np.ndarray:
        moved = np.moveaxis(values, -1, 2)
        joined = moved.reshape(len(values), -1, *values.shape[2:-1])
        return np.roll(joined, -self.block, axis=1)

    @property
    def shape(self) -> Shape:
        plans = pattern.random_plan(self.config)
        assert plans is not None and plans[0].shifts is not None
        shifts = tuple(tuple(int(shift) for shift in head) for head in plans[0].shifts)
        batch, length, heads, size = self.query.shape
        rows = 2 * self.block
        has_documents = self.ids is not None
        return Shape(batch, length // rows, heads, size, rows, shifts, has_documents, self.dtype)

    def dense(self) -> list[np.ndarray]:
        """Context and gradients of query, key and value."""
        static = pattern.dense_mask(self.config, 0, self.query.shape[1])
        given = [tf.constant(x) for x in (self.query, self.key, self.value)]

        @tf.function(jit_compile=True, autograph=False)
        def run(given: list[tf.Tensor], upstream: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(given)
                context = dense_attention(*given, self.mask, self.ids, static)
            return [context, *tape.gradient(context, given, output_gradients=upstream)]

        return [x.numpy() for x in run(given, tf.constant(self.upstream))]

    def given(self) -> list[Any]:
        """Query, key, value and upstream as the kernels take them, and the marks."""
        shape, ids = self.shape, None if self.ids is None else tf.constant(self.tiled(self.ids))
        marks = marks_of(shape, tf.constant(self.tiled(self.mask)), ids)
        query = self.query * self.query.shape[-1] ** -0.5 * math.log2(math.e)
        arrays = [self.tiled(x) for x in (query, self.key, self.value, self.upstream)]
        flat = [jnp.asarray(x, self.dtype).reshape(shape.sequence) for x in arrays]
        return [*flat, *(jnp.asarray(mark.numpy()) for mark in marks)]

    def kernels(self, interpret: Any = True) -> list[np.ndarray]:
        """The same, by one of Pallas' interpreters."""
        shape = self.shape
        query, key, value, upstream, *marks = self.given()
        context, statistics = forward(shape, interpret)(query, key, value, *marks)
        given = (query, key, value, context, upstream, statistics, *marks)
        d_query, d_key, d_value = backward(shape, interpret)(*given)
        axes = (shape.batch, shape.tiles, shape.heads, shape.size, shape.rows)
        arrays = [np.asarray(x, np.float32) for x in (context, d_query, d_key, d_value)]
        arrays[1] = arrays[1] * (self.query.shape[-1] ** -0.5 * math.log2(math.e))
        return [self.untiled(x.reshape(axes)) for x in arrays]


NAMES = ("context", "d_query", "d_key", "d_value")


def _assert_equal(result: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for name, got, wanted in zip(NAMES, result, expected, strict=True):
        atol = 2e-5 * max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(got, wanted, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    ("name", "documents"),
    [
        ("group", True),
        *(
            pytest.param(name, documents, marks=pytest.mark.nightly)
            for name in SHAPES
            for documents in (False, True)
            if (name, documents) != ("group", True)
        ),
    ],
)
def test_values_and_gradients_equal_the_dense_reference(name: str, documents: bool) -> None:
    case = Case(name, documents)
    _assert_equal(case.kernels(), case.dense())


@pytest.mark.nightly
def test_a_sequence_of_nothing_but_padding_is_finite_and_gets_nothing() -> None:
    case = Case("small")
    case.mask[0] = 0
    for result in case.kernels():
        assert np.isfinite(result).all() and not result[0].any() and result[1].any()


@pytest.mark.nightly
def test_large_scores_stay_exact() -> None:
    case = Case("small")
    case.query *= 1000  # nearly all rows look at one key alone
    np.testing.assert_allclose(case.kernels()[0], case.dense()[0], rtol=1e-3, atol=1e-2)


@pytest.mark.nightly
def test_bfloat16_is_near_float32() -> None:
    case = Case("group", True, "bfloat16")
    for name, got, wanted in zip(NAMES, case.kernels(), case.dense(), strict=True):
        assert np.abs(got - wanted).mean() < 0.02 * np.abs(wanted).mean(), name


@pytest.mark.parametrize(
    ("name", "documents"),
    [
        ("no random", True),
        pytest.param("group", False, marks=pytest.mark.nightly),
        pytest.param("group", True, marks=pytest.mark.nightly),
    ],
)
def test_the_interpreter_of_a_tpus_memories_agrees(name: str, documents: bool) -> None:
    tpu = pytest.importorskip("jax.experimental.pallas.tpu")
    if not hasattr(tpu, "InterpretParams"):
        pytest.skip("this jax has no such interpreter")
    case = Case(name, documents)
    _assert_equal(case.kernels(tpu.InterpretParams()), case.dense())
