"""The config: overrides in order, errors that name the nearest key, what a data set fixes."""

import pathlib
from dataclasses import replace

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.checks import config_warnings
from bigbird_ja.settings.config_file import config_to_yaml, read_config
from bigbird_ja.settings.data_facts import Data, predictions_of, requested_data
from bigbird_ja.settings.provenance import Override, echo_settings
from bigbird_ja.settings.resolve import fit_to_data, resolve_config
from bigbird_ja.settings.schema import OPTIONS, Config, used_by
from bigbird_ja.settings.values import (
    change_of,
    changes,
    config_fingerprint,
    flatten,
    mask_rates,
    train_predictions,
    varied,
)
from testkit.configs import with_data

CONFIGS = sorted((pathlib.Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))
DATA = Data(
    vocab_size=8000,
    seq_length=256,
    max_predictions_per_seq=38,
    masking="dynamic",
    nsp=False,
    mask_unit="subword",
    masked_lm_prob=0.15,
    special_ids={"pad": 0},
)
CONDITIONAL = [key for key, option in OPTIONS.items() if option.only_with]


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def run(*sets, path=None, data=None):
    """Returns a run on a data set, or on one to be made."""
    config, overrides = resolve_config(path, sets)
    where = "data" if data else ""
    data = data or requested_data(config)
    return fit_to_data(config, data, overrides, where), data


def completed(*sets, path=None, data=None):
    """Returns the config of `run`."""
    return run(*sets, path=path, data=data)[0]


@pytest.mark.parametrize("key", OPTIONS)
def test_every_setting_is_declared_whole(key):
    option = OPTIONS[key]
    assert option.meaning.endswith(".") and option.kind in (int, float, bool, str)
    if option.kind in (int, float):
        assert option.allowed, "a range"
    for bound in (option.low, option.high):
        assert bound is None or option.read(bound) == bound
    if option.default is None:
        assert option.none, "what None stands for"
    else:
        assert option.read(option.default, "default") == option.default
    for other, values in option.conditions:
        assert set(values) < set(OPTIONS[other].choices)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_presets_resolve_and_their_headers_say_what_for(path):
    config, overrides = resolve_config(str(path))
    assert overrides and config_warnings(config) == []
    fitted_config = fit_to_data(*with_data(config))
    assert fitted_config.model.vocab_size == config.tokenize.vocab_size
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    assert all(f"# {word}:" in header for word in ("For", "Hardware", "Time", "Expect"))


def test_the_original_run_has_the_settings_of_its_time():
    """The defaults are its settings, but for what was changed since."""
    config, _ = resolve_config("original-2021")
    assert predictions_of(config.make_data) == 600
    values = flatten(config).items()
    assert {key: value for key, value in values if value != OPTIONS[key].default} == {
        "make_data.masking": "static",
        "make_data.mask_unit": "subword",
        "make_data.nsp": True,
        "make_data.max_predictions_per_seq": 600,
        "model.random_pattern": "independent",
        "training.dtype": "float32",
    }


def test_the_echo_is_what_takes_effect_and_differs_from_the_preset(tmp_path):
    def echoed(path, *sets, uses=tuple(OPTIONS), run=None):
        return echo_settings(*resolve_config(path, sets), uses, run).splitlines()

    assert echoed(None) == ["  (all defaults)"]
    assert echoed("configs/base-4096.yaml") == echoed("base-4096") == ["  preset base-4096"]
    same, other = "training.num_train_steps=400", "training.num_train_steps=40"
    assert echoed("tiny-cpu", same) == ["  preset tiny-cpu"]
    assert echoed("tiny-cpu", other, uses=used_by("make-data")) == ["  preset tiny-cpu"]
    changed = "  training.num_train_steps = 40  (preset 400; from --set)"
    assert echoed("tiny-cpu", other) == ["  preset tiny-cpu", changed]
    path = write(tmp_path, "model: {num_layers: 12}\ntokenize: {vocab_size: 100}\n")
    assert echoed(path, uses=("model",)) == ["  (all defaults)"]
    assert echoed(path) == [f"  tokenize.vocab_size = 100  (default 32000; from {path})"]
    # A run that is resumed: what differs from its own settings.
    path = write(tmp_path, config_to_yaml(resolve_config(path, [other])[0]))
    changed = "  training.num_train_steps = 50  (run 40; from --set)"
    assert echoed(path, "training.num_train_steps=50", run=path) == [f"  {path}", changed]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle: {num_layers: 2}", "unknown setting 'modle.num_layers' (did you mean 'model."),
        ("model: {random_pattern: roled}", "did you mean 'rolled'"),
        ("model: {hidden_size: 100, num_attention_heads: 12}", "hidden_size=100"),
        ("training: {global_batch_size: 3, gradient_accumulation_steps: 2}", "divisible"),
        ("model: [1, 2]", "model must hold"),
        ("make_data: {nsp: true}\nmodel: {attend_across_documents: false}", "segment B"),
        ("- a", "sections"),
        ("# nothing yet\n", "no settings in it"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, text, words):
    with pytest.raises(BadInput) as error:
        completed(path=write(tmp_path, text))
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("training.batch_size", "training.global_batch_size"),
        ("num_layer", "model.num_layers"),
        ("training.save_every_step", "checkpoints.save_every_steps"),
    ],
)
def test_an_unknown_setting_names_the_nearest_ones(name, meant):
    with pytest.raises(BadInput, match=f"did you mean '{meant}'"):
        resolve_config(None, [f"{name}=1"])


