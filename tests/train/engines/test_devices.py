"""Which compiled programs, native code, a start loads, and what it does without kernels."""

import os

import pytest

from bigbird_ja import storage
from bigbird_ja.model import kernels
from bigbird_ja.storage.ownership import Owned
from bigbird_ja.train.engines import devices, pjrt
from bigbird_ja.train.engines.devices import CompiledPrograms, Devices
from testkit.configs import fitted, with_data
from testkit.machines import PretendedMachine

jax = pytest.importorskip("jax")


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_program_that_the_mark_does_not_state_is_not_loaded(tmp_path, bucket, place):
    if jax.__version_info__ < (0, 7):
        pytest.skip("keeps no programs of a CPU")
    model = str(tmp_path / "model") if place == "disk" else f"{bucket}/model"
    storage.make_directory(model)
    Owned.create(model, "run")
    logged = []

    def begun(name):
        programs = CompiledPrograms(model, str(tmp_path / name), "cpu", logged.append)
        programs.begin()
        return programs, jax.config.jax_compilation_cache_dir

    before = jax.config.jax_compilation_cache_dir
    try:
        programs, local = begun("first")
        for name in ("kept-cache", "changed-cache"):
            storage.write_bytes(f"{local}/{name}", b"native code")
        programs.keep()
        kept = storage.list_tree(f"{model}/compiled")[0]
        folder = f"{model}/compiled/{os.path.dirname(kept)}"
        storage.write_bytes(f"{folder}/changed-cache", b"another code")
        storage.write_bytes(f"{folder}/brought-cache", b"native code")
        programs, local = begun("second")
        assert os.listdir(local) == ["kept-cache"] and not logged
        storage.write_bytes(f"{local}/brought-cache", b"compiled here")
        programs.keep()  # it replaces nothing of somebody else's
        assert "are not kept" in logged[0]
        assert storage.read_bytes(f"{folder}/brought-cache") == b"native code"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_sums_on_a_gpu_come_in_one_order(monkeypatch):
    machine = PretendedMachine(monkeypatch, {"jax": "99", "jax_cuda12_plugin": "99"}, ())
    machine.files = devices.GPU_FILES
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    assert devices.prepare(use_tpu=False) == "cuda"
    flags = os.environ["XLA_FLAGS"]
    assert flags.startswith("--xla_dump_to=x ") and "--xla_gpu_deterministic_ops=true" in flags


def test_auto_continues_without_kernels_that_the_compiler_refuses(monkeypatch, capsys):
    """For a v5e whose compiler takes XLA's way only."""
    monkeypatch.setattr(kernels, "_jax_version", lambda: (99, 0))
    monkeypatch.setattr(Devices, "chip", "v5e")
    for name in ("Mesh", "NamedSharding"):  # asking jax for devices would look for a TPU
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
    assert said in capsys.readouterr().err
