"""Objects on the fake bucket, through the real google-cloud-storage client."""

import logging
import os
from functools import partial

import pytest

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage import gcs
from bigbird_ja.storage.gcs import CHUNK

MiB = 1 << 20
LARGE = os.urandom(17 * MiB)  # two pieces


def test_lists_come_in_pages(bucket, fake_gcs):
    for n in range(103):  # the fake's page holds 100
        fake_gcs.put(f"{bucket}/d/x-{n:05d}", b"")
    for name in ("d/sub/y", "d/", "e"):  # consoles make "d/" to show a folder
        fake_gcs.put(f"{bucket}/{name}", b"")
    names = [f"x-{n:05d}" for n in range(103)]
    assert storage.list_files(f"{bucket}/d") == names
    assert storage.list_tree(f"{bucket}/d") == ["sub/y", *names]
    assert storage.glob(f"{bucket}/d/x-000[01]?") == [f"{bucket}/d/{n}" for n in names[:20]]
    assert storage.glob(f"{bucket}/*/sub/*") == [f"{bucket}/d/sub/y"]


def test_files_of_every_size_come_back_identical(bucket, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    for size in (0, 1, CHUNK + 5):
        source.write_bytes(os.urandom(size))
        storage.upload(str(source), f"{bucket}/x")
        storage.download(f"{bucket}/x", str(back))
        assert source.read_bytes() == back.read_bytes()


def test_rename_is_a_copy_by_the_bucket(bucket, fake_gcs):
    fake_gcs.put(f"{bucket}/a", b"content")
    fake_gcs.fault("rewriteTo", "lost_reply")
    fake_gcs.fault("DELETE", "lost_reply")
    storage.rename(f"{bucket}/a", f"{bucket}/b")
    assert fake_gcs.names(bucket.removeprefix("gs://")) == ["b"]
    assert storage.read_bytes(f"{bucket}/b") == b"content"
    assert len([e for e in fake_gcs.log() if "alt=media" in e["request"]]) == 1


def test_a_stream_reads_in_chunks_and_seeks(bucket):
    data = os.urandom(9 * MiB + 3)
    storage.write_bytes(f"{bucket}/x", data)
    with storage.open_read(f"{bucket}/x") as file:
        assert file.read(5) == data[:5]
        assert file.seek(8 * MiB) == 8 * MiB
        assert file.read(10) == data[8 * MiB : 8 * MiB + 10]
        assert file.seek(-3, os.SEEK_END) and file.read() == data[-3:]
        file.seek(0)
        assert file.read() == data


def test_the_location_is_read_and_may_be_refused(bucket, fake_gcs):
    assert storage.bucket_location(bucket + "/x") == "us-central1"
    fake_gcs.fault("GET .*/b/b-[^/]*[?]", "status", code=403)
    assert storage.bucket_location(bucket + "/x") is None


def test_without_credentials_the_message_says_what_to_do(monkeypatch, tmp_path):
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(BadInput, match="gcloud auth application-default login"):
        storage.read_bytes("gs://bucket/x")


def test_transient_faults_are_logged(bucket, fake_gcs, caplog):
    storage.write_bytes(f"{bucket}/x", b"0")  # the client looks at the bucket once
    fake_gcs.fault("/b/b-", "status", times=2)
    with caplog.at_level(logging.WARNING):
        storage.write_bytes(f"{bucket}/x", b"1")
        fake_gcs.fault("/b/b-", "reset", times=1)
        assert storage.read_bytes(f"{bucket}/x") == b"1"
    faults = [text.removeprefix(f"{bucket}/x: ")[:9] for text in caplog.messages]
    assert faults == ["503 Injec", "503 Injec", "no answer"]
    assert all("trying again for up to 4 s" in text for text in caplog.messages)


def test_an_object_replaced_while_it_is_read_is_never_mixed(
    bucket, fake_gcs, tmp_path, monkeypatch
):
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
    look, looked = gcs.current, []

    def then_replaced(path):
        blob = look(path)
        if not looked:
            fake_gcs.put(path, LARGE[::-1] * 2)
        looked.append(blob.generation)
        return blob

    storage.write_bytes(path, LARGE * 2)
    monkeypatch.setattr(gcs, "current", then_replaced)
    storage.download(path, target)
    assert storage.read_bytes(target) == LARGE[::-1] * 2 and len(set(looked)) == 2
    fake_gcs.fault("alt=media", "status", code=404, times=-1)  # replaced again and again
    with pytest.raises(FileNotFoundError):
        storage.download(path, f"{target}-2")
    assert os.listdir(tmp_path) == ["t"]


def test_a_broken_upload_resumes_where_it_stopped(bucket, fake_gcs):
    fake_gcs.fault("PUT .*upload_id", "reset", bytes=10 * MiB + 77)
    storage.write_bytes(f"{bucket}/x", LARGE)
    sent = sum(e.get("received", 0) for e in fake_gcs.log() if "upload_id" in e["request"])
    assert sent < len(LARGE) + CHUNK  # the chunk is sent again, and no more


def test_many_transfers_end_with_one_cause(bucket, fake_gcs, tmp_path, monkeypatch):
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", "0.5")
    source = str(tmp_path / "s")
    storage.write_bytes(source, b"x")
    fake_gcs.fault("POST", "status", times=-1, skip=5)
    with pytest.raises(StorageError):
        storage.run_all([partial(storage.upload, source, f"{bucket}/{n}") for n in range(100)])
    assert len(fake_gcs.names(bucket.removeprefix("gs://"))) < 100
