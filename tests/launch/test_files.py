"""Files on the bucket that the supervisor writes, and files that the machine's watcher writes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.launch.files import RunFiles, find_runs, read_run
from bigbird_ja.launch.launched_run import LaunchedRun, Machine
from bigbird_ja.launch.machine.watcher import LOG_BYTES
from bigbird_ja.launch.state import Phase, RunState
from bigbird_ja.model_dir import log as run_log


def test_state_events_and_reports(bucket):
    run = LaunchedRun(bucket, "run-1")
    files = RunFiles(run)
    files.prepare()
    assert files.load_state() is files.read_heartbeat() is files.read_exit_report() is None
    state = RunState(Phase.RUNNING, zone="z", attempt=3)
    files.save_state(state)
    assert files.load_state() == state
    files.append_event({"event": "created", "time": 1.0})
    run_log.EventLog(run.model_dir).append("saved", step=5)  # The trainer appends to the same log.
    files.append_event({"event": "preempted", "time": 2.0})
    events = [event["event"] for event in run_log.read_events(run.model_dir)]
    assert events == ["created", "saved", "preempted"]
    storage.write_text(run.supervisor("exit.json"), '{"attempt": 3, "status": 71}')
    report = files.read_exit_report()
    assert report is not None and (report.attempt, report.reason) == (3, "out_of_memory")
    assert files.read_log_tail() == ""
    storage.write_text(run.supervisor("training.log"), "a\nb\n")
    assert files.read_log_tail() == "a\nb"
    assert files.find_checkpoint_step() == -1
    for step in (20, 100):
        storage.write_text(storage.join(run.model_dir, f"model.ckpt-{step}.json"), "{}")
    assert files.find_checkpoint_step() == 100
    files.renew_machine(3, 1.5)
    lease = json.loads(storage.read_bytes(run.supervisor("lease.json")))
    assert lease == {"attempt": 3, "renewed": 1.5}
    assert read_run(bucket, "run-1") is None and find_runs(bucket) == []
    run = replace(run, package="p", engine="pjrt", zones=("z",), max_usd=2.5)
    RunFiles(run).save_run()
    assert read_run(bucket, "run-1") == run
    assert find_runs(bucket) == ["run-1"]


@pytest.mark.parametrize("is_local", [True, False])
def test_a_state_that_another_supervisor_has_written_since_is_kept(is_local, bucket, tmp_path):
    run = LaunchedRun(str(tmp_path) if is_local else bucket, "run-1")
    before, now = RunFiles(run), RunFiles(run)
    before.prepare()
    assert before.save_state(RunState(Phase.CREATING)) and now.load_state()
    assert now.save_state(RunState(Phase.RUNNING))
    assert not before.save_state(RunState(Phase.ENDED))
    assert now.load_state() == RunState(Phase.RUNNING)
    storage.delete(run.supervisor("state.json"))
    assert now.save_state(RunState(Phase.REMOVING)) and now.save_state(RunState(Phase.ENDED))
    assert now.load_state() == RunState(Phase.ENDED)


@pytest.mark.parametrize("name", ["launch.json", "state.json"])
def test_files_of_another_version_are_refused(bucket, name):
    run = LaunchedRun(bucket, "run-1")
    files = RunFiles(run)
    files.prepare()
    # A later version of the package may store other fields.
    storage.write_text(run.supervisor(name), '{"spec": {}, "format_version": "9"}')
    with pytest.raises(BadInput, match="has format '9', but this version reads"):
        _ = (read_run(bucket, "run-1"), files.load_state())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("launch.json", {"zones": 7}),
        ("launch.json", {"service": "ftp"}),
        ("state.json", {"machine": {"service": "ftp"}}),
        ("state.json", {"machine": {"project": "p/../q"}}),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, name, values):
    run = LaunchedRun(str(tmp_path), "run-1", "id-1")
    files = RunFiles(run)
    files.prepare()
    files.save_run()
    files.save_state(RunState(machine=Machine.of(run)))
    path = Path(run.supervisor(name))
    stored = json.loads(path.read_text())
    if machine := values.get("machine"):
        values = {"machine": stored["machine"] | machine}
    path.write_text(json.dumps(stored | values))
    with pytest.raises(BadInput, match=name.replace(".", r"\.")):
        _ = (read_run(str(tmp_path), "run-1"), files.load_state())


@pytest.mark.parametrize("is_local", [True, False])
def test_only_the_end_of_a_log_is_read(is_local, bucket, tmp_path, monkeypatch):
    run = LaunchedRun(str(tmp_path) if is_local else bucket, "run-1")
    RunFiles(run).prepare()
    path = run.supervisor("training.log")
    storage.write_bytes(path, b"begin" + b"x" * 5_000_000 + b"\nend\n")
    monkeypatch.setattr(storage, "read_bytes", lambda *_: b"all of it")
    log = RunFiles(run).read_log()
    assert len(log) == LOG_BYTES and log.endswith("x\nend\n")
