"""The supervisor's files and the start-up script's copies on gs://."""

import io
import json
import zipfile
from dataclasses import replace

import pytest

from bigbird_ja import storage
from bigbird_ja.launch import LaunchedRun, startup
from bigbird_ja.launch.files import RunFiles, find_runs, read_run
from bigbird_ja.launch.prepare import check_name, region_warnings
from bigbird_ja.launch.state import Phase, RunState
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.settings.data_facts import requested_data
from bigbird_ja.settings.schema import Config


def test_state_events_and_reports(bucket):
    run = LaunchedRun(bucket, "run-1")
    files = RunFiles(run)
    files.prepare()
    assert files.load_state() is files.heartbeat() is files.exit_report() is None
    state = RunState(Phase.RUNNING, zone="z", attempt=3)
    files.save_state(state)
    assert files.load_state() == state
    files.append_event({"event": "created", "time": 1.0})
    run_log.EventLog(run.model_dir).append("saved", step=5)  # the trainer writes there too
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
    run = replace(run, package="p", engine="pjrt", zones=("z",), max_usd=2.5)
    RunFiles(run).save_run()
    assert read_run(bucket, "run-1") == run
    assert find_runs(bucket) == ["run-1"]


def test_zones_of_another_region_than_the_buckets_are_warned_of(bucket, fake_gcs):
    far = LaunchedRun(bucket, "a", zones=("us-central1-b", "europe-west4-a", "europe-west4-b"))
    (text,) = region_warnings(far)
    assert f"{bucket} is in us-central1, zones are in europe-west4: " in text
    assert region_warnings(replace(far, zones=("us-central1-b",))) == []
    assert region_warnings(replace(far, bucket="/disk")) == []
    fake_gcs.fault("/b/b-", "status", code=403, times=-1)
    assert region_warnings(far) == []


@pytest.mark.parametrize("name", ["launch.json", "state.json"])
def test_files_of_another_version_are_refused(bucket, name):
    run = LaunchedRun(bucket, "run-1")
    files = RunFiles(run)
    files.prepare()
    # Of which nobody knows what a later version keeps in it.
    storage.write_text(run.supervisor(name), '{"spec": {}, "format_version": "9"}')
    with pytest.raises(BadInput, match="has format '9', this version reads"):
        _ = (read_run(bucket, "run-1"), files.load_state())


def test_what_0_1_0_launched_is_read(bucket):
    """Its record had three parts and a wheel; its state had more fields."""
    run = LaunchedRun(bucket, "run-1")
    spec = '{"name": "run-1", "accelerator_type": "v2-8", "run_id": "id-1", "queued": false}'
    settings = '{"zones": ["z"], "run_id": "id-1", "usd_per_hour": 1.5, "hosts": 1, "lease": 60.0}'
    text = f'"data_dir": "d", "wheel": "w.whl", "spec": {spec}, "settings": {settings}'
    place = f'"bucket": "{bucket}", "name": "run-1", "project": "p", "format_version": "0.1.0"'
    storage.write_text(run.supervisor("launch.json"), f"{{{place}, {text}}}")
    read = read_run(bucket, "run-1")
    assert read == replace(
        replace(run, run_id="id-1", project="p", data_dir="d", accelerator_type="v2-8"),
        **{"zones": ("z",), "package": "w.whl", "usd_per_hour": 1.5, "lease": 60.0},  # type: ignore[arg-type]
    )
    state = {"name": "run-1", "phase": "running", "zone": "z", "zone_index": 1, "cost_usd": 3.0}
    state |= {"cause": "leftover", "in_repair": False, "format_version": "0.1.0"}
    storage.write_text(run.supervisor("state.json"), json.dumps(state))
    assert RunFiles(run).load_state() == RunState(Phase.RUNNING, zone="z", cost_usd=3.0)


def test_who_writes_to_the_bucket_does_not_choose_the_code_of_the_machine(
    bucket, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, settings = LaunchedRun(bucket, "run-1", "id-1"), (Config(), requested_data(Config()))
    assert startup.build_package() == startup.build_package()  # byte for byte
    first = startup.store(run, *settings, False)
    monkeypatch.setattr(startup, "build_package", lambda: b"a later version")
    assert startup.store(run, *settings, False) == first  # it was launched from here
    foreign = startup.with_package(first, b"malicious")
    storage.write_bytes(foreign.package, b"malicious")
    RunFiles(foreign).save_run()
    with pytest.raises(BadInput, match="never launched from this machine"):
        startup.store(run, *settings, False)
    later = startup.with_package(run, b"a later version")
    assert startup.store(run, *settings, True) == later == read_run(bucket, "run-1")


def test_a_package_that_todays_script_cannot_install_is_refused(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, settings = LaunchedRun(bucket, "run-1", "id-1"), (Config(), requested_data(Config()))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("bigbird_ja/launch/locks/needed.lock", "")
    with monkeypatch.context() as earlier:
        earlier.setattr(startup, "build_package", packed.getvalue)
        old = startup.store(run, *settings, False)
    with pytest.raises(BadInput, match="of an earlier version"):
        startup.store(run, *settings, False)
    assert read_run(bucket, "run-1") == old
    storage.write_bytes(old.package, b"cut off")
    with pytest.raises(BadInput, match="is damaged: --update_package"):
        startup.store(run, *settings, False)
    assert startup.store(run, *settings, True) != old


def test_which_names_a_run_may_have():
    assert check_name("x" * 40) == "x" * 40
    for name in ("", "A", "1a", "a_b", "a-", "é", "x" * 41, "a/b", "../a"):
        with pytest.raises(BadInput):
            check_name(name)
