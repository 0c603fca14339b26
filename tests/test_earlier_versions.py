"""A tokenizer, a data set and a run that the first version made go on as if nothing had happened.

tests/fixtures/first-version.tar.xz holds what the commit 9fd227f wrote for the command lines below:
corpus.jsonl, ja.*, data/, model/ as a kill after step 4 of 8 leaves it, and whole-metrics.jsonl,
the metrics of that run to its end. The tokenizer's model lies there once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from bigbird_ja import config as config_lib
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.train.engines import choice
from testkit import ROOT
from testkit.command_line import Ended, run_cli

TOKENIZE = ("--vocab_size=51",)
MAKE_DATA = (
    "--seq_length=64", "--max_predictions_per_seq=10", "--num_shards=2", "--eval_fraction=0.1",
    "--num_workers=1",
)  # fmt: skip
PRETRAIN = (
    "--set=model.hidden_size=4", "--set=model.num_layers=1", "--set=model.num_attention_heads=2",
    "--set=model.intermediate_size=8", "--set=model.block_size=16", "--set=training.dtype=float32",
    "--set=training.global_batch_size=4", "--set=training.log_every_steps=1",
    "--set=training.warmup_steps=0", "--set=training.learning_rate=1e-2",
    "--set=checkpoints.save_every_steps=4", "--set=checkpoints.save_every_minutes=0",
)  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A copy of what the first version made."""
    with tarfile.open(ROOT / "tests/fixtures/first-version.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    place = tmp_path / "fixture"
    for folder in ("data", "model"):
        shutil.copy(place / "ja.model", place / folder / "tokenizer.model")
    return place


def state_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def tokenize(place: Path, *more: str) -> Ended:
    return run_cli(
        "tokenize", f"--input={place}/corpus.jsonl", f"--output_prefix={place}/ja", *TOKENIZE, *more
    )


def make_data(place: Path, *more: str) -> Ended:
    return run_cli(
        "make-data", f"--input={place}/corpus.jsonl", f"--tokenizer={place}/ja.model",
        f"--output_dir={place}/data", *MAKE_DATA, *more, "--json",
    )  # fmt: skip


def test_a_tokenizer_is_finished(made: Path) -> None:
    before = state_of(made)
    ended = tokenize(made)
    assert ended.status == 0 and "finished already" in ended.stdout, ended.stderr
    assert state_of(made) == before
    ended = tokenize(made, "--character_coverage=0.99")
    assert ended.status == 2 and "character_coverage was 0.9995" in ended.stderr


def test_a_setting_that_a_tokenizers_record_does_not_know_had_its_default(made: Path) -> None:
    record = json.loads((made / "ja.json").read_text())
    del record["settings"]["max_sentence_length"]
    (made / "ja.json").write_text(json.dumps(record))
    assert "finished already" in tokenize(made).stdout
    ended = tokenize(made, "--max_sentence_length=100")
    assert ended.status == 2 and "max_sentence_length was 16384, is 100" in ended.stderr


def test_a_data_set_is_finished_and_its_fingerprint_is_the_same(made: Path) -> None:
    before = state_of(made)
    ended = make_data(made)
    assert ended.status == 0 and "finished already" in ended.stderr, ended.stderr
    stated = json.loads((made / "data/manifest.json").read_text())["fingerprint"]
    assert ended.json["fingerprint"] == stated == manifest_lib.load(f"{made}/data").fingerprint
    assert state_of(made) == before
    ended = make_data(made, "--seed=3")
    assert ended.status == 2 and "--seed (12345 there, 3 asked for)" in ended.stderr


def test_a_run_goes_on_and_ends_as_the_first_version_took_it(made: Path) -> None:
    meta = json.loads((made / "model/model.ckpt-4.json").read_text())
    config = config_lib.load_resolved(str(made / "model/config.yaml"))
    assert config_lib.fingerprint(config) == meta["config_fingerprint"]
    ended = run_cli(
        "pretrain", f"--data_dir={made}/data", f"--model_dir={made}/model",
        "--num_train_steps=8", *PRETRAIN, "--json",
    )  # fmt: skip
    assert ended.status == 0, ended.stderr
    assert ("(auto: this run was begun under it" in ended.stderr) == choice.has_estimator()
    events = (made / "model/events.jsonl").read_text()
    assert '"resumed"' in events and ended.json["global_step"] == 8

    def losses(path: Path) -> dict[int, float]:
        lines = map(json.loads, path.read_text().splitlines())
        return {line["step"]: line["loss"] for line in lines}

    expected = losses(made / "whole-metrics.jsonl")
    # Equal on the machine that made the fixture; others may add in another order.
    assert losses(made / "model/metrics.jsonl") == pytest.approx(expected, rel=1e-5)


def test_a_run_refuses_what_it_always_refused(made: Path) -> None:
    ended = run_cli(
        "pretrain", f"--data_dir={made}/data", f"--model_dir={made}/model",
        "--num_train_steps=8", *PRETRAIN, "--set=training.weight_decay=0.1",
    )  # fmt: skip
    assert ended.status == 2 and "training.weight_decay: 0.01 -> 0.1" in ended.stderr
