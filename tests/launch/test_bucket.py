"""The supervisor's files and the start-up script's copies on gs://."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bigbird_ja import storage
from bigbird_ja.launch import startup
from bigbird_ja.launch.run_files import BucketFiles, Run, check_name, find_runs, read_run
from bigbird_ja.launch.run_state import Phase, RunState
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.storage.decode import FORMAT_VERSION


def test_state_events_and_reports(bucket: str) -> None:
    run = Run(bucket, "run-1")
    files = BucketFiles(run)
    files.prepare()
    assert files.load_state() is files.heartbeat() is files.exit_report() is None
    state = RunState("run-1", Phase.RUNNING, "z", attempt=3)
    files.save_state(state)
    assert files.load_state() == replace(state, format_version=FORMAT_VERSION)
    files.append_event({"event": "created", "time": 1.0})
    run_log.append_event(run.model_dir, "saved", step=5)  # the trainer writes there too
    files.append_event({"event": "preempted", "time": 2.0})
    events = [event["event"] for event in run_log.read_events(run.model_dir)]
    assert events == ["created", "saved", "preempted"]
    storage.write_text(run.supervisor("exit.json"), '{"attempt": 3, "status": 71}')
    report = files.exit_report()
    assert report is not None and (report.attempt, report.reason) == (3, "out_of_memory")
    assert files.log_tail() == ""
    storage.write_text(run.supervisor("training.log"), "a\nb\n")
    assert files.log_tail() == "a\nb"
    assert files.checkpoint_step() == -1
    for step in (20, 100):
        storage.write_text(storage.join(run.model_dir, f"model.ckpt-{step}.json"), "{}")
    assert files.checkpoint_step() == 100
    files.renew_machine(3, 1.5)
    lease = json.loads(storage.read_bytes(run.supervisor("lease.json")))
    assert lease == {"attempt": 3, "renewed": 1.5}
    assert read_run(bucket, "run-1") is None and find_runs(bucket) == []
    run = replace(run, wheel="w", engine="pjrt")
    run.save()
    assert read_run(bucket, "run-1") == replace(run, format_version=FORMAT_VERSION)
    assert find_runs(bucket) == ["run-1"]


@pytest.mark.parametrize("name", ["launch.json", "state.json"])
def test_files_of_another_version_are_refused(bucket: str, name: str) -> None:
    run = Run(bucket, "run-1")
    files = BucketFiles(run)
    files.prepare()
    # Of which nobody knows what a later version keeps in it.
    storage.write_text(run.supervisor(name), '{"spec": {}, "format_version": "9"}')
    with pytest.raises(BadInput, match="a later one"):
        _ = (read_run(bucket, "run-1"), files.load_state())


def test_the_wheel_is_reproducible_and_uploaded_once(bucket: str) -> None:
    packed = startup.build_wheel()
    assert startup.build_wheel() == packed  # byte for byte
    path = startup.upload(bucket, packed)
    assert packed.sha256 in path and path.endswith("-py3-none-any.whl")
    before = storage.stat(path)
    assert startup.upload(bucket, packed) == path
    assert storage.stat(path) == before


def test_which_names_a_run_may_have() -> None:
    for name in ("a", "run-1", "x" * 40):
        assert check_name(name) == name
    for name in ("", "A", "1a", "a_b", "a-", "é", "x" * 41, "a/b", "../a"):
        with pytest.raises(BadInput):
            check_name(name)
