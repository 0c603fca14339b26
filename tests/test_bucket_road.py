"""The road on gs://: everything made there, training killed there, resumed under faults.

The commands run in a child process (see `bucket_runs`); each test judges one outcome.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testkit import ROOT
from testkit.bucket_runs import SAVE_EVERY, STEPS
from testkit.fakes.gcs_process import TOKEN, FakeGcs

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]  # a road of ten commands
Told = dict[str, dict[str, Any]]


def run_scenarios(scratch: Path, *names: str) -> Told:
    """Scenario to outcome, from a child on a fake bucket of its own."""
    with FakeGcs() as fake:
        program = [sys.executable, "-m", "testkit.bucket_runs", fake.url, "bucket", str(scratch)]
        done = subprocess.run(
            [*program, *names],
            env=fake.environ(),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        told: Told = json.loads(done.stdout.splitlines()[-1])
        outside = [
            e for e in fake.log() if "googleapis" in e["request"] and "upload" in e["request"]
        ]
        told["uploads by TensorFlow"] = {"count": len(outside)}
        places = [f"gs://bucket/{name}" for name in fake.names("bucket")]
        told["places with the token"] = {
            "objects": [place for place in places if TOKEN.encode() in fake.get(place)],
            "logs": [str(log) for log in scratch.glob("*.log") if TOKEN in log.read_text()],
        }
    return told


def assert_ended(outcome: dict[str, Any], status: int, reason: str, *words: str) -> None:
    """One line that says `words`, the status and reason of the contract, no traceback."""
    assert (outcome["status"], outcome["results"]["reason"]) == (status, reason), outcome
    assert not outcome["traceback"]
    last = outcome["said"][-1]
    assert last.startswith("bigbird-ja: ") and all(word in last for word in words), last


def assert_finished(outcome: dict[str, Any]) -> None:
    """Trained to the end, each step logged once."""
    assert outcome["status"] == 0, outcome
    assert outcome["results"]["global_step"] == STEPS
    assert outcome["logged"] == list(range(2, STEPS + 1, 2))
    assert outcome["saved"][-1] == STEPS


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_scenarios(
        tmp_path_factory.mktemp("road"), "road", "reference", "killed_and_resumed_under_faults"
    )


def test_everything_is_made_on_the_bucket(told: Told) -> None:
    road = told["road"]
    assert [road[name]["status"] for name in ("sample", "tokenize", "make_data")] == [0, 0, 0]
    assert road["make_data"]["results"]["density"] > 0.97
    assert_finished(told["reference"])
    names = told["reference"]["names"]
    for name in ("checkpoint", "config.yaml", "tokenizer.model", "metrics.jsonl", "events.jsonl"):
        assert name in names
    assert "lock.json" not in names


def test_tensorflow_never_writes_to_the_bucket(told: Told) -> None:
    assert told["uploads by TensorFlow"]["count"] == 0


def test_the_access_token_is_in_no_object_and_no_log(told: Told) -> None:
    assert told["places with the token"] == {"objects": [], "logs": []}


def test_killed_in_a_save_and_resumed_under_faults_ends_with_the_same_weights(told: Told) -> None:
    runs = told["killed_and_resumed_under_faults"]
    assert runs["killed"]["status"] == -9
    assert runs["killed"]["saved"] == [SAVE_EVERY]
    resumed = runs["resumed"]
    assert_finished(resumed)
    assert resumed["digest"] == told["reference"]["digest"]
    assert resumed["results"]["interruptions"] == 1
    assert "resumed" in resumed["events"] and resumed["events"][-1] == "finished"
    assert [line for line in resumed["said"] if "trying again" in line][1:] == []  # said once
