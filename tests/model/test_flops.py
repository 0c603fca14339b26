"""FLOPs of a step, and the number of token pairs that attention computes."""

import pytest

from bigbird_ja.model.flops import count_model_flops, count_visible_pairs
from testkit.configs import fitted, with_data
from tests.model.tiny import tiny_config


def test_model_flops_of_full_attention_by_hand():
    sets = {"hidden_size": 8, "intermediate_size": 32, "num_layers": 3}
    sets = {f"model.{name}": size for name, size in sets.items()}
    sets |= {"model.attention_type": "original_full", "make_data.max_predictions_per_seq": 5}
    config = tiny_config(16, **sets, **{"tokenize.vocab_size": 100})
    attention = 16 * 2 * 4 * 8 * 8 + 4 * 8 * 16 * 16
    # The MLP of the last layer runs only for the 5 predictions.
    mlps = (16 + 16 + 5) * 2 * 2 * 8 * 32
    head = 5 * 2 * (8 * 8 + 8 * 100)
    whole = 3 * 2 * (3 * attention + mlps + head)
    assert count_model_flops(*with_data(config), batch_per_core=2) == whole
    # With `share=0.5`, half of the pairs are between different documents and do not count.
    half = 3 * 2 * 3 * 4 * 8 * 16 * 16 / 2
    assert count_model_flops(*with_data(config), batch_per_core=2, share=0.5) == whole - half


@pytest.mark.parametrize(("pattern", "per_row"), [("rolled", 4), ("independent", 3)])
def test_sparse_attention_counts_the_pairs_of_its_pattern(pattern, per_row):
    config = fitted(None, [f"model.random_pattern={pattern}"])
    blocks = 64
    # The first and the last row of blocks are global, and see all blocks. Each other row sees 2
    # global blocks, the 3 blocks of its window, and its random blocks. The windows of rows 1 and 62
    # contain a global block, which counts only once. This subtracts 2.
    by_hand = (blocks - 2) * (5 + per_row) - 2 + 2 * blocks
    assert count_visible_pairs(config, 0, 4096) == by_hand * 64 * 64
