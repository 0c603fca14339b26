"""The files heartbeat.json, events.jsonl and metrics.jsonl, on disk and on a bucket."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from bigbird_ja import storage
from bigbird_ja.model_dir import log as run_log


def record(step, loss=1.0):
    return {"step": step, "loss": loss, "time": 0.0}


def test_lines_after_the_restored_step_are_dropped(base):
    path = storage.join(base, run_log.METRICS)
    log = run_log.MetricsLog(path, 0)
    for step in (10, 20, 30):
        log.append(record(step))
    log.sync()
    log = run_log.MetricsLog(path, 20)
    log.drop_later()
    assert log.last == record(20)
    log.append(record(30, 2.0))
    log.sync()
    assert run_log.read_metrics(base) == [record(10), record(20), record(30, 2.0)]


def test_half_a_line_of_a_killed_writer_does_no_harm(tmp_path):
    path = tmp_path / run_log.METRICS
    path.write_text('{"step": 10, "loss": 1.0, "time": 0.0}\n{"step": 20, "lo')
    assert run_log.read_metrics(str(tmp_path)) == [record(10)]
    run_log.append_line(str(path), record(30))
    assert run_log.read_metrics(str(tmp_path)) == [record(10), record(30)]
    path.write_text('{"step": 10, "loss": 1.0, "time": 0.0}\n{"step": 20, "lo')
    log = run_log.MetricsLog(str(path), 100)
    log.drop_later()
    log.append(record(20))
    assert path.read_text().count("\n") == 2


def test_concurrent_writers_lose_no_event(base):
    def write(writer):
        log = run_log.EventLog(base)
        for i in range(5):
            log.append("preempted", writer=writer, i=i)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    events = run_log.read_events(base)
    assert sorted((e["writer"], e["i"]) for e in events) == [
        (w, i) for w in range(4) for i in range(5)
    ]


def test_heartbeat_has_the_keys_of_the_contract(base):
    assert run_log.read_heartbeat(base) is None
    beat = run_log.Heartbeat(base, "my-run", lambda: 1234.5678)
    beat.write()
    beat.update(global_step=7, tokens_per_second=3.5)
    beat.update(state="training")
    beat.write()
    written = run_log.read_heartbeat(base)
    assert written["time"] == 1234.568 and written["run"] == "my-run" and written["reason"] is None
    assert (written["global_step"], written["state"]) == (7, "training")
    assert {"host", "pid", "tokens_per_second"} <= written.keys()


def test_metrics_on_a_bucket_are_written_whole_and_only_when_changed(bucket, fake_gcs):
    log = run_log.MetricsLog(storage.join(bucket, run_log.METRICS), 0)
    for step in range(1, 50):
        log.append(record(step))
    fake_gcs.log(clear=True)  # type: ignore[attr-defined]
    log.sync()
    log.sync()
    uploads = [r for r in fake_gcs.log() if "/upload/" in r["request"]]  # type: ignore[attr-defined]
    assert len(uploads) == 1


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ("", 0),
        ("started saved finished", 0),
        ("started interrupted resumed failed", 2),
        ("started finished resumed finished", 0),
        ("created started preempted resumed finished deleted", 1),
        ("started refused resumed finished", 1),  # An event "refused" does not end a start.
    ],
)
def test_unfinished_starts_are_interruptions(events, count):
    assert run_log.count_unfinished_starts({"event": name} for name in events.split()) == count
