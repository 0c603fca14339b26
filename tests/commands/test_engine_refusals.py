"""What an engine cannot run on is one line and exit 2, or 71 for memory, and nothing is written.

The runtime's own messages are fed in where JAX would raise them; all before that is as it is.
"""

import os
import sys

import pytest

from bigbird_ja.train.engines import devices, host_memory
from bigbird_ja.train.engines.choose import Choice
from bigbird_ja.train.notices import cpu_warning, plateau
from testkit.configs import fitted, with_data
from testkit.machines import PretendedMachine
from tests.commands.pretraining import refused

jax = pytest.importorskip("jax")

TPU = (devices.TPU_FILES, {"jax", "libtpu"}, ["--use_tpu"])
GPU = (devices.GPU_FILES, {"jax", "jax_cuda12_plugin"}, [])
BUSY, MISMATCH = "is in use by another process", "its driver and this jax do not match"
# As libtpu and XLA say it, shortened.
MESSAGES = [
    (TPU, "The TPU is already in use by process with pid 4711. Not attempting to load it.", BUSY),
    (TPU, "Internal error when accessing libtpu multi-process lockfile. Run ...", BUSY),
    (TPU, "open(/dev/vfio/0): Device or resource busy: Couldn't open iommu group", BUSY),
    (TPU, "INTERNAL: Failed to get global TPU topology.\n (set ...)", "the TPU cannot be used"),
    (GPU, "CUDA: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has unsupported ...", MISMATCH),
    (GPU, "CUDA DRIVER VERSION IS INSUFFICIENT FOR CUDA RUNTIME VERSION", MISMATCH),
    (GPU, "FAILED_PRECONDITION: No visible GPU devices.", "the GPU cannot be used"),
]
MISSING = [
    (((), {"jax"}, ["--use_tpu"]), "this machine has no TPU"),
    ((devices.TPU_FILES, {"jax"}, ["--use_tpu"]), "libtpu is not installed here: pip install"),
    ((devices.TPU_FILES, {"libtpu"}, ["--use_tpu"]), "[tpu] or [gpu]"),
    (((), set(), []), "jax is not installed here: pip install 'bigbird-ja[cpu]'"),
    (((), {"jax"}, ["--engine=estimator"]), "pip install 'bigbird-ja[estimator]'"),
]


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """JAX's choice of platforms is as it was."""
    before = jax.config.jax_platforms
    monkeypatch.setenv("JAX_PLATFORMS", os.environ.get("JAX_PLATFORMS", "cpu"))
    yield
    jax.config.update("jax_platforms", before)


def command(inputs, model, *more):
    flags = ["pretrain", "--config", inputs[0], "--data_dir", inputs[1], "--engine=pjrt"]
    return [*flags, "--model_dir", str(model), *more]


@pytest.mark.parametrize(
    ("shown", "printed", "words"), [*MESSAGES, *((shown, "", words) for shown, words in MISSING)]
)
def test_a_device_that_cannot_be_used_or_is_missing_or_a_package_that_is(
    shown, printed, words, inputs, tmp_path, monkeypatch, capsys
):
    files, packages, flags = shown

    def no_devices(platform):
        raise RuntimeError(printed)

    PretendedMachine(monkeypatch, dict.fromkeys(packages, "99"), files)
    monkeypatch.setattr(jax, "devices", no_devices)
    monkeypatch.setattr(jax.config, "update", lambda *args: None)
    monkeypatch.setitem(sys.modules, "bigbird_ja.train.train", None)  # is not imported first
    refused(command(inputs, tmp_path / "model", *flags), capsys, words)
    assert not (tmp_path / "model").exists()


def test_a_step_that_does_not_fit_is_known_before_it_is_tried(
    inputs, tmp_path, monkeypatch, capsys
):
    """By the figures of the compiler, whose program is the one that would run."""
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 10_000)
    small = ["--set=model.num_layers=1", "--set=model.hidden_dropout_prob=0"]  # compiles fast
    words = "needs about", "training.global_batch_size"
    refused(command(inputs, tmp_path / "model", *small), capsys, *words, status=71)
    assert not (tmp_path / "model").exists()
    (tmp_path / "model").mkdir()
    refused(command(inputs, tmp_path / "model", *small), capsys, *words, status=71)
    assert os.listdir(tmp_path / "model") == []


def test_what_to_expect_is_said_of_small_models():
    tiny = fitted("tiny-cpu", ["training.num_train_steps=400", "training.global_batch_size=4"])
    config, data = with_data(tiny)
    steps = 600_000 // (4 * data.seq_length)
    assert f"until about step {steps:,} (0.6 M tokens) little more" in plateau(config, data)
    late = plateau(*with_data(fitted("tiny-cpu", ["model.initializer=normal"])))
    assert "4 M tokens" in late and "ends before that" in late
    assert plateau(*with_data(fitted("base-4096"))) is None


def test_a_base_model_on_a_cpu_is_warned_of_and_a_tiny_one_is_not(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(devices, "has_gpu", lambda: False)
    cpu, base = Choice("estimator", "", False, 1, "CPU or GPU"), with_data(fitted("base-4096"))
    warning = cpu_warning(*base, cpu)
    # By hand: a sequence takes some 2.5 TFLOP.
    training = base[0].training
    days = training.num_train_steps * training.global_batch_size * 2.5e12 / 100e9 / 86_400
    said = float(warning.partition("about ")[2].partition(" d")[0].replace(",", ""))
    assert said == pytest.approx(days, rel=0.05) and "`bigbird-ja plan`" in warning
    assert cpu_warning(*with_data(fitted("tiny-cpu")), cpu) is None
    assert cpu_warning(*base, Choice("estimator", "", True, 8, "TPU")) is None
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    assert cpu_warning(*base, cpu) is None
