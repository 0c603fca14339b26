"""Checkpoints are saved in the background, at the right steps and times."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from bigbird_ja import storage
from bigbird_ja.model_dir.checkpoints import Meta
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.settings.schema import CheckpointsConfig, Config
from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.train import saver as saver_lib
from bigbird_ja.train.job import Dependencies
from bigbird_ja.train.processes import SingleProcess
from bigbird_ja.train.saver import CheckpointSaver

VALUES = {"w": np.ones([3], np.float32), "global_step": np.int64(1)}


def job(checkpoints, **deps):
    config = Config(checkpoints=checkpoints)
    deps, pod = Dependencies(**deps), SingleProcess()
    return SimpleNamespace(config=config, deps=deps, pod=pod)


def test_saves_are_due_by_minutes_and_by_steps():
    def schedule(minutes, steps):
        config = CheckpointsConfig(save_every_minutes=minutes, save_every_steps=steps)
        return CheckpointSaver(job(config, monotonic=lambda: now[0]), None)

    now = [0.0]
    saver = schedule(10, 100)
    saver.begin(90)
    assert not saver.is_due(99) and saver.is_due(100) and saver.is_due(117)
    assert [saver.find_next_due(step) for step in (90, 99, 100, 117)] == [100, 100, 200, 200]
    # A device loop runs several steps, so it may pass step 100, at which a save was due.
    saver.begin(117)
    assert not saver.is_due(199) and saver.is_due(200)
    now[0] = 600.0
    assert saver.is_due(118) and not saver.is_due(117)
    saver = schedule(0, 0)
    now[0] = 1e9
    assert not saver.is_due(10**9) and saver.find_next_due(10**9) > 10**12


@pytest.fixture
def model_dir(tmp_path):
    model_dir = ModelDir(str(tmp_path))
    with model_dir.lock():
        yield model_dir


def meta(step):
    return Meta(step, "config", "data", 0.0, 0, 0, 0.0, next_batch=step, global_batch_size=1)


def test_steps_continue_while_a_checkpoint_is_written(model_dir, monkeypatch):
    gate, store, write = threading.Event(), model_dir.checkpoints, saver_lib.write_variables

    def write_slowly(*arguments):
        assert gate.wait(10)
        write(*arguments)

    monkeypatch.setattr(saver_lib, "write_variables", write_slowly)
    saver = CheckpointSaver(job(CheckpointsConfig()), model_dir)
    saver.save(meta(1), lambda: lambda: VALUES)
    assert saver.poll() is None and store.list_steps() == []
    gate.set()
    assert saver.wait().step == 1
    saver.save(meta(2), lambda: lambda: VALUES)
    assert saver.wait().step == 2 and saver.wait() is None
    assert store.list_steps() == [1, 2]


def test_failure_of_a_save_is_raised_once(model_dir, monkeypatch):
    def lost():
        raise LeaseLost("another trainer has taken over")

    saver = CheckpointSaver(job(CheckpointsConfig()), model_dir)
    monkeypatch.setattr(model_dir.lease, "check", lost)
    saver.save(meta(1), lambda: lambda: VALUES)
    with pytest.raises(LeaseLost, match="taken over"):
        saver.wait()
    assert saver.poll() is None
    assert model_dir.checkpoints.list_steps() == []
    assert storage.list_files(model_dir.scratch) == []
