"""JAX's splash attention in TensorFlow's graph: the dense reference's values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model.attention import dense_attention

jax = pytest.importorskip("jax", minversion="0.7", reason="the kernels want jax 0.7")

from bigbird_ja.model.kernels import carry  # noqa: E402
from bigbird_ja.model.kernels.flash import flash_attention  # noqa: E402

TOKENS_FIRST, TOKENS_LAST = [0, 3, 1, 2], [0, 2, 3, 1]


@pytest.mark.parametrize("length, reach", [(256, None), (256, 64), (384, 64), (384, None)])
def test_values_and_gradients_equal_the_dense_reference(length: int, reach: int | None) -> None:
    jax.config.update("jax_platforms", "cpu")
    random = np.random.default_rng(length)
    shape = (2, length, 2, 64)
    given = [tf.constant(random.normal(size=shape), tf.float32) for _ in range(3)]
    segments = np.sort(random.integers(1, 4, (2, length)), axis=1).astype(np.int32)
    segments[0, length // 2 :] = 0  # padding, whose results mean nothing
    mask = (segments > 0).astype(np.float32)
    upstream = random.normal(size=shape) * mask[..., None, None]
    places = np.arange(length)
    band = None if reach is None else (abs(places[:, None] - places) <= reach)[None]

    def dense() -> tf.Tensor:
        return dense_attention(*given, tf.constant(mask), tf.constant(segments), band)

    def flash() -> tf.Tensor:
        heads_first = [tf.transpose(each, TOKENS_LAST) for each in given]
        context = flash_attention(*heads_first, tf.constant(segments), reach)
        return tf.transpose(context, TOKENS_FIRST)

    results = []
    with carry.interpreted():
        for attend in (dense, flash):
            with tf.GradientTape() as tape:
                tape.watch(given)
                context = attend() * mask[..., None, None]
                total = tf.reduce_sum(context * tf.constant(upstream, tf.float32))
            results.append([context, *tape.gradient(total, given)])
    for expected, value in zip(*results, strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-5)


@pytest.mark.parametrize("reach, calls", [(None, 2), (64, 3)])
def test_for_a_tpu_kernels_are_custom_calls_and_no_scores_are_in_memory(
    reach: int | None, calls: int
) -> None:
    @tf.function(autograph=False)
    def gradients(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, segments: tf.Tensor):  # type: ignore[no-untyped-def]
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            total = tf.reduce_sum(flash_attention(query, key, value, segments, reach))
        return tape.gradient(total, [query, key, value])

    each = tf.TensorSpec((2, 2, 64, 1024), tf.bfloat16)
    graph = gradients.get_concrete_function(
        each, each, each, tf.TensorSpec((2, 1024), tf.int32)
    ).graph
    operations = graph.get_operations()
    assert sum(operation.type == "XlaCustomCallV2" for operation in operations) == calls
    shapes = [tensor.shape for operation in operations for tensor in operation.outputs]
    assert not any(list(shape).count(1024) > 1 for shape in shapes if shape.rank is not None)
