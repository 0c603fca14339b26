"""TPUEstimator: its graph for a TPU, its input, and a session that is not created again."""

import numpy as np
import pytest
import tensorflow as tf

from testkit.configs import fitted, with_data

pytest.importorskip("tensorflow_estimator", reason="TPUEstimator ended with TensorFlow 2.15")

from bigbird_ja.errors import StorageError
from bigbird_ja.model.params import make_parameter_specs
from bigbird_ja.settings.values import replace_settings
from bigbird_ja.train.engines import estimator
from bigbird_ja.train.engines.estimator_graph import REPLICA_ID, TrainGraph, deal

pytestmark = pytest.mark.estimator


def batches(rows):
    values = {"a": np.arange(3 * rows * 2).reshape(3, rows, 2).astype(np.int32)}
    return tf.data.Dataset.from_tensor_slices(values)


def test_a_batch_is_dealt_to_the_cores_in_their_order():
    dealt = list(deal(batches(8), range(4, 8)).as_numpy_iterator())
    assert [int(part[REPLICA_ID][0]) for part in dealt] == [4, 5, 6, 7] * 3
    assert dealt[0]["a"].shape == (2, 2)
    joined = np.concatenate([part["a"] for part in dealt[4:8]])
    assert (joined == np.arange(16, 32).reshape(8, 2)).all()
    (first, *_) = deal(batches(8), range(1)).as_numpy_iterator()
    assert first["a"].shape == (8, 2) and first[REPLICA_ID].tolist() == [0]


def tiny():
    settings = """
        model.hidden_size=32 model.num_layers=1 model.num_attention_heads=2 model.vocab_size=50
        model.intermediate_size=32 model.attention_type=original_full
        make_data.seq_length=16 make_data.max_predictions_per_seq=2 make_data.masking=dynamic
        make_data.nsp=false training.global_batch_size=4 training.log_every_steps=2
        training.dtype=float32 training.warmup_steps=1 tpu.num_cores=2
    """.split()
    return fitted(None, settings)


def features(rows):
    rng = np.random.default_rng(0)

    def ids(high, *shape):
        return tf.constant(rng.integers(1, high, shape), tf.int32)

    return {
        "input_ids": ids(50, rows, 16),
        "segment_ids": tf.zeros([rows, 16], tf.int32),
        "document_ids": tf.ones([rows, 16], tf.int32),
        "masked_lm_positions": ids(16, rows, 2),
        "masked_lm_ids": ids(50, rows, 2),
        "masked_lm_weights": tf.ones([rows, 2]),
        "next_sentence_labels": tf.zeros([rows], tf.int32),
        REPLICA_ID: tf.constant([0]),
    }


def initial(config):
    from bigbird_ja.model.initialization import draw_parameters

    params = draw_parameters(*with_data(config), 1)
    slots = {f"{n}/adam_{s}": np.zeros_like(v) for s in "mv" for n, v in params.items()}
    return {**params, **slots, "global_step": np.int64(0)}


@pytest.mark.parametrize(("optimizer", "stacks"), [("adamw", 0), ("muon", 1)])
def test_the_tpu_form_of_the_step_builds(optimizer, stacks):
    config = replace_settings(tiny(), {"training.optimizer": optimizer})
    graph = TrainGraph(*with_data(config), lambda: initial(config))
    with tf.Graph().as_default() as built:

        def step():
            return graph.model_fn(features(2), None, "train", {"use_tpu": True}).train_op

        tf.compat.v1.tpu.replicate(step, [[], []])
        sums = [op for op in built.get_operations() if op.type == "CrossReplicaSum"]
    # There is one sum over all cores for each of these: the weight of the loss, the metrics, each
    # gradient, and each stack of matrices that the cores orthogonalize.
    assert len(sums) == 2 + len(make_parameter_specs(*with_data(config))) + stacks


def endless(host, count):
    part = features(4)
    part.pop(REPLICA_ID)
    return tf.data.Dataset.from_tensors(part).repeat()


def make_engine(tmp_path, steps, batches=endless):
    config = tiny()
    config = replace_settings(config, {"training.num_train_steps": steps})
    return estimator.EstimatorEngine(
        *with_data(config), lambda: initial(config), batches, 1, str(tmp_path), use_tpu=False
    )


def test_engine_can_be_closed_before_and_after_its_first_step(tmp_path):
    for steps in (0, 2):
        engine = make_engine(tmp_path, 100)
        engine.begin()
        for _ in range(steps):
            engine.advance(100)
        engine.close()
        engine.close()
        assert not engine._thread.is_alive()


def test_input_that_ends_or_fails_is_an_error(tmp_path):
    engine = make_engine(tmp_path, 10, lambda host, count: endless(0, 1).take(2))
    engine.begin()
    assert [engine.advance(10).step, engine.advance(10).step] == [1, 2]
    with pytest.raises(StorageError, match="input ended at step 2, before 10"):
        engine.advance(10)
    engine.close()

    def failing(host, count):
        def check(part):
            with tf.control_dependencies([tf.debugging.Assert(False, ["shard-7"])]):
                return {name: tf.identity(value) for name, value in part.items()}

        return endless(0, 1).map(check)

    engine = make_engine(tmp_path, 10, failing)
    engine.begin()
    with pytest.raises(tf.errors.InvalidArgumentError, match="shard-7"):
        engine.advance(10)
    engine.close()


@pytest.mark.parametrize("kind", [tf.errors.AbortedError, tf.errors.UnavailableError])
def test_a_bucket_that_refuses_ends_the_run_and_builds_no_second_session(
    tmp_path, monkeypatch, kind
):
    sessions = []
    create = estimator._Handover.after_create_session

    def created(hook, *about):
        sessions.append(hook)
        create(hook, *about)

    def fail(hook, *_):
        raise kind(None, None, "All 4 retry attempts failed: 503 gs://b/shard")

    monkeypatch.setattr(estimator._Handover, "after_run", fail)
    monkeypatch.setattr(estimator._Handover, "after_create_session", created)
    engine = make_engine(tmp_path, 10)
    engine.begin()
    with pytest.raises(kind, match="503 gs://b/shard"):
        engine.advance(10)
    engine.close()
    assert not engine._thread.is_alive() and len(sessions) == 1
