"""Whole commands on gs://: everything made there, killed there, and under a bucket that misbehaves.

The commands run in a child process (see `bucket_runs`); each test judges one outcome. Most would
fail with TensorFlow's own behaviour, which docs/design/storage.md lists.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from testkit import ROOT
from testkit.bucket_runs import SAVE_EVERY, SCENARIOS, STEPS
from testkit.fakes.gcs_process import TOKEN, FakeGcs

# One child runs all scenarios, two dozen commands: minutes on a busy machine.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
Outcomes = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Scenario to outcome, from a child on a fake bucket of its own."""
    scratch = tmp_path_factory.mktemp("road")
    with FakeGcs() as fake:
        program = [sys.executable, "-m", "testkit.bucket_runs", fake.url, "bucket", str(scratch)]
        done = subprocess.run(
            [*program, *SCENARIOS], env=fake.environ(), cwd=ROOT, stdout=subprocess.PIPE,
            text=True, check=True,
        )  # fmt: skip
        result: Outcomes = json.loads(done.stdout.splitlines()[-1])
        requests = [entry["request"] for entry in fake.log()]
        places = [f"gs://bucket/{name}" for name in fake.names("bucket")]
        result["left behind"] = {
            "uploads by TensorFlow": [r for r in requests if "googleapis" in r and "upload" in r],
            "objects with the token": [p for p in places if TOKEN.encode() in fake.get(p)],
            "logs with the token": [
                str(log) for log in scratch.glob("*.log") if TOKEN in log.read_text()
            ],
        }
    return result


def assert_ended(outcome: dict[str, Any], status: int, reason: str, *words: str) -> None:
    """One line that has `words`, the status and reason of the contract, no traceback."""
    assert (outcome["status"], outcome["results"]["reason"]) == (status, reason), outcome
    assert not outcome["traceback"]
    last = outcome["lines"][-1]
    assert last.startswith("bigbird-ja: ") and all(word in last for word in words), last


def assert_finished(outcome: dict[str, Any], outcomes: Outcomes) -> None:
    """Trained to the end with the weights of the reference, each step logged once."""
    assert outcome["status"] == 0, outcome
    assert outcome["results"]["global_step"] == STEPS
    assert outcome["logged"] == list(range(2, STEPS + 1, 2))
    assert outcome["saved"][-1] == STEPS
    assert outcome["digest"] == outcomes["reference"]["digest"]


def test_everything_is_made_on_the_bucket_and_not_by_tensorflow(outcomes: Outcomes) -> None:
    road = outcomes["road"]
    assert [road[name]["status"] for name in ("sample", "tokenize", "make_data")] == [0, 0, 0]
    assert road["make_data"]["results"]["density"] > 0.97
    assert_finished(outcomes["reference"], outcomes)
    names = outcomes["reference"]["names"]
    files = {"checkpoint", "config.yaml", "tokenizer.model", "metrics.jsonl", "events.jsonl"}
    assert files <= set(names) and "lock.json" not in names
    assert not any(outcomes["left behind"].values()), outcomes["left behind"]


def test_killed_in_a_save_and_resumed_under_faults_ends_with_the_same_weights(
    outcomes: Outcomes,
) -> None:
    killed, resumed = outcomes["killed_and_resumed_under_faults"].values()
    assert killed["status"] == -9 and killed["saved"] == [SAVE_EVERY]
    assert_finished(resumed, outcomes)
    assert resumed["results"]["interruptions"] == 1
    assert "resumed" in resumed["events"] and resumed["events"][-1] == "finished"
    assert sum("trying again" in line for line in resumed["lines"]) <= 1


def test_an_unreadable_checkpoint_list_never_restarts_a_run(outcomes: Outcomes) -> None:
    runs = outcomes["unreadable_checkpoint_list"]
    for code, status, reason in (("403", 2, "bad_input"), ("503", 74, "io_error")):
        assert_ended(runs[code], status, reason, "gs://bucket/unreadable", code)
        assert runs[code]["digest"] == runs["before"]["digest"]
    assert_finished(runs["after"], outcomes)


@pytest.mark.parametrize(
    ("scenario", "words", "saved"),
    [
        ("data_unavailable_for_ever", "503 tfrecord", []),
        ("short_shard", "tfrecord", []),
        ("listed_but_gone", "tfrecord 404", []),
        ("shard_replaced", "gs://bucket/data-2/train-00000-of-00004.tfrecord", [SAVE_EVERY]),
        ("credentials_expire", "gs://bucket/expired 401", [SAVE_EVERY]),
        ("uploads_fail_for_ever", "gs://bucket/failing 503", [SAVE_EVERY]),
    ],
)
def test_a_lasting_fault_ends_the_run_with_the_last_checkpoint_intact(
    outcomes: Outcomes, scenario: str, words: str, saved: list[int]
) -> None:
    assert_ended(outcomes[scenario], 74, "io_error", *words.split())
    assert outcomes[scenario]["saved"] == saved


def test_damaged_checkpoints_are_set_aside_and_named(outcomes: Outcomes) -> None:
    outcome = outcomes["damaged_latest"]
    assert_finished(outcome, outcomes)
    assert outcome["events"].count("set_aside") == 2
    assert any(name.startswith(f"damaged-model.ckpt-{STEPS}.") for name in outcome["names"])


def test_two_writers_do_not_meet(outcomes: Outcomes) -> None:
    runs = outcomes["two_writers"]
    assert_finished(runs["first"], outcomes)
    assert_ended(runs["second"], 2, "bad_input", "gs://bucket/two", "process")


def test_make_data_under_faults_makes_the_same_bytes(outcomes: Outcomes) -> None:
    cut = outcomes["make_data_cut_off"]
    for name, code in (("failing", "503"), ("refusing", "403")):
        assert_ended(cut[name], 74, "io_error", f"gs://bucket/data-{name}/", code)
        assert "manifest.json" not in cut[name]["names"]
    expected = outcomes["road"]["make_data"]["results"]["fingerprint"]
    again = cut["failing again"], cut["refusing again"], outcomes["make_data_under_faults"]
    for outcome in again:
        assert outcome["status"] == 0, outcome
        assert outcome["results"]["fingerprint"] == expected
