"""MODEL_DIR before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import Meta
from bigbird_ja.settings.resolve import complete_config, resolve_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.train import continuation, run_directory


def config(*sets: str) -> Config:
    return complete_config(resolve_config(None, sets)[0])


def start(directory: Path) -> str:
    run_directory.write_settings(str(directory), config(), str(directory / "none"))
    run_log.append_line(str(directory / run_log.METRICS), {"step": 1, "loss": 1.0, "time": 0.0})
    return str(directory)


def test_a_directory_without_work_takes_any_config(tmp_path: Path) -> None:
    run_directory.check_settings(str(tmp_path / "none"), config())
    run_directory.write_settings(str(tmp_path), config(), str(tmp_path / "none"))
    run_directory.check_settings(str(tmp_path), config("training.seed=1"))


def test_with_work_in_it_each_difference_is_named(tmp_path: Path) -> None:
    model_dir = start(tmp_path)
    run_directory.check_settings(model_dir, config("training.num_train_steps=7"))
    with pytest.raises(BadInput, match=r"dtype: bfloat16 -> float32; training\.seed: 12345 -> 1"):
        run_directory.check_settings(model_dir, config("training.seed=1", "training.dtype=float32"))


def test_moving_aside_never_overwrites(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "run").mkdir(exist_ok=True)
        start(tmp_path / "run")
        assert (
            run_directory.move_aside(str(tmp_path / "run")) == f"{tmp_path}/run.replaced-{number}"
        )
    assert not run_directory.check_movable(str(tmp_path / "run"))


def test_every_start_that_did_not_finish_is_an_interruption() -> None:
    def count(*names: str) -> int:
        return run_directory._unfinished_starts([{"event": name} for name in names])

    assert count() == 0
    assert count("started", "saved", "finished") == 0
    assert count("started", "saved") == 1
    assert count("started", "interrupted", "resumed", "failed") == 2
    assert count("started", "finished", "resumed", "finished") == 0
    assert count("created", "started", "preempted", "resumed", "finished", "deleted") == 1


def test_batches_of_another_size_begin_behind_all_that_was_seen() -> None:
    def after(step: int, before: int, now: int, **known: int) -> int:
        meta = Meta(step, "old", "data", 0.0, 0, 0, 0.0, **known)
        event = {"event": "continued_with", "was": "old", "settings": {key: [before, now]}}
        return continuation.next_batch(meta, config(f"{key}={now}"), [event])

    key = "training.global_batch_size"
    assert after(7, 16, 16) == 7
    assert after(7, 16, 32) == 4  # 3.5
    assert after(7, 16, 5) == 23  # 22.4
    assert after(9, 1, 32, next_batch=4, global_batch_size=32) == 4
    assert after(9, 1, 16, next_batch=4, global_batch_size=32) == 8
