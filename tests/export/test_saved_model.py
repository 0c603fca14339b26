"""The SavedModel computes the same scores as the trained model at every length."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.export.saved_model import fill_saved_model
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.model.forward import Forward
from bigbird_ja.settings.values import replace_settings

pytestmark = pytest.mark.both


@pytest.fixture(scope="module", params=["block_sparse", "original_full"])
def model(request, trained):
    config = replace_settings(trained.config, {"model.attention_type": request.param})
    return dataclasses.replace(trained, config=config)


@pytest.fixture(scope="module")
def loaded(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    folder.mkdir()
    fill_saved_model(str(folder), model)
    kept = read_tokenizer(str(folder / "assets.extra/tokenizer.model"))
    assert kept.sha256 == model.tokenizer.sha256
    return tf.saved_model.load(str(folder))


@pytest.mark.parametrize(("batch", "length"), [(1, 3), (2, 176), (3, 177), (2, 256)])
def test_scores_equal_the_models(loaded, model, batch, length):
    random = np.random.default_rng(length)
    ids = random.integers(11, 1000, (batch, length)).astype(np.int32)
    ids[0, length * 2 // 3 :] = 0  # The first sequence ends in padding.
    positions = random.integers(0, length * 2 // 3, (batch, 2)).astype(np.int32)
    inputs = {"input_ids": tf.constant(ids), "segment_ids": tf.zeros_like(ids)}
    filled = loaded.signatures["fill_mask"](**inputs, positions=tf.constant(positions))
    expected = Forward(model.config, model.data, model.params).compute_log_probabilities(
        ids, positions
    )
    np.testing.assert_allclose(filled["log_probabilities"], expected, atol=1e-5)
    assert filled["embeddings"].shape == (batch, length, 32)
    same = loaded.signatures["serving_default"](**inputs, positions=tf.constant(positions))
    np.testing.assert_array_equal(same["log_probabilities"], filled["log_probabilities"])
    embedded = loaded.signatures["embed"](**inputs)
    np.testing.assert_allclose(embedded["embeddings"], filled["embeddings"], atol=1e-6)


def test_too_many_tokens_are_an_error(loaded):
    ids = tf.ones([1, 257], tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="more tokens than the model accepts"):
        loaded.signatures["embed"](input_ids=ids, segment_ids=ids)
