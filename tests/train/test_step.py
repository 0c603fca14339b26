"""The train step: modes, accumulation, replicas, checkpointing, non-finite values."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model.forward import Forward
from bigbird_ja.model.initialization import draw_parameters
from bigbird_ja.settings.values import replace_settings
from bigbird_ja.train.engines.lowering.lowered import Division, Spec, choose_division
from bigbird_ja.train.step import train_step
from testkit.configs import with_data
from tests.model.tiny import initial_slots, tiny_batch, tiny_config


def _state(config):
    first = draw_parameters(*with_data(config), seed=3)
    params = {name: tf.constant(value) for name, value in first.items()}
    return params, initial_slots(config, params), tf.constant(7, tf.int64)


def _config(**sets):
    return tiny_config(96, **{"make_data.nsp": True, **sets})


def _runner(config, jit, **how):
    def run(params, slots, step, batch):
        return train_step(*with_data(config), params, slots, step, batch, **how)

    return tf.function(run, jit_compile=True, autograph=False) if jit else run


def _step(config, batch, jit=False, **how):
    run = _runner(config, jit, **how)
    return tf.nest.map_structure(np.asarray, run(*_state(config), batch))


def _assert_same_update(got, expected, atol=1e-5):
    """Check that two train steps return equal first moments of the optimizer and equal metrics.

    After one step, a first moment is the gradient times a constant. So first moments show errors
    of gradients more exactly than the updated weights do.
    """
    for name, value in expected[1]["m"].items():
        np.testing.assert_allclose(got[1]["m"][name], value, atol=atol, err_msg=name)
    for name, value in expected[2].items():
        if name != "finite":
            np.testing.assert_allclose(got[2][name], value, rtol=1e-4, err_msg=name)


def test_eager_compiled_and_graph_mode_agree():
    """Compare an eager, a graph and a compiled train step with two micro-batches.

    Only the compiled step uses gradient checkpointing.
    """
    sets = {"model.num_layers": 1, "model.attention_type": "original_full"}
    config = _config(**sets, **{"training.gradient_accumulation_steps": 2})
    batch = tiny_batch(config)
    eager = _step(config, batch)
    metrics = eager[2]
    losses = metrics["masked_lm_loss"] + metrics["next_sentence_loss"]
    assert metrics["finite"] and metrics["loss"] == pytest.approx(losses)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        constants = {name: tf.constant(value.numpy()) for name, value in batch.items()}
        graph = session.run(train_step(*with_data(config), *_state(config), constants))
    _assert_same_update(graph, eager)
    config = replace_settings(config, {"training.gradient_checkpointing": True})
    _assert_same_update(_step(config, batch, jit=True), eager)


@pytest.mark.parametrize("random_pattern", ["rolled", "independent"])
def test_gradient_checkpointing_gives_the_same_gradients(random_pattern):
    config = _config(**{"model.random_pattern": random_pattern})
    batch = tiny_batch(config)
    plain = _step(config, batch)
    config = replace_settings(config, {"training.gradient_checkpointing": True})
    _assert_same_update(_step(config, batch), plain, atol=1e-6)


def test_checkpointing_recomputes_each_layer_behind_a_barrier():
    """Count the optimization barriers in the HLO before XLA compiles it.

    When XLA compiles for a CPU, it removes the barriers. For a TPU it keeps them, as the memory
    that `preflight` reports shows.
    """
    # `experimental_get_compiler_ir` draws a random number to find its device. If another test has
    # enabled op determinism in this process, random numbers require a seed.
    tf.random.set_seed(1)
    products, barriers = [], []
    for on in (False, True):
        sets = {"model.attention_type": "original_full", "model.num_layers": 1}
        sets["training.gradient_checkpointing"] = on
        config = _config(**sets)
        args = (*_state(config), tiny_batch(config))
        compiled = _runner(config, jit=True)
        text = compiled.experimental_get_compiler_ir(*args)(stage="hlo")
        products.append(text.count(" dot("))
        barriers.append(text.count(" opt-barrier("))
    assert barriers == [0, config.model.num_layers]
    forward_only = 6 + 2  # matrix products of a layer: 6 in projections and MLP, 2 in attention
    assert products[1] >= products[0] + config.model.num_layers * forward_only


def _on_replicas(config, batch, num_replicas):
    """Run one train step on simulated replicas, each of which is a thread.

    The function `cross_replica_sum` adds the tensors of all threads.
    """
    meeting, shares = threading.Barrier(num_replicas), [None] * num_replicas

    def run(replica):
        def cross_replica_sum(tensor):
            meeting.wait(120)
            shares[replica] = tensor
            meeting.wait(120)
            return tf.add_n(list(shares))

        how = {"replica_id": tf.constant(replica), "num_replicas": num_replicas}
        part = {name: tf.split(value, num_replicas)[replica] for name, value in batch.items()}
        return _step(config, part, cross_replica_sum=cross_replica_sum, **how)

    with ThreadPoolExecutor(num_replicas) as threads:
        return list(threads.map(run, range(num_replicas)))


def test_micro_batches_and_replicas_give_the_gradients_of_one_large_batch():
    sets = {"model.hidden_dropout_prob": 0.0, "training.global_batch_size": 8}
    sets |= {"model.num_layers": 1, "model.attention_type": "original_full"}
    config = _config(**sets)
    batch = tiny_batch(config, batch_size=8)
    whole = _step(config, batch)
    for steps in (2, 8):
        config = _config(**sets, **{"training.gradient_accumulation_steps": steps})
        _assert_same_update(_step(config, batch), whole)
    config = _config(**sets, **{"training.gradient_accumulation_steps": 2})
    for result in _on_replicas(config, batch, num_replicas=2):
        _assert_same_update(result, whole)


@pytest.mark.both
def test_replicas_share_the_work_of_muon():
    """Compare a train step with Muon on three replicas with the same step on one replica.

    The weights must be bit-identical on the three replicas. For some shapes, the number of matrices
    is not divisible by three.
    """
    sets = {"training.optimizer": "muon", "model.hidden_dropout_prob": 0.0}
    sets |= {"model.num_layers": 1, "model.attention_type": "original_full"}
    config = _config(**sets, **{"training.global_batch_size": 6})
    batch = tiny_batch(config, batch_size=6)
    whole = _step(config, batch)
    results = _on_replicas(config, batch, num_replicas=3)
    for result in results:
        _assert_same_update(result, whole)
        for name, value in whole[0].items():
            np.testing.assert_allclose(result[0][name], value, atol=2e-6, err_msg=name)
            np.testing.assert_array_equal(result[0][name], results[0][0][name], err_msg=name)


def test_dropout_depends_on_seed_step_replica_and_micro_batch():
    config = _config()
    params, slots, step = _state(config)
    batch = tiny_batch(config)

    def loss(config=config, step=step, replica=0):
        made = train_step(*with_data(config), params, slots, step, batch, replica_id=replica)
        return float(made[2]["loss"])

    first = loss()
    assert loss() == first
    others = [loss(step=step + 1), loss(replica=1), loss(_config(**{"training.seed": 5}))]
    assert len({first, *others}) == 4
    twins = {name: tf.concat([value[:2], value[:2]], axis=0) for name, value in batch.items()}
    accumulating = _config(**{"training.gradient_accumulation_steps": 2})
    halves = {name: value[:2] for name, value in batch.items()}
    once = float(train_step(*with_data(config), params, slots, step, halves)[2]["loss"])
    twice = float(train_step(*with_data(accumulating), params, slots, step, twins)[2]["loss"])
    # Both micro-batches of `twice` contain the records of `once`, but have different dropout masks.
    assert once != twice


@pytest.mark.parametrize("nsp", [False, True])
def test_step_on_nothing_but_padding_is_finite(nsp):
    config = _config(**{"make_data.nsp": nsp})
    empty = {name: tf.zeros_like(value) for name, value in tiny_batch(config).items()}
    params, slots, metrics = _step(config, empty)
    assert metrics["finite"] and metrics["masked_lm_loss"] == 0
    assert all(np.isfinite(value).all() for value in params.values())
    assert nsp or not any(value.any() for value in slots["m"].values())


@pytest.mark.parametrize(("bad", "optimizer"), [(np.nan, "adamw"), (np.inf, "muon")])
def test_a_nonfinite_update_is_skipped_and_reported(bad, optimizer):
    config = _config(**{"training.optimizer": optimizer})
    params, slots, step = _state(config)
    name = "bert/encoder/layer_1/output/dense/kernel"
    params[name] = params[name] + tf.one_hot(0, 48)[:, None] * bad
    new_params, new_slots, metrics = train_step(
        *with_data(config), params, slots, step, tiny_batch(config)
    )
    assert not metrics["finite"]
    tf.nest.map_structure(np.testing.assert_array_equal, (new_params, new_slots), (params, slots))


def test_gradients_are_clipped_to_the_global_norm():
    batch = tiny_batch(_config())
    loose = _step(_config(**{"training.clip_norm": 0.0}), batch)
    gradients = np.concatenate([10 * value.ravel() for value in loose[1]["m"].values()])
    norm = float(loose[2]["grad_norm"])
    assert norm == pytest.approx(np.linalg.norm(gradients), rel=1e-4)
    for share in (0.25, 4.0):
        clipped = _step(_config(**{"training.clip_norm": share * norm}), batch)
        assert clipped[2]["grad_norm"] == pytest.approx(norm, rel=1e-5)
        for name, value in loose[1]["m"].items():
            np.testing.assert_allclose(clipped[1]["m"][name], min(share, 1) * value, atol=1e-6)


def test_eval_metrics_are_those_of_the_step_without_dropout():
    config = _config(**{"model.hidden_dropout_prob": 0.0})
    batch = tiny_batch(config)
    metrics = Forward(*with_data(config), _state(config)[0]).compute_metrics(batch)
    trained = _step(config, batch)[2]
    weights = batch["masked_lm_weights"].numpy()
    for name, mean in (("losses", "loss"), ("correct", "accuracy")):
        value = (metrics[f"masked_lm_{name}"] * weights).sum() / weights.sum()
        assert value == pytest.approx(trained[f"masked_lm_{mean}"], rel=1e-5)
        value = metrics[f"next_sentence_{name}"].mean()
        assert value == pytest.approx(trained[f"next_sentence_{mean}"], rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "replicas", "shard"),
    [
        ((768, 3072), 8, Division(0, 96)),
        ((2, 768), 8, Division(1, 96)),
        ((768,), 32, Division(0, 24)),
        ((3, 5), 4, Division(1, 2)),  # No dimension is divisible by 4, so the longest is padded.
        ((2,), 4, Division(0, 1)),
    ],
)
def test_division_of_arrays_over_replicas(shape, replicas, shard):
    spec = Spec(shape, "float32")
    assert choose_division(spec, replicas) == shard
    part, whole = shard.get_part(spec), shard.get_whole(spec, replicas)
    assert part.shape[shard.dimension] * replicas == whole.shape[shard.dimension]
    assert all(a <= b for a, b in zip(spec.shape, whole.shape, strict=True))
