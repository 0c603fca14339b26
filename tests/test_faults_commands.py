"""A bucket that misbehaves under whole commands, and what TensorFlow itself gets wrong there.

Each test would fail with TensorFlow's own behaviour (design/storage.md lists it).
"""

from __future__ import annotations

import pytest

from testkit.bucket_runs import SAVE_EVERY, STEPS
from tests.test_bucket_road import Told, assert_ended, assert_finished, run_scenarios

# One child runs all scenarios, a dozen trainings: minutes on a busy machine.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_scenarios(
        tmp_path_factory.mktemp("faults"),
        "road",
        "reference",
        "unreadable_checkpoint_list",
        "data_unavailable_for_ever",
        "short_shard",
        "listed_but_gone",
        "shard_replaced",
        "credentials_expire",
        "uploads_fail_for_ever",
        "damaged_latest",
        "two_writers",
        "make_data_under_faults",
        "make_data_cut_off",
    )


@pytest.mark.parametrize(
    ("code", "status", "reason"), [(403, 2, "bad_input"), (503, 74, "io_error")]
)
def test_an_unreadable_checkpoint_list_never_restarts_a_run(
    told: Told, code: int, status: int, reason: str
) -> None:
    outcome = told["unreadable_checkpoint_list"][str(code)]
    assert_ended(outcome, status, reason, "gs://bucket/unreadable", str(code))
    assert outcome["digest"] == told["unreadable_checkpoint_list"]["before"]["digest"]


def test_and_goes_on_where_it_was_once_the_list_can_be_read(told: Told) -> None:
    after = told["unreadable_checkpoint_list"]["after"]
    assert_finished(after)
    assert after["digest"] == told["reference"]["digest"]


def test_the_access_token_is_in_no_message_about_a_failure(told: Told) -> None:
    assert told["places with the token"] == {"objects": [], "logs": []}


def test_data_that_stay_unavailable_end_the_run(told: Told) -> None:
    assert_ended(told["data_unavailable_for_ever"], 74, "io_error", "503", "tfrecord")


def test_a_short_shard_is_never_trained_on(told: Told) -> None:
    assert_ended(told["short_shard"], 74, "io_error", "tfrecord")
    assert told["short_shard"]["saved"] == []


def test_a_shard_that_is_listed_but_gone_is_named(told: Told) -> None:
    assert_ended(told["listed_but_gone"], 74, "io_error", "tfrecord", "404")


def test_a_shard_replaced_under_the_run_stops_it_before_the_next_checkpoint(told: Told) -> None:
    outcome = told["shard_replaced"]
    assert_ended(outcome, 74, "io_error", "gs://bucket/data-2/train-00000-of-00004.tfrecord")
    assert outcome["saved"] == [SAVE_EVERY]


def test_credentials_that_expire_end_the_run_with_the_last_checkpoint_intact(told: Told) -> None:
    assert_ended(told["credentials_expire"], 74, "io_error", "gs://bucket/expired", "401")
    assert told["credentials_expire"]["saved"] == [SAVE_EVERY]


def test_uploads_that_keep_failing_end_the_run_with_the_last_checkpoint_intact(told: Told) -> None:
    assert_ended(told["uploads_fail_for_ever"], 74, "io_error", "gs://bucket/failing", "503")
    assert told["uploads_fail_for_ever"]["saved"] == [SAVE_EVERY]


def test_damaged_checkpoints_are_set_aside_and_named(told: Told) -> None:
    outcome = told["damaged_latest"]
    assert_finished(outcome)
    assert outcome["digest"] == told["reference"]["digest"]
    assert outcome["events"].count("set_aside") == 2
    assert any(name.startswith(f"damaged-model.ckpt-{STEPS}.") for name in outcome["names"])


def test_two_writers_do_not_meet(told: Told) -> None:
    runs = told["two_writers"]
    assert_finished(runs["first"])
    assert runs["first"]["digest"] == told["reference"]["digest"]
    assert_ended(runs["second"], 2, "bad_input", "gs://bucket/two", "process")


def test_make_data_rides_out_passing_faults_with_the_same_bytes(told: Told) -> None:
    outcome = told["make_data_under_faults"]
    assert outcome["status"] == 0, outcome
    expected = told["road"]["make_data"]["results"]["fingerprint"]
    assert outcome["results"]["fingerprint"] == expected


@pytest.mark.parametrize(("name", "code"), [("failing", 503), ("refusing", 403)])
def test_make_data_cut_off_leaves_nothing_that_looks_complete(
    told: Told, name: str, code: int
) -> None:
    cut, again = told["make_data_cut_off"][name], told["make_data_cut_off"][f"{name} again"]
    assert_ended(cut, 74, "io_error", f"gs://bucket/data-{name}/", str(code))
    assert "manifest.json" not in cut["names"]
    assert again["status"] == 0, again
    expected = told["road"]["make_data"]["results"]["fingerprint"]
    assert again["results"]["fingerprint"] == expected
