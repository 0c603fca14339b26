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
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        ours = heads.cross_entropy(logits, ids)
        theirs = tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    gradients = (tape.gradient(losses, logits, upstream) for losses in (ours, theirs))
    np.testing.assert_allclose(*gradients, atol=1e-5)


def test_cross_entropy_of_extreme_scores_is_finite():
    logits = tf.constant([[1e4, 0.0, -1e4]] * 2)
    assert heads.cross_entropy(logits, tf.constant([0, 2])).numpy().tolist() == [0.0, 2e4]


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
