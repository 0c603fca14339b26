"""The step on JAX's runtime against TPUEstimator and against TensorFlow alone, over 20 steps."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from testkit import engine_runs

pytest.importorskip("jax")

CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "accumulation, checkpointing, next sentence": {
        "settings": [
            "training.gradient_accumulation_steps=2", "training.gradient_checkpointing=true"
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
    "divided": {"settings": ["training.optimizer_sharding=true"], "data": {"nsp": True}},
}  # fmt: skip


def check(devices: int, case: dict[str, Any]) -> None:
    (result,) = engine_runs.compare(devices, [case])
    assert result["losses"] < 1e-5, result
    assert result["weights"] < 1e-5, result
    assert result["last"] < result["first"], result


def every(name: str) -> Any:
    """A case; some are left to the slow tests, as each compiles for half a minute."""
    is_slow = name.startswith(("independent", "full"))
    return pytest.param(name, marks=[pytest.mark.nightly] if is_slow else [])


@pytest.mark.estimator
@pytest.mark.parametrize("name", [every(name) for name in CASES])
def test_losses_and_weights_are_those_of_the_estimator(name: str) -> None:
    check(1, {**CASES[name], "reference": "estimator"})


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (2, list(CASES)[1]), (4, "divided"),
        pytest.param(4, list(CASES)[2], marks=pytest.mark.nightly),
        pytest.param(8, "as it is", marks=pytest.mark.nightly),
        pytest.param(2, "divided", marks=pytest.mark.nightly),
        pytest.param(8, "divided", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_on_several_devices_they_are_those_of_as_many_replicas(devices: int, name: str) -> None:
    check(devices, CASES[name])


@pytest.mark.nightly
def test_the_kernels_train_as_xlas_way_does() -> None:
    settings = ["model.attention_implementation=kernel", "model.attend_across_documents=false"]
    settings += ["model.block_size=4", "training.num_train_steps=10"]  # short: full attention
    case = {"settings": settings}
    if tf.__version__.startswith("2.15."):
        pytest.skip("TensorFlow 2.15 does not read what jax writes for a CPU")
    check(1, case)


@pytest.mark.nightly
def test_divided_state_goes_on_over_another_number_of_devices() -> None:
    case = {"settings": ["training.optimizer_sharding=true"], "data": {"nsp": True}, "restart": 2}
    check(4, case)


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
