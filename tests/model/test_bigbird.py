"""Block-sparse attention equals dense attention with the same mask."""

import contextlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model import pattern
from bigbird_ja.model.bigbird import attend, is_tiled
from bigbird_ja.model.layers import Tokens
from tests.model.tiny import tiny_config

WAYS = ("independent", "rolled", pytest.param("kernels", marks=pytest.mark.slow))
SCOPE = "layer"
LAYER = 1


def _config(attention_type, way, seq_length, **model):
    """Return a config. `way` is a random pattern, or "kernels" for the rolled one with kernels."""
    random_pattern = "rolled" if way == "kernels" else way
    sets = {"attention_type": attention_type, "random_pattern": random_pattern, **model}
    if way == "kernels" and attention_type == "block_sparse":
        sets["attention_implementation"] = "kernel"
    return tiny_config(seq_length=seq_length, **{f"model.{k}": v for k, v in sets.items()})


def _params(scale=0.4, width=32):
    random = np.random.default_rng(1)
    params = {}
    for name in ("self/query", "self/key", "self/value", "output/dense"):
        kernel, bias = scale * random.standard_normal((width, width)), random.standard_normal(width)
        params[f"{SCOPE}/attention/{name}/kernel"] = tf.constant(kernel, tf.float32)
        params[f"{SCOPE}/attention/{name}/bias"] = tf.constant(bias, tf.float32)
    return params


def _inputs(seq_length, width=32):
    random = np.random.default_rng(0)
    input_mask = np.ones((2, seq_length), np.float32)
    # The first sequence ends inside a block, and its last blocks are padding.
    input_mask[0, seq_length * 2 // 3 - 3 :] = 0
    documents = 1 + np.sort(random.integers(0, 4, (2, seq_length)), axis=1)
    return {
        "hidden": random.standard_normal((2, seq_length, width)).astype(np.float32),
        "upstream": random.standard_normal((2, seq_length, width)).astype(np.float32),
        "input_mask": input_mask,
        "document_ids": np.where(input_mask > 0, documents, 0).astype(np.int32),
    }


def _interpret(make, shape, operands):
    """Run a kernel in Pallas' interpreter. This function replaces `call_jax`."""
    import jax

    arrays = [operand.numpy() for operand in operands]
    quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    outputs = jax.jit(make(shape, True)).lower(*arrays).compile(quick)(*arrays)
    return [tf.constant(np.asarray(output)) for output in jax.tree_util.tree_leaves(outputs)]


def _run(config, inputs, *, documents=False, jit=False, params=None):
    """Return a layer's output [batch, seq_length, width], and gradients of inputs and weights.

    Block-sparse layers process sequences that are rotated by one block (see `bigbird.encode`).
    """
    length, width = inputs["hidden"].shape[1:]
    params = params or _params(width=width)
    offset = config.model.block_size if is_tiled(config, length) else 0

    def attended(hidden, upstream, input_mask, document_ids):
        sources = [hidden, *params.values()]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            rows = tf.cast(tf.reshape(hidden, [-1, width]), config.training.dtype)
            tokens = Tokens(input_mask, document_ids if documents else None)
            output = attend(params, config, SCOPE, rows, tokens, LAYER)
            output = tf.reshape(tf.cast(output, tf.float32), hidden.shape)
        return output, *tape.gradient(output, sources, output_gradients=upstream)

    if jit:
        attended = tf.function(attended, jit_compile=True, autograph=False)
    rotated = [tf.constant(np.roll(value, offset, 1)) for value in inputs.values()]
    with contextlib.ExitStack() as stack:
        if config.model.attention_implementation == "kernel":
            # With libtpu installed, JAX would first search for a TPU, possibly for minutes.
            pytest.importorskip("jax").config.update("jax_platforms", "cpu")
            path = "bigbird_ja.model.kernels.kernel_attention.call_jax"
            stack.enter_context(mock.patch(path, _interpret))
        output, by_hidden, *by_params = attended(*rotated)
    results = {
        name: np.roll(value, -offset, 1)
        for name, value in (("output", output), ("hidden", by_hidden))
    }
    return results | dict(zip(params, by_params, strict=True))


def _assert_equal(sparse, dense, tolerance=2e-5):
    for name, expected in dense.items():
        expected = np.asarray(expected)
        # A bias of the keys does not change the softmax. Its gradient consists of rounding errors.
        atol = tolerance * max(1.0, np.abs(expected).max())
        if name.endswith("key/bias"):
            atol = 3e-3
        np.testing.assert_allclose(sparse[name], expected, rtol=0, atol=atol, err_msg=name)


def _check(way, shape, documents, heads=2, size=16, **how):
    """Compare a block-sparse layer with the dense reference.

    `shape` contains the block size, the number of blocks, and the number of random blocks.
    """
    length, width = shape[0] * shape[1], heads * size
    sets = {"block_size": shape[0], "num_random_blocks": shape[2], "hidden_size": width}
    sets["num_attention_heads"] = heads
    config = _config("block_sparse", way, length, **sets)
    assert not pattern.is_full(config, length)
    inputs = _inputs(length, width)
    sparse = _run(config, inputs, documents=documents, **how)
    config = _config("simulated_sparse", way, length, **sets)
    _assert_equal(sparse, _run(config, inputs, documents=documents))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("shape", "documents", "jit"),
    [
        ((4, 12, 3), False, False),
        ((8, 12, 3), True, True),
        ((4, 8, 0), True, False),
        ((4, 24, 5), True, False),
        ((4, 34, 3), True, False),  # Kernels process 1 tile, then 3 at a time.
    ],
)
def test_values_and_gradients_equal_the_dense_reference(way, shape, documents, jit):
    _check(way, shape, documents, jit=jit and way == "rolled")


@pytest.mark.parametrize(
    ("shape", "heads", "documents"),
    [
        ((8, 10, 1), 2, True),  # Two heads of size 64 share one step of the kernel.
        pytest.param((4, 24, 5), 4, False, marks=pytest.mark.slow),
    ],
)
def test_kernels_equal_the_dense_reference(shape, heads, documents):
    _check("kernels", shape, documents, heads, size=64)


@pytest.mark.parametrize(
    ("attention_type", "way"), [*(("block_sparse", way) for way in WAYS[:2]), ("original_full", "")]
)
def test_a_sequence_of_nothing_but_padding_is_finite(attention_type, way):
    config = _config(attention_type, way or "rolled", 96)
    inputs = _inputs(96)
    inputs["input_mask"][0] = 0
    results = _run(config, inputs)
    for name, result in results.items():
        assert np.isfinite(result).all(), name
    bias = _params()[f"{SCOPE}/attention/output/dense/bias"]
    np.testing.assert_allclose(results["output"][0], np.broadcast_to(bias, (96, 32)), atol=1e-6)
    assert not results["hidden"][0].any() and results["hidden"][1].any()


@pytest.mark.parametrize("way", WAYS)
def test_large_scores_stay_exact(way):
    # With scores in the thousands, nearly all queries attend to a single key.
    params = _params(scale=8.0)
    sparse, dense = (
        _run(_config(kind, way, 96), _inputs(96), params=params)
        for kind in ("block_sparse", "simulated_sparse")
    )
    np.testing.assert_allclose(sparse["output"], dense["output"], rtol=1e-3, atol=1)
