"""A bucket that misbehaves, seen through `bigbird_ja.storage`."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput, StorageError, classify
from bigbird_ja.storage import gcs
from bigbird_ja.storage.bucket import CHUNK
from testkit.fakes.gcs_process import FakeGcs
from testkit.fakes.matrix import LARGE, Case, cases, run_case

MiB = 1 << 20


def _parameters() -> list[Any]:
    """The matrix; where an operation takes the same road as another, it runs with the slow ones."""
    alike = {
        "500 burst",
        "429 burst",
        "30 % random 503",
        "slow answer",
        "503 for ever",
        "reset for ever",
    }
    road = {"upload", "stream", "list", "exists", "delete", "delete if", "swap"}
    return [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.nightly] if case.kind in alike and case.operation in road else [],
        )
        for case in cases()
    ]


@pytest.mark.parametrize("case", _parameters())
def test_matrix(
    case: Case, bucket: str, fake_gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", str(case.seconds))
    run_case(case, fake_gcs, f"{bucket}/d", str(tmp_path))


def test_a_lasting_fault_ends_in_bounded_time_with_its_cause(
    bucket: str, fake_gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", "60")
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_BACKOFF_SECONDS", "0.5")
    fake_gcs.fault(".*", "status", times=-1)
    clock = FakeClock()
    with pytest.raises(StorageError) as caught:
        gcs.run(
            f"{bucket}/x",
            lambda n: gcs.blob(f"{bucket}/x").reload(retry=None),
            clock,
            clock.sleep,
        )
    assert clock.now <= 60.0
    assert 6 <= len(fake_gcs.log()) <= 12
    assert f"{bucket}/x" in str(caught.value) and "503" in str(caught.value)
    assert caught.value.status == 74


class FakeClock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_delays_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", "1000")
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_BACKOFF_SECONDS", "0.5")
    clock, slept = FakeClock(), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.sleep(seconds)

    def fail(_: int) -> None:
        raise ConnectionResetError

    with pytest.raises(StorageError, match="no answer"):
        gcs.run("gs://b/x", fail, clock, sleep)
    limits = [0.5, 1, 2, 4, 8, 16, *[32.0] * len(slept)]
    assert all(limit / 2 <= s <= limit for s, limit in zip(slept, limits, strict=False))


def test_transient_faults_are_logged_once(
    bucket: str,
    fake_gcs: FakeGcs,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gcs, "_last_fault", -1e18)
    fake_gcs.log(clear=True)
    fake_gcs.fault("/b/b-", "status", times=4)
    with caplog.at_level(logging.WARNING):
        storage.write_bytes(f"{bucket}/x", b"1")
        fake_gcs.fault("/b/b-", "reset", times=2)
        assert storage.read_bytes(f"{bucket}/x") == b"1"
    assert len(caplog.records) == 1
    assert f"{bucket}/x: 503" in caplog.text and "trying again" in caplog.text
    assert len([entry for entry in fake_gcs.log() if entry.get("fault")]) == 6


def test_an_object_replaced_while_it_is_read_is_never_mixed(
    bucket: str, fake_gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{bucket}/x"
    storage.write_bytes(path, LARGE)
    with storage.open_read(path) as file:
        head = file.read(1000)
        fake_gcs.put(path, bytes(len(LARGE)))
        with pytest.raises(StorageError, match="replaced while it was being read"):
            head += file.read()
    assert head == LARGE[:1000]
    # A download can begin anew: it ends with one version, whole.
    target = str(tmp_path / "t")
    whole, read = gcs.read_range, []

    def then_replaced(*request: Any) -> bytes:
        data = whole(*request)
        if not read:
            fake_gcs.put(path, LARGE[::-1] * 2)
        read.append(request)
        return data

    storage.write_bytes(path, LARGE * 2)  # above one piece of a download
    monkeypatch.setattr(gcs, "read_range", then_replaced)
    storage.download(path, target)
    assert storage.read_bytes(target) == LARGE[::-1] * 2


def test_an_object_that_never_stays_the_same_ends(
    bucket: str, fake_gcs: FakeGcs, tmp_path: Path
) -> None:
    fake_gcs.put(f"{bucket}/x", LARGE)
    fake_gcs.fault("alt=media", "status", code=412, times=-1)
    with pytest.raises(StorageError, match="replaced while it was being read"):
        storage.download(f"{bucket}/x", str(tmp_path / "t"))
    assert os.listdir(tmp_path) == []


def test_an_object_deleted_while_it_is_read(bucket: str, fake_gcs: FakeGcs) -> None:
    storage.write_bytes(f"{bucket}/x", LARGE)
    with storage.open_read(f"{bucket}/x") as file:
        file.read(1000)
        fake_gcs.remove(f"{bucket}/x")
        with pytest.raises(FileNotFoundError):
            file.read()


def test_a_lost_reply_does_not_make_the_owner_lose_its_lock(bucket: str, fake_gcs: FakeGcs) -> None:
    fake_gcs.fault("POST .*ifGenerationMatch=0", "lost_reply")
    assert storage.create_exclusive(f"{bucket}/lock", b"same words") is True
    # The same words from another writer do not make it the owner.
    fake_gcs.fault("POST .*ifGenerationMatch=0", "reset")
    assert storage.create_exclusive(f"{bucket}/lock", b"same words") is False


def test_a_broken_upload_resumes_where_it_stopped(bucket: str, fake_gcs: FakeGcs) -> None:
    fake_gcs.fault("PUT .*upload_id", "reset", bytes=10 * MiB + 77)
    storage.write_bytes(f"{bucket}/x", LARGE)
    sent = sum(e.get("received", 0) for e in fake_gcs.log() if "upload_id" in e["request"])
    assert sent < len(LARGE) + CHUNK  # the chunk is sent again, and no more


def test_many_transfers_end_with_one_cause(
    bucket: str, fake_gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", "0.5")
    source = str(tmp_path / "s")
    storage.write_bytes(source, b"x")
    fake_gcs.fault("POST", "status", times=-1, skip=5)
    with pytest.raises(StorageError):
        storage.run_all([partial(storage.upload, source, f"{bucket}/{n}") for n in range(100)])
    assert len(fake_gcs.names(bucket.removeprefix("gs://"))) < 100


def test_refusals_become_one_line_with_status_2(bucket: str, fake_gcs: FakeGcs) -> None:
    fake_gcs.fault("/b/b-", "status", code=403, times=-1)
    with pytest.raises(PermissionError) as caught:
        storage.exists(f"{bucket}/x")
    end = classify(caught.value)
    assert isinstance(end, BadInput)
    assert f"{bucket}/x" in str(end) and "403" in str(end)


def test_a_full_disk_under_a_download_is_not_retried(
    bucket: str, fake_gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gcs.put(f"{bucket}/x", b"1")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as caught:
        storage.download(f"{bucket}/x", str(tmp_path / "t"))
    end = classify(caught.value)
    assert isinstance(end, StorageError) and str(tmp_path / "t") in str(end)
    assert os.listdir(tmp_path) == []
