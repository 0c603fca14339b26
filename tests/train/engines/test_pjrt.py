"""A step on JAX's runtime gives the same results as TPUEstimator and plain TensorFlow."""

import pytest
import tensorflow as tf

from bigbird_ja.model.kernels import choose as kernels
from bigbird_ja.train.engines import pjrt
from bigbird_ja.train.engines.devices import Devices
from testkit import engine_runs
from testkit.configs import fitted, with_data

pytest.importorskip("jax")
pytestmark = pytest.mark.both

SHORT = "training.num_train_steps=10"
CASES = {
    "as it is": {},
    "accumulation, checkpointing, next sentence": {
        "settings": [
            "training.gradient_accumulation_steps=2",
            "training.gradient_checkpointing=true",
            SHORT,
        ],
        "data": {"nsp": True},
    },
    "independent, static": {
        "settings": ["model.random_pattern=independent"],
        "data": {"masking": "static"},
    },
    "full, google, falling mask rate": {
        "settings": [
            "model.attention_type=original_full",
            "training.update_rule=google",
            "training.masked_lm_prob=0.3",
            "training.final_masked_lm_prob=0.15",
        ]
    },
    "muon": {"settings": ["training.optimizer=muon", SHORT]},
}


def check(devices, *cases):
    for result in engine_runs.compare(devices, cases):
        assert result["losses"] < 1e-5, result
        assert result["weights"] < 1e-5, result
        assert result["last"] < result["first"], result


@pytest.mark.estimator
@pytest.mark.parametrize(
    "names",
    [
        list(CASES)[:2],
        # Each case compiles for 30 seconds.
        pytest.param(list(CASES)[2:], marks=pytest.mark.slow),
    ],
)
def test_losses_and_weights_equal_those_of_the_estimator(names):
    check(1, *({**CASES[name], "reference": "estimator"} for name in names))


@pytest.mark.slow
def test_adamw_on_several_devices_moves_as_on_as_many_replicas():
    check(4, {**CASES["accumulation, checkpointing, next sentence"], "then": [2]})


def test_several_devices_train_as_replicas_do():
    """Train with Muon on four devices, then on two, with micro-batches and dropout.

    Muon's state is sharded over the devices, and each device orthogonalizes some of the matrices.
    Matrices of one shape form a stack. There are stacks of four, two and one matrices. Some
    matrices have a number of rows that is not a multiple of four.
    """
    muon = ["training.optimizer=muon", "training.weight_decay=0.1", SHORT]
    shape = ["model.architecture=modernbert", "model.intermediate_size=42"]
    sums = ["training.gradient_accumulation_steps=2", "model.hidden_dropout_prob=0.1"]
    check(4, {"settings": [*muon, *shape, *sums], "then": [2]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "name"), [(8, "as it is"), (4, list(CASES)[2]), (2, "muon"), (8, "muon")]
)
def test_other_numbers_of_devices_train_as_replicas_do(devices, name):
    check(devices, CASES[name])


@pytest.mark.slow
def test_kernels_train_as_xla_does():
    if tf.__version__.startswith("2.15."):
        pytest.skip("TensorFlow 2.15 cannot read the programs that jax writes for a CPU")
    settings = ["model.attention_implementation=kernel", "model.attend_across_documents=false"]
    # The values are sequence lengths.
    cases = {"model.block_size=4": 64, "model.architecture=modernbert": 384}
    check(
        1,
        *(
            {"settings": [*settings, shape, SHORT], "data": {"seq_length": length}}
            for shape, length in cases.items()
        ),
    )


def test_auto_continues_without_kernels_that_the_compiler_refuses(monkeypatch, caplog):
    """Fall back to XLA's attention on a v5e whose compiler refuses the kernels."""
    monkeypatch.setattr(kernels, "_get_jax_version", lambda: (99, 0))
    monkeypatch.setattr(Devices, "chip", "v5e")
    for name in ("Mesh", "NamedSharding"):  # The real ones would make JAX search for a TPU.
        monkeypatch.setattr(pjrt, name, lambda *_: None)

    def compile_(engine):
        if engine._step_config.model.attention_implementation == "kernel":
            raise RuntimeError("INTERNAL: Mosaic failed to compile TPU kernel")
        return "the step"

    monkeypatch.setattr(pjrt.PjrtEngine, "_compile", compile_)
    run = with_data(fitted("base-4096", ["training.global_batch_size=1"]))
    engine = pjrt.PjrtEngine(*run, dict, lambda *_: None, Devices("tpu", (object(),)))  # type: ignore[arg-type,return-value]
    assert engine._step_config.model.attention_implementation == "kernel"
    assert engine._compile_with_fallback() == "the step"  # type: ignore[comparison-overlap]
    said = "model.attention_implementation=auto: xla, as this compiler refuses"
    assert said in caplog.text
