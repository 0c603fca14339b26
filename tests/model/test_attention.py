"""Every way of computing attention against the dense one with the same mask."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model import pattern
from bigbird_ja.model.attention import attention
from tests.model.tiny import tiny_config

PATTERNS = ("independent", "rolled")


def _inputs(config, seq_length: int, batch: int = 2, seed: int = 0) -> dict[str, tf.Tensor]:
    random = np.random.default_rng(seed)
    heads = config.model.num_attention_heads
    shape = (batch, seq_length, heads, config.model.hidden_size // heads)
    q, k, v, upstream = (random.standard_normal(shape).astype(np.float32) for _ in range(4))
    input_mask = np.ones((batch, seq_length), np.float32)
    input_mask[0, seq_length * 2 // 3 - 3 :] = 0  # ends inside a block; the last blocks are empty
    document_ids = 1 + np.sort(random.integers(0, 4, (batch, seq_length)), axis=1)
    document_ids[0, seq_length * 2 // 3 - 3 :] = 0
    return {
        "q": tf.constant(3 * q),  # peaked rows: the shared maximum matters
        "k": tf.constant(k),
        "v": tf.constant(v),
        "upstream": tf.constant(upstream),
        "input_mask": tf.constant(input_mask),
        "document_ids": tf.constant(document_ids.astype(np.int32)),
    }


def _run(config, inputs, layer: int = 0, documents: bool = False, jit: bool = False):
    """Context and the gradients by query, key and value."""

    @tf.function(jit_compile=jit, autograph=False)
    def run(q, k, v, input_mask, document_ids, upstream):
        with tf.GradientTape() as tape:
            tape.watch([q, k, v])
            ids = document_ids if documents else None
            context = attention(q, k, v, input_mask, ids, config, layer)
        return context, *tape.gradient(context, [q, k, v], output_gradients=upstream)

    names = ("q", "k", "v", "input_mask", "document_ids", "upstream")
    return [tensor.numpy() for tensor in run(*(inputs[name] for name in names))]


def _config(attention_type: str, random_pattern: str, seq_length: int, **model):
    sets = {"attention_type": attention_type, "random_pattern": random_pattern, **model}
    return tiny_config(seq_length=seq_length, **{f"model.{k}": v for k, v in sets.items()})


def _assert_equal(config_of, inputs, **how) -> None:
    sparse = _run(config_of("block_sparse"), inputs, **how)
    dense = _run(config_of("simulated_sparse"), inputs, **how)
    for name, got, expected in zip(("context", "dq", "dk", "dv"), sparse, dense, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("random_pattern", PATTERNS)
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(
    ("block_size", "num_blocks", "num_random_blocks"),
    [(4, 12, 3), (8, 16, 3), (4, 22, 2), (4, 10, 1), (4, 8, 0), (4, 24, 5)],
)
def test_values_and_gradients_equal_the_dense_reference(
    random_pattern, documents, block_size, num_blocks, num_random_blocks
):
    length = block_size * num_blocks

    def config_of(kind):
        return _config(
            kind,
            random_pattern,
            length,
            block_size=block_size,
            num_random_blocks=num_random_blocks,
        )

    assert not pattern.is_full(config_of("block_sparse"), length)
    _assert_equal(config_of, _inputs(config_of("block_sparse"), length), documents=documents)


@pytest.mark.parametrize("random_pattern", PATTERNS)
def test_compiled_by_xla_equals_the_reference(random_pattern):
    def config_of(kind):
        return _config(kind, random_pattern, 128, block_size=8)

    inputs = _inputs(config_of("block_sparse"), 128)
    _assert_equal(config_of, inputs, documents=True, jit=True, layer=1)


@pytest.mark.parametrize("random_pattern", PATTERNS)
def test_padding_gets_no_probability_at_all(random_pattern):
    config = _config("block_sparse", random_pattern, 96, block_size=8)
    inputs = _inputs(config, 96)
    context, _, dk, dv = _run(config, inputs)
    padded = inputs["input_mask"].numpy() == 0
    assert padded.any() and not dk[padded].any() and not dv[padded].any()
    inputs["v"] = tf.where(padded[..., None, None], 1e30, inputs["v"])
    inputs["k"] = tf.where(padded[..., None, None], 1e3, inputs["k"])
    np.testing.assert_array_equal(_run(config, inputs)[0], context)


@pytest.mark.parametrize("random_pattern", PATTERNS)
@pytest.mark.parametrize("attention_type", ["block_sparse", "simulated_sparse", "original_full"])
def test_a_sequence_of_nothing_but_padding_is_finite(random_pattern, attention_type):
    config = _config(attention_type, random_pattern, 96, block_size=8)
    inputs = _inputs(config, 96)
    inputs["input_mask"] = tf.concat([tf.zeros([1, 96]), inputs["input_mask"][1:]], axis=0)
    results = _run(config, inputs)
    for result in results:
        assert np.isfinite(result).all()
        assert not result[0].any()
        assert result[1].any()


@pytest.mark.parametrize("random_pattern", PATTERNS)
def test_large_scores_stay_exact(random_pattern):
    def config_of(kind):
        return _config(kind, random_pattern, 96, block_size=8)

    inputs = _inputs(config_of("block_sparse"), 96)
    inputs["q"] *= 300.0
    sparse = _run(config_of("block_sparse"), inputs)[0]
    dense = _run(config_of("simulated_sparse"), inputs)[0]
    np.testing.assert_allclose(sparse, dense, rtol=1e-4, atol=1e-4)
    assert np.abs(sparse).sum(axis=(-1, -2))[1].all()


@pytest.mark.parametrize("random_pattern", PATTERNS)
def test_bfloat16_is_near_float32(random_pattern):
    config = _config("block_sparse", random_pattern, 96, block_size=8)
    inputs = _inputs(config, 96)
    exact = _run(config, inputs)
    for name in ("q", "k", "v", "upstream"):
        inputs[name] = tf.cast(inputs[name], tf.bfloat16)
    for got, expected in zip(_run(config, inputs), exact, strict=True):
        error = np.abs(got.astype(np.float32) - expected).mean()
        assert error < 0.02 * np.abs(expected).mean() + 1e-3


def test_short_sequences_get_full_attention():
    length = pattern.shortest_sparse(_config("block_sparse", "rolled", 96).model) - 1
    for size in (1, 5, length):
        sparse = _config("block_sparse", "rolled", size)
        full = _config("original_full", "rolled", size)
        inputs = _inputs(sparse, size)
        for got, expected in zip(_run(sparse, inputs), _run(full, inputs), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_full_attention_is_softmax_over_the_visible_keys():
    config = _config("original_full", "rolled", 16)
    inputs = _inputs(config, 16)
    context = _run(config, inputs, documents=True)[0]
    q, k, v = (inputs[name].numpy() for name in "qkv")
    same = inputs["document_ids"].numpy()
    seen = same[1][:, None] == same[1][None]
    scores = np.einsum("qhd,khd->hqk", q[1], k[1]) / np.sqrt(q.shape[-1])
    weights = np.exp(scores) * seen
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(context[1], np.einsum("hqk,khd->qhd", weights, v[1]), atol=1e-5)


def test_lengths_over_which_the_pattern_cannot_be_laid_are_refused_early():
    config = _config("block_sparse", "rolled", 100, block_size=8)
    with pytest.raises(ValueError, match=r"multiple of two attention blocks .*: use 96 or 112"):
        _run(config, _inputs(config, 100))
