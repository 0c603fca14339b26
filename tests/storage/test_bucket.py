"""Objects on the fake bucket, through the real google-cloud-storage client."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage.bucket import CHUNK
from testkit.fakes.gcs_process import FakeGcs

MiB = 1 << 20


def test_lists_come_in_pages(bucket: str, fake_gcs: FakeGcs) -> None:
    for n in range(103):  # the fake's page holds 100
        fake_gcs.put(f"{bucket}/d/x-{n:05d}", b"")
    for name in ("d/sub/y", "d/", "e"):
        fake_gcs.put(f"{bucket}/{name}", b"")
    names = [f"x-{n:05d}" for n in range(103)]
    assert storage.list_files(f"{bucket}/d") == names
    assert storage.list_files(f"{bucket}/d/") == names
    assert storage.list_tree(f"{bucket}/d") == ["sub/y", *names]
    assert storage.list_files(bucket) == ["e"]
    assert storage.glob(f"{bucket}/d/x-000[01]?") == [f"{bucket}/d/{n}" for n in names[:20]]
    assert storage.glob(f"{bucket}/*/sub/*") == [f"{bucket}/d/sub/y"]
    assert storage.glob(f"{bucket}/**/y") == [f"{bucket}/d/sub/y"]
    assert storage.glob(f"{bucket}/[!d]") == [f"{bucket}/e"]
    stats = storage.list_stats(f"{bucket}/d")
    assert list(stats) == names
    assert stats[names[7]] == storage.stat(f"{bucket}/d/{names[7]}")
    storage.delete_many(f"{bucket}/d/{n}" for n in names[:3])
    assert len(storage.list_files(f"{bucket}/d")) == 100


def test_files_of_every_size_come_back_identical(bucket: str, tmp_path: Path) -> None:
    sizes = [0, 1, 8 * MiB, 8 * MiB + 1, CHUNK, 2 * CHUNK + 5]
    pairs = []
    for n, size in enumerate(sizes):
        source = tmp_path / f"s{n}"
        source.write_bytes(os.urandom(size))
        pairs.append((str(source), f"{bucket}/d/{n}"))
    storage.run_all([partial(storage.upload, *pair) for pair in pairs], workers=3)
    back = [(remote, source + "-back") for source, remote in pairs]
    for pair in back:
        storage.download(*pair)
    for source, _ in pairs:
        assert Path(source).read_bytes() == Path(source + "-back").read_bytes()


def test_rename_is_a_copy_by_the_bucket(bucket: str, fake_gcs: FakeGcs) -> None:
    fake_gcs.put(f"{bucket}/a", b"content")
    fake_gcs.fault("rewriteTo", "lost_reply")
    fake_gcs.fault("DELETE", "lost_reply")
    storage.rename(f"{bucket}/a", f"{bucket}/b")
    assert fake_gcs.names(bucket.removeprefix("gs://")) == ["b"]
    assert storage.read_bytes(f"{bucket}/b") == b"content"
    assert len([e for e in fake_gcs.log() if "alt=media" in e["request"]]) == 1


def test_a_stream_reads_in_chunks_and_seeks(bucket: str) -> None:
    data = os.urandom(9 * MiB + 3)
    storage.write_bytes(f"{bucket}/x", data)
    with storage.open_read(f"{bucket}/x") as file:
        assert file.read(5) == data[:5]
        assert file.seek(8 * MiB) == 8 * MiB
        assert file.read(10) == data[8 * MiB : 8 * MiB + 10]
        assert file.seek(-3, os.SEEK_END) and file.read() == data[-3:]
        file.seek(0)
        assert file.read() == data


def test_a_name_from_the_bucket_cannot_leave_its_folder(bucket: str, fake_gcs: FakeGcs) -> None:
    fake_gcs.put(f"{bucket}/d/../../evil", b"x")
    for name in storage.list_tree(f"{bucket}/d"):
        with pytest.raises(BadInput):
            storage.join("/tmp/target", name)
    with pytest.raises(BadInput):
        storage.read_bytes(f"{bucket}/a\nb")


def test_the_location_is_read_and_may_be_refused(bucket: str, fake_gcs: FakeGcs) -> None:
    assert storage.bucket_location(bucket + "/x") == "us-central1"
    fake_gcs.fault("GET .*/b/b-[^/]*[?]", "status", code=403)
    assert storage.bucket_location(bucket + "/x") is None


def test_the_environment_is_checked(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", "soon")
    with pytest.raises(BadInput, match="TIMEOUT_SECONDS: expected"):
        storage.read_bytes(f"{bucket}/x")


def test_without_credentials_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(BadInput, match="gcloud auth application-default login"):
        storage.read_bytes("gs://bucket/x")


def test_what_is_stored_is_compared_with_what_was_sent(bucket: str, fake_gcs: FakeGcs) -> None:
    data = os.urandom(9 * MiB)
    fake_gcs.fault("PUT .*upload_id", "corrupt", bytes=100)
    storage.write_bytes(f"{bucket}/x", data)
    assert storage.read_bytes(f"{bucket}/x") == data
    fake_gcs.fault("PUT .*upload_id", "corrupt", bytes=100, times=-1)
    with pytest.raises(StorageError, match="not what was sent"):
        storage.write_bytes(f"{bucket}/y", data)
    assert not storage.exists(f"{bucket}/y")
