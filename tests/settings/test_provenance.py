"""A command prints the settings that differ from the defaults, with their sources."""

from dataclasses import replace

from bigbird_ja.settings.config_file import config_to_yaml
from bigbird_ja.settings.provenance import echo_settings
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.variants import OPTIONS, list_used_settings
from testkit.configs import resolve_config
from tests.settings.support import DATA, write


def test_the_echo_has_effective_settings_that_differ_from_the_preset(tmp_path):
    def echoed(path, *sets, uses=tuple(OPTIONS), run=None):
        return echo_settings(*resolve_config(path, sets), uses, run).splitlines()

    assert echoed(None) == ["  (all defaults)"]
    assert echoed("configs/base-4096.yaml") == echoed("base-4096") == ["  preset base-4096"]
    same, other = "training.num_train_steps=400", "training.num_train_steps=40"
    assert echoed("tiny-cpu", same) == ["  preset tiny-cpu"]
    assert echoed("tiny-cpu", other, uses=list_used_settings("make-data")) == ["  preset tiny-cpu"]
    changed = "  training.num_train_steps = 40  (preset 400; from `overrides`)"
    assert echoed("tiny-cpu", other) == ["  preset tiny-cpu", changed]
    path = write(tmp_path, "model: {num_layers: 12}\ntokenize: {vocab_size: 100}\n")
    assert echoed(path, uses=("model",)) == ["  (all defaults)"]
    assert echoed(path) == [f"  tokenize.vocab_size = 100  (default 32000; from {path})"]
    # When a run is resumed, settings are compared with those that the run has stored.
    path = write(tmp_path, config_to_yaml(resolve_config(path, [other])[0]))
    changed = "  training.num_train_steps = 50  (run 40; from `overrides`)"
    assert echoed(path, "training.num_train_steps=50", run=path) == [f"  {path}", changed]


def test_the_echo_has_mask_rates_that_static_data_overrides():
    config, overrides = resolve_config("tiny-cpu")
    config = fit_to_data(config, replace(DATA, masking="static"), overrides)
    assert echo_settings(config, overrides).splitlines() == [
        "  preset tiny-cpu",
        "  training.masked_lm_prob = null  (preset 0.3; from the data)",
        "  training.final_masked_lm_prob = null  (preset 0.15; from the data)",
    ]
