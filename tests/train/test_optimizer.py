"""The optimizers' updates equal their definitions. Learning rates equal their formulas."""

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model.initialization import draw_parameters
from bigbird_ja.train import optimizer
from bigbird_ja.train.optimizer import learning_rate, orthogonalize, orthogonalize_together
from bigbird_ja.train.step import NUM_SUMS, apply_gradients
from testkit.configs import with_data
from tests.model.tiny import initial_slots, tiny_config

NAMES = (
    "bert/encoder/layer_0/output/dense/kernel",
    "bert/encoder/layer_0/output/dense/bias",
    "bert/encoder/layer_0/output/LayerNorm/gamma",
    "cls/predictions/transform/gamma",
)
DECAYED = {"adamw": NAMES[:1], "google": (NAMES[0], NAMES[3])}


def _gradients(step):
    random = np.random.default_rng(1000 + step)
    # The gradients of a real model differ by orders of magnitude, so draw the scale of each
    # parameter's gradient from 0.0001 to 10.
    sizes = 10.0 ** random.uniform(-4, 1, len(NAMES))
    return {
        name: (size * random.standard_normal((6, 5))).astype(np.float32)
        for name, size in zip(NAMES, sizes, strict=True)
    }


def _reference(rule, params, rates):
    """Train `params` by an update rule in float64, and return the final parameters.

    Rule "adamw" is AdamW by Loshchilov and Hutter. Rule "google" is AdamWeightDecayOptimizer from
    Google's code of BERT and BigBird. Gradients are multiplied by 0.5, the `scale` of the test.
    """
    params = {name: value.astype(np.float64) for name, value in params.items()}
    m = {name: np.zeros_like(value) for name, value in params.items()}
    v = {name: np.zeros_like(value) for name, value in params.items()}
    for step, rate in enumerate(rates):
        # Google's rule does not correct the bias of the moments.
        count = step + 1 if rule == "adamw" else np.inf
        for name, gradient in _gradients(step).items():
            m[name] = 0.9 * m[name] + 0.1 * 0.5 * gradient
            v[name] = 0.999 * v[name] + 0.001 * (0.5 * gradient) ** 2
            mean, square = m[name] / (1 - 0.9**count), v[name] / (1 - 0.999**count)
            length = mean / (np.sqrt(square) + 1e-6)
            if name in DECAYED[rule]:
                length = length + 0.1 * params[name]
            params[name] = params[name] - rate * length
    return params


@pytest.mark.parametrize("rule", DECAYED)
def test_update_rules_equal_their_references(rule):
    """Compare the parameters after 200 steps with those that `_reference` computes in float64."""
    sets = {"update_rule": rule, "schedule": "google", "num_train_steps": 200, "warmup_steps": 40}
    sets |= {"learning_rate": 1e-3, "weight_decay": 0.1}
    section = tiny_config(**{f"training.{key}": value for key, value in sets.items()}).training
    random = np.random.default_rng(1)
    start = {name: random.standard_normal((6, 5)).astype(np.float32) for name in NAMES}
    params = {name: tf.constant(value) for name, value in start.items()}
    slots = {slot: {name: tf.zeros_like(value) for name, value in params.items()} for slot in "mv"}
    decayed = {name: name.endswith("kernel") for name in NAMES}
    fixed = {"decayed": decayed, "muons": {}, "scale": tf.constant(0.5), "keep": tf.constant(True)}
    for step in range(200):
        at = tf.constant(step)
        now = {"global_step": at, "learning_rate": learning_rate(section, at)}
        gradients = {name: tf.constant(value) for name, value in _gradients(step).items()}
        params, slots = optimizer.update(section, params, slots, gradients, **fixed, **now)
    rates = [1e-3 * (s / 40 if s < 40 else 1 - s / 200) for s in range(200)]
    expected = _reference(rule, start, rates)
    for name, value in params.items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-6, atol=2e-6)
        assert np.abs(value - start[name]).max() > 0.005


def _curve(steps=100, beyond=0, **training):
    sets = {"num_train_steps": steps, "learning_rate": 0.5, "warmup_steps": 10, **training}
    section = tiny_config(**{f"training.{key}": value for key, value in sets.items()}).training
    return np.array([float(learning_rate(section, step)) for step in range(steps + beyond)])


STEPS = np.arange(100)
# Expected learning rate by step, as a fraction of the peak. The 10 warm-up steps are not used.
CURVES = {
    "linear": (100 - STEPS) / 90,
    "cosine": 0.5 * (1 + np.cos(np.pi * (STEPS - 10) / 90)),
    "wsd": np.minimum(1, (100 - STEPS) / 20),
    "google": 1 - STEPS / 100,
}


