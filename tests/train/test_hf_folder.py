"""Folders that transformers wrote: the model that starts from one computes the same."""

import json
import os
import pickle
import zipfile
from hashlib import sha256

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model import state_dict
from bigbird_ja.model.forward import encode, masked_lm_logits
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.resolve import fit_to_data, resolve_config
from bigbird_ja.settings.values import varied
from bigbird_ja.train import hf_folder
from bigbird_ja.train.warm_start import load_initial
from testkit.configs import with_data

torch = pytest.importorskip("torch", reason="the folders are made with PyTorch")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
pytestmark = pytest.mark.both

_SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
_COMMON = {**_SIZES, "intermediate_size": 48, "pad_token_id": 0}
_ENDS = {"cls_token_id": 1, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2}
_KINDS = {
    "bert": ("Bert", {"max_position_embeddings": 64}),
    "roberta": ("Roberta", {"max_position_embeddings": 66, "type_vocab_size": 1}),
    "modernbert": ("ModernBert", {"max_position_embeddings": 64, "local_attention": 16, **_ENDS}),
}


def made(kind, folder, more=None, **saving):
    """A model with none of its weights at a trivial first value, saved by transformers."""
    name, sizes = _KINDS[kind]
    settings = getattr(transformers, f"{name}Config")(**_COMMON, **sizes, **(more or {}))
    theirs = getattr(transformers, f"{name}ForMaskedLM")(settings).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        if kind == "roberta":  # as in all that were trained: the padding's row is zero
            theirs.roberta.embeddings.word_embeddings.weight[0] = 0
    theirs.save_pretrained(folder, **saving)
    return theirs


def adopted(folder, length=64):
    """A config for records of that length with the folder's settings."""
    settings = hf_folder.read_config(str(folder)).settings
    sets = {f"model.{key}": value for key, value in settings.items()} | {
        "tokenize.vocab_size": 60,
        "make_data.seq_length": length,
        "training.dtype": "float32",
    }
    if settings["architecture"] == "bigbird":
        sets["model.block_size"] = 8
    config, _ = resolve_config(None, [f"{key}={value}" for key, value in sets.items()])
    return fit_to_data(*with_data(config))


def ours_and_theirs(folder, theirs, length=64):
    config = adopted(folder, length)
    params = load_initial(str(folder), *with_data(config)).values
    ids = np.random.default_rng(1).integers(7, 60, (2, length)).astype(np.int32)
    mask = {"attention_mask": torch.ones(2, length, dtype=torch.long)}
    positions = {}
    if theirs.config.model_type == "roberta":  # its own are counted from the padding on
        positions["position_ids"] = torch.arange(2, length + 2)[None].expand(2, -1)
    with torch.no_grad():
        given = torch.from_numpy(ids.astype(np.int64))
        expected = theirs(input_ids=given, **mask, **positions).logits.numpy()
    hidden = encode(params, *with_data(config), tf.constant(ids), tf.zeros_like(ids))
    return masked_lm_logits(params, config, hidden).numpy(), expected


@pytest.mark.parametrize("kind", list(_KINDS))
def test_a_folder_computes_the_same_here(kind, tmp_path):
    theirs = made(kind, tmp_path)
    ours, expected = ours_and_theirs(tmp_path, theirs)
    gap = np.abs(ours - expected).max()
    print(f"{kind}: logits differ by {gap:.1e}, transformers {transformers.__version__}")
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    assert np.abs(expected).max() > 0.5


@pytest.mark.parametrize("activation", ["relu", "gelu_pytorch_tanh"])
def test_modernbert_s_two_activations(activation, tmp_path):
    """The masked-LM head has one of its own, which was taken for that of the layers."""
    layers, head = {"hidden_activation": activation}, {"classifier_activation": activation}
    theirs = made("modernbert", tmp_path, layers | head)
    np.testing.assert_allclose(*ours_and_theirs(tmp_path, theirs), atol=1e-4)
    for one in (layers, head):
        made("modernbert", tmp_path, one)
        with pytest.raises(BadInput, match=f"{activation} in its .*the two must be the same"):
            hf_folder.read_config(str(tmp_path))


def test_the_head_of_a_roberta_has_gelu_whatever_its_layers_have(tmp_path):
    made("roberta", tmp_path, {"hidden_act": "relu"})
    with pytest.raises(BadInput, match="relu in its layers and gelu in its masked-LM head"):
        hf_folder.read_config(str(tmp_path))


