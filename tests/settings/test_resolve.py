"""The config of a command: overrides in order, conditions, and fitting to a data set."""

from dataclasses import replace

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.provenance import Override
from bigbird_ja.settings.resolve import resolve_config
from bigbird_ja.settings.schema import OPTIONS
from bigbird_ja.settings.values import mask_rates, train_predictions
from tests.settings.support import DATA, completed, run

CONDITIONAL = [key for key, option in OPTIONS.items() if option.only_with]


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
    """Validate the values of a config.json, as `--init_from` reads it."""
    adopted = [Override("model.num_layers", 10**9, "hf/config.json")]
    with pytest.raises(BadInput, match=r"hf/config\.json: model\.num_layers=1000000000: must be"):
        resolve_config(adopted=adopted)


FIRST, FINAL = "training.masked_lm_prob=", "training.final_masked_lm_prob="


RATES = (f"{FIRST}0.4", f"{FINAL}0.2")


REFUSED = r"masked_lm_prob=0\.4 has no effect with make_data\.masking=static"


def preset_rates(*sets, **data):
    """Return the mask rates of a preset, from 0.3 to 0.15, on a data set."""
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


@pytest.mark.parametrize("key", CONDITIONAL)
def test_a_setting_that_depends_on_another_is_refused_without_it(key):
    option = OPTIONS[key]
    other, needed = [*option.only_with.items()][-1]
    value = "true" if option.kind is bool else option.choices[-1] if option.choices else option.low
    for choice in OPTIONS[other].choices:
        sets = [f"{key}={value}", f"{other}={choice}"]
        if choice in needed:
            resolve_config(None, sets)
        else:
            with pytest.raises(BadInput, match=f"{key}=.* has no effect with {other}={choice}"):
                completed(*sets)


def test_a_presets_values_satisfy_the_conditions_of_others():
    resolve_config("original-2021", ["make_data.dupe_factor=3"])
    with pytest.raises(BadInput, match=r"choose make_data\.masking=static"):
        resolve_config("base-4096", ["make_data.dupe_factor=3"])
