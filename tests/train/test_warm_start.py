"""Warm starts: each parameter is read from a checkpoint, adapted, or initialized."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface.state_dict import to_hugging_face
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.model.initialization import draw_parameters
from bigbird_ja.model.params import POSITIONS
from bigbird_ja.model_dir.model import load_parameters
from bigbird_ja.model_dir.variables import write_variables
from bigbird_ja.settings.config_file import read_config
from bigbird_ja.settings.values import replace_settings
from bigbird_ja.train.warm_start import load_initial
from testkit.configs import with_data
from tests.model.tiny import tiny_config
from tests.text.test_model_proto import train


def _google(params, config, code="BigBird"):
    """Return the parameters and zero Adam slots with the names and shapes of Google's checkpoints.

    In checkpoints of Google's BigBird, the names of the prediction head's transform lack the scope
    `cls/predictions`.
    """
    heads, head = config.model.num_attention_heads, "cls/predictions/transform/"
    values = {"global_step": np.int64(7)}
    for name, value in params.items():
        if "attention/self" in name:
            value = value.reshape(*value.shape[:-1], heads, -1)
        if name.endswith("attention/output/dense/kernel"):
            value = value.reshape(heads, -1, value.shape[-1])
        if name.startswith(head):
            part = name.removeprefix(head)
            within = "dense/" if part in ("kernel", "bias") else "LayerNorm/"
            name = f"transform/{part}" if code == "BigBird" else f"{head}{within}{part}"
        values[name] = value
        values[f"{name}/adam_m"] = np.zeros_like(value)
    return values


@pytest.fixture
def google(tmp_path):
    config = tiny_config(96)
    params = draw_parameters(*with_data(config), seed=3)
    write_variables(str(tmp_path / "bigbr.ckpt-0"), _google(params, config))
    return str(tmp_path / "bigbr.ckpt-0"), params


@pytest.mark.parametrize("code", ["BigBird", "BERT"])
def test_googles_checkpoint_is_read(google, code):
    prefix, params = google
    config = tiny_config(96)
    params = {name: value + number for number, (name, value) in enumerate(params.items())}
    write_variables(prefix, _google(params, config, code))
    for given in (prefix, f"{prefix}.index"):
        first = load_initial(given, *with_data(config))
        values, table = first.values, first.summary
        assert list(values) == list(params) and "warning" not in table
        for name, value in params.items():
            np.testing.assert_array_equal(values[name], value)
        assert "a TensorFlow checkpoint" in table
        assert f"{len(params)} of {len(params)} variables" in table


def test_record_has_the_absolute_source_and_the_commit_of_the_hub(google, tmp_path, monkeypatch):
    """Record the absolute path, so that the model card of `--init_from .` can name the source."""
    run = with_data(tiny_config(96, **{"make_data.nsp": True}))
    monkeypatch.chdir(tmp_path)
    record = load_initial("bigbr.ckpt-0", *run).record
    assert record["source"] == google[0] and "hub" not in record
    cached = tmp_path / "models--me--model/snapshots"
    cached.mkdir(parents=True)
    (cached / "c0ffee").symlink_to(tmp_path)
    record = load_initial(f"{cached}/c0ffee/bigbr.ckpt-0", *run).record
    assert record["hub"] == "me/model@c0ffee"


def test_random_parameters_are_a_warning(google):
    (prefix, params), config = google, tiny_config(96)
    some = {name: value for name, value in params.items() if "transform" not in name}
    write_variables(prefix, _google(some, config))
    text = load_initial(prefix, *with_data(config)).summary
    warning = text.splitlines()[-1]
    start = f"warning: 4 of {len(params)} variables keep random initial weights: "
    assert warning.startswith(start)
    assert all(f"cls/predictions/transform/{part}" in warning for part in ("kernel", "beta"))


def test_another_vocabulary_and_more_positions_are_reported(google):
    prefix, params = google
    config = tiny_config(192, **{"tokenize.vocab_size": 70, "make_data.nsp": True})
    first = load_initial(prefix, *with_data(config))
    values, table = first.values, first.summary
    words = "bert/embeddings/word_embeddings"
    positions = "bert/embeddings/position_embeddings"
    assert words not in values and f"random initial weights: {words} ({words} has shape" in table
    np.testing.assert_array_equal(values[positions][96:], params[positions])
    assert "96 positions repeated" in table
    assert "bert/pooler/dense/kernel" not in values and "not in the source" in table
    first = load_initial(prefix, *with_data(tiny_config(48)))
    shorter, table = first.values, first.summary
    np.testing.assert_array_equal(shorter[positions], params[positions][:48])
    assert "cut" in table


def test_positions_of_a_run_are_repeated_for_longer_sequences(small_run):
    config, data = read_config(f"{small_run.model_dir}/config.yaml")
    longer = dataclasses.replace(data, seq_length=2 * data.seq_length)
    config = replace_settings(config, {"model.max_position_embeddings": longer.seq_length})
    first = load_initial(small_run.model_dir, config, longer)
    before, positions = load_parameters(small_run.model_dir)[2], POSITIONS
    assert f"{data.seq_length} positions repeated" in first.summary
    assert "a run of bigbird-ja, step 6" in first.summary and first.values.keys() == before.keys()
    before[positions] = np.tile(before[positions], (2, 1))
    for name, value in before.items():
        np.testing.assert_array_equal(first.values[name], value)


def test_another_architecture_is_refused(google):
    prefix, _ = google
    with pytest.raises(BadInput, match=r"do not fit this config.*use the source's model\.\*"):
        load_initial(prefix, *with_data(tiny_config(96, **{"model.hidden_size": 64})))
    with pytest.raises(BadInput, match="not in the source"):
        load_initial(prefix, *with_data(tiny_config(96, **{"model.num_layers": 3})))


@pytest.mark.parametrize("form", ["with heads", "the encoder alone", "old names"])
def test_a_bert_of_hugging_face_with_its_positions_repeated(tmp_path, form):
    safetensors = pytest.importorskip("safetensors.numpy", reason="needs the huggingface extra")
    short = tiny_config(48, **{"make_data.nsp": True})
    params = draw_parameters(*with_data(short), seed=3)
    state = {}
    for name, value in to_hugging_face(short.model, params).items():
        name = name.replace("bert.pooler.", "bert.pooler.dense.")
        if form == "the encoder alone":
            if name.startswith("cls."):
                continue
            name = name.removeprefix("bert.")
        if form == "old names" and "LayerNorm" in name:
            name = name.replace("weight", "gamma").replace("bias", "beta")
        state[name] = value
    (tmp_path / "model.safetensors").write_bytes(safetensors.save(state))
    kind = {"model_type": "bert", "hidden_act": "gelu", "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(kind))
    config = tiny_config(192, **{"make_data.nsp": True})
    first = load_initial(str(tmp_path), *with_data(config))
    values, text = first.values, first.summary
    positions = "bert/embeddings/position_embeddings"
    np.testing.assert_array_equal(values[positions], np.tile(params[positions], (4, 1)))
    wanted = {n for n in params if form != "the encoder alone" or n.startswith("bert/")}
    assert values.keys() == wanted
    for name in wanted - {positions}:
        np.testing.assert_array_equal(values[name], params[name])
    assert "a Hugging Face folder, bert" in text and "48 positions repeated" in text
    (line,) = [line for line in text.splitlines() if "the source has" in line]
    assert "model.hidden_act=gelu, this config gelu_new" in line


def test_added_tokens_get_random_rows_after_those_of_the_source(tmp_path, sample_corpus):
    safetensors = pytest.importorskip("safetensors.numpy", reason="needs the huggingface extra")
    (tmp_path / "spiece.model").write_bytes(train(sample_corpus))
    (tmp_path / "config.json").write_text('{"model_type": "bert", "vocab_size": 1400}')
    params = draw_parameters(*with_data(tiny_config(48, **{"tokenize.vocab_size": 1400})), seed=3)
    state = to_hugging_face(tiny_config(48).model, params)
    (tmp_path / "model.safetensors").write_bytes(safetensors.save(state))
    ours = read_tokenizer(f"{tmp_path}/spiece.model")
    config = tiny_config(48, **{"tokenize.vocab_size": ours.vocab_size})
    fresh = draw_parameters(*with_data(config), config.training.seed)
    first = load_initial(str(tmp_path), *with_data(config))
    values, text = first.values, first.summary
    for name in ("bert/embeddings/word_embeddings", "cls/predictions/output_bias"):
        np.testing.assert_array_equal(values[name][:1400], params[name])
        np.testing.assert_array_equal(values[name][1400:], fresh[name][1400:])
    assert f"1,400 of {ours.vocab_size:,} tokens" in text


def test_source_without_a_model_is_refused(tmp_path):
    config = tiny_config(96)
    with pytest.raises(BadInput, match="neither a Hugging Face folder"):
        load_initial(str(tmp_path / "nowhere"), *with_data(config))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    pytest.importorskip("safetensors", reason="needs the huggingface extra")
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(BadInput, match="not a safetensors file"):
        load_initial(str(tmp_path), *with_data(config))


def test_damaged_source_is_refused(google):
    prefix, params = google
    config, name = tiny_config(96), "bert/encoder/layer_0/output/dense/bias"
    values = _google(params, config)
    nan = np.full_like(values[name], np.nan)
    for wrong, message in ((np.array(["text"], object), "no numbers"), (nan, "NaN or infinite")):
        write_variables(prefix, values | {name: wrong})
        with pytest.raises(BadInput, match=f"{name} in `init_from`.* contains {message}"):
            load_initial(prefix, *with_data(config))
    data = Path(f"{prefix}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(BadInput, match="cannot be read as a TensorFlow checkpoint"):
        load_initial(prefix, *with_data(config))
