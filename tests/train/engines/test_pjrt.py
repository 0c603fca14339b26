"""The step on JAX's runtime against TPUEstimator and against TensorFlow alone."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from testkit import engine_runs

pytest.importorskip("jax")
pytestmark = pytest.mark.both

SHORT = "training.num_train_steps=10"
DIVIDED: dict[str, Any] = {
    "settings": ["training.optimizer_sharding=true", SHORT],
    "data": {"nsp": True},
}
CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "accumulation, checkpointing, next sentence": {
        "settings": [
            "training.gradient_accumulation_steps=2", "training.gradient_checkpointing=true", SHORT
        ],
        "data": {"nsp": True},
    },
    "independent, static": {
        "settings": ["model.random_pattern=independent"],
        "data": {"masking": "static"},
    },
    "full, google, falling mask rate": {
        "settings": [
            "model.attention_type=original_full", "training.update_rule=google",
            "training.masked_lm_prob=0.3", "training.final_masked_lm_prob=0.15",
        ]
    },
    "divided": DIVIDED,
    "muon": {"settings": ["training.optimizer=muon", SHORT]},
}  # fmt: skip


def check(devices: int, *cases: dict[str, Any]) -> None:
    for result in engine_runs.compare(devices, cases):
        assert result["losses"] < 1e-5, result
        assert result["weights"] < 1e-5, result
        assert result["last"] < result["first"], result


@pytest.mark.estimator
@pytest.mark.parametrize(
    "names",
    [
        list(CASES)[:2],
        pytest.param(list(CASES)[2:], marks=pytest.mark.nightly),  # each compiles half a minute
    ],
)
def test_losses_and_weights_are_those_of_the_estimator(names: list[str]) -> None:
    check(1, *({**CASES[name], "reference": "estimator"} for name in names))


def test_on_several_devices_they_are_those_of_as_many_replicas() -> None:
    """With sums over micro-batches and devices, and state that is divided over four devices, from
    the middle on over two; dropout is drawn per device."""
    accumulated = CASES["accumulation, checkpointing, next sentence"]
    check(
        4,
        {
            **accumulated,
            "settings": [*accumulated["settings"], "training.optimizer_sharding=true"],
            "then": [2],
        },
    )


def test_muon_on_several_devices_moves_as_on_as_many_replicas() -> None:
    """Each orthogonalises its share: of four matrices of one shape, and of two and one, whose rows
    four devices do not divide either."""
    muon = ["training.optimizer=muon", "training.weight_decay=0.1", SHORT]
    shape = ["model.architecture=modernbert", "model.intermediate_size=42"]
    check(4, {"settings": [*muon, *shape], "then": [2]})


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("devices", "name"),
    [(2, "divided"), (8, "divided"), (8, "as it is"), (4, list(CASES)[2]), (8, "muon")],
)
def test_on_other_numbers_of_devices_too(devices: int, name: str) -> None:
    check(devices, CASES[name])


@pytest.mark.nightly
def test_the_kernels_train_as_xlas_way_does() -> None:
    if tf.__version__.startswith("2.15."):
        pytest.skip("TensorFlow 2.15 does not read what jax writes for a CPU")
    settings = ["model.attention_implementation=kernel", "model.attend_across_documents=false"]
    check(1, {"settings": [*settings, "model.block_size=4", SHORT]})  # short: full attention


@pytest.mark.nightly
def test_sums_in_bfloat16_change_the_sums_alone() -> None:
    settings = ["training.num_train_steps=1", "training.gradient_sum_dtype=bfloat16"]
    cases = [
        {"settings": [*settings, *more]} for more in ([], ["training.optimizer_sharding=true"])
    ]
    for result in engine_runs.compare(4, cases):
        assert result["losses"] < 1e-6, result
        # The squares of gradients, which are averaged too, are twice as far off.
        assert 2**-12 < result["weights"] < 2**-5, result