def test_settings_of_another_programs_model_are_read_by_their_declarations():
    """`--init_from`: the values of a config.json are not ours."""
    adopted = [Override("model.num_layers", 10**9, "hf/config.json")]
    with pytest.raises(BadInput, match=r"hf/config\.json: model\.num_layers=1000000000: must be"):
        resolve_config(adopted=adopted)


def test_predictions_follow_the_length_and_the_rate():
    def predictions(path, *sets):
        return predictions_of(resolve_config(path, sets)[0].make_data)

    assert predictions(None, "make_data.masked_lm_prob=0.3") == 1229
    assert predictions(None) == predictions("base-4096") == 615
    assert predictions("original-2021") == 600, "of the run that this began with"
    assert predictions("base-4096", "make_data.seq_length=16384") == 2458
    assert predictions("base-4096", "make_data.max_predictions_per_seq=9") == 9
    assert run("make_data.seq_length=512")[1].max_predictions_per_seq == 77


def test_a_mask_rate_of_trainings_own_has_places_for_its_highest():
    rates = ["training.masked_lm_prob=0.3", "training.final_masked_lm_prob=0.15"]
    steps = completed().training.num_train_steps
    assert mask_rates(completed()) is None
    assert train_predictions(*run()) == 615
    assert mask_rates(completed(*rates)) == (0.3, 0.15, steps)
    assert train_predictions(*run(*rates)) == 1229
    assert run(*rates)[1].max_predictions_per_seq == 615  # evaluation's
    assert mask_rates(completed(rates[0])) == (0.3, 0.3, steps)
    assert train_predictions(*run("training.masked_lm_prob=0.1")) == 410
    with pytest.raises(BadInput, match=r"no effect without training\.masked_lm_prob:"):
        completed(rates[1])


def test_settings_of_0_1_0_that_went_may_be_off_in_a_file(tmp_path):
    off = "first_seq_length: null, first_seq_length_steps: null, optimizer_sharding: false"
    old = f"training: {{{off}, gradient_sum_dtype: float32, clip_norm: 2}}"
    given = resolve_config(write(tmp_path, old))[0]
    assert given == resolve_config(None, ["training.clip_norm=2"])[0]
    with pytest.raises(BadInput, match=r"unknown setting .*first_seq_length"):
        resolve_config(write(tmp_path, "training: {first_seq_length: 512}"))


FIRST, FINAL = "training.masked_lm_prob=", "training.final_masked_lm_prob="
RATES = (f"{FIRST}0.4", f"{FINAL}0.2")
REFUSED = r"masked_lm_prob=0\.4 has no effect with make_data\.masking=static"


def preset_rates(*sets, **data):
    """The mask rates of a preset, from 0.3 to 0.15, on a data set."""
    return mask_rates(completed(*sets, path="tiny-cpu", data=replace(DATA, **data)))


@pytest.mark.parametrize(
    ("sets", "data", "rates"),
    [
        ((), {}, (0.3, 0.15)),
        ((), {"masking": "static"}, None),
        ((), {"masked_lm_prob": 0.2}, None),  # data that was made so on purpose
        (RATES, {"masked_lm_prob": 0.2}, (0.4, 0.2)),
        ((f"{FIRST}null",), {}, None),
        ((f"{FIRST}null", f"{FINAL}null"), {}, None),
        ((f"{FIRST}0.1",), {}, (0.1, 0.1)),
        ((f"{FINAL}0.2",), {}, (0.3, 0.2)),
    ],
)
def test_a_presets_mask_rates_are_for_dynamic_masks_at_the_usual_rate(sets, data, rates):
    found = preset_rates(*sets, **data)
    assert (found and found[:2]) == rates


def test_mask_rates_on_the_command_line_are_refused_for_static_masks():
    with pytest.raises(BadInput, match=REFUSED):
        preset_rates(*RATES, masking="static")
    with pytest.raises(BadInput, match=REFUSED):
        completed(*RATES, "make_data.masking=static", path="base-4096")
    assert train_predictions(*run("make_data.masking=static", path="base-4096")) == 615


def test_the_echo_names_a_presets_mask_rates_that_static_data_overrides():
    config, overrides = resolve_config("tiny-cpu")
    config = fit_to_data(config, replace(DATA, masking="static"), overrides)
    assert echo_settings(config, overrides).splitlines() == [
        "  preset tiny-cpu",
        "  training.masked_lm_prob = null  (preset 0.3; from the data)",
        "  training.final_masked_lm_prob = null  (preset 0.15; from the data)",
    ]


