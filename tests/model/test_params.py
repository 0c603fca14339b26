"""Names, shapes and first values of the parameters."""

from __future__ import annotations

import numpy as np

from bigbird_ja.model.params import count_parameters, initial_parameters, parameter_specs
from tests.model.tiny import tiny_config


def test_bert_base_has_the_known_number_of_parameters():
    sizes = {"hidden_size": 768, "num_layers": 12, "num_attention_heads": 12}
    sizes |= {"intermediate_size": 3072}
    sets = {f"model.{key}": value for key, value in sizes.items()}
    config = tiny_config(4096, **sets, **{"tokenize.vocab_size": 32000, "make_data.nsp": True})
    encoder = 12 * (4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768)
    embeddings = (32000 + 4096 + 2) * 768 + 2 * 768
    heads = 768 * 768 + 3 * 768 + 32000 + 768 * 768 + 768 + 2 * 768 + 2
    assert count_parameters(config) == encoder + embeddings + heads


def test_next_sentence_parameters_exist_only_with_it():
    with_it = set(parameter_specs(tiny_config(**{"make_data.nsp": True})))
    without = set(parameter_specs(tiny_config()))
    assert with_it - without == {
        "bert/pooler/dense/kernel",
        "bert/pooler/dense/bias",
        "cls/seq_relationship/output_weights",
        "cls/seq_relationship/output_bias",
    }
    assert without < with_it


def test_biases_and_layer_norms_are_not_decayed():
    for name, spec in parameter_specs(tiny_config(**{"make_data.nsp": True})).items():
        assert spec.decay == (not name.endswith(("bias", "gamma", "beta"))), name


def test_first_values_depend_on_seed_and_name_alone():
    small = initial_parameters(tiny_config(**{"model.num_layers": 1}), seed=4)
    np.random.seed(0)
    large = initial_parameters(tiny_config(**{"model.num_layers": 2}), seed=4)
    for name, value in small.items():
        np.testing.assert_array_equal(large[name], value)
    kernel = "bert/encoder/layer_0/attention/self/query/kernel"
    assert (large[kernel] != large[kernel.replace("layer_0", "layer_1")]).any()
    assert (initial_parameters(tiny_config(), seed=5)[kernel] != large[kernel]).any()


def test_first_values_are_a_truncated_normal():
    config = tiny_config(**{"tokenize.vocab_size": 5000})
    values = initial_parameters(config, seed=0)
    words = values["bert/embeddings/word_embeddings"]
    assert words.dtype == np.float32 and words.shape == (5000, 32)
    assert np.abs(words).max() <= 0.04
    assert abs(words.mean()) < 1e-4
    assert abs(words.std() / (0.02 * 0.8796) - 1) < 0.01  # of a normal cut at two deviations
    assert (values["bert/encoder/LayerNorm/gamma"] == 1).all()
    assert not values["cls/predictions/output_bias"].any()
