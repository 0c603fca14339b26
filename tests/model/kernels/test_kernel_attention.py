"""The kernels of full and local attention, compared with the dense reference."""

import math

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model.forward import encode
from bigbird_ja.model.initialization import draw_parameters
from bigbird_ja.model.layers import Tokens, dense_attention
from testkit.configs import with_data
from tests.model.tiny import tiny_batch, tiny_config

jax = pytest.importorskip("jax", minversion="0.7", reason="the kernels want jax 0.7")

from bigbird_ja.model.kernels.kernel_attention import (  # noqa: E402
    find_bounds,
    interpret_kernels,
    kernel_attention,
)
from bigbird_ja.model.kernels.layer_shape import LayerShape, Order, tile_rows  # noqa: E402

jax.config.update("jax_platforms", "cpu")
HEADS, SIZE = 2, 64


def _by_kernel(query, key, value, tokens, reach):
    """Compute attention to keys at most `reach` tokens away (None: all keys) with the kernels."""
    batch, length = (int(size) for size in tokens.mask.shape)
    tiles = [batch, -1, tile_rows(length, reach)]
    tiled = [
        tf.transpose(tf.reshape(each, [*tiles, HEADS, SIZE]), [0, 1, 3, 4, 2])
        for each in (query * (math.log2(math.e) * SIZE**-0.5), key, value)
    ]
    context = kernel_attention(
        *tiled, tokens.map(lambda each: tf.reshape(each, tiles)), reach=reach
    )
    return tf.reshape(tf.transpose(context, [0, 1, 4, 2, 3]), query.shape)


