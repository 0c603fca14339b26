"""A tokenizer, data sets and a run that the first version made go on as if nothing had happened.

Two fixtures were written by the commit 9fd227f:

- tests/fixtures/first-version.tar.xz: corpus.jsonl, ja.*, data/, model/ as a kill after step 4 of 8
  leaves it, and whole-metrics.jsonl, the metrics of that run to its end. The tokenizer's model lies
  there once. Made with the flags below, and `make-data --seq_length=64 --max_predictions_per_seq=10
  --num_shards=2 --eval_fraction=0.1`.
- tests/fixtures/first_version: a data set of each kind, made with `make-data --seq_length=128
  --max_predictions_per_seq=20 --num_shards=2 --eval_fraction=0.2 --seed=7` and FLAGS.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tarfile
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja.data import build, full_check, pipeline, spec, verify
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.settings.resolve import read_config
from bigbird_ja.settings.values import config_fingerprint
from bigbird_ja.train.engines import choice
from testkit import ROOT
from testkit.command_line import Ended, run_cli
from tests.data import making

TOKENIZE = ("--vocab_size=51",)
PRETRAIN = (
    "--set=model.hidden_size=4", "--set=model.num_layers=1", "--set=model.num_attention_heads=2",
    "--set=model.intermediate_size=8", "--set=model.block_size=16", "--set=training.dtype=float32",
    "--set=training.global_batch_size=4", "--set=training.log_every_steps=1",
    "--set=training.warmup_steps=0", "--set=training.learning_rate=1e-2",
    "--set=checkpoints.save_every_steps=4", "--set=checkpoints.save_every_minutes=0",
)  # fmt: skip
FIXTURE = ROOT / "tests/fixtures/first_version"
FLAGS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"masking": "static", "dupe_factor": 2, "input_mask": True},
    "pairs": {"nsp": True, "mask_unit": "span"},
}
# SHA-256 of five batches of four from step 3 on, as the first version read them.
BATCHES = {
    "dynamic": "01342e179c85837295d1bdb3695065dfc0b4365bc6bd3b4b315d0cc4ef76f865",
    "static": "a3009a30d4ae7aec13964b9d2987641caf0c676ac356628ca4e23cc6705b1b50",
    "pairs": "499359b5b9577941da0f5aa2b07bf813221dc96602e29a1fd59e67ec0fb1e3c1",
}


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


def test_a_run_goes_on_and_ends_as_the_first_version_took_it(made: Path) -> None:
    meta = json.loads((made / "model/model.ckpt-4.json").read_text())
    config = read_config(str(made / "model/config.yaml"))
    assert config_fingerprint(config) == meta["config_fingerprint"]
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


# --- data sets of each kind ---


@pytest.fixture(params=sorted(FLAGS))
def old(request, tmp_path):
    """The name and a copy of a data set."""
    shutil.copytree(FIXTURE / request.param, tmp_path / "data")
    shutil.copy(FIXTURE / "tokenizer.model", tmp_path / "data")
    return request.param, str(tmp_path / "data")


def request_of(name: str, output: str, **changes: Any) -> build.Request:
    asked = {"num_shards": 2, "eval_fraction": 0.2, "seed": 7, **FLAGS[name], **changes}
    corpus, tokenizer = str(FIXTURE / "corpus.jsonl"), str(FIXTURE / "tokenizer.model")
    return making.request(corpus, tokenizer, output, **asked)


def test_their_fingerprints_stay_valid(old):
    name, directory = old
    text = (FIXTURE / name / "manifest.json").read_text(encoding="utf-8")
    found = verify.fast_check(directory)
    assert found.fingerprint == json.loads(text)["fingerprint"]
    assert manifest_lib.to_json(found) == text
    assert full_check.full_check(found, directory)[0] == []


def test_the_same_flags_find_them_finished(old):
    name, directory = old
    before = making.digests(directory)
    found, was_there = build.make_data(request_of(name, directory))
    assert was_there and found.masking_version == 1
    assert making.digests(directory) == before


def test_predictions_that_nobody_asked_for_are_no_difference(tmp_path, old):
    name, directory = old
    asked = request_of(name, directory, max_predictions_per_seq=None)
    assert asked.spec.max_predictions_per_seq == 20
    asked = dataclasses.replace(
        asked, spec=dataclasses.replace(asked.spec, max_predictions_per_seq=60)
    )
    with pytest.raises(build.BadInput, match="max_predictions_per_seq"):
        build.make_data(asked)
    unasked = dataclasses.replace(asked, unasked=("max_predictions_per_seq",))
    assert build.make_data(unasked)[1]


@pytest.mark.parametrize("name", ["dynamic", "static"])  # pairs are drawn otherwise now
def test_the_same_flags_make_the_same_shards(tmp_path, name):
    request = request_of(name, str(tmp_path / "data"))
    old_rule = dataclasses.replace(request.spec, masking_version=1)
    made, _ = build.make_data(dataclasses.replace(request, spec=old_rule))
    expected = json.loads((FIXTURE / name / "manifest.json").read_text(encoding="utf-8"))
    assert made.fingerprint == expected["fingerprint"]
    shards = [s.sha256 for s in made.train_shards + made.eval_shards]
    assert shards == [s["sha256"] for s in expected["train_shards"] + expected["eval_shards"]]


def test_runs_read_the_same_batches_from_them(old):
    name, directory = old
    batches = pipeline.batches(
        manifest_lib.load(directory), directory, seed=7, global_batch_size=4, start_step=3,
        shuffle_window=2, num_steps=5,
    )  # fmt: skip
    digest = hashlib.sha256()
    for batch in batches.as_numpy_iterator():
        for feature in sorted(batch):
            digest.update(batch[feature].tobytes())
    assert digest.hexdigest() == BATCHES[name]


def test_a_later_field_at_its_default_leaves_the_fingerprint(tmp_path):
    found = manifest_lib.from_json(
        (FIXTURE / "dynamic" / "manifest.json").read_bytes(), "manifest.json"
    )
    later: dict[str, Any] = {
        "masking_version": 2,
        "pairs_version": 2,
        "mixture": ({"sha256": "0" * 64, "weight": 2.0},),
    }
    optional = {f.name for f in dataclasses.fields(spec.DataSpec) if f.default != MISSING}
    assert later.keys() == optional
    for name, value in later.items():
        assert f'"{name}"' not in manifest_lib.to_json(found)
        other = dataclasses.replace(found, **{name: value})
        assert other.fingerprint != found.fingerprint
        back = manifest_lib.from_json(manifest_lib.to_json(other).encode(), "manifest.json")
        assert back == other
