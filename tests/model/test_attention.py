"""Block-sparse attention against the dense one with the same mask."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model import pattern
from bigbird_ja.model.attention import attend, dense_attention, is_tiled
from tests.model.tiny import tiny_config

PATTERNS = ("independent", "rolled")
SCOPE = "layer"
LAYER = 1


def _config(attention_type: str, random_pattern: str, seq_length: int, **model):
    sets = {"attention_type": attention_type, "random_pattern": random_pattern, **model}
    return tiny_config(seq_length=seq_length, **{f"model.{k}": v for k, v in sets.items()})


def _params(scale: float = 0.4) -> dict[str, tf.Tensor]:
    random = np.random.default_rng(1)
    params = {}
    for name in ("self/query", "self/key", "self/value", "output/dense"):
        kernel, bias = scale * random.standard_normal((32, 32)), random.standard_normal(32)
        params[f"{SCOPE}/attention/{name}/kernel"] = tf.constant(kernel, tf.float32)
        params[f"{SCOPE}/attention/{name}/bias"] = tf.constant(bias, tf.float32)
    return params


def _inputs(seq_length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    input_mask = np.ones((2, seq_length), np.float32)
    input_mask[0, seq_length * 2 // 3 - 3 :] = 0  # ends inside a block; the last blocks are empty
    documents = 1 + np.sort(random.integers(0, 4, (2, seq_length)), axis=1)
    return {
        "hidden": random.standard_normal((2, seq_length, 32)).astype(np.float32),
        "upstream": random.standard_normal((2, seq_length, 32)).astype(np.float32),
        "input_mask": input_mask,
        "document_ids": np.where(input_mask > 0, documents, 0).astype(np.int32),
    }


def _run(config, inputs, *, documents=False, jit=False, params=None):
    """Output [b, S, width], and gradients by the hidden states and the weights.

    Block-sparse layers run on sequences rotated by one block (see `encoder.encode`).
    """
    params = params or _params()
    length = inputs["hidden"].shape[1]
    offset = config.model.block_size if is_tiled(config, length) else 0

    @tf.function(jit_compile=jit, autograph=False)
    def run(hidden, upstream, input_mask, document_ids):
        sources = [hidden, *params.values()]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            rows = tf.cast(tf.reshape(hidden, [-1, 32]), config.training.dtype)
            ids = document_ids if documents else None
            output = attend(params, config, SCOPE, rows, (2, length), input_mask, ids, LAYER)
            output = tf.reshape(tf.cast(output, tf.float32), hidden.shape)
        return output, *tape.gradient(output, sources, output_gradients=upstream)

    output, by_hidden, *by_params = run(*(np.roll(value, offset, 1) for value in inputs.values()))
    results = {
        name: np.roll(value, -offset, 1)
        for name, value in (("output", output), ("hidden", by_hidden))
    }
    return results | dict(zip(params, by_params, strict=True))


def _assert_equal(sparse, dense, tolerance=2e-5) -> None:
    for name, expected in dense.items():
        expected = np.asarray(expected)
        # The keys' bias changes nothing: its gradient is rounding, of either sign.
        atol = tolerance * max(1.0, np.abs(expected).max())
        if name.endswith("key/bias"):
            atol = 1e-3
        np.testing.assert_allclose(sparse[name], expected, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("random_pattern", PATTERNS)
@pytest.mark.parametrize(
    ("block_size", "num_blocks", "num_random_blocks", "documents", "jit"),
    [
        (4, 12, 3, False, False),
        (4, 12, 3, True, False),
        (8, 16, 3, True, True),
        (4, 22, 2, True, False),
        (4, 10, 1, True, False),
        (4, 8, 0, True, False),
        (4, 24, 5, True, False),
    ],
)
def test_values_and_gradients_equal_the_dense_reference(
    random_pattern, block_size, num_blocks, num_random_blocks, documents, jit
):
    length = block_size * num_blocks
    sets = {"block_size": block_size, "num_random_blocks": num_random_blocks}
    config = _config("block_sparse", random_pattern, length, **sets)
    assert not pattern.is_full(config, length)
    sparse = _run(config, _inputs(length), documents=documents, jit=jit)
    config = _config("simulated_sparse", random_pattern, length, **sets)
    _assert_equal(sparse, _run(config, _inputs(length), documents=documents))


@pytest.mark.parametrize("random_pattern", PATTERNS)
def test_padding_gets_no_probability_at_all(random_pattern):
    config = _config("block_sparse", random_pattern, 96)
    inputs = _inputs(96)
    padded = inputs["input_mask"] == 0
    inputs["upstream"][padded] = 0
    before = _run(config, inputs)
    assert padded.any() and not before["hidden"][padded].any()
    inputs["hidden"] = np.where(padded[..., None], np.float32(1e4), inputs["hidden"])
    after = _run(config, inputs)
    np.testing.assert_array_equal(after["output"][~padded], before["output"][~padded])
    for name in _params():
        if "query" not in name:
            np.testing.assert_allclose(after[name], before[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("random_pattern", PATTERNS)
@pytest.mark.parametrize("attention_type", ["block_sparse", "simulated_sparse", "original_full"])
def test_a_sequence_of_nothing_but_padding_is_finite(random_pattern, attention_type):
    config = _config(attention_type, random_pattern, 96)
    inputs = _inputs(96)
    inputs["input_mask"][0] = 0
    results = _run(config, inputs)
    for name, result in results.items():
        assert np.isfinite(result).all(), name
    bias = _params()[f"{SCOPE}/attention/output/dense/bias"]
    np.testing.assert_allclose(results["output"][0], np.broadcast_to(bias, (96, 32)), atol=1e-6)
    assert not results["hidden"][0].any() and results["hidden"][1].any()


@pytest.mark.parametrize("random_pattern", PATTERNS)
def test_large_scores_stay_exact(random_pattern):
    params = _params(scale=8.0)  # scores in the thousands: nearly all rows look at one key alone
    sparse, dense = (
        _run(_config(kind, random_pattern, 96), _inputs(96), params=params)
        for kind in ("block_sparse", "simulated_sparse")
    )
    np.testing.assert_allclose(sparse["output"], dense["output"], rtol=1e-3, atol=1)


@pytest.mark.parametrize("random_pattern", PATTERNS)
def test_bfloat16_is_near_float32(random_pattern):
    config = _config("block_sparse", random_pattern, 96)
    exact = _run(config, _inputs(96))
    config.training.dtype = "bfloat16"
    # Compiled, as a train step is. TensorFlow's own kernels round after every operation, and add in
    # bfloat16 on processors without instructions for it: up to 0.06 here, 0.035 compiled. Most of
    # it is the scores, up to 20 here: rounded to eight bits they move a weight by some percent.
    for name, got in _run(config, _inputs(96), jit=True).items():
        if not name.endswith("key/bias"):
            expected = np.asarray(exact[name])
            error = np.abs(np.asarray(got) - expected).mean()
            assert error < 0.04 * np.abs(expected).mean(), name


def test_full_attention_is_softmax_over_the_visible_keys():
    random = np.random.default_rng(2)
    q, k, v = (random.standard_normal((1, 16, 2, 8)).astype(np.float32) for _ in range(3))
    inputs = _inputs(16)
    mask, documents = inputs["input_mask"][:1], inputs["document_ids"][:1]
    context = dense_attention(*(tf.constant(x) for x in (q, k, v, mask, documents)), None)
    seen = (documents[0][:, None] == documents[0][None]) & (mask[0] > 0)
    scores = np.einsum("qhd,khd->hqk", q[0], k[0]) / np.sqrt(8)
    weights = np.exp(scores) * seen
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    np.testing.assert_allclose(context[0], np.einsum("hqk,khd->qhd", weights, v[0]), atol=1e-5)
