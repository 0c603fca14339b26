"""The choice of the engine, and the message if one cannot be used."""

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.checks import check_divides
from bigbird_ja.settings.values import replace_settings
from bigbird_ja.train.engines import devices
from bigbird_ja.train.engines.choose import check_estimator_tpu, choose
from testkit.configs import fitted
from testkit.machines import PretendedMachine

CONFIG = fitted(None, [])


class Found:
    def __init__(self, use_tpu):
        self.devices, self.peak_flops = (1, 2), None
        self.description = "2 x TPU v5 lite" if use_tpu else "2 x cpu"


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(devices, "has_tensorflow_tpu", lambda: True)
    monkeypatch.setattr(devices, "find", Found)
    for name in ("TPU_ACCELERATOR_TYPE", "ACCELERATOR_TYPE"):
        monkeypatch.delenv(name, raising=False)
    packages = {"tensorflow": "2.15.1", "tensorflow_estimator": "2.15.0", "jax": "0.4.34"}
    return PretendedMachine(monkeypatch, packages, ())


@pytest.mark.parametrize(
    ("missing", "kind", "wanted", "processes", "engine", "why"),
    [
        ("", "v3-8", "auto", 1, "estimator", "a TPU v3"),
        ("", "v2-8", "auto", 1, "estimator", "a TPU v2"),
        ("jax", "v3-8", "auto", 1, "estimator", "a TPU v3"),  # JAX is missing.
        ("", "v5litepod-8", "auto", 1, "pjrt", "was not tested on a TPU v5e"),
        ("", None, "auto", 1, "pjrt", "TPUEstimator is for a TPU v2 or v3"),
        ("jax", None, "auto", 1, "estimator", "auto: jax is not installed"),
        ("tensorflow_estimator", None, "auto", 1, "pjrt", "needs TensorFlow 2.15"),
        ("", None, "pjrt", 1, "pjrt", "`engine` pjrt"),
        ("", "v5litepod-8", "estimator", 1, "estimator", "`engine` estimator"),
        ("", "v3-8", "auto", 2, "pjrt", "several processes"),
    ],
)
def test_an_engine_is_chosen(machine, missing, kind, wanted, processes, engine, why):
    machine.packages.pop(missing, None)
    if kind:
        machine.tpu(kind)
    chosen = choose(wanted, kind is not None, CONFIG, processes)
    assert (chosen.name, chosen.processes) == (engine, processes) and why in chosen.why


def test_choice_describes_its_devices(machine):
    assert choose("estimator", False, CONFIG).replicas == 1
    machine.tpu("v3-8")
    chosen = choose("auto", True, CONFIG)
    assert (chosen.replicas, chosen.peak_flops) == (8, 61.5e12)
    about = "engine: estimator on TPU v3-8, 8 cores (auto: TensorFlow 2.15 and a TPU v3)"
    assert str(chosen) == about
    pod = choose("auto", True, CONFIG, 2)
    assert pod.replicas == 2 and "in 2 processes" in str(pod)


def test_estimator_refuses_kernels_and_another_tensorflow(machine):
    setting = "model.attention_implementation=kernel"
    config = fitted(None, [setting])
    chosen = choose("auto", False, config)
    assert (chosen.name, chosen.why) == ("pjrt", f"auto: {setting} needs it")
    with pytest.raises(BadInput, match=f"^{setting} requires `engine` pjrt"):
        choose("estimator", False, config)
    del machine.packages["tensorflow_estimator"]
    with pytest.raises(BadInput, match=r"pip install 'bigbird-ja\[estimator\]'"):
        choose("estimator", False, CONFIG)


def test_missing_tpu_is_reported_before_missing_support(machine, monkeypatch):
    monkeypatch.setattr(devices, "has_tensorflow_tpu", lambda: False)
    with pytest.raises(BadInput, match="this machine has no TPU"):
        check_estimator_tpu(CONFIG)
    machine.tpu("v3-8")
    with pytest.raises(BadInput, match="built without TPU support"):
        check_estimator_tpu(CONFIG)


def test_tpu_of_another_name_that_does_not_answer_is_refused():
    config = replace_settings(CONFIG, {"tpu.name": "somewhere", "tpu.zone": "none"})
    with pytest.raises(BadInput, match="no TPU 'somewhere'"):
        check_estimator_tpu(config)


@pytest.mark.parametrize(
    ("batch", "cores", "words"), [(20, 8, "use 16 or 32"), (4, 8, "use 8 or 16|use 16")]
)
def test_a_batch_that_does_not_divide_is_refused_with_batches_that_do(batch, cores, words):
    assert check_divides(16, 8, 2) == 1
    with pytest.raises(BadInput, match=words):
        check_divides(batch, cores, 2)
