"""Names, shapes and first values of the parameters; FLOPs of a step."""

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model import params as params_lib
from bigbird_ja.model.params import count_parameters, initial_parameters, parameter_specs
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.resolve import resolve_config
from bigbird_ja.settings.values import varied
from testkit.configs import fitted, with_data
from tests.model.tiny import tiny_config


def test_bert_base_has_the_known_number_of_parameters():
    sizes = {"hidden_size": 768, "num_layers": 12, "num_attention_heads": 12}
    sizes |= {"intermediate_size": 3072}
    sets = {"tokenize.vocab_size": 32000, **{f"model.{key}": size for key, size in sizes.items()}}
    encoder = 12 * (4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768)
    embeddings = (32000 + 4096 + 2) * 768 + 2 * 768
    head = 768 * 768 + 3 * 768 + 32000
    next_sentence = 768 * 768 + 768 + 2 * 768 + 2
    config = tiny_config(4096, **sets)
    assert count_parameters(*with_data(config)) == encoder + embeddings + head
    config = varied(config, {"make_data.nsp": True})
    assert count_parameters(*with_data(config)) == encoder + embeddings + head + next_sentence


def test_biases_and_layer_norms_are_not_decayed():
    for name, spec in parameter_specs(*with_data(tiny_config(**{"make_data.nsp": True}))).items():
        assert spec.decay == (not name.endswith(("bias", "gamma", "beta"))), name


def test_first_values_depend_on_seed_and_name_alone():
    small = initial_parameters(*with_data(tiny_config(**{"model.num_layers": 1})), seed=4)
    np.random.seed(0)
    large = initial_parameters(*with_data(tiny_config(**{"model.num_layers": 2})), seed=4)
    for name, value in small.items():
        np.testing.assert_array_equal(large[name], value)
    kernel = "bert/encoder/layer_0/attention/self/query/kernel"
    assert (large[kernel] != large[kernel.replace("layer_0", "layer_1")]).any()
    assert (initial_parameters(*with_data(tiny_config()), seed=5)[kernel] != large[kernel]).any()


def test_first_values_are_a_truncated_normal():
    config = tiny_config(**{"tokenize.vocab_size": 5000})
    values = initial_parameters(*with_data(config), seed=0)
    words = values["bert/embeddings/word_embeddings"]
    assert words.dtype == np.float32 and words.shape == (5000, 32)
    assert np.abs(words).max() <= 0.04
    assert abs(words.mean()) < 1e-4
    assert abs(words.std() / (0.02 * 0.8796) - 1) < 0.01  # of a normal cut at two deviations
    assert (values["bert/encoder/LayerNorm/gamma"] == 1).all()
    assert not values["cls/predictions/output_bias"].any()


LENGTH = 256
SETTINGS = {
    "model.initializer": "subspaces",
    "model.hidden_size": 128,
    "model.num_attention_heads": 4,
}


def test_in_subspaces_every_head_of_every_layer_sees_the_token_at_its_distance():
    """By the weights of random pieces, as the embeddings come."""
    values = initial_parameters(*with_data(tiny_config(LENGTH, **SETTINGS)), seed=-1)
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
        assert not value[:32].any()  # of the piece alone, by a map that keeps lengths
        np.testing.assert_allclose(value.T @ value, np.eye(32), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("initializer=subspaces num_attention_heads=1", "needs 2 or more"),
        ("initializer=subspaces hidden_size=33 num_attention_heads=3", "an even part"),
    ],
)
def test_first_values_that_the_shape_cannot_have_are_refused(settings, message):
    with pytest.raises(BadInput, match=message):
        resolve_config(None, [f"model.{setting}" for setting in settings.split()])


def test_model_flops_of_full_attention_by_hand():
    sets = {"hidden_size": 8, "intermediate_size": 32, "num_layers": 3}
    sets = {f"model.{name}": size for name, size in sets.items()}
    sets |= {"model.attention_type": "original_full", "make_data.max_predictions_per_seq": 5}
    config = tiny_config(16, **sets, **{"tokenize.vocab_size": 100})
    attention = 16 * 2 * 4 * 8 * 8 + 4 * 8 * 16 * 16
    # The last layer's MLP runs for the 5 predictions alone.
    mlps = (16 + 16 + 5) * 2 * 2 * 8 * 32
    head = 5 * 2 * (8 * 8 + 8 * 100)
    whole = 3 * 2 * (3 * attention + mlps + head)
    assert params_lib.model_flops(*with_data(config), batch_per_core=2) == whole
    # Half of the pairs are of other documents.
    half = 3 * 2 * 3 * 4 * 8 * 16 * 16 / 2
    assert params_lib.model_flops(*with_data(config), batch_per_core=2, share=0.5) == whole - half


@pytest.mark.parametrize(("pattern", "per_row"), [("rolled", 4), ("independent", 3)])
def test_sparse_attention_counts_what_its_pattern_lets_see(pattern, per_row):
    config = fitted(None, [f"model.random_pattern={pattern}"])
    blocks = 64
    # Rows next to a global block see it once; the two global rows see everything.
    by_hand = (blocks - 2) * (5 + per_row) - 2 + 2 * blocks
    assert params_lib.visible_pairs(config, 0, 4096) == by_hand * 64 * 64
