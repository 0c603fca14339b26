"""Muon against its definition in NumPy, matrix by matrix, and what it is made of."""

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model.initialization import initial_parameters
from bigbird_ja.train.optimizer import orthogonalize, orthogonalize_together
from bigbird_ja.train.step import NUM_SUMS, apply_gradients
from testkit.configs import with_data
from tests.model.tiny import initial_slots, tiny_config

STEPS = 4
RATE, DECAY = 1e-2, 0.1
# Kernels of several matrices side by side; all others in a layer are one.
SIDE_BY_SIDE = {"attention/Wqkv": 3, "mlp/Wi": 2}


def _config(architecture, optimizer="muon", **training):
    sets = {"optimizer": optimizer, "weight_decay": DECAY, "learning_rate": RATE} | training
    sets |= {"schedule": "cosine", "num_train_steps": 10**9}  # a constant rate
    return tiny_config(
        **{"model.architecture": architecture, "model.num_layers": 1},
        **{f"training.{name}": value for name, value in sets.items()},
    )


def _gradients(params, step):
    """Of a global norm of about 60, which is clipped to 1; matrices have a strong direction."""
    random = np.random.default_rng(100 + step)
    gradients = {}
    for name, value in params.items():
        gradients[name] = random.standard_normal(value.shape).astype(np.float32)
        if value.ndim == 2:
            gradients[name] += 3 * np.outer(gradients[name][:, 0], gradients[name][0])
    return gradients


def _trained(config):
    """Parameters and slots after `STEPS` updates."""
    params = initial_parameters(*with_data(config), seed=5)
    slots = initial_slots(config, {name: tf.constant(value) for name, value in params.items()})

    @tf.function(jit_compile=True, autograph=False)
    def update(params, slots, grads, step):
        return apply_gradients(*with_data(config), params, slots, grads, tf.zeros([NUM_SUMS]), step)

    for step in range(STEPS):
        gradients = _gradients(initial_parameters(*with_data(config), 5), step)
        params, slots, _ = update(params, slots, gradients, tf.constant(step))
    return tf.nest.map_structure(np.asarray, (params, slots))


def _orthogonal(matrix):
    """Jordan's five iterations in float64."""
    x = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


def _reference(config, name, count):
    """A kernel's values and momenta after the same updates, each matrix for itself."""
    params = initial_parameters(*with_data(config), seed=5)
    matrices = np.split(params[name].astype(np.float64), count, axis=1)
    momenta = [np.zeros_like(matrix) for matrix in matrices]
    for step in range(STEPS):
        gradients = _gradients(params, step)
        norm = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in gradients.values()))
        for number, gradient in enumerate(np.split(gradients[name] / norm, count, axis=1)):
            momenta[number] = 0.95 * momenta[number] + 0.05 * gradient
            direction = _orthogonal(0.95 * momenta[number] + 0.05 * gradient)
            length = 0.2 * np.sqrt(max(gradient.shape))
            matrices[number] = matrices[number] - RATE * (
                length * direction + DECAY * matrices[number]
            )
    return np.concatenate(matrices, axis=1), np.concatenate(momenta, axis=1)


@pytest.mark.both
@pytest.mark.parametrize("architecture", ["bigbird", "modernbert"])
def test_layers_matrices_move_as_the_reference_and_all_else_as_with_adamw(architecture):
    config = _config(architecture)
    params, slots = _trained(config)
    adamw, adamw_slots = _trained(_config(architecture, "adamw"))
    inside = [name for name in params if "/layer_" in name and name.endswith("/kernel")]
    kernels = {name: SIDE_BY_SIDE.get("/".join(name.split("/")[3:-1]), 1) for name in inside}
    assert set(slots["m"]) == set(params) and set(slots["v"]) == set(params) - set(kernels)
    for name, count in kernels.items():
        values, momenta = _reference(config, name, count)
        np.testing.assert_allclose(params[name], values, atol=1e-5 * np.abs(values).max())
        np.testing.assert_allclose(slots["m"][name], momenta, atol=1e-5 * np.abs(momenta).max())
    for name in set(params) - set(kernels):
        np.testing.assert_array_equal(params[name], adamw[name], err_msg=name)
        np.testing.assert_array_equal(slots["v"][name], adamw_slots["v"][name])


def test_bfloat16_is_close():
    config = _config("modernbert")
    params, _ = _trained(config)
    short, _ = _trained(_config("modernbert", dtype="bfloat16"))
    start = initial_parameters(*with_data(config), 5)
    for name, value in params.items():
        moved = np.linalg.norm(value - start[name])
        assert np.linalg.norm(short[name] - value) < 0.06 * moved, name


@pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
def test_of_the_two_products_the_smaller_is_computed(shape):
    traced = tf.function(orthogonalize, autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec([1, *shape])).graph
    shapes = {tuple(out.shape) for op in graph.get_operations() for out in op.outputs}
    assert (1, 16, 16) in shapes and (1, 40, 40) not in shapes


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16), (1, 7)])
def test_singular_values_come_near_one(shape):
    """Those from a hundredth of the matrix's norm on; in the same directions."""
    random = np.random.default_rng(2)
    count = min(shape)
    left = np.linalg.qr(random.standard_normal((shape[0], count)))[0]
    right = np.linalg.qr(random.standard_normal((shape[1], count)))[0]
    sizes = np.geomspace(1, 0.02, count) * 1e-3
    matrix = (left * sizes @ right.T).astype(np.float32)
    stack = orthogonalize(tf.stack([matrix, 0 * matrix, 1e-15 * matrix])).numpy()
    inside = left.T @ stack[0] @ right
    assert np.abs(inside - np.diag(np.diag(inside))).max() < 0.01
    assert np.diag(inside).min() > 0.6 and np.diag(inside).max() < 1.3
    assert not stack[1].any(), "no direction, no move"
    assert np.isfinite(stack[2]).all() and np.abs(stack[2]).max() <= 1.3
    pair = tf.stack([matrix, 2 * matrix])
    together = tf.function(orthogonalize_together, jit_compile=True, autograph=False)
    parts = [together(pair, tf.constant(replica), 2, tf.identity) for replica in (0, 1)]
    np.testing.assert_allclose(tf.add_n(parts), orthogonalize(pair), atol=2e-6)
