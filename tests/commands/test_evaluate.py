"""Tests of `evaluate`: results, their records, and a MODEL_DIR without an ownership manifest."""

import functools
import json
import shutil

import pytest

from bigbird_ja.storage.ownership import MANIFEST_NAME


@pytest.fixture
def model_dir(small_run, tmp_path):
    return shutil.copytree(small_run.model_dir, tmp_path / "model")


@pytest.fixture
def evaluate(small_run, model_dir, run):
    """Return a function that runs `evaluate` on a copy of the small run with the given flags."""
    places = (f"--model_dir={model_dir}", f"--data_dir={small_run.data_dir}")
    return functools.partial(run, "evaluate", *places, "--json")


def test_each_checkpoint_is_evaluated_once(model_dir, evaluate):
    first = evaluate("--step=all")
    assert first.status == 0 and first.json["steps"] == [2, 4, 6]
    promised = "step masked_lm_loss masked_lm_accuracy perplexity by_position by_distance"
    assert first.json.keys() >= set(promised.split())
    assert "position in the sequence" in first.stderr
    lines = (model_dir / "eval.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4, 6]
    assert len(list((model_dir / "eval").glob("events.out*"))) == 3
    again = evaluate("--step=all")
    assert again.status == 0 and again.json["masked_lm_loss"] == first.json["masked_lm_loss"]
    assert again.json["steps"] == [2, 4, 6]
    assert again.stderr.count("was evaluated on this data before") == 3
    assert len((model_dir / "eval.jsonl").read_text().splitlines()) == 3


def test_a_result_that_cannot_be_recorded_is_printed(model_dir, evaluate):
    shutil.rmtree(model_dir / "eval", ignore_errors=True)
    (model_dir / "eval").write_text("in the way")
    ended = evaluate("--max_batches=1")
    assert ended.status == 0 and ended.json["step"] == 6, ended.stderr
    assert "position in the sequence" in ended.stderr
    assert "the result of step 6 could not be recorded: " in ended.stderr


def test_model_dir_of_others_is_not_written_to(model_dir, evaluate):
    (model_dir / MANIFEST_NAME).unlink()
    before = sorted(model_dir.rglob("*"))
    ended = evaluate("--max_batches=1")
    assert ended.status == 0 and ended.json["step"] == 6
    assert sorted(model_dir.rglob("*")) == before
