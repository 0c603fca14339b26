"""The whole encoder with separate documents, selected positions, short sequences and bfloat16."""

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model.bigbird import encode
from bigbird_ja.model.initialization import draw_parameters
from bigbird_ja.model.layers import make_key
from testkit.configs import with_data
from tests.model.tiny import tiny_batch, tiny_config


def _encode(config, batch, key=None, positions=None):
    params = draw_parameters(*with_data(config), seed=0)
    inputs = (batch[name] for name in ("input_ids", "segment_ids", "document_ids"))
    return encode(params, *with_data(config), *inputs, positions=positions, dropout_key=key).numpy()


def _changed_by(config, position):
    """Return the positions whose outputs depend on the token at `position`."""
    batch = tiny_batch(config, batch_size=2)
    batch = {name: value[1:] for name, value in batch.items()}
    before = _encode(config, batch)
    ids = batch["input_ids"].numpy()
    ids[0, position] = 7 + (ids[0, position] - 6) % (config.model.vocab_size - 7)
    after = _encode(config, batch | {"input_ids": tf.constant(ids)})
    return np.abs(after - before)[0].max(-1) > 0, batch


@pytest.mark.parametrize(
    ("key", "value"),
    [("random_pattern", "independent"), ("random_pattern", "rolled")]
    + [("attention_type", kind) for kind in ("simulated_sparse", "original_full")],
)
def test_attention_stays_within_documents_on_request(key, value):
    sets = {f"model.{key}": value}
    reached, batch = _changed_by(tiny_config(96, **sets), position=50)
    assert reached.all()  # In two layers, all tokens are connected through the global blocks.
    config = tiny_config(96, **sets, **{"model.attend_across_documents": False})
    reached, batch = _changed_by(config, position=50)
    documents = batch["document_ids"].numpy()[0]
    assert not reached[documents != documents[50]].any()
    assert reached[50] and reached.sum() > 1


@pytest.mark.parametrize("attention_type", ["block_sparse", "original_full"])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_some_positions_equal_those_of_all(attention_type, checkpointing):
    sets = {"model.attention_type": attention_type, "model.hidden_dropout_prob": 0.0}
    config = tiny_config(96, **sets, **{"training.gradient_checkpointing": checkpointing})
    batch = tiny_batch(config)
    chosen = np.random.default_rng(0).integers(0, 96, [len(batch["input_ids"]), 7], np.int32)
    chosen[:, :2] = 0, 95
    every, some = (
        _encode(config, batch, make_key(0, 0), positions)
        for positions in (None, tf.constant(chosen))
    )
    expected = np.take_along_axis(every, chosen[..., None], axis=1)
    np.testing.assert_allclose(some, expected, atol=1e-5)


def test_the_shortest_sequences():
    for length in (8, 16):
        config = tiny_config(length)
        assert _encode(config, tiny_batch(config, batch_size=1)).shape == (1, length, 32)


def test_activations_are_in_the_dtype_of_the_config():
    config = tiny_config(96, **{"training.dtype": "bfloat16"})
    batch = tiny_batch(config)
    rough = _encode(config, batch)
    assert rough.dtype == tf.bfloat16.as_numpy_dtype
    exact = _encode(tiny_config(96), batch)
    tokens = batch["input_ids"].numpy() != 0
    assert np.abs(rough.astype(np.float32) - exact)[tokens].mean() < 0.02