@pytest.mark.parametrize(
    ("length", "reach", "has_documents"),
    [
        # Comments state the tiles into which a sequence is divided, and how they are processed.
        (384, None, False),  # 3 tiles of 128 tokens
        (896, None, True),  # 7 tiles, of which a document needs 1 to 5
        pytest.param(640, 64, True, marks=pytest.mark.slow),  # 5 tiles, one after the other
        (512, 100, False),  # tiles of 256 tokens
        pytest.param(128, 40, False, marks=pytest.mark.slow),  # 1 tile without neighbors
        pytest.param(2176, 64, True, marks=pytest.mark.slow),  # 2 tiles, then 3 at a time
        pytest.param(256, None, True, marks=pytest.mark.slow),  # 1 tile
        pytest.param(4352, None, False, marks=pytest.mark.slow),  # 17 tiles, first 1, then 16
        pytest.param(4352, None, True, marks=pytest.mark.slow),  # up to 9 of 17 tiles
    ],
)
def test_values_and_gradients_equal_the_dense_reference(length, reach, has_documents):
    random = np.random.default_rng(length)
    shape = (2, length, HEADS, SIZE)
    given = [tf.constant(random.normal(size=shape), tf.float32) for _ in range(3)]
    documents = np.sort(random.integers(1, 4, (2, length)), axis=1).astype(np.int32)
    documents[0, length // 2 - 3 :] = 0  # The first sequence ends in padding.
    mask = tf.constant(documents > 0, tf.float32)
    tokens = Tokens(mask, tf.constant(documents) if has_documents else None)
    upstream = tf.constant(random.normal(size=shape), tf.float32) * mask[..., None, None]
    places = np.arange(length)
    band = None if reach is None else (abs(places[:, None] - places) <= reach)[None]

    @tf.function(jit_compile=True, autograph=False)
    def run(is_kernel):
        with tf.GradientTape() as tape:
            tape.watch(given)
            if is_kernel:
                context = _by_kernel(*given, tokens, reach)
            else:
                context = dense_attention(*given, tokens, band)
        return context * mask[..., None, None], *tape.gradient(context, given, upstream)

    with interpret_kernels():
        by_kernel = run(True)
    for value, expected in zip(by_kernel, run(False), strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-5)


def test_skipped_documents_change_no_bit(monkeypatch):
    """Compute the same bits whether tiles of other documents are skipped or masked.

    The cases include rows whose first tiles contain none of their keys, gradients of keys, and a
    tile of padding.
    """
    random, length = np.random.default_rng(1), 640
    given = [tf.constant(random.normal(size=(2, length, HEADS, SIZE)), tf.float32) for _ in "qkv"]
    documents = np.repeat([[1, 1, 2, 3, 4, 5, 5, 5, 5, 6], [1, 2, 2, 3, 3, 3, 3, 0, 0, 0]], 64, 1)
    documents = tf.constant(documents, tf.int32)
    tokens = Tokens(tf.cast(documents > 0, tf.float32), documents)
    tiled = tokens.map(lambda each: tf.reshape(each, [2, 5, 128]))
    expected = [[[0, 1], [1, 1], [2, 3], [2, 3], [2, 3]], [[0, 2], [0, 4], [1, 3], [1, 3], [4, 0]]]
    np.testing.assert_array_equal(find_bounds(tiled.documents, tiled.mask > 0), expected)

    def run():
        @tf.function(jit_compile=True, autograph=False)
        def values():
            with tf.GradientTape() as tape:
                tape.watch(given)
                context = _by_kernel(*given, tokens, None)
            return context, *tape.gradient(context, given, given[0])

        with interpret_kernels():
            return values()

    skipping = run()
    monkeypatch.setattr(LayerShape, "runs", ())
    for value, masked in zip(skipping, run(), strict=True):
        np.testing.assert_array_equal(value, masked)


@pytest.mark.parametrize(
    ("length", "sets", "barriers"),
    [
        (256, {"architecture": "modernbert"}, 6),  # one global and one local layer
        pytest.param(256, {"attention_type": "original_full"}, 4, marks=pytest.mark.slow),
    ],
)
def test_an_encoder_has_the_same_gradients_by_kernels(length, sets, barriers, monkeypatch):
    """Compare the gradients of an encoder by kernels and by XLA, and count optimization barriers.

    Each activation that is recomputed for the gradients adds a barrier. The gradients of a gated
    product also add one.
    """
    # Of all orders, this one results in the least code, which compiles fastest.
    monkeypatch.setattr(LayerShape, "order", Order(1, 1))
    sets |= {"hidden_size": "128", "attend_across_documents": "false"}
    by_way, found = {}, {}
    for way in ("xla", "kernel"):
        named = {f"model.{k}": v for k, v in (sets | {"attention_implementation": way}).items()}
        config = tiny_config(length, **named, **{"training.gradient_checkpointing": True})
        with interpret_kernels():
            by_way[way], found[way] = _gradients(config)
    assert found["kernel"] - found["xla"] == barriers
    for name, expected in by_way["xla"].items():
        # A bias of the keys does not change the softmax. Its gradient consists of rounding errors.
        scale = 1.0 if name.endswith("key/bias") else float(tf.reduce_max(abs(expected)))
        np.testing.assert_allclose(
            by_way["kernel"][name], expected, atol=1e-5 * scale, err_msg=name
        )


def _gradients(config):
    """Return the gradients of an encoder's parameters, and the number of barriers.

    Attention does not cross documents, and one record ends in padding.
    """
    batch = tiny_batch(config, batch_size=2)
    inputs = [batch[name] for name in ("input_ids", "segment_ids", "document_ids")]

    @tf.function(jit_compile=True, autograph=False)
    def run(params):
        with tf.GradientTape() as tape:
            tape.watch(params)
            key = tf.constant([1, 2], tf.uint32)
            hidden = encode(params, *with_data(config), *inputs, dropout_key=key)
            total = tf.reduce_sum(hidden[:, : config.make_data.seq_length // 2] ** 3)
        return tape.gradient(total, params)

    params = {k: tf.constant(v) for k, v in draw_parameters(*with_data(config), seed=1).items()}
    is_kernel = config.model.attention_implementation == "kernel"
    # Run the Python function eagerly without kernels, since only kernels need compilation.
    found = (run if is_kernel else run.python_function)(params)
    gradients = {k: tf.convert_to_tensor(v) for k, v in found.items() if v is not None}
    operations = run.get_concrete_function(params).graph.get_operations()
    return gradients, sum(operation.type == "XlaOptimizationBarrier" for operation in operations)


@pytest.mark.parametrize("reach", [None, 64])
def test_for_a_tpu_kernels_are_custom_calls_and_no_scores_are_in_memory(reach):
    @tf.function(autograph=False)
    def gradients(query, key, value, mask):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            total = tf.reduce_sum(_by_kernel(query, key, value, Tokens(mask, None), reach))
        return tape.gradient(total, [query, key, value])

    each = tf.TensorSpec((2, 1024, HEADS, SIZE), tf.bfloat16)
    given = (each, each, each, tf.TensorSpec((2, 1024)))
    operations = gradients.get_concrete_function(*given).graph.get_operations()
    assert sum(operation.type == "XlaCustomCallV2" for operation in operations) == 2
    shapes = [tensor.shape for operation in operations for tensor in operation.outputs]
    assert not any(list(shape).count(1024) > 1 for shape in shapes if shape.rank is not None)
