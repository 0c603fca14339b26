"""Supported variants of config.json are read, and others are refused."""

import json

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import config as hf_config
from tests.huggingface.folders import SIZES, adopted, made

pytestmark = pytest.mark.both


@pytest.mark.parametrize("activation", ["relu", "gelu_pytorch_tanh"])
def test_modernbert_with_two_activations_is_refused(activation, tmp_path):
    """Refuse a model whose masked-LM head has a different activation than its layers."""
    layers, head = {"hidden_activation": activation}, {"classifier_activation": activation}
    for one in (layers, head):
        made("modernbert", tmp_path, one)
        with pytest.raises(BadInput, match=f"{activation} in its .*the two must be the same"):
            hf_config.read_config(str(tmp_path))


def test_roberta_with_another_activation_than_gelu_is_refused(tmp_path):
    made("roberta", tmp_path, {"hidden_act": "relu"})
    with pytest.raises(BadInput, match="relu in its layers and gelu in its masked-LM head"):
        hf_config.read_config(str(tmp_path))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"model_type": "t5"}, "start from a t5 model, only from modernbert, bert"),
        ({"model_type": "modernbert-decoder"}, "a modernbert-decoder model, only"),  # Ettin
        ({"hidden_activation": "silu"}, "the activation 'silu'"),
        ({"norm_bias": True}, "norm_bias=True is not supported, only False"),
        ({"architectures": ["ModernBertForTokenClassification"]}, "whose head is not supported"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "only 'absolute'"),
        ({"quantization_config": {"bits": 4}}, "quantized weights"),
        ({"layer_types": ["sliding_attention", "full_attention", "full_attention"]}, "every n-th"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}, "sliding_attention": {}}},
            "rope_type 'default'",
        ),
        ({"rope_parameters": {"rope_theta": 5000.0}}, "full_attention"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling="),
    ],
)
def test_unsupported_variant_is_refused(changed, message, tmp_path):
    content = {"model_type": "modernbert", "hidden_size": 32, **changed}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=message):
        hf_config.read_config(str(tmp_path))


@pytest.mark.parametrize(
    # Keys in the config.json of public encoders. The comments name the encoders.
    "published",
    [
        {"position_embedding_type": "rope", "pad_token_id": 3},  # ModernBERT-Ja
        {"position_embedding_type": "sans_pos", "local_rope_theta": 160000},  # mmBERT
        {"position_embedding_type": "absolute", "layer_norm_eps": 1e-12},  # ModernBERT
        {"architectures": ["ModernBertModel"], "reference_compile": False},  # encoder without head
    ],
)
def test_public_variants_of_config_json_are_read(published, tmp_path):
    kind = {"architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert"}
    common = SIZES | kind | {"intermediate_size": 48, "norm_eps": 1e-05}
    common |= {"hidden_activation": "gelu", "global_rope_theta": 16e4, "local_rope_theta": 1e4}
    common |= {"local_attention": 16}
    (tmp_path / "config.json").write_text(json.dumps(common | published))
    model = adopted(tmp_path).model
    assert (model.num_layers, model.layer_norm_eps, model.hidden_act) == (3, 1e-5, "gelu")
    assert (model.num_attention_heads, model.local_attention) == (2, 16)
    assert model.local_rope_theta == published.get("local_rope_theta", 10000)


def test_bases_of_rotary_positions_are_read(tmp_path):
    made("modernbert", tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    content.pop("rope_parameters", None)
    content |= {"layer_types": [], "global_attn_every_n_layers": 2, "local_rope_theta": 5000.0}
    (tmp_path / "config.json").write_text(json.dumps(content))
    model = adopted(tmp_path).model
    assert (model.global_attn_every_n_layers, model.local_rope_theta) == (2, 5000.0)
    (tmp_path / "config.json").write_text(json.dumps(content | {"global_rope_theta": 0}))
    with pytest.raises(BadInput, match=r"model\.global_rope_theta=0"):
        adopted(tmp_path)
