"""Cross-entropy and the masked-LM head against plain formulas."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from bigbird_ja.model import heads
from bigbird_ja.model.params import initial_parameters
from tests.model.tiny import tiny_config


def _random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_cross_entropy_and_its_gradient_are_those_of_tensorflow():
    logits, upstream = tf.constant(5 * _random(2, 3, 11)), tf.constant(_random(2, 3, seed=1))
    ids = tf.constant([[0, 10, 3], [3, 3, 7]])
    results = []
    for loss in (heads.cross_entropy, _tensorflows):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = loss(logits, ids)
        results.append((losses, tape.gradient(losses, logits, output_gradients=upstream)))
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def _tensorflows(logits, ids):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)


def test_cross_entropy_of_extreme_scores_is_finite():
    logits = tf.constant([[1e4, 0.0, -1e4]])
    assert float(heads.cross_entropy(logits, tf.constant([0]))[0]) == 0.0
    assert float(heads.cross_entropy(logits, tf.constant([2]))[0]) == 2e4


def test_bfloat16_scores_are_summed_in_float32():
    logits = tf.zeros([1, 32000], tf.bfloat16)
    loss = heads.cross_entropy(logits, tf.constant([5]))
    assert loss.dtype == tf.float32
    np.testing.assert_allclose(loss, [np.log(32000)], rtol=1e-5)


def test_masked_lm_scores_are_tied_to_the_word_embeddings():
    config = tiny_config(32, **{"model.hidden_act": "relu"})
    params = initial_parameters(config, seed=0)
    params["cls/predictions/output_bias"] = _random(60, seed=2)
    hidden = _random(2, 3, 32)
    logits = heads.masked_lm_logits(params, config, tf.constant(hidden))
    rows = np.maximum(hidden @ params["cls/predictions/transform/kernel"], 0)
    rows = (rows - rows.mean(-1, keepdims=True)) / rows.std(-1, keepdims=True)
    expected = rows @ params["bert/embeddings/word_embeddings"].T + _random(60, seed=2)
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    ids = tf.constant(expected.argmax(-1).astype(np.int32))
    _, correct = heads.masked_lm_losses(params, config, tf.constant(hidden), ids)
    assert (correct.numpy() == 1).all()
