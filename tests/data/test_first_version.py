"""Data sets that the first version made go on: the same fingerprints, shards and batches.

`tests/fixtures/first_version` was written by it, with `make-data --seq_length=128
--max_predictions_per_seq=20 --num_shards=2 --eval_fraction=0.2 --seed=7` and the flags below.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja.data import build, full_check, pipeline, verify
from bigbird_ja.data import manifest as manifest_lib
from tests.data import making

FIXTURE = Path(__file__).parents[1] / "fixtures" / "first_version"
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
    later = {f.name for f in dataclasses.fields(found) if f.name.endswith("_version")}
    assert later == {"masking_version", "pairs_version"}
    for name in later:
        assert f'"{name}"' not in manifest_lib.to_json(found)
        other = dataclasses.replace(found, **{name: 2})
        assert other.fingerprint != found.fingerprint
        back = manifest_lib.from_json(manifest_lib.to_json(other).encode(), "manifest.json")
        assert back == other
