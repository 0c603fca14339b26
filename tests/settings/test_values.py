"""Fingerprint, changes and mask rates of a config."""

from dataclasses import replace

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import (
    compute_config_fingerprint,
    count_train_predictions,
    get_mask_rates,
    list_changes,
    replace_settings,
)
from tests.settings.support import DATA, completed, run


def test_predictions_have_room_for_the_highest_mask_rate():
    rates = ["training.masked_lm_prob=0.3", "training.final_masked_lm_prob=0.15"]
    steps = completed().training.num_train_steps
    assert get_mask_rates(completed()) is None
    assert count_train_predictions(*run()) == 615
    assert get_mask_rates(completed(*rates)) == (0.3, 0.15, steps)
    assert count_train_predictions(*run(*rates)) == 1229
    assert run(*rates)[1].max_predictions_per_seq == 615  # The evaluation uses this number.
    assert get_mask_rates(completed(rates[0])) == (0.3, 0.3, steps)
    assert count_train_predictions(*run("training.masked_lm_prob=0.1")) == 410
    with pytest.raises(BadInput, match=r"no effect without training\.masked_lm_prob:"):
        completed(rates[1])


def test_the_fingerprint_of_the_defaults_is_that_of_0_1_0():
    data = replace(DATA, vocab_size=32000, seq_length=4096, mask_unit="whole_word")
    data = replace(data, max_predictions_per_seq=600)
    fingerprint = compute_config_fingerprint(Config(), data)
    assert fingerprint == "e8195381274643ab41a8dfb2cc5210604176a7f6d7e3b7e55918cc44be3c51d0"
    for key, value in (("training.optimizer", "muon"), ("model.architecture", "modernbert")):
        assert (
            compute_config_fingerprint(replace_settings(Config(), {key: value}), data)
            != fingerprint
        )


def test_changes_that_a_model_dir_accepts():
    old = completed(data=DATA)
    free = {
        "training.num_train_steps": 7,
        "checkpoints.save_every_minutes": 1.0,
        "training.log_every_steps": 3,
        "tpu.num_cores": 32,
    }
    new = replace_settings(old, free)
    assert list_changes((old, DATA), (new, DATA)) == {}
    assert compute_config_fingerprint(old, DATA) == compute_config_fingerprint(new, DATA)
    new = replace_settings(new, {"training.learning_rate": 1.0, "model.num_layers": 1})
    changed = {"model.num_layers": [12, 1], "training.learning_rate": [0.0001, 1.0]}
    assert list_changes((old, DATA), (new, DATA)) == changed
    assert compute_config_fingerprint(old, DATA) != compute_config_fingerprint(new, DATA)
    longer = replace(DATA, seq_length=512)
    assert list_changes((old, DATA), (old, longer)) == {"make_data.seq_length": [256, 512]}
