"""The config of a command: the order of overrides, conditions, and values from the data set."""

from dataclasses import replace

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.schema import FullBigBirdModel, ModernBertModel
from bigbird_ja.settings.values import (
    count_train_predictions,
    flatten,
    get_mask_rates,
    replace_settings,
)
from bigbird_ja.settings.variants import OPTIONS, list_used_settings
from testkit.configs import resolve_config
from tests.settings.support import DATA, completed, run, write

CONDITIONAL = [key for key, option in OPTIONS.items() if option.only_with]


def test_settings_of_another_programs_model_are_read_by_their_declarations():
    """Validate the values that `--init_from` reads from a config.json."""
    adopted = [("hf/config.json", {"model.num_layers": 10**9})]
    with pytest.raises(BadInput, match=r"hf/config\.json: model\.num_layers=1000000000: must be"):
        resolve_config(adopted=adopted)


FIRST, FINAL = "training.masked_lm_prob=", "training.final_masked_lm_prob="


RATES = (f"{FIRST}0.4", f"{FINAL}0.2")


REFUSED = r"masked_lm_prob=0\.4 has no effect with make_data\.masking=static"


def preset_rates(*sets, **data):
    """Return the mask rates of a run with a preset, whose rates change from 0.3 to 0.15."""
    return get_mask_rates(completed(*sets, path="tiny-cpu", data=replace(DATA, **data)))


@pytest.mark.parametrize(
    ("sets", "data", "rates"),
    [
        ((), {}, (0.3, 0.15)),
        ((), {"masking": "static"}, None),
        ((), {"masked_lm_prob": 0.2}, None),  # The user chose this rate for the data.
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
    assert count_train_predictions(*run("make_data.masking=static", path="base-4096")) == 615


@pytest.mark.parametrize("key", CONDITIONAL)
def test_a_setting_that_depends_on_a_choice_is_refused_without_it(key):
    option = OPTIONS[key]
    other, needed = [*option.only_with.items()][-1]
    value = option.choices[-1] if option.choices else option.span[0]
    for choice in OPTIONS[other].choices:
        sets = [f"{key}={value}", f"{other}={choice}"]
        if choice in needed:
            config, _ = resolve_config(None, sets)
            assert flatten(config)[key] == value
        else:
            with pytest.raises(BadInput, match=f"{key}=.* has no effect with {other}={choice}"):
                resolve_config(None, sets)


def test_a_later_choice_removes_settings_that_only_the_earlier_one_has(tmp_path, caplog):
    """Remove a preset's values that depend on the architecture, and keep the user's values."""
    modernbert = ["model.architecture=modernbert"]
    model = resolve_config("base-4096", modernbert)[0].model
    assert isinstance(model, ModernBertModel) and model.hidden_dropout_prob == 0
    assert (
        "because of model.architecture=modernbert, these settings of preset base-4096 are ignored:"
        " model.hidden_d" in caplog.text
    )
    stated = write(tmp_path, "model: {hidden_dropout_prob: 0.2, block_size: 8}")
    assert resolve_config(stated, modernbert)[0].model.hidden_dropout_prob == 0.2
    full = [("hf/config.json", {"model.attention_type": "original_full"})]
    assert isinstance(resolve_config("base-4096", adopted=full)[0].model, FullBigBirdModel)
    sparse, _ = resolve_config("base-4096", ["model.attention_type=block_sparse"], adopted=full)
    assert sparse.model.block_size == 64


def test_a_presets_values_satisfy_the_conditions_of_others():
    resolve_config("original-2021", ["make_data.dupe_factor=3"])
    with pytest.raises(BadInput, match=r"set make_data\.masking=static"):
        resolve_config("base-4096", ["make_data.dupe_factor=3"])


def test_defaults_depend_on_the_architecture():
    model = resolve_config(None, ["model.architecture=modernbert"])[0].model
    assert (model.hidden_act, model.layer_norm_eps, model.hidden_dropout_prob) == ("gelu", 1e-5, 0)


def test_a_config_is_a_layer_of_its_own():
    config, _ = resolve_config("base-4096", ["training.clip_norm=2"])
    again, overrides = resolve_config(config, ["model.num_layers=3"])
    assert again == replace_settings(config, {"model.num_layers": 3})
    assert overrides[-1].source == "`overrides`"


def test_settings_that_a_command_does_not_use_are_refused_from_parameters_only(tmp_path):
    """Refuse `make_data.eval_fraction` as a parameter of `pretrain`, but accept it in a file."""
    path, uses = write(tmp_path, "make_data: {eval_fraction: 0.2}"), list_used_settings("pretrain")
    resolve_config(path, uses=uses)
    with pytest.raises(BadInput, match=r"`overrides`: make_data\.eval_fraction has no effect"):
        resolve_config(path, ["make_data.eval_fraction=0.2"], uses=uses)
