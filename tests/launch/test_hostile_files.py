"""Files of the bucket, and answers, as an attacker or a broken proxy may give them to a machine."""

import contextlib
import hashlib
import http.client
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bigbird_ja.launch import LaunchedRun, startup, watcher
from bigbird_ja.launch.files import RunFiles, read_run
from bigbird_ja.launch.state import RunState
from bigbird_ja.launch.watcher import Counters, Host, Seen
from bigbird_ja.process.errors import BadInput
from tests.launch.test_watcher import TERMS

FAULTS = [
    *(
        http.client.BadStatusLine("x"),
        http.client.IncompleteRead(b"x"),
        http.client.LineTooLong("x"),
    ),
    *(http.client.InvalidURL("x"), RecursionError(), MemoryError(), UnicodeError(), KeyError("x")),
]
HOSTILE = [b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"7", b"", b" " * 10_000_000]


class _Over(BaseException):
    """The watch of a test ends."""


def watched(tmp_path, host, seconds, terms):
    """The counters after so many turns of ten seconds, which the real loop has stored."""
    paths, clock = [str(tmp_path / "counters")], iter(range(0, 10**6, 10))
    turns = iter(range(seconds // 10))

    def sleep(_):
        if next(turns, None) is None:
            raise _Over

    with contextlib.suppress(_Over):
        watcher.watch(terms, host, paths, lambda: float(next(clock)) / 2, sleep, "boot")
    return watcher.load(paths)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_no_failure_to_read_ends_the_watch(tmp_path, fault):
    terms = replace(TERMS, limit=60.0, storage="http://x", delete=["http://service/node"])
    host, deleted = Host(terms, str(tmp_path)), []

    def fail(request, **_):
        deleted.extend([request.full_url] * (request.get_method() == "DELETE"))
        raise fault

    host._opener.open = fail  # type: ignore[method-assign]
    host._token = lambda: "token"  # type: ignore[method-assign]
    assert host.look() == Seen()
    assert watched(tmp_path, host, 200, terms).age >= 100.0
    assert len(deleted) > 3  # each turn again


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_is_on_the_bucket_is_not_seen_and_time_is_counted(tmp_path, content):
    for folder, name in (("model", "heartbeat.json"), ("supervisor", "lease.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(content)
    places = {f"{name}_dir": str(tmp_path / name) for name in ("model", "supervisor")}
    host = Host(replace(TERMS, **places), str(tmp_path))
    assert host.look() == Seen()
    assert watched(tmp_path, host, 100, replace(TERMS, **places)).age >= 50.0


def test_time_is_counted_before_anything_is_read(tmp_path):
    class Hanging(Host):
        def look(self):
            raise _Over

    assert watched(tmp_path, Hanging(TERMS, str(tmp_path)), 1000, TERMS).age == TERMS.poll


@pytest.mark.parametrize("step", ["9" * 4000, str(2**63), "-1", "5.0", '"5"', "null", "[5]"])
def test_what_others_write_does_not_make_the_record_of_time_unreadable(tmp_path, step):
    lease = json.dumps({"attempt": TERMS.attempt, "renewed": "\U0001f600" * 5_000})
    for path, text in (
        ("model/heartbeat.json", f'{{"global_step": {step}}}'),
        ("supervisor/lease.json", lease),
    ):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text)
    places = {f"{name}_dir": str(tmp_path / name) for name in ("model", "supervisor")}
    host = Host(replace(TERMS, **places), str(tmp_path))
    seen = host.look()
    assert seen.step is None
    assert watched(tmp_path, host, 100, replace(TERMS, **places)).age >= 50.0
    record = [str(tmp_path / "record")]
    watcher.save(record, replace(watcher.advanced(Counters(), 7.0, seen), boot="x" * 36))
    assert watcher.load(record).age == 7.0


def test_a_server_that_never_ends_is_left(tmp_path):
    class Endless(contextlib.nullcontext):
        def __enter__(self):
            return self

        def read1(self, most):
            return b"x" * most

    host = Host(replace(TERMS, storage="http://x"), str(tmp_path))
    host._opener.open = lambda *_, **__: Endless()  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="too large"):
        host.request("GET", "http://elsewhere", None, 60.0)


@pytest.mark.parametrize("part", ["spec", "settings"])
@pytest.mark.parametrize("value", [7, [1], "x", True, 1.5])
def test_a_record_in_parts_of_another_type_is_refused(tmp_path, part, value):
    run = LaunchedRun(str(tmp_path), "run-1", "id-1")
    files = RunFiles(run)
    files.prepare()
    files.save_run()
    path = Path(run.supervisor("launch.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), part: value}))
    with pytest.raises(BadInput, match=r"launch\.json"):
        read_run(str(tmp_path), "run-1")


@pytest.mark.parametrize("machine", [{"service": "ftp"}, {"project": "p/../q"}])
def test_a_machine_of_no_service_of_ours_is_refused(tmp_path, machine):
    run = LaunchedRun(str(tmp_path), "run-1", "id-1")
    files = RunFiles(run)
    files.prepare()
    files.save_state(RunState())
    path = Path(run.supervisor("state.json"))
    known = {"service": "tpu", "project": "p", "accelerator_type": "v3-8", "pricing": "spot"}
    known |= {"queued": False, "usd_per_hour": 1.0}
    for values, is_refused in ((known, False), ({**known, **machine}, True)):
        path.write_text(json.dumps({**json.loads(path.read_text()), "machine": values}))
        with (
            pytest.raises(BadInput, match=r"state\.json")
            if is_refused
            else contextlib.nullcontext()
        ):
            files.load_state()


@pytest.mark.parametrize("damage", ["cut", "flipped", "larger", "gone"])
def test_a_damaged_package_is_mended(tmp_path, damage, monkeypatch):
    """It failed at each start, which was paid."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = LaunchedRun(str(tmp_path), "run-1", "id-1")
    stored = startup._store_package(run, None)
    path = Path(stored.package)
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        cases = {"cut": whole[:-9], "flipped": b"X" + whole[1:], "larger": whole * 2}
        path.write_bytes(cases[damage])
    assert startup._store_package(run, stored) == stored
    assert hashlib.sha256(path.read_bytes()).hexdigest() == stored.package_sha256
    before = path.stat().st_mtime_ns
    time.sleep(0.01)
    startup._store_package(run, stored)
    assert path.stat().st_mtime_ns == before  # a whole one isn't written again
