"""MODEL_DIR at the start of a run, moves of MODEL_DIR, and its scratch folder."""

import contextlib
import shutil
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import Meta
from bigbird_ja.model_dir.folder import ModelDir, compute_next_batch
from testkit import killing
from testkit.configs import fitted, with_data


def config(*sets):
    return fitted(None, sets)


def start(directory):
    """Create a run that has logged one step."""
    directory.mkdir(exist_ok=True)
    run = ModelDir(str(directory))
    with run.lock():
        run.begin()
        run.write_settings(*with_data(config()), str(directory / "none"))
        run.events.append("started")
        line = {"step": 1, "loss": 1.0, "time": 0.0}
        run_log.append_line(str(directory / run_log.METRICS), line)
    return ModelDir(str(directory))


def test_settings_may_differ_until_a_step_is_logged(tmp_path):
    other = with_data(config("training.seed=1"))
    ModelDir(str(tmp_path / "none")).check_settings(*other)
    run = ModelDir(str(tmp_path))
    with run.lock():
        run.begin()
        run.write_settings(*with_data(config()), str(tmp_path / "none"))
        run.events.append("started")
    ModelDir(str(tmp_path)).check_settings(*other)
    with pytest.raises(BadInput, match=r"contains a run of other settings.*training\.seed"):
        start(tmp_path).check_settings(*other)


def test_moving_aside_never_overwrites(base):
    for number in (1, 2):
        run = ModelDir(f"{base}/run")
        with run.lock():
            run.begin()
            run.events.append("started")
            storage.write_bytes(f"{base}/run/{run_log.METRICS}", b'{"step": 1}\n')
            storage.make_directory(f"{base}/run/eval")
            storage.write_bytes(f"{base}/run/eval/events", b"")
        before = storage.list_tree(f"{base}/run")
        run = ModelDir(f"{base}/run", overwrite=True)
        with run.lock():
            run.begin()
            assert storage.list_tree(f"{base}/run.replaced-{number}") == before
    assert not ModelDir(f"{base}/run").has_work


def test_events_between_opening_and_locking_are_read(tmp_path):
    run = start(tmp_path)
    run_log.EventLog(str(tmp_path)).append("resumed")
    with run.lock():
        assert run.find_last_start()["event"] == "resumed"


@pytest.mark.parametrize(
    ("batch", "size", "new_size", "expected"),
    [(7, 16, 16, 7), (7, 16, 32, 4), (7, 16, 5, 23), (4, 32, 32, 4), (4, 32, 16, 8)],
)
def test_batches_of_another_size_begin_after_all_seen_records(batch, size, new_size, expected):
    meta = Meta(9, "c", "d", 0.0, 0, 0, 0.0, next_batch=batch, global_batch_size=size)
    assert compute_next_batch(meta, config(f"training.global_batch_size={new_size}")) == expected


def test_next_start_removes_the_scratch_folder_of_a_killed_run(base, tmp_path, monkeypatch):
    """Remove the scratch folder of a killed run, and keep folders of the user.

    The scratch folder is in the system's temporary folder if MODEL_DIR is on a bucket, else in
    MODEL_DIR.
    """
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    place = tmp_path / "tmp" if storage.is_remote(base) else Path(base)
    run = ModelDir(base)
    with run.lock():
        run.begin()
        run.events.append("started")
    for name in (".tmp-thesis", "bigbird-ja-thesis"):
        (place / name).mkdir()
    run = ModelDir(base)
    with run.lock():
        scratch = run.scratch
        assert Path(scratch).parent == place and storage.list_files(scratch) == []
        shutil.copytree(scratch, f"{scratch}-left")  # A killed process would leave this folder.
    run = ModelDir(base)
    with run.lock():
        pass
    folders = {path.name for path in place.iterdir() if path.is_dir()}
    assert folders == {".tmp-thesis", "bigbird-ja-thesis"}


@pytest.mark.parametrize("with_overwrite", [True, False])
def test_a_move_on_a_bucket_that_was_killed_is_completed(bucket, monkeypatch, with_overwrite):
    """Kill the process before each change of files while MODEL_DIR is moved aside or moved back.

    A refused start moves MODEL_DIR back.
    """
    for kill in range(100):
        path = f"{bucket}/{kill}"
        run = ModelDir(path)
        with run.lock():
            run.begin()
            run.events.append("started")
            storage.write_bytes(f"{path}/{run_log.METRICS}", b'{"step": 1}\n')
            storage.write_bytes(f"{path}/notes/mine", b"the user's")
        before = storage.list_tree(path)
        with monkeypatch.context() as patch:
            calls = killing.interrupt_storage(patch, kill)
            ended = contextlib.suppress(KeyboardInterrupt, BadInput)
            with ended, ModelDir(path, overwrite=True).lock():
                raise BadInput("the start is refused")
        is_whole = storage.list_tree(path) == before
        run = ModelDir(path, with_overwrite)
        with run.lock():
            run.begin()
            moved = storage.list_tree(f"{path}.replaced-1")
            assert moved == before or (is_whole and not with_overwrite and not moved), kill
        assert not storage.list_tree(f"{path}.replaced-2")
        if len(calls) <= kill:
            assert is_whole and kill > 15
            return