@pytest.mark.parametrize("key", CONDITIONAL)
def test_a_setting_that_depends_on_another_is_refused_without_it(key):
    option = OPTIONS[key]
    other, needed = option.conditions[-1]
    value = "true" if option.kind is bool else option.choices[-1] if option.choices else option.low
    for choice in OPTIONS[other].choices:
        sets = [f"{key}={value}", f"{other}={choice}"]
        if choice in needed:
            resolve_config(None, sets)
        else:
            with pytest.raises(BadInput, match=f"{key}=.* has no effect with {other}={choice}"):
                completed(*sets)


def test_what_a_preset_chooses_counts_for_what_depends_on_it():
    resolve_config("original-2021", ["make_data.dupe_factor=3"])
    with pytest.raises(BadInput, match=r"choose make_data\.masking=static"):
        resolve_config("base-4096", ["make_data.dupe_factor=3"])


def test_the_fingerprint_of_the_defaults_is_that_of_0_1_0_whatever_was_added_since():
    data = replace(DATA, vocab_size=32000, seq_length=4096, mask_unit="whole_word")
    data = replace(data, max_predictions_per_seq=600)
    fingerprint = config_fingerprint(Config(), data)
    assert fingerprint == "e8195381274643ab41a8dfb2cc5210604176a7f6d7e3b7e55918cc44be3c51d0"
    for key, value in (("training.optimizer", "muon"), ("model.architecture", "modernbert")):
        assert config_fingerprint(varied(Config(), {key: value}), data) != fingerprint


def test_a_run_comes_back_from_its_file_with_its_data(tmp_path):
    data = replace(DATA, special_ids={"pad": 3})
    config = completed(data=data)
    path = write(tmp_path, config_to_yaml(config, data))
    assert flatten(*read_config(path)) == flatten(config, data) and read_config(path)[1] == data
    assert config_fingerprint(config, data) != config_fingerprint(config, DATA)
    assert resolve_config(path)[0].model == config.model, "a file that states all may state it"
    stated = write(tmp_path, "make_data: {pad_id: 3}")
    with pytest.raises(BadInput, match=r"unknown setting .make_data\.pad_id"):
        resolve_config(stated)


def test_a_run_keeps_its_data_model_seed_and_optimizer():
    sections = {key.partition(".")[0] for key in OPTIONS if change_of(key) == "logged"}
    assert sections == {"training"}
    kept = ("training.seed", "training.optimizer", "model.num_layers", "make_data.seq_length")
    assert all(change_of(key) == "fixed" for key in kept)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_rate_of_another_scale_is_warned_of_whatever_the_optimizer(optimizer):
    def warnings(rate, width=768):
        sets = [f"training.learning_rate={rate}", f"training.optimizer={optimizer}"]
        return config_warnings(completed(*sets, f"model.hidden_size={width}"))

    for rate, side in (("0.02", "above"), ("1e-5", "below")):
        (line,) = warnings(rate)
        assert f"learning_rate={float(rate):g} is 30 times or more {side}" in line
    assert not warnings("5e-5") and not warnings("5e-3") and not warnings("0.02", width=96)
    low = completed("training.learning_rate=1e-5")
    assert not config_warnings(low, from_scratch=False), "training goes on from a model"


def test_what_a_model_dir_accepts_a_change_of():
    old = completed(data=DATA)
    free = {
        "training.num_train_steps": 7,
        "checkpoints.save_every_minutes": 1.0,
        "training.log_every_steps": 3,
        "tpu.num_cores": 32,
    }
    new = varied(old, free)
    assert changes((old, DATA), (new, DATA)) == {}
    assert config_fingerprint(old, DATA) == config_fingerprint(new, DATA)
    new = varied(new, {"training.learning_rate": 1.0, "model.num_layers": 1})
    changed = {"model.num_layers": [12, 1], "training.learning_rate": [0.0001, 1.0]}
    assert changes((old, DATA), (new, DATA)) == changed
    assert config_fingerprint(old, DATA) != config_fingerprint(new, DATA)
    longer = replace(DATA, seq_length=512)
    assert changes((old, DATA), (old, longer)) == {"make_data.seq_length": [256, 512]}


@pytest.mark.parametrize(
    ("sets", "warned"),
    [
        ((), False),
        (("make_data.seq_length=4096",), False),
        (("make_data.seq_length=512",), True),
        (("make_data.seq_length=512", "training.global_batch_size=128"), False),
        (("make_data.seq_length=512", "training.learning_rate=1e-5"), False),
    ],
)
def test_a_presets_rate_at_quite_another_length_is_questioned(sets, warned):
    config, overrides = resolve_config("continue-8192", sets)
    data = requested_data(config)
    lines = config_warnings(fit_to_data(config, data), False, overrides, data)
    assert bool(lines) == warned
    if lines:
        (line,) = lines
        assert (
            "is meant for 65,536 tokens per step (8 x 8,192), this run has 4,096 (8 x 512)" in line
        )
        assert "--set training.global_batch_size=128 keeps them" in line
