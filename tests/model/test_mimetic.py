"""Mimetic first values: heads look at fixed distances, later layers copy what is alike."""

from __future__ import annotations

import numpy as np
import pytest

from bigbird_ja.model import mimetic
from bigbird_ja.model.params import initial_parameters, parameter_specs
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.resolve import resolve_config
from tests.model.tiny import tiny_config

LENGTH = 256
SETTINGS = {
    "model.initializer": "mimetic", "model.hidden_size": 128, "model.num_attention_heads": 4,
    "model.num_layers": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def values() -> dict[str, np.ndarray]:
    return initial_parameters(tiny_config(LENGTH, **SETTINGS), seed=3)


def test_a_rotation_moves_every_position_by_the_same_distance():
    rates = np.geomspace(1.0, 0.01, 8)
    waves = mimetic.sinusoids(50, rates)
    for distance in (-4, -1, 0, 3):
        moved = waves[10:40] @ mimetic.rotation(rates, distance)
        np.testing.assert_allclose(moved, waves[10 + distance : 40 + distance], atol=1e-12)


def test_each_head_of_the_first_layer_looks_at_its_distance(values):
    random = np.random.default_rng(0)
    words = values["bert/embeddings/word_embeddings"]
    inputs = words[random.integers(11, len(words), LENGTH)]
    inputs = inputs + values["bert/embeddings/position_embeddings"][:LENGTH]
    inputs = (inputs - inputs.mean(1, keepdims=True)) / inputs.std(1, keepdims=True)
    scope = "bert/encoder/layer_0/attention/self"
    query, key = (inputs @ values[f"{scope}/{name}/kernel"] for name in ("query", "key"))
    for head, distance in enumerate((-1, 1, -4, 4)):
        columns = slice(head * 32, head * 32 + 32)
        scores = query[:, columns] @ key[:, columns].T / np.sqrt(32)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        offsets = np.arange(LENGTH) - np.arange(LENGTH)[:, None]
        near = (shares * (np.abs(offsets - distance) <= 3)).sum(1)[8:-8].mean()
        assert near > 0.5, (head, near)  # of 256 positions, seven would have 0.03
        # A token is a little like itself, whatever the rotation: 0 is left out.
        by_offset = {d: np.diagonal(scores, d).mean() for d in range(-20, 21) if d}
        assert max(by_offset, key=by_offset.__getitem__) == distance


def test_later_layers_hand_on_what_they_see(values):
    scope = "bert/encoder/layer_1/attention"
    np.testing.assert_array_equal(
        values[f"{scope}/self/query/kernel"], values[f"{scope}/self/key/kernel"]
    )
    through = values[f"{scope}/self/value/kernel"] @ values[f"{scope}/output/dense/kernel"]
    np.testing.assert_allclose(through, np.eye(128), atol=1e-5)


def test_only_first_values_differ_and_the_seed_decides_them(values):
    config = tiny_config(LENGTH, **SETTINGS)
    for name, spec in parameter_specs(config).items():
        assert values[name].shape == spec.shape and values[name].dtype == np.float32
    again, other = (initial_parameters(config, seed=seed) for seed in (3, 4))
    kernel = "bert/encoder/layer_0/attention/self/query/kernel"
    np.testing.assert_array_equal(again[kernel], values[kernel])
    assert (other[kernel] != values[kernel]).any()
    usual = initial_parameters(tiny_config(LENGTH, **SETTINGS | {"model.initializer": "normal"}), 3)
    changed = {name for name in values if not np.array_equal(values[name], usual[name])}
    assert changed == {
        "bert/embeddings/position_embeddings",
        *(
            f"bert/encoder/layer_{layer}/attention/self/{name}/kernel"
            for layer in range(2)
            for name in ("query", "key")
        ),
        "bert/encoder/layer_1/attention/self/value/kernel",
        "bert/encoder/layer_1/attention/output/dense/kernel",
    }


def test_an_odd_hidden_size_is_refused():
    sets = ["model.initializer=mimetic", "model.hidden_size=33", "model.num_attention_heads=3"]
    with pytest.raises(BadInput, match="is odd"):
        resolve_config(None, sets)
