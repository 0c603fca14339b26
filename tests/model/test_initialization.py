"""Distribution and reproducibility of initial weights."""

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.errors import BadInput
from bigbird_ja.model.initialization import draw_parameters
from testkit.configs import resolve_config, with_data
from tests.model.tiny import tiny_config


def test_initial_weights_depend_on_seed_and_name():
    small = draw_parameters(*with_data(tiny_config(**{"model.num_layers": 1})), seed=4)
    np.random.seed(0)
    large = draw_parameters(*with_data(tiny_config(**{"model.num_layers": 2})), seed=4)
    for name, value in small.items():
        np.testing.assert_array_equal(large[name], value)
    kernel = "bert/encoder/layer_0/attention/self/query/kernel"
    assert (large[kernel] != large[kernel.replace("layer_0", "layer_1")]).any()
    assert (draw_parameters(*with_data(tiny_config()), seed=5)[kernel] != large[kernel]).any()


def test_initial_weights_are_a_truncated_normal():
    config = tiny_config(**{"tokenize.vocab_size": 5000})
    values = draw_parameters(*with_data(config), seed=0)
    words = values["bert/embeddings/word_embeddings"]
    assert words.dtype == np.float32 and words.shape == (5000, 32)
    assert np.abs(words).max() <= 0.04
    assert abs(words.mean()) < 1e-4
    # The distribution is normal and truncated at two standard deviations.
    assert abs(words.std() / (0.02 * 0.8796) - 1) < 0.01
    assert (values["bert/encoder/LayerNorm/gamma"] == 1).all()
    assert not values["cls/predictions/output_bias"].any()


LENGTH = 256


SETTINGS = {
    "model.initializer": "subspaces",
    "model.hidden_size": 128,
    "model.num_attention_heads": 4,
}


def test_heads_attend_to_their_distance_with_subspaces():
    """Compute the initial attention of all heads of two layers on random tokens."""
    values = draw_parameters(*with_data(tiny_config(LENGTH, **SETTINGS)), seed=-1)
    words = values["bert/embeddings/word_embeddings"]
    inputs = words[np.random.default_rng(0).integers(11, len(words), LENGTH)]
    inputs = inputs + values["bert/embeddings/position_embeddings"][:LENGTH]
    inputs = (inputs - inputs.mean(1, keepdims=True)) / inputs.std(1, keepdims=True)
    for number, distance in enumerate([-1, 1, -2, 2, -3, 3, -4, 4]):
        scope = f"bert/encoder/layer_{number // 4}/attention/self"
        both = (inputs @ values[f"{scope}/{name}/kernel"] for name in ("query", "key"))
        query, key = (np.split(each, 4, axis=1)[number % 4] for each in both)
        shares = tf.nn.softmax(query @ key.T / np.sqrt(32))
        assert np.diagonal(shares, distance).mean() > 0.95
        value = np.split(values[f"{scope}/value/kernel"], 4, axis=1)[number % 4]
        # The values of a head depend only on the token, and their map has orthonormal columns.
        assert not value[:32].any()
        np.testing.assert_allclose(value.T @ value, np.eye(32), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("initializer=subspaces num_attention_heads=1", "requires at least 2 heads"),
        ("initializer=subspaces hidden_size=33 num_attention_heads=3", "an even number"),
    ],
)
def test_subspaces_need_two_heads_of_even_size(settings, message):
    with pytest.raises(BadInput, match=message):
        resolve_config(None, [f"model.{setting}" for setting in settings.split()])
