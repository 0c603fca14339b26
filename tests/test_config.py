"""The config: overrides in order, errors that name the nearest key, what a data set fixes."""

from __future__ import annotations

import pathlib

import pytest

from bigbird_ja import config as config_lib
from bigbird_ja.config import Config
from bigbird_ja.errors import BadInput

CONFIGS = sorted((pathlib.Path(__file__).parent.parent / "configs").glob("*.yaml"))
FIXED = {
    "model.vocab_size": 8000,
    "data.seq_length": 256,
    "data.max_predictions_per_seq": 38,
    "data.masking": "dynamic",
    "data.nsp": False,
}


def write(tmp_path: pathlib.Path, text: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_presets_resolve_and_their_headers_say_what_for(path: pathlib.Path) -> None:
    config, overrides = config_lib.resolve(str(path))
    assert overrides
    complete = config_lib.without_data_set(config)
    assert complete.model.vocab_size == config.tokenize.vocab_size
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    for word in ("For:", "Hardware:", "Time:", "Expect:"):
        assert f"# {word}" in header


def test_the_original_run_is_reproduced_to_the_letter() -> None:
    config, _ = config_lib.resolve(config_lib.preset_path("original-2021"))
    assert (config.tokenize.vocab_size, config.tokenize.character_coverage) == (32000, 0.9995)
    assert config.tokenize.max_sentence_length == 16384
    assert (config.make_data.masking, config.make_data.dupe_factor) == ("static", 10)
    assert (config.make_data.masked_lm_prob, config.make_data.max_predictions_per_seq) == (
        0.15,
        600,
    )
    assert config.make_data.nsp and config.make_data.seq_length == 4096
    model = config.model
    assert (model.num_layers, model.hidden_size, model.num_attention_heads) == (12, 768, 12)
    assert (model.intermediate_size, model.block_size, model.num_random_blocks) == (3072, 64, 3)
    assert (model.attention_type, model.random_pattern) == ("block_sparse", "independent")
    assert model.hidden_dropout_prob == 0.1
    training = config.training
    assert (training.global_batch_size, config.tpu.num_cores) == (16, 8)
    assert (training.learning_rate, training.warmup_steps) == (1e-4, 10_000)
    assert training.num_train_steps == 1_400_000
    assert config.checkpoints.save_every_steps == 5000


def test_the_last_override_wins(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "model: {num_layers: 2}\ntraining: {learning_rate: 1e-3}\n")
    config, overrides = config_lib.resolve(
        path, ["model.num_layers=4", "model.num_layers=6"], {"training.num_train_steps": 7}
    )
    assert config.model.num_layers == 6
    assert config.training.learning_rate == 1e-3
    assert config.training.num_train_steps == 7
    echo = config_lib.echo(config, overrides)
    assert "model.num_layers = 6  (default 12; from --set)" in echo
    assert "training.num_train_steps = 7" in echo and "--num_train_steps" in echo
    assert echo.count("\n") == 2, "the last override of each of three keys"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle: {num_layers: 2}", ["modle", "'model'"]),
        ("model: {num_layer: 2}", ["model.num_layer", "model.num_layers"]),
        ("model: {num_layers: two}", ["model.num_layers", "int"]),
        ("model: {num_layers: 2.5}", ["model.num_layers", "int"]),
        ("training: {gradient_checkpointing: 1}", ["gradient_checkpointing", "bool"]),
        ("model: {random_pattern: roled}", ["random_pattern", "'rolled'"]),
        ("model: {hidden_size: 100, num_attention_heads: 12}", ["hidden_size=100"]),
        ("training: {global_batch_size: 3, gradient_accumulation_steps: 2}", ["divisible"]),
        ("training: {learning_rate: -1}", ["learning_rate", "between"]),
        ("model: [1, 2]", ["model"]),
        ("data: {nsp: true}\nmodel: {attend_across_documents: false}", ["segment B"]),
        ("- a", ["sections"]),
        ("model: {a: ", ["not YAML"]),
        ("model: !!python/object/apply:os.getcwd []", ["not YAML"]),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: pathlib.Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInput) as error:
        config_lib.resolve(path)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("text", ["model.num_layer=6", "num_layers=6", "model.num_layers", "=3"])
def test_a_bad_set_is_one_clear_line(text: str) -> None:
    with pytest.raises(BadInput):
        config_lib.resolve(None, [text])


def test_missing_and_foreign_files() -> None:
    with pytest.raises(BadInput, match="no such file"):
        config_lib.resolve("/nowhere/config.yaml")
    with pytest.raises(BadInput, match="base-4096"):
        config_lib.preset_path("base-409")


def test_the_data_set_completes_the_config() -> None:
    config, overrides = config_lib.resolve(None, ["data.seq_length=256"])
    complete = config_lib.with_data_set(config, FIXED, overrides, "data/manifest.json")
    assert complete.model.vocab_size == 8000
    assert complete.model.max_position_embeddings == 256
    assert config.model.vocab_size is None, "the argument stays as it was"


@pytest.mark.parametrize(
    "text",
    ["model.vocab_size=9", "data.seq_length=512", "data.masking=static", "data.nsp=true"],
)
def test_an_explicit_value_that_disagrees_with_the_data_is_an_error(text: str) -> None:
    if text == "model.vocab_size=9":
        text = "model.vocab_size=9000"
    config, overrides = config_lib.resolve(None, [text])
    with pytest.raises(BadInput) as error:
        config_lib.with_data_set(config, FIXED, overrides, "data/manifest.json")
    assert text.split("=")[0] in str(error.value)
    assert "data/manifest.json" in str(error.value) and "--set" in str(error.value)


def test_a_resolved_config_survives_its_file(tmp_path: pathlib.Path) -> None:
    config, _ = config_lib.resolve(None, ["model.num_layers=3", "training.learning_rate=1e-3"])
    config = config_lib.with_data_set(config, FIXED)
    path = write(tmp_path, config_lib.to_yaml(config))
    assert config_lib.load_resolved(path) == config


def test_what_a_model_dir_accepts_a_change_of() -> None:
    old = config_lib.with_data_set(Config(), FIXED)
    new = config_lib.copy(old)
    new.training.num_train_steps += 1
    new.checkpoints.save_every_minutes = 1.0
    new.training.log_every_steps = 3
    new.tpu.num_cores = 32
    assert config_lib.differences(old, new) == []
    assert config_lib.fingerprint(old) == config_lib.fingerprint(new)
    new.training.learning_rate = 1.0
    new.model.num_layers = 1
    assert [line.split(":")[0] for line in config_lib.differences(old, new)] == [
        "model.num_layers",
        "training.learning_rate",
    ]
    assert config_lib.fingerprint(old) != config_lib.fingerprint(new)
