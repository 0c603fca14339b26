"""The step that `preflight --keep` stores is the step that a rented machine looks up."""

import os
import subprocess
import sys

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import estimate
from bigbird_ja.preflight.precompile import keep_programs
from bigbird_ja.storage.ownership import Owned
from testkit import ROOT
from testkit.configs import fitted, with_data
from tests.commands.test_preflight import SETTINGS

# Program that starts a run as a machine does, until the run looks up its compiled step. Without a
# TPU, JAX cannot load a stored program. This program therefore compiles the step again and stores
# it. The test checks that both programs are stored under the same key.
MACHINE = """
import sys
import jax
from bigbird_ja import compat
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.train.engines import compile_cache, devices, pjrt
from testkit.configs import fitted, with_data

compat.skip_default_layouts()
pjrt.PjrtEngine._check_memory = lambda *_: None  # of no real device
target = compile_lib.find_slice(sys.argv[1])
found = devices.Devices("tpu", tuple(compile_lib.find_devices(target.topology, target.options)))
compile_cache.use(sys.argv[2])
config, data = with_data(fitted(None, sys.argv[3:]))
pjrt.PjrtEngine(config, data, dict, None, found)._compile()
"""


def test_a_machine_finds_the_step_that_was_compiled_for_its_slice(tmp_path):
    pytest.importorskip("libtpu", reason="the TPU compiler comes with `make install-all`")
    config, data = with_data(fitted(None, SETTINGS))
    target, kept, found = compile_lib.find_slice("v5e:2x4"), tmp_path / "kept", tmp_path / "found"
    result = estimate.examine(config, data, target, 1, kept_in=str(kept))
    assert result.fits and min(result.trace_seconds, result.compile_seconds) > 0
    for folder in (kept, found):
        folder.mkdir(exist_ok=True)
    environment = {**os.environ, **compile_lib.ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    del environment["LIBTPU_INIT_ARGS"]  # A machine does not set this variable.
    words = [sys.executable, "-c", MACHINE, target.name, str(found), *SETTINGS]
    subprocess.run(words, env=environment, check=True, capture_output=True)
    names = os.listdir(kept)
    assert len(names) == 1 and os.listdir(found) == names
    assert "run_replica" in names[0]


@pytest.fixture
def run_dir(base):
    return f"{base}/run-1"


def test_programs_become_files_of_the_run(run_dir):
    with keep_programs(run_dir) as folder:
        os.mkdir(folder)
        storage.write_bytes(f"{folder}/jit_run_replica-1-cache", b"native code")
    owned = Owned.load(f"{run_dir}/model")
    assert owned is not None and owned.kind == "run"
    assert list(owned.files) == ["compiled/jit_run_replica-1-cache"]
    # If nothing was compiled (the step does not fit), the stored program stays.
    with keep_programs(run_dir) as folder:
        pass
    assert list(Owned.load(f"{run_dir}/model").files) == ["compiled/jit_run_replica-1-cache"]


def test_a_folder_that_is_no_run_is_refused_before_anything_is_compiled(base):
    storage.make_directory(f"{base}/run-1/model")
    storage.write_bytes(f"{base}/run-1/model/notes.txt", b"the user's")
    with pytest.raises(BadInput, match="name the folder of a run"):
        keep_programs(f"{base}/run-1").__enter__()


@pytest.mark.parametrize("place", ["gs://bucket", "gs://bucket/"])
def test_a_bucket_without_a_run_is_refused(place):
    with pytest.raises(BadInput, match="is a bucket: name the folder"):
        keep_programs(place).__enter__()


def test_a_program_that_cannot_be_copied_is_an_error(run_dir, monkeypatch):
    def fails(*_):
        raise StorageError("the bucket fails")

    monkeypatch.setattr(storage, "upload", fails)
    with (
        pytest.raises(StorageError, match="rerun the same command"),
        keep_programs(run_dir) as folder,
    ):
        os.mkdir(folder)
        storage.write_bytes(f"{folder}/jit_run_replica-1-cache", b"native code")
