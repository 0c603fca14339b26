"""The config: overrides in order, errors that name the nearest key, what a data set fixes."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import sys
from copy import deepcopy
from typing import Any

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings import option as options
from bigbird_ja.settings.resolve import (
    Override,
    complete_config,
    preset_path,
    read_config,
    resolve_config,
)
from bigbird_ja.settings.schema import OPTIONS, SECTIONS, Config, TrainingConfig
from bigbird_ja.settings.values import (
    config_fingerprint,
    config_to_yaml,
    config_warnings,
    differences,
    echo_settings,
    first_phase,
    mask_rates,
    predictions_of,
    train_predictions,
)

CONFIGS = sorted((pathlib.Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))
FIXED = {
    "tokenize.vocab_size": 8000,
    "make_data.seq_length": 256,
    "make_data.max_predictions_per_seq": 38,
    "make_data.masking": "dynamic",
    "make_data.nsp": False,
    "make_data.mask_unit": "subword",
    "make_data.masked_lm_prob": 0.15,
}
# base-4096 as it was until its masks became fewer over the run and its schedule another one.
FIXED_RATE = ["training.masked_lm_prob=null", "training.final_masked_lm_prob=null"]
FIRST_RECIPE = [*FIXED_RATE, "training.schedule=linear"]


def write(tmp_path: pathlib.Path, text: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_presets_resolve_and_their_headers_say_what_for(path: pathlib.Path) -> None:
    config, overrides = resolve_config(str(path))
    assert overrides
    complete = complete_config(config)
    assert complete.model.vocab_size == config.tokenize.vocab_size
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    for word in ("For:", "Hardware:", "Time:", "Expect:"):
        assert f"# {word}" in header


def test_the_original_run_has_the_settings_of_its_time() -> None:
    config, _ = resolve_config(preset_path("original-2021"))
    assert (config.tokenize.vocab_size, config.tokenize.character_coverage) == (32000, 0.9995)
    assert config.tokenize.max_sentence_length == 16384
    assert (config.make_data.masking, config.make_data.dupe_factor) == ("static", 10)
    assert (config.make_data.masked_lm_prob, predictions_of(config.make_data)) == (
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
    config, overrides = resolve_config(
        path,
        ["model.num_layers=4", "model.num_layers=6"],
        [Override("training.num_train_steps", 7, "--num_train_steps")],
    )
    assert config.model.num_layers == 6
    assert config.training.learning_rate == 1e-3
    assert config.training.num_train_steps == 7
    echo = echo_settings(config, overrides)
    assert "model.num_layers = 6  (default 12; from --set)" in echo
    assert "training.num_train_steps = 7" in echo and "--num_train_steps" in echo
    assert echo.count("\n") == 2, "the last override of each of three keys"


def test_the_echo_is_what_takes_effect_and_differs_from_the_preset(tmp_path: pathlib.Path) -> None:
    def echoed(config_path: str | None, *sets: str, uses: tuple[str, ...] = SECTIONS) -> str:
        config, overrides = resolve_config(config_path, sets)
        return echo_settings(config, overrides, uses)

    assert echoed(None) == "  (all defaults)"
    assert echoed("base-4096") == "  preset base-4096"
    assert echoed("configs/base-4096.yaml") == "  preset base-4096", "the same file by its path"
    same, other = "training.num_train_steps=300", "training.num_train_steps=40"
    assert echoed("tiny-cpu", same) == "  preset tiny-cpu"
    assert echoed("tiny-cpu", other).splitlines() == [
        "  preset tiny-cpu",
        "  training.num_train_steps = 40  (preset 300; from --set)",
    ]
    assert echoed("tiny-cpu", other, uses=("make_data",)) == "  preset tiny-cpu"
    path = write(tmp_path, "model: {num_layers: 12}\ntokenize: {vocab_size: 100}\n")
    assert echoed(path, uses=("model",)) == "  (all defaults)"
    assert echoed(path).splitlines() == [
        f"  tokenize.vocab_size = 100  (default 32000; from {path})"
    ]
    # A run that goes on: what differs from its own settings.
    config, overrides = resolve_config(path, [other])
    assert echo_settings(config, overrides, run=path).splitlines() == [
        f"  {path}",
        "  training.num_train_steps = 40  (default 1400000; from --set)",
    ]
    path = write(tmp_path, config_to_yaml(config))
    config, overrides = resolve_config(path, ["training.num_train_steps=50"])
    assert echo_settings(config, overrides, run=path).splitlines() == [
        f"  {path}",
        "  training.num_train_steps = 50  (run 40; from --set)",
    ]


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
        ("make_data: {nsp: true}\nmodel: {attend_across_documents: false}", ["segment B"]),
        ("- a", ["sections"]),
        ("model: {a: ", ["not YAML"]),
        ("model: !!python/object/apply:os.getcwd []", ["not YAML"]),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: pathlib.Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInput) as error:
        complete_config(*resolve_config(path))
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "null\n"])
def test_an_empty_file_does_not_stand_for_the_defaults(tmp_path: pathlib.Path, text: str) -> None:
    with pytest.raises(BadInput, match="no settings in it"):
        resolve_config(write(tmp_path, text))


def test_missing_and_foreign_files() -> None:
    with pytest.raises(BadInput, match="no such file"):
        resolve_config("/nowhere/config.yaml")
    with pytest.raises(BadInput, match="base-4096"):
        preset_path("base-409")


def test_a_mask_rate_of_trainings_own_has_places_for_its_highest() -> None:
    def completed(*sets: str) -> Config:
        return complete_config(resolve_config(None, sets)[0])

    rates = ["training.masked_lm_prob=0.3", "training.final_masked_lm_prob=0.15"]
    steps = completed().training.num_train_steps
    assert mask_rates(completed()) is None
    assert train_predictions(completed()) == 600
    assert mask_rates(completed(*rates)) == (0.3, 0.15, steps)
    assert train_predictions(completed(*rates)) == 1229
    assert completed(*rates).make_data.max_predictions_per_seq == 600  # evaluation's
    assert mask_rates(completed(rates[0])) == (0.3, 0.3, steps)
    assert train_predictions(completed("training.masked_lm_prob=0.1")) == 410
    with pytest.raises(BadInput, match=r"set training\.masked_lm_prob too"):
        completed(rates[1])


def test_a_first_phase_has_the_same_tokens_in_more_and_shorter_sequences() -> None:
    def completed(*sets: str) -> Config:
        return complete_config(resolve_config(None, sets)[0])

    assert first_phase(completed()) is None
    both = ["training.first_seq_length=512", "training.first_seq_length_steps=90000"]
    config = completed(*both)
    phase = first_phase(config)
    assert phase is not None
    assert (phase.make_data.seq_length, phase.training.global_batch_size) == (512, 128)
    assert phase.model == config.model, "the model is the same, positions included"
    assert (train_predictions(phase), train_predictions(config)) == (75, 600)
    rates = ["training.masked_lm_prob=0.3", "training.final_masked_lm_prob=0.15"]
    phase = first_phase(completed(*both, *rates))
    assert phase is not None and train_predictions(phase) == 154
    assert first_phase(phase) is None
    with pytest.raises(BadInput, match=r"set training\.first_seq_length_steps too"):
        completed(both[0])
    with pytest.raises(BadInput, match=r"no effect without training\.first_seq_length:"):
        completed(both[1])
    for length in (4096, 8192, 500):
        with pytest.raises(BadInput, match="use 2048, or another length that divides it"):
            completed(f"training.first_seq_length={length}", both[1])
    with pytest.raises(BadInput, match="without --nsp"):
        completed(*both, "make_data.nsp=true")
    with pytest.raises(BadInput, match="--masking=dynamic"):
        completed(*both, "make_data.masking=static")
    late = config_warnings(completed(both[0], "training.first_seq_length_steps=1400000"))
    assert "no step is on whole sequences" in late[0]


def test_the_data_set_completes_the_config() -> None:
    config, overrides = resolve_config(None, ["make_data.seq_length=256"])
    complete = complete_config(config, overrides, FIXED, "data/manifest.json")
    assert complete.model.vocab_size == 8000
    assert complete.model.max_position_embeddings == 256
    assert config.model.vocab_size is None, "the argument stays as it was"


def test_a_presets_mask_rates_are_for_masks_drawn_while_training_at_the_usual_rate() -> None:
    """Other data was made so on purpose: what the user says of it stays, what a preset says not."""

    def rates(*sets: str, **data: Any) -> tuple[float, float, int] | None:
        config, overrides = resolve_config("base-4096", sets)
        fixed = {**FIXED, **{key.replace("__", "."): value for key, value in data.items()}}
        return mask_rates(complete_config(config, overrides, fixed))

    preset = rates()
    assert preset is not None and preset[0] > preset[1] == 0.15
    assert rates(make_data__masking="static") is None
    config, overrides = resolve_config("base-4096")
    static = complete_config(config, overrides, {**FIXED, "make_data.masking": "static"})
    assert echo_settings(static, overrides).splitlines() == [
        "  preset base-4096",
        "  training.masked_lm_prob = null  (preset 0.3; from the data)",
        "  training.final_masked_lm_prob = null  (preset 0.15; from the data)",
    ]
    assert rates(make_data__masked_lm_prob=0.2) is None
    last = ["training.masked_lm_prob=0.4", "training.final_masked_lm_prob=0.2"]
    assert rates(*last, make_data__masked_lm_prob=0.2) == (0.4, 0.2, 500_000)
    assert rates(*FIXED_RATE) is None
    assert rates("training.masked_lm_prob=null") is None
    assert rates("training.masked_lm_prob=0.1") == (0.1, 0.1, 500_000), "a fixed one, as asked"
    assert rates("training.final_masked_lm_prob=0.2") == (0.3, 0.2, 500_000)
    with pytest.raises(
        BadInput, match=r"masked_lm_prob=0\.4 has no effect with make_data\.masking=static"
    ):
        rates(*last, make_data__masking="static")

    def planned(*sets: str) -> int:
        config, overrides = resolve_config("base-4096", sets)
        return train_predictions(complete_config(config, overrides))

    assert planned() > 1000
    assert planned("make_data.masking=static") == 600
    assert planned("make_data.masked_lm_prob=0.2") == 820
    with pytest.raises(BadInput, match=r"has no effect with make_data\.masking=static"):
        planned(*last, "make_data.masking=static")


def test_predictions_follow_the_length_and_the_rate() -> None:
    def predictions(config_path: str | None, *sets: str) -> int:
        config, _ = resolve_config(config_path, sets)
        return predictions_of(config.make_data)

    assert predictions(None, "make_data.seq_length=16384") == 2458
    assert predictions(None, "make_data.seq_length=512") == 77
    assert predictions(None, "make_data.masked_lm_prob=0.3") == 1229
    assert predictions(None) == 600, "as before"
    assert predictions("base-4096") == 600, "what a preset says of its own length"
    assert predictions("base-4096", "make_data.seq_length=4096") == 600
    assert predictions("base-4096", "make_data.seq_length=16384") == 2458
    assert predictions("base-4096", "make_data.max_predictions_per_seq=9") == 9
    config = complete_config(resolve_config(None, ["make_data.seq_length=512"])[0])
    assert config.make_data.max_predictions_per_seq == 77


def test_the_set_of_settings_is_frozen() -> None:
    """A new one needs a reason in the changelog."""
    counts = collections.Counter(option.section for option in OPTIONS.values())
    assert dict(counts) == {
        "tokenize": 5,
        "make_data": 11,
        "model": 18,
        "data": 3,
        "training": 25,
        "checkpoints": 4,
        "tpu": 3,
    }


@pytest.mark.parametrize("key", OPTIONS)
def test_every_setting_is_declared_whole(key: str) -> None:
    option = OPTIONS[key]
    assert option.help.endswith(".") and option.kind in (int, float, bool, str)
    if option.kind in (int, float):
        assert option.allowed, "a range"
    if option.default is None:
        assert option.none, "what None stands for"
    else:
        assert option.read(option.default, "default") == option.default
    if option.only_with:
        other, _, value = option.only_with.partition("=")
        assert set(value.split("|")) < set(OPTIONS[other].choices)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("training.batch_size", "training.global_batch_size"),
        ("model.num_hidden_layers", "model.num_layers"),
        ("num_layer", "model.num_layers"),
        ("max_seq_length", "make_data.seq_length"),
        ("training.save_every_step", "checkpoints.save_every_steps"),
        ("training.clipnorm", "training.clip_norm"),
        ("model.attention", "model.attention_type"),
    ],
)
def test_an_unknown_setting_names_the_nearest_ones(name: str, meant: str) -> None:
    with pytest.raises(BadInput, match="did you mean") as error:
        resolve_config(None, [f"{name}=1"])
    assert repr(meant) in str(error.value)


def test_a_setting_without_effect_is_refused_where_the_user_gives_it() -> None:
    with pytest.raises(BadInput, match=r"make_data.dupe_factor=3 .*make_data.masking=static"):
        resolve_config(None, ["make_data.dupe_factor=3"])
    resolve_config(None, ["make_data.dupe_factor=3", "make_data.masking=static"])
    resolve_config("original-2021", ["make_data.dupe_factor=3"])
    with pytest.raises(BadInput, match="schedule"):
        resolve_config(None, ["training.decay_fraction=0.3"])


CONDITIONAL = [key for key, option in OPTIONS.items() if option.only_with]


@pytest.mark.parametrize("key", CONDITIONAL)
def test_every_setting_that_depends_on_another_is_refused_without_it(key: str) -> None:
    option = OPTIONS[key]
    other, _, needed = option.only_with.partition("=")
    value = option.choices[-1] if option.choices else option.low
    if value is None:
        value = ((option.above or 0) + (option.below or 1)) / 2
    for choice in OPTIONS[other].choices:
        sets = [f"{key}={value}", f"{other}={choice}"]
        if choice in needed.split("|"):
            resolve_config(None, sets)
        else:
            with pytest.raises(BadInput, match=f"{key}=.* has no effect with {other}={choice}"):
                complete_config(*resolve_config(None, sets))


def test_blocks_of_attention_that_has_none_are_refused() -> None:
    assert {k for k in CONDITIONAL if k.startswith("model.")} == {
        f"model.{name}"
        for name in (
            "block_size", "num_random_blocks", "random_pattern", "pattern_seed",
            "attention_implementation",
        )
    }  # fmt: skip


def test_a_setting_that_a_command_does_not_use_is_refused(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "model: {num_layers: 2}\ntokenize: {vocab_size: 100}\n")
    resolve_config(path, ["tokenize.vocab_size=200"], uses=["tokenize"])
    with pytest.raises(BadInput, match=r"model.num_layers: .*tokenize\.\*"):
        resolve_config(path, ["model.num_layers=6"], uses=["tokenize"])


def test_a_warm_up_longer_than_the_run_is_reported() -> None:
    def printed(*sets: str) -> list[str]:
        return config_warnings(resolve_config(None, sets)[0])

    assert printed() == []
    assert printed("training.num_train_steps=10000")
    (line,) = printed("training.num_train_steps=40")
    assert "warmup_steps=10,000" in line and "num_train_steps=40" in line and "0.4%" in line


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_no_preset_has_anything_to_be_warned_of(path: pathlib.Path) -> None:
    assert config_warnings(resolve_config(str(path))[0]) == []


@pytest.mark.parametrize(
    "text",
    [
        "model.vocab_size=9",
        "make_data.seq_length=512",
        "make_data.masking=static",
        "make_data.nsp=true",
    ],
)
def test_an_explicit_value_that_disagrees_with_the_data_is_an_error(text: str) -> None:
    if text == "model.vocab_size=9":
        text = "model.vocab_size=9000"
    config, overrides = resolve_config(None, [text])
    with pytest.raises(BadInput) as error:
        complete_config(config, overrides, FIXED, "data/manifest.json")
    assert text.split("=")[0] in str(error.value)
    assert "data/manifest.json" in str(error.value) and "--set" in str(error.value)


def test_a_resolved_config_survives_its_file(tmp_path: pathlib.Path) -> None:
    config, _ = resolve_config(None, ["model.num_layers=3", "training.learning_rate=1e-3"])
    config = complete_config(config, (), FIXED)
    path = write(tmp_path, config_to_yaml(config))
    assert read_config(path) == config


@dataclasses.dataclass
class WiderTraining(TrainingConfig):
    averaging: str = options.option("none", "Which.", choices=("none", "ema"))


@dataclasses.dataclass
class WiderConfig(Config):
    training: WiderTraining = dataclasses.field(default_factory=WiderTraining)


def test_a_new_option_changes_no_fingerprint_unless_it_is_used() -> None:
    wider = WiderConfig()
    known = options.options_of(WiderConfig)
    assert "training.averaging" in known
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["bigbird_ja.settings.values"], "OPTIONS", known)
        assert config_fingerprint(wider) == config_fingerprint(Config())
        wider.training.averaging = "ema"
        assert config_fingerprint(wider) != config_fingerprint(Config())
        assert differences(wider, WiderConfig()) == ["training.averaging: ema -> none"]


def test_what_a_model_dir_accepts_a_change_of() -> None:
    old = complete_config(Config(), (), FIXED)
    new = deepcopy(old)
    new.training.num_train_steps += 1
    new.checkpoints.save_every_minutes = 1.0
    new.training.log_every_steps = 3
    new.tpu.num_cores = 32
    assert differences(old, new) == []
    assert config_fingerprint(old) == config_fingerprint(new)
    new.training.learning_rate = 1.0
    new.model.num_layers = 1
    assert [line.split(":")[0] for line in differences(old, new)] == [
        "model.num_layers",
        "training.learning_rate",
    ]
    assert config_fingerprint(old) != config_fingerprint(new)
