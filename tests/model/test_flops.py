"""FLOPs of models."""

from __future__ import annotations

import pytest

from bigbird_ja.model import flops
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.resolve import complete_config, resolve_config
from bigbird_ja.settings.schema import Config


def _config(*sets: str) -> Config:
    config, _ = resolve_config(None, sets)
    return complete_config(config)


def test_model_flops_of_full_attention_by_hand() -> None:
    config = _config(
        "model.hidden_size=8", "model.num_attention_heads=2", "model.intermediate_size=32",
        "model.num_layers=3", "make_data.seq_length=16", "tokenize.vocab_size=100",
        "make_data.max_predictions_per_seq=5", "model.attention_type=original_full",
    )  # fmt: skip
    attention = 16 * 2 * 4 * 8 * 8 + 4 * 8 * 16 * 16
    # The last layer's MLP runs for the 5 predictions alone.
    mlps = (16 + 16 + 5) * 2 * 2 * 8 * 32
    head = 5 * 2 * (8 * 8 + 8 * 100)
    assert flops.model_flops(config, batch_per_core=2) == 3 * 2 * (3 * attention + mlps + head)


@pytest.mark.parametrize(("pattern", "per_row"), [("rolled", 4), ("independent", 3)])
def test_sparse_attention_counts_what_its_pattern_lets_see(pattern: str, per_row: int) -> None:
    config = _config(f"model.random_pattern={pattern}")
    blocks = 64
    # Rows next to a global block see it once; the two global rows see everything.
    by_hand = (blocks - 2) * (5 + per_row) - 2 + 2 * blocks
    assert flops.visible_pairs(config) == by_hand * 64 * 64


def test_doubling_the_length_doubles_sparse_work() -> None:
    short, long = (flops.visible_pairs(_config(f"make_data.seq_length={n}")) for n in (4096, 8192))
    assert 1.95 < long / short < 2.05


def test_a_length_that_the_pattern_refuses_is_bad_input() -> None:
    with pytest.raises(BadInput, match="multiple"):
        flops.visible_pairs(_config("make_data.seq_length=4100"))
