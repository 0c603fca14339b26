"""Warnings about valid but unusual settings."""

import pytest

from bigbird_ja.settings.checks import list_config_warnings
from bigbird_ja.settings.data_facts import derive_data
from bigbird_ja.settings.resolve import fit_to_data
from testkit.configs import resolve_config
from tests.settings.support import completed


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_unusual_learning_rate_is_warned_of_for_any_optimizer(optimizer):
    def warnings(rate, width=768):
        sets = [f"training.learning_rate={rate}", f"training.optimizer={optimizer}"]
        return list_config_warnings(completed(*sets, f"model.hidden_size={width}"))

    for rate, side in (("0.02", "above"), ("1e-5", "below")):
        (line,) = warnings(rate)
        assert f"learning_rate={float(rate):g} is 30 times or more {side}" in line
    assert not warnings("5e-5") and not warnings("5e-3") and not warnings("0.02", width=96)
    low = completed("training.learning_rate=1e-5")
    assert not list_config_warnings(low, from_scratch=False), "training goes on from a model"


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
def test_a_presets_learning_rate_at_another_length_is_warned_of(sets, warned):
    config, overrides = resolve_config("continue-8192", sets)
    data = derive_data(config)
    lines = list_config_warnings(fit_to_data(config, data), False, overrides, data)
    assert bool(lines) == warned
    if lines:
        (line,) = lines
        assert "is for 65,536 tokens per step (8 x 8,192), but this run has 4,096 (8 x 512)" in line
        assert "set training.global_batch_size=128" in line