def test_weights_in_several_files(tmp_path):
    theirs = made("modernbert", tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    np.testing.assert_allclose(*ours_and_theirs(tmp_path, theirs), atol=1e-4)
    _, checksums = state_dict.read(str(tmp_path))
    files = {path.name: path.read_bytes() for path in tmp_path.glob("model-*.safetensors")}
    assert checksums == {name: sha256(data).hexdigest() for name, data in files.items()}
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    more = content["weight_map"] | {"head.more": "../other.safetensors"}
    index.write_text(json.dumps({"weight_map": more}))
    with pytest.raises(BadInput, match=r"'\.\./other\.safetensors' is not a file in the"):
        state_dict.read(str(tmp_path))
    index.write_text(json.dumps(content))
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(BadInput, match=r"model-00002-of-.*missing"):
        state_dict.read(str(tmp_path))


@pytest.mark.parametrize("form", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_type_of_numbers_in_both_formats(form, dtype, tmp_path):
    theirs = made("bert", tmp_path).to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path)
    if form == "pytorch_model.bin":
        os.remove(tmp_path / "model.safetensors")
        torch.save(theirs.state_dict(), tmp_path / form)
    state, _ = state_dict.read(str(tmp_path))
    for name, value in theirs.named_parameters():
        np.testing.assert_array_equal(state[name].astype(np.float32), value.detach().float())


class _Bad:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_pickle_is_never_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": _Bad()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(BadInput, match=r"not a state dict of PyTorch's \(it holds more than"):
        state_dict.read(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": _Bad()}))
    with pytest.raises(BadInput, match="not a state dict of PyTorch's"):
        state_dict.read(str(tmp_path))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("kind", ["compressed", "a list", "cut", "no tensors"])
def test_a_hostile_state_dict_is_one_line(kind, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    value = "text" if kind == "no tensors" else torch.zeros(1000)
    torch.save([1] if kind == "a list" else {"x": value}, path)
    if kind == "compressed":  # a gigabyte of zeros in a megabyte
        with zipfile.ZipFile(path) as plain, zipfile.ZipFile(tmp_path / "to", "w", 8) as packed:
            for entry in plain.infolist():
                packed.writestr(entry.filename, plain.read(entry))
        (tmp_path / "to").rename(path)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadInput, match=r"pytorch_model\.bin: not a state dict of PyTorch's"):
        state_dict.read(str(tmp_path))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"model_type": "t5"}, "a t5 model; a run can start from modernbert, bert"),
        ({"model_type": "modernbert-decoder"}, "a modernbert-decoder model; a run"),  # Ettin's
        ({"hidden_activation": "silu"}, "the activation 'silu'"),
        ({"norm_bias": True}, "norm_bias=True; only False"),
        ({"architectures": ["ModernBertForTokenClassification"]}, "a head that no run can start"),
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
def test_what_is_not_supported_is_named(changed, message, tmp_path):
    content = {"model_type": "modernbert", "hidden_size": 32, **changed}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=message):
        hf_folder.read_config(str(tmp_path))


@pytest.mark.parametrize(
    "published",  # what config.json of public Japanese and multilingual encoders states
    [
        {"position_embedding_type": "rope", "pad_token_id": 3},  # ModernBERT-Ja
        {"position_embedding_type": "sans_pos", "local_rope_theta": 160000},  # mmBERT
        {"position_embedding_type": "absolute", "layer_norm_eps": 1e-12},  # ModernBERT
        {"architectures": ["ModernBertModel"], "reference_compile": False},  # without a head
    ],
)
def test_public_variants_of_config_json_are_taken(published, tmp_path):
    kind = {"architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert"}
    common = _SIZES | kind | {"intermediate_size": 48, "norm_eps": 1e-05}
    common |= {"hidden_activation": "gelu", "global_rope_theta": 16e4, "local_rope_theta": 1e4}
    (tmp_path / "config.json").write_text(json.dumps(common | published))
    model = adopted(tmp_path).model
    assert (model.num_layers, model.layer_norm_eps, model.hidden_act) == (3, 1e-5, "gelu")
    assert model.local_rope_theta == published.get("local_rope_theta", 10000)


def test_bases_of_rotary_positions_are_read_as_they_stand(tmp_path):
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


def test_another_architecture_and_surplus_tensors(tmp_path):
    made("modernbert", tmp_path)
    config = adopted(tmp_path)
    config = varied(config, {"model.num_layers": 2})
    with pytest.raises(BadInput, match="tensors of its encoder have no place"):
        load_initial(str(tmp_path), *with_data(config))
    config = varied(config, {"model.architecture": "bigbird"})
    with pytest.raises(BadInput, match="a modernbert model becomes a modernbert"):
        load_initial(str(tmp_path), *with_data(config))
