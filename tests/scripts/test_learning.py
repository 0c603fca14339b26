"""The learning benchmarks' data, and their curves, which are kept to be drawn again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja.data import manifest as manifest_lib
from scripts import bench_patterns, bench_precision, learning


def test_the_data_is_made_with_the_tasks_settings(tmp_path: Path) -> None:
    # Settings of three commands, each of which refuses those of the others.
    task = learning.Task(
        "small",
        "tiny-cpu",
        ("make_data.seq_length=256", "make_data.max_predictions_per_seq=40", "model.num_layers=1"),
        ("--documents=150",),
    )
    data_dir = learning.generated_data(str(tmp_path), task)
    assert manifest_lib.load(data_dir).as_settings()["make_data.seq_length"] == 256
    config = learning.config_for(data_dir, task, "training.num_train_steps=7")
    assert (config.model.num_layers, config.training.num_train_steps) == (1, 7)
    # Short sequences first, then whole ones.
    lengths = ("training.first_seq_length=64", "training.first_seq_length_steps=1")
    steps = ("training.num_train_steps=2", "training.warmup_steps=1", *lengths)
    losses: list[float] = []
    config = learning.config_for(data_dir, task, *steps)
    learning.train_in_phases(config, data_dir, lambda _, m: losses.append(m["loss"]))
    assert len(losses) == 2 and all(7 < loss < 8 for loss in losses)


def test_a_run_that_fails_is_heard_of_before_the_others_are_through(tmp_path: Path) -> None:
    runs = {n: (tmp_path / f"{n}.json", _failing, (str(tmp_path), n)) for n in range(20)}
    with pytest.raises(ValueError, match="the first"):
        learning.run_kept(runs, 1, lambda *_: None)
    assert len(list(tmp_path.glob("*.ran"))) < 20


def _failing(directory: str, number: int) -> int:
    Path(directory, f"{number}.ran").touch()
    if number == 0:
        raise ValueError("the first")
    return number


@pytest.mark.parametrize("bench", [bench_precision, bench_patterns])
def test_a_picture_is_drawn_again_without_training(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curves.png"
    # bfloat16 half as far from float32 as another seed is; `rolled` as good as `independent`.
    losses = {
        "float32, seed 0": 4.0, "float32, seed 1": 6.0,
        "bfloat16, seed 0": 5.0, "bfloat16, seed 1": 7.0,
    }  # fmt: skip
    kept: dict[str, Any] = {
        f"{task.name}, {name}": [loss] * 200
        for task in bench_precision.COMPARISONS["precision"].tasks
        for name, loss in losses.items()
    }
    kept |= {
        f"{pattern}, seed {seed}": {"losses": [2.0 + seed] * 200, "recall": 0.5}
        for pattern in bench_patterns.PATTERNS
        for seed in range(3)
    }
    picture.with_suffix(".json").write_text(json.dumps(kept))
    monkeypatch.setattr("sys.argv", ["bench", "--redraw", f"--plot={picture}"])
    assert bench.main() == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    """A benchmark that was stopped goes on; with other arguments it is another run."""
    (tmp_path / "data").mkdir()
    options = argparse.Namespace(
        work_dir=str(tmp_path / "data"), plot=str(tmp_path / "a.png"), redraw=False, jobs=1
    )

    def found(steps: int) -> Any:
        return learning.learn(options, lambda: {"first": (_one_more_line, (marks, steps))})

    marks = str(tmp_path / "marks")
    assert [found(5), found(5), found(6)] == [{"first": [5]}, {"first": [5]}, {"first": [6]}]
    assert Path(marks).read_text().splitlines() == ["5", "6"]


def _one_more_line(marks: str, steps: int) -> list[int]:
    with open(marks, "a", encoding="utf-8") as file:
        print(steps, file=file)
    return [steps]
