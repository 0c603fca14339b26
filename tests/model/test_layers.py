"""Activations, heads and dropout, compared with TensorFlow or with plain formulas."""

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model import forward, head_attention
from bigbird_ja.model.initialization import draw_parameters
from bigbird_ja.model.layers import (
    Tokens,
    activate,
    dense_attention,
    dropout,
    fold_in,
    keep_mask,
    make_key,
)
from bigbird_ja.model.modernbert import apply_gate
from testkit.configs import with_data
from tests.model.tiny import tiny_config


@pytest.mark.parametrize("save_derivative", [False, True])
@pytest.mark.parametrize("name", ["gelu_new", "gelu"])
def test_gelu_and_its_gradient(name, save_derivative):
    @tf.function(jit_compile=True)
    def computed(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = activate(name, x, save_derivative=save_derivative)
        return values, tape.gradient(values, x)

    x = tf.constant(np.linspace(-12, 12, 2001, dtype=np.float32))
    with tf.GradientTape() as tape:
        tape.watch(x)
        theirs = tf.nn.gelu(x, approximate=name == "gelu_new")
    values, gradient = computed(x)
    np.testing.assert_allclose(values, theirs, atol=2e-6)
    np.testing.assert_allclose(gradient, tape.gradient(theirs, x), atol=1e-5)
    far_out, _ = computed(tf.constant([-1e30, -1e4, 0.0, 1e4]))
    assert np.isfinite(far_out).all()


@pytest.mark.parametrize(
    ("name", "dtype"), [("gelu_new", tf.float32), ("gelu", tf.bfloat16), ("relu", tf.float32)]
)
def test_saved_gated_product_has_the_same_value_and_gradient(name, dtype):
    both, upstream = (tf.constant(3 * _random(64, n, seed=n)) for n in (34, 17))
    given = tf.cast(both, dtype)

    @tf.function(jit_compile=True)
    def run(both, upstream, saved):
        with tf.GradientTape() as tape:
            tape.watch(both)
            product = apply_gate(name, both, save_product=saved)
        return product, tape.gradient(product, both, upstream)

    kept = run(given, tf.cast(upstream, dtype), True)
    rounding = 1e-5 if dtype == tf.float32 else 2**-6
    for value, wanted in zip(kept, run(tf.cast(given, tf.float32), upstream, False), strict=True):
        assert value.dtype == dtype
        np.testing.assert_allclose(tf.cast(value, tf.float32), wanted, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("has_documents", [False, True])
@pytest.mark.parametrize("masked_heads", [0, 1, 2])
def test_attention_by_groups_of_heads_equals_all_heads_at_once(
    masked_heads, has_documents, dtype, monkeypatch
):
    monkeypatch.setattr(head_attention, "_MIN_SCORES", 1)
    # The batch contains 2 sequences with 2 heads each. This limit allows 2 of these 4 heads at a
    # time.
    monkeypatch.setattr(head_attention, "_MAX_SCORES", 2 * 24 * 24)
    random, shape = np.random.default_rng(0), (2, 24, 2, 8)
    given = [tf.cast(_random(*shape, seed=n), dtype) for n in range(3)]
    upstream = tf.cast(_random(*shape, seed=3), dtype)
    documents = np.sort(random.integers(1, 4, shape[:2]), axis=1).astype(np.int32)
    documents[0, 15:] = 0  # Queries of padding attend to no key.
    tokens = Tokens(
        tf.constant(documents > 0, tf.float32), tf.constant(documents) if has_documents else None
    )
    static_mask = random.random((masked_heads, 24, 24)) < 0.5 if masked_heads else None

    @tf.function(jit_compile=True, autograph=False)
    def run(*given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            context = dense_attention(*given, tokens, static_mask)
        return context, *tape.gradient(context, given, upstream)

    expected = run(*given)
    with head_attention.traced_for_a_cpu():
        by_heads = tf.function(run.python_function, jit_compile=True, autograph=False)(*given)
    tolerance = 1e-5 if dtype == tf.float32 else 0.05
    for value, wanted in zip(by_heads, expected, strict=True):
        assert value.dtype == dtype
        np.testing.assert_allclose(
            tf.cast(value, tf.float32), tf.cast(wanted, tf.float32), atol=tolerance, rtol=tolerance
        )


def _random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_cross_entropy_and_its_gradient_equal_those_of_tensorflow():
    logits, upstream = tf.constant(5 * _random(2, 3, 11)), tf.constant(_random(2, 3, seed=1))
    ids = tf.constant([[0, 10, 3], [3, 3, 7]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        ours = forward.cross_entropy(logits, ids)
        theirs = tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    gradients = (tape.gradient(losses, logits, upstream) for losses in (ours, theirs))
    np.testing.assert_allclose(*gradients, atol=1e-5)


def test_cross_entropy_is_finite_for_extreme_scores_and_sums_bfloat16_in_float32():
    logits = tf.constant([[1e4, 0.0, -1e4]] * 2)
    assert forward.cross_entropy(logits, tf.constant([0, 2])).numpy().tolist() == [0.0, 2e4]
    loss = forward.cross_entropy(tf.zeros([1, 32000], tf.bfloat16), tf.constant([5]))
    assert loss.dtype == tf.float32
    np.testing.assert_allclose(loss, [np.log(32000)], rtol=1e-5)


def test_masked_lm_scores_are_tied_to_the_word_embeddings():
    config = tiny_config(32, **{"model.hidden_act": "relu"})
    params = draw_parameters(*with_data(config), seed=0)
    params["cls/predictions/output_bias"] = _random(60, seed=2)
    hidden = _random(2, 3, 32)
    logits = forward.masked_lm_logits(params, config, tf.constant(hidden))
    rows = np.maximum(hidden @ params["cls/predictions/transform/kernel"], 0)
    rows = (rows - rows.mean(-1, keepdims=True)) / rows.std(-1, keepdims=True)
    expected = rows @ params["bert/embeddings/word_embeddings"].T + _random(60, seed=2)
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    ids = tf.constant(expected.argmax(-1).astype(np.int32))
    assert (forward.find_first_best(logits) == ids).numpy().all()


RATE = 0.1


SHAPE = [2048, 256]


@pytest.fixture(scope="module")
def masks():
    return [keep_mask(SHAPE, RATE, fold_in(make_key(7, step), 3)).numpy() for step in range(4)]


def test_dropout_rate_of_elements_rows_and_columns(masks):
    spread = np.sqrt(RATE * (1 - RATE))
    for mask in masks:
        assert abs(mask.mean() - (1 - RATE)) < 5 * spread / np.sqrt(mask.size)
        for axis in (0, 1):
            expected = spread / np.sqrt(SHAPE[axis])
            assert mask.mean(axis).std() == pytest.approx(expected, rel=0.2)


def test_neighbors_rectangles_and_steps_are_independent(masks):
    centered = [mask - mask.mean() for mask in masks]
    f = centered[0]
    products = [f[1:] * f[:-1], f[:, 1:] * f[:, :-1], f[64:] * f[:-64]]
    # Products of the four elements of each 2 x 2 square.
    products += [f[1:, 1:] * f[:-1, 1:] * f[1:, :-1] * f[:-1, :-1]]
    products += [centered[i] * centered[j] for i in range(4) for j in range(i)]
    for product in products:
        assert abs(product.mean()) / product.std() * np.sqrt(product.size) < 5


def test_a_key_is_a_function_of_seed_step_and_place():
    def key(seed, step, place):
        return tuple(fold_in(make_key(seed, step), place).numpy().tolist())

    of_tensors = fold_in(make_key(1, tf.constant(2, tf.int64)), tf.constant(3))
    assert key(1, 2, 3) == tuple(of_tensors.numpy().tolist())
    others = {key(s, t, p) for s in (1, 2, 1 << 40) for t in range(8) for p in range(8)}
    assert len(others) == 3 * 8 * 8


@pytest.mark.parametrize(("jit", "dtype"), [(False, tf.float32), (True, tf.bfloat16)])
def test_gradient_of_dropout_uses_the_same_mask(jit, dtype):
    @tf.function(jit_compile=jit)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = dropout(x, RATE, make_key(1, 5), 3)
            total = tf.reduce_sum(tf.cast(y, tf.float32))
        return y, tape.gradient(total, x)

    y, gradient = run(tf.ones([8, 4, 32], dtype))
    assert y.dtype == dtype
    np.testing.assert_array_equal(tf.cast(y, tf.float32), tf.cast(gradient, tf.float32))
    kept = tf.cast(y, tf.float32).numpy()
    np.testing.assert_allclose(kept[kept > 0], 1 / (1 - RATE), rtol=4e-3)
    expected = keep_mask([8, 4, 32], RATE, fold_in(make_key(1, 5), 3)).numpy()
    np.testing.assert_array_equal(kept > 0, expected)