@pytest.mark.parametrize("schedule", CURVES)
def test_the_rate_warms_up_and_falls_to_zero_at_the_last_step(schedule):
    """Compare each schedule with its formula.

    The warm-up of the schedule "google" starts at zero, that of the others at a tenth of the peak.
    """
    decay = {"decay_fraction": 0.2} if schedule == "wsd" else {}
    curve = _curve(beyond=5, schedule=schedule, **decay)
    first = 0 if schedule == "google" else 1
    np.testing.assert_allclose(curve[:10], 0.05 * np.arange(first, first + 10), rtol=1e-6)
    np.testing.assert_allclose(curve[10:100], 0.5 * CURVES[schedule][10:], rtol=1e-5, atol=1e-6)
    assert not curve[100:].any()


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "google"])
@pytest.mark.parametrize("warmup", [0, 1, 200])
def test_odd_lengths_are_finite(schedule, warmup):
    decay = {"decay_fraction": 0.0} if schedule == "wsd" else {}
    curve = _curve(steps=3, schedule=schedule, warmup_steps=warmup, **decay)
    assert np.isfinite(curve).all() and (curve[1:] > 0).all() and (curve <= 0.5).all()
    assert curve[0] > 0 or (schedule == "google" and warmup)


MUON_STEPS = 4


RATE, DECAY = 1e-2, 0.1


# Number of matrices that a kernel contains side by side. A kernel that is not listed contains one.
SIDE_BY_SIDE = {"attention/Wqkv": 3, "mlp/Wi": 2}


def _muon_config(architecture, optimizer="muon", **training):
    sets = {"optimizer": optimizer, "weight_decay": DECAY, "learning_rate": RATE} | training
    # With so many steps, the learning rate is almost constant.
    sets |= {"schedule": "cosine", "num_train_steps": 10**9}
    return tiny_config(
        **{"model.architecture": architecture, "model.num_layers": 1},
        **{f"training.{name}": value for name, value in sets.items()},
    )


def _muon_gradients(params, step):
    """Draw gradients with a global norm of about 60, which training clips to 1.

    In each matrix, one singular value is much larger than the others.
    """
    random = np.random.default_rng(100 + step)
    gradients = {}
    for name, value in params.items():
        gradients[name] = random.standard_normal(value.shape).astype(np.float32)
        if value.ndim == 2:
            gradients[name] += 3 * np.outer(gradients[name][:, 0], gradients[name][0])
    return gradients


def _muon_trained(config):
    """Return the parameters and the optimizer's slots after `MUON_STEPS` updates."""
    params = draw_parameters(*with_data(config), seed=5)
    slots = initial_slots(config, {name: tf.constant(value) for name, value in params.items()})

    @tf.function(jit_compile=True, autograph=False)
    def update(params, slots, grads, step):
        return apply_gradients(*with_data(config), params, slots, grads, tf.zeros([NUM_SUMS]), step)

    for step in range(MUON_STEPS):
        gradients = _muon_gradients(draw_parameters(*with_data(config), 5), step)
        params, slots, _ = update(params, slots, gradients, tf.constant(step))
    return tf.nest.map_structure(np.asarray, (params, slots))


def _orthogonal(matrix):
    """Orthogonalize a matrix by five Newton-Schulz iterations with Jordan's coefficients."""
    x = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


def _muon_reference(config, name, count):
    """Compute a kernel and its momenta after `MUON_STEPS` updates by Muon.

    The kernel contains `count` matrices side by side, which are updated separately.
    """
    params = draw_parameters(*with_data(config), seed=5)
    matrices = np.split(params[name].astype(np.float64), count, axis=1)
    momenta = [np.zeros_like(matrix) for matrix in matrices]
    for step in range(MUON_STEPS):
        gradients = _muon_gradients(params, step)
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
def test_muon_updates_matrices_of_layers_and_adamw_the_rest(architecture):
    config = _muon_config(architecture)
    params, slots = _muon_trained(config)
    adamw, adamw_slots = _muon_trained(_muon_config(architecture, "adamw"))
    inside = [name for name in params if "/layer_" in name and name.endswith("/kernel")]
    kernels = {name: SIDE_BY_SIDE.get("/".join(name.split("/")[3:-1]), 1) for name in inside}
    assert set(slots["m"]) == set(params) and set(slots["v"]) == set(params) - set(kernels)
    for name, count in kernels.items():
        values, momenta = _muon_reference(config, name, count)
        np.testing.assert_allclose(params[name], values, atol=1e-5 * np.abs(values).max())
        np.testing.assert_allclose(slots["m"][name], momenta, atol=1e-5 * np.abs(momenta).max())
    for name in set(params) - set(kernels):
        np.testing.assert_array_equal(params[name], adamw[name], err_msg=name)
        np.testing.assert_array_equal(slots["v"][name], adamw_slots["v"][name])


def test_bfloat16_is_close():
    config = _muon_config("modernbert")
    params, _ = _muon_trained(config)
    short, _ = _muon_trained(_muon_config("modernbert", dtype="bfloat16"))
    start = draw_parameters(*with_data(config), 5)
    for name, value in params.items():
        moved = np.linalg.norm(value - start[name])
        assert np.linalg.norm(short[name] - value) < 0.06 * moved, name


@pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
def test_orthogonalization_computes_the_smaller_product(shape):
    traced = tf.function(orthogonalize, autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec([1, *shape])).graph
    shapes = {tuple(out.shape) for op in graph.get_operations() for out in op.outputs}
    assert (1, 16, 16) in shapes and (1, 40, 40) not in shapes


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16), (1, 7)])
def test_singular_values_come_near_one(shape):
    """Check that `orthogonalize` moves singular values near 1 and keeps the singular vectors."""
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
