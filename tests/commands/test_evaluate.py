"""`evaluate` as scripts use it."""

from __future__ import annotations

import json
import shutil

import pytest

from bigbird_ja.cli import main
from bigbird_ja.storage.ownership import MARK


@pytest.fixture
def model_dir(small_run, tmp_path):
    return shutil.copytree(small_run.model_dir, tmp_path / "model")


def _run(capsys, *arguments):
    status = main.run_command_line(["evaluate", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out), captured


def test_all_checkpoints_then_nothing_left_to_do(small_run, model_dir, capsys):
    flags = [f"--model_dir={model_dir}", f"--data_dir={small_run.data_dir}", "--step=all"]
    status, result, captured = _run(capsys, *flags)
    assert status == 0 and result["steps"] == [2, 4, 6]
    for key in ("step", "masked_lm_loss", "masked_lm_accuracy", "perplexity", "by_position",
                "by_distance"):  # fmt: skip
        assert key in result
    assert "position in the sequence" in captured.err
    lines = (model_dir / "eval.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4, 6]
    assert len(list((model_dir / "eval").glob("events.out*"))) == 3
    status, again, captured = _run(capsys, *flags[:2], "--watch")
    assert status == 0 and again["masked_lm_loss"] == result["masked_lm_loss"]
    assert again["steps"] == [2, 4, 6] and "training finished at step 6" in captured.err
    assert captured.err.count("was evaluated on this data before") == 3
    assert len((model_dir / "eval.jsonl").read_text().splitlines()) == 3


def test_a_model_dir_without_our_mark_is_read_and_not_written_to(small_run, model_dir, capsys):
    (model_dir / MARK).unlink()
    before = sorted(model_dir.rglob("*"))
    flags = [f"--model_dir={model_dir}", f"--data_dir={small_run.data_dir}", "--max_batches=1"]
    status, measured, _ = _run(capsys, *flags)
    assert status == 0 and measured["step"] == 6
    assert sorted(model_dir.rglob("*")) == before


def test_the_probe_and_its_curve(small_run, model_dir, tmp_path, capsys):
    corpus = tmp_path / "facts.jsonl"
    main.run_command_line(
        ["sample", f"--output={corpus}", "--documents=4", "--facts_per_1000_characters=8"]
    )
    capsys.readouterr()
    status, result, captured = _run(
        capsys, f"--model_dir={model_dir}", f"--data_dir={small_run.data_dir}",
        "--max_batches=1", "--probe", f"--probe_input={corpus}", f"--plot={tmp_path}/p.png",
    )  # fmt: skip
    assert status == 0, captured.err
    assert result["probe"]["cases"] > 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "masked names" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model_dir=nowhere", "--data_dir=DATA"], "no checkpoint here"),
        (["--model_dir=MODEL", "--data_dir=nowhere"], "nowhere"),
        (["--model_dir=MODEL", "--data_dir=DATA", "--step=5"], "no checkpoint of step 5"),
    ],
)
def test_bad_input_is_one_line(arguments, message, small_run, capsys):
    given = [
        a.replace("MODEL", small_run.model_dir).replace("DATA", small_run.data_dir)
        for a in arguments
    ]
    assert main.run_command_line(["evaluate", *given]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
