"""Number of a model's parameters, and weight decay of each parameter."""

from bigbird_ja.model.params import make_parameter_specs
from bigbird_ja.settings.values import replace_settings
from testkit.configs import count_parameters, with_data
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
    config = replace_settings(config, {"make_data.nsp": True})
    assert count_parameters(*with_data(config)) == encoder + embeddings + head + next_sentence


def test_biases_and_layer_norms_are_not_decayed():
    for name, spec in make_parameter_specs(
        *with_data(tiny_config(**{"make_data.nsp": True}))
    ).items():
        assert spec.decay == (not name.endswith(("bias", "gamma", "beta"))), name
