"""The demo's own parts; the whole of it, killed training and all, is `slow`."""

from __future__ import annotations

import pathlib

import pytest

from bigbird_ja.commands import demo_run
from bigbird_ja.process.errors import BadInput
from testkit.command_line import run_cli


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="no demo made"):
            demo_run.run(str(tmp_path), num_train_steps=40, overwrite=overwrite, config="tiny-cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_curve_is_read_up_to_the_last_whole_line(tmp_path: pathlib.Path) -> None:
    assert demo_run.read_curve(str(tmp_path)) == {}
    text = '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n{"step": 3, "lo'
    (tmp_path / "metrics.jsonl").write_text(text)
    assert demo_run.read_curve(str(tmp_path)) == {1: 2.5, 2: 2.25}


def test_curves_that_differ_are_called_different() -> None:
    same = demo_run.compare_curves({1: 2.0, 2: 1.0}, {1: 2.0, 2: 1.0}, 1, 1)
    other = demo_run.compare_curves({1: 2.0, 2: 1.0}, {1: 2.0, 2: 1.5}, 1, 1)
    assert "to the last bit" in same and "NOT the same" in other


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_demo_shows_what_it_promises(tmp_path: pathlib.Path) -> None:
    work_dir = tmp_path / "demo"
    result = run_cli(
        "demo", f"--work_dir={work_dir}", "--num_train_steps=40", "--json", timeout=850
    )
    assert result.status == 0, result.stderr
    shown = result.json
    assert shown["same_curve"] and 0 < shown["resumed_from_step"] < 40
    assert shown["killed_at_step"] >= 20 and shown["last_loss"] < shown["first_loss"]
    assert shown["masks"] and (work_dir / "report.html").is_file()


def test_settings_are_checked_before_anything_is_made(tmp_path: pathlib.Path) -> None:
    for text, said in (
        ("model.num_layer=3", "model.num_layers"),
        ("training.num_train_steps=50", "--num_train_steps"),
    ):
        with pytest.raises(BadInput, match=said):
            demo_run.run(
                str(tmp_path / "demo"), num_train_steps=40, overwrite=False, config="tiny-cpu",
                sets=[text],
            )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_each_command_of_the_demo_gets_the_settings_that_it_uses() -> None:
    sets = ["tokenize.vocab_size=500", "make_data.seq_length=256", "model.block_size=32"]

    def given(uses: tuple[str, ...]) -> list[str]:
        return demo_run._settings(uses, "tiny-cpu", sets)[2:]

    assert given(demo_run._TOKENIZER) == ["--set=tokenize.vocab_size=500"]
    assert given(demo_run._DATA) == ["--set=make_data.seq_length=256", "--set=model.block_size=32"]
    assert given(demo_run._TRAINING) == ["--set=model.block_size=32"]
