"""The plan of block-sparse attention: the blocks that each row sees. A seed determines the plan."""

import numpy as np
import pytest

from bigbird_ja.model import pattern
from tests.model.tiny import tiny_config


def _config(seq_length, **model):
    return tiny_config(seq_length, **{f"model.{key}": value for key, value in model.items()})


@pytest.mark.parametrize("random_pattern", ["independent", "rolled"])
@pytest.mark.parametrize("num_random_blocks", [0, 1, 3, 4])
def test_rows_see_window_global_and_random_blocks(random_pattern, num_random_blocks):
    sets = {"random_pattern": random_pattern, "num_random_blocks": num_random_blocks}
    config = _config(32 * 8, **sets)
    is_rolled = random_pattern == "rolled"
    random = 2 * pattern.count_shifts(config.model) if is_rolled else num_random_blocks
    for layer in range(2):
        mask = pattern.block_mask(config, layer, 32 * 8)
        assert mask.shape == (2, 32, 32)
        assert mask[:, [0, -1]].all() and mask[:, :, [0, -1]].all()
        near = np.arange(1, 31)
        for offset in (-1, 0, 1):
            assert mask[:, near, near + offset].all()
        # A random block is never a global block or a block of the window.
        expected = np.full(30, 2 + 3 + random)
        expected[[0, -1]] -= 1  # The windows of these rows contain a global block.
        np.testing.assert_array_equal(mask[:, 1:-1].sum(-1), [expected, expected])


def test_shifts_are_used_evenly_over_the_model():
    config = _config(64 * 8, random_pattern="rolled", num_layers=12, num_attention_heads=16)
    shifts = pattern.random_plan(config, 64 * 8)
    assert shifts.shape == (12, 16, 2) and (shifts[..., 0] != shifts[..., 1]).all()
    values, counts = np.unique(shifts, return_counts=True)
    # There are 31 tiles, of which the window covers three.
    np.testing.assert_array_equal(values, np.arange(2, 30))
    assert counts.max() - counts.min() <= 2


@pytest.mark.parametrize("random_pattern", ["independent", "rolled"])
def test_plans_differ_by_seed_layer_and_head(random_pattern):
    def masks(seed):
        config = _config(24 * 8, random_pattern=random_pattern, pattern_seed=seed)
        return np.stack([pattern.block_mask(config, layer, 24 * 8) for layer in range(2)])

    first = masks(0)
    assert (masks(1) != first).any()
    assert (first[0] != first[1]).any() and (first[:, 0] != first[:, 1]).any()


def test_the_plan_of_a_seed_never_changes():
    """Keep the plans of earlier versions, since trained models depend on them."""
    independent = pattern.random_plan(_config(96, random_pattern="independent"), 96)
    assert independent[0, 0, :2].tolist() == [[5, 9, 3], [8, 4, 6]]
    rolled = pattern.random_plan(_config(96, random_pattern="rolled"), 96)
    assert rolled[0].tolist() == [[2, 3], [2, 3]]


def test_short_sequences_get_full_attention_as_in_hugging_face():
    for num_random_blocks, blocks in ((3, 11), (2, 9), (0, 5)):
        config = _config(96, random_pattern="independent", num_random_blocks=num_random_blocks)
        assert pattern.is_full(config, blocks * 8)
        assert not pattern.is_full(config, (blocks + 1) // 2 * 2 * 8)
    assert pattern.is_full(_config(96, attention_type="original_full"), 4096)


@pytest.mark.parametrize("num_random_blocks", range(7))
def test_rolled_shifts_exist_for_every_length_that_is_not_full(num_random_blocks):
    config = _config(96, random_pattern="rolled", num_random_blocks=num_random_blocks)
    shortest = -(-pattern.find_shortest_sparse(config.model) // 16) * 16
    plan = pattern.random_plan(config, shortest)[0]
    assert plan.shape == (2, pattern.count_shifts(config.model))
