"""Detection of devices, and the messages if they cannot be used."""

import os

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.train.engines import devices
from bigbird_ja.train.engines.choose import choose
from testkit.configs import fitted
from testkit.machines import PretendedMachine

jax = pytest.importorskip("jax")

TPU = (devices.TPU_FILES, {"jax", "libtpu"}, True)
GPU = (devices.GPU_FILES, {"jax", "jax_cuda12_plugin"}, False)
BUSY, MISMATCH = "is in use by another process", "has a driver that does not match this jax"
# Each entry: a simulated machine, a shortened message of libtpu or XLA, and words that our error
# message must contain.
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
    (((), {"jax"}, True), "this machine has no TPU"),
    ((devices.TPU_FILES, {"jax"}, True), "libtpu is not installed here: pip install"),
    ((devices.TPU_FILES, {"libtpu"}, True), "[tpu] or [gpu]"),
    (((), set(), False), "jax is not installed here: pip install 'bigbird-ja[cpu]'"),
]


@pytest.fixture(autouse=True)
def platforms(monkeypatch):
    """Prevent changes of JAX's platforms, and restore JAX_PLATFORMS after the test."""
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setenv("JAX_PLATFORMS", os.environ.get("JAX_PLATFORMS", "cpu"))


@pytest.mark.parametrize(
    ("machine", "printed", "words"),
    [*MESSAGES, *((machine, "", words) for machine, words in MISSING)],
)
def test_device_that_cannot_be_used_is_bad_input(machine, printed, words, monkeypatch):
    files, packages, use_tpu = machine

    def no_devices(platform):
        raise RuntimeError(printed)

    PretendedMachine(monkeypatch, dict.fromkeys(packages, "99"), files)
    monkeypatch.setattr(jax, "devices", no_devices)
    with pytest.raises(BadInput) as caught:
        choose("pjrt", use_tpu, fitted())
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_sums_on_a_gpu_come_in_one_order(monkeypatch):
    PretendedMachine(monkeypatch, dict.fromkeys(GPU[1], "99"), GPU[0])
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    assert devices.prepare(use_tpu=False) == "cuda"
    flags = os.environ["XLA_FLAGS"]
    assert flags.startswith("--xla_dump_to=x ") and "--xla_gpu_deterministic_ops=true" in flags
