"""What an engine cannot run on is one line and exit 2, or 71 for memory, and nothing is written.

The runtime's own messages are fed in where JAX would raise them; all before that is as it is.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja.cli import main
from bigbird_ja.train.engines import devices
from testkit import killing

jax = pytest.importorskip("jax")

# As libtpu and XLA say it.
TPU_MESSAGES = {
    "The TPU is already in use by process with pid 4711. Not attempting to load libtpu.so in this"
    " process.": "the TPU is in use by another process",
    "Unable to initialize backend 'tpu': ABORTED: Internal error when accessing libtpu"
    ' multi-process lockfile. Run "$ sudo rm /tmp/libtpu_lockfile".': "in use by another process",
    "Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed:"
    " open(/dev/vfio/0): Device or resource busy: Couldn't open iommu group /dev/vfio/0;"
    " [/dev/vfio/0]": "in use by another process",
    "Unable to initialize backend 'tpu': INTERNAL: Failed to get global TPU topology.\n (set"
    " JAX_PLATFORMS='' to automatically choose an available backend)": "the TPU cannot be used",
}
GPU_MESSAGES = {
    "Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA:"
    " cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has unsupported display driver / cuda"
    " driver combination": "its driver and this jax do not match",
    "Unable to load cuDNN: CUDA DRIVER VERSION IS INSUFFICIENT FOR CUDA RUNTIME VERSION": (
        "its driver and this jax do not match"
    ),
    "Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices.": (
        "the GPU cannot be used"
    ),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Paths of a tiny config and a tiny data set."""
    config, data = killing.write_inputs(tmp_path_factory.mktemp("inputs"))
    return str(config), str(data)


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """JAX's choice of platforms is as it was."""
    before = jax.config.jax_platforms
    monkeypatch.setenv("JAX_PLATFORMS", os.environ.get("JAX_PLATFORMS", "cpu"))
    yield
    jax.config.update("jax_platforms", before)


def refused(
    inputs: tuple[str, str], model: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str]:
    """The status of `pretrain --engine=pjrt` and its last line; nothing may be written."""
    flags = ["pretrain", "--config", inputs[0], "--data_dir", inputs[1], "--engine=pjrt"]
    status = main.run_command_line([*flags, "--model_dir", str(model), *more])
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("bigbird-ja: ")] == lines[-1:], lines
    assert "Traceback" not in "\n".join(lines) and not model.exists(), list(model.rglob("*"))
    return status, lines[-1]


def machine(monkeypatch: pytest.MonkeyPatch, files: Any, packages: set[str], printed: str) -> None:
    """A machine that shows these devices and has these packages; its runtime says no."""
    real = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        known = {"jax", "libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin", "tensorflow_estimator"}
        if name not in known:
            return real(name, *rest)
        return object() if name in packages else None

    def no_devices(platform: str) -> Any:
        raise RuntimeError(printed)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(devices, "is_there", lambda asked: asked == files)
    monkeypatch.setattr(jax, "devices", no_devices)
    monkeypatch.setattr(jax.config, "update", lambda *args: None)


@pytest.mark.parametrize(
    ("printed", "line", "files", "packages", "flags"),
    [
        *(
            (printed, TPU_MESSAGES[printed], devices.TPU_FILES, {"jax", "libtpu"}, ["--use_tpu"])
            for printed in TPU_MESSAGES
        ),
        *(
            (printed, GPU_MESSAGES[printed], devices.GPU_FILES, {"jax", "jax_cuda12_plugin"}, [])
            for printed in GPU_MESSAGES
        ),
    ],
    ids=[
        *(f"tpu{n}" for n in range(len(TPU_MESSAGES))),
        *(f"gpu{n}" for n in range(len(GPU_MESSAGES))),
    ],
)
def test_a_device_that_cannot_be_used(
    printed: str, line: str, files: Any, packages: set[str], flags: list[str],
    inputs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    machine(monkeypatch, files, packages, printed)
    status, reported = refused(inputs, tmp_path / "model", capsys, *flags)
    assert status == 2 and line in reported


@pytest.mark.parametrize(
    ("files", "packages", "flags", "words"),
    [
        ((), {"jax"}, ["--use_tpu"], "this machine has no TPU"),
        (devices.TPU_FILES, {"jax"}, ["--use_tpu"], "pip install 'bigbird-ja[tpu]'"),
        (devices.TPU_FILES, {"libtpu"}, ["--use_tpu"], "pip install 'bigbird-ja[tpu]'"),
        ((), set(), [], "pip install 'bigbird-ja[cpu]'"),
        (devices.GPU_FILES, {"jax_cuda12_plugin"}, [], "pip install 'bigbird-ja[gpu]'"),
        ((), {"jax"}, ["--engine=estimator"], "pip install 'bigbird-ja[estimator]'"),
    ],
)
def test_a_device_or_a_package_that_is_missing(
    files: Any, packages: set[str], flags: list[str], words: str, inputs: tuple[str, str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    machine(monkeypatch, files, packages, "not asked")
    status, line = refused(inputs, tmp_path / "model", capsys, *flags)
    assert status == 2 and words in line


def test_a_step_that_does_not_fit_is_known_before_it_is_tried(
    inputs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """By the figures of the compiler, whose program is the one that would run."""
    monkeypatch.setattr(devices, "available_bytes", lambda: 10_000)
    small = ["--set=model.num_layers=1", "--set=model.hidden_dropout_prob=0"]  # compiles fast
    status, line = refused(inputs, tmp_path / "model", capsys, *small)
    assert status == 71
    assert "needs about" in line and "training.global_batch_size" in line
