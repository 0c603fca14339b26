"""Objects on the fake bucket, through the real google-cloud-storage client."""

import logging
import os

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, Refused, StorageError
from bigbird_ja.storage import gcs

MiB = 1 << 20


LARGE = os.urandom(17 * MiB)  # This is transferred in two chunks.


def test_lists_come_in_pages(bucket, fake_gcs):
    # A page of the fake bucket lists 100 names.
    for n in range(103):
        fake_gcs.put(f"{bucket}/d/x-{n:05d}", b"")
    # Web consoles create an object "d/" to show a folder.
    for name in ("d/sub/y", "d/", "e"):
        fake_gcs.put(f"{bucket}/{name}", b"")
    names = [f"x-{n:05d}" for n in range(103)]
    assert storage.list_files(f"{bucket}/d") == names
    assert storage.list_tree(f"{bucket}/d") == ["sub/y", *names]
    assert storage.glob(f"{bucket}/d/x-000[01]?") == [f"{bucket}/d/{n}" for n in names[:20]]
    assert storage.glob(f"{bucket}/*/sub/*") == [f"{bucket}/d/sub/y"]


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
    assert storage.get_bucket_location(bucket + "/x") == "us-central1"
    fake_gcs.fault("GET .*/b/b-[^/]*[?]", "status", code=403)
    assert storage.get_bucket_location(bucket + "/x") is None


def test_missing_credentials_are_named_with_the_remedy(monkeypatch, tmp_path):
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(BadInput, match="gcloud auth application-default login"):
        storage.read_bytes("gs://bucket/x")


def test_transient_faults_are_logged(bucket, fake_gcs, caplog):
    # Limit the faults to this bucket, since a process of another test may still use the server.
    requests = f"/b/{bucket.removeprefix('gs://')}/o"
    fake_gcs.fault(requests, "status", times=2)
    with caplog.at_level(logging.WARNING):
        storage.write_bytes(f"{bucket}/x", b"1")
        fake_gcs.fault(requests, "reset", times=1)
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
        with pytest.raises(StorageError, match="replaced during the read"):
            head += file.read()
    assert head == LARGE[:1000]
    # A download starts again if the object is replaced, so that its result is a single version.
    target = str(tmp_path / "t")
    look, looked = gcs.load_current, []

    def then_replaced(path):
        blob = look(path)
        if not looked:
            fake_gcs.put(path, LARGE[::-1] * 2)
        looked.append(blob.generation)
        return blob

    storage.write_bytes(path, LARGE * 2)
    monkeypatch.setattr(gcs, "load_current", then_replaced)
    storage.download(path, target)
    assert storage.read_bytes(target) == LARGE[::-1] * 2 and len(set(looked)) == 2
    # Each download fails as if the object were replaced again.
    fake_gcs.fault("alt=media", "status", code=404, times=-1)
    with pytest.raises(FileNotFoundError):
        storage.download(path, f"{target}-2")
    assert os.listdir(tmp_path) == ["t"]


SHORT_CHUNK = 512 << 10
SMALL = os.urandom(100_000)  # This is transferred in one request.
TWO_CHUNKS = os.urandom(SHORT_CHUNK + 1000)


def _download(base, scratch):
    try:
        storage.download(f"{base}/f", f"{scratch}/target")
    except Exception:
        assert not os.path.exists(f"{scratch}/target")
        raise
    assert storage.read_bytes(f"{scratch}/target") == TWO_CHUNKS


def _stream(base, scratch):
    with storage.open_read(f"{base}/f") as file:
        assert file.read() == TWO_CHUNKS


def _delete_if(base, scratch):
    storage.delete_if(f"{base}/f", storage.stat(f"{base}/f").token)


def _create(base, scratch):
    assert storage.create_exclusive(f"{base}/f", SMALL)
    assert not storage.create_exclusive(f"{base}/f", SMALL)


def _swap(base, scratch):
    token = storage.stat(f"{base}/f").token
    assert storage.replace_if(f"{base}/f", b"new", token) is not None
    assert storage.replace_if(f"{base}/f", b"newer", token) is None


# For each operation: the object's content before and after it (None if there is no object), and the
# function that performs the operation.
OPERATIONS = {
    "write small": (None, SMALL, lambda base, s: storage.write_bytes(f"{base}/f", SMALL)),
    "write large": (None, TWO_CHUNKS, lambda base, s: storage.write_bytes(f"{base}/f", TWO_CHUNKS)),
    "download": (TWO_CHUNKS, TWO_CHUNKS, _download),
    "stream": (TWO_CHUNKS, TWO_CHUNKS, _stream),
    "read": (SMALL, SMALL, lambda base, s: storage.read_bytes(f"{base}/f") == SMALL),
    "list": (SMALL, SMALL, lambda base, s: storage.list_files(base) == ["f"]),
    "exists": (SMALL, SMALL, lambda base, s: storage.exists(f"{base}/f")),
    "delete": (SMALL, None, lambda base, s: storage.delete(f"{base}/f")),
    "delete if": (SMALL, None, _delete_if),
    "create": (None, SMALL, _create),
    "swap": (SMALL, b"new", _swap),
}


_ALL = tuple(OPERATIONS)


_ROADS = (
    "write small",
    "write large",
    "download",
    "read",
    "create",
)  # Representatives of all operations.


_SMALL_WRITES = ("write small", "create", "swap")


_LARGE_WRITES = ("write large",)


_LARGE_READS = ("download", "stream")


_READS = ("read", *_LARGE_READS)


_MEDIA = "alt=media"


_CHUNK = "PUT .*upload_id"


_ANY = r"/b/b-"


def _rule(match, do, **how):
    return {"match": match, "do": do, **how}


def _of(kind, operations, *rules, ends=None):
    """Yield a test case of a fault for each operation.

    Args:
        kind: description of the fault.
        operations: keys of `OPERATIONS`.
        rules: rules of the fake server that cause the fault.
        ends: exception that the operation raises, or None if a retry succeeds.
    """
    for operation in operations:
        name = f"{kind} {'ends' if ends else 'is survived by'} {operation}"
        yield pytest.param(OPERATIONS[operation], rules, ends, id=name)


CASES = [
    *_of("503 burst", _ALL, _rule(_ANY, "status", code=503, times=3)),
    *_of("429 burst", _ROADS, _rule(_ANY, "status", code=429, times=3)),
    *_of("reset before the answer", _ALL, _rule(_ANY, "reset", times=2)),
    *_of("30 % random 503", _ROADS, _rule(_ANY, "status", p=0.3, times=-1)),
    *_of("reset in mid upload", _LARGE_WRITES, _rule(_CHUNK, "reset", bytes=70_000),
         _rule(_CHUNK, "reset", bytes=200_000), _rule(_CHUNK, "reset", bytes=500_000)),
    *_of("stall in mid upload", _LARGE_WRITES, _rule(_CHUNK, "stall", bytes=90_000)),
    *_of("upload session lost (410)", _LARGE_WRITES, _rule(_CHUNK, "status", code=410)),
    *_of("upload session lost (404)", _LARGE_WRITES, _rule(_CHUNK, "status", code=404, skip=1)),
    *_of("damaged upload", _LARGE_WRITES, _rule(_CHUNK, "corrupt", bytes=280_000)),
    *_of("reset in mid download", _LARGE_READS, _rule(_MEDIA, "reset", bytes=150_000, times=2)),
    *_of("truncated download", _LARGE_READS, _rule(_MEDIA, "truncate", bytes=150_000, times=2)),
    *_of("short reply", _LARGE_READS, _rule(_MEDIA, "short", bytes=150_000, times=2)),
    *_of("stall in mid download", _LARGE_READS, _rule(_MEDIA, "stall", bytes=90_000)),
    *_of("damaged download", ("download",), _rule(_MEDIA, "corrupt", bytes=150_000)),
    # The reader of a stream has already used the bytes, so an error is raised. Each reply is
    # damaged, since on a busy machine the first reply may be late and be requested again.
    *_of("damaged download", ("stream",), _rule(_MEDIA, "corrupt", bytes=150_000, times=-1),
         ends=StorageError),
    *_of("truncated download", ("read",), _rule(_MEDIA, "truncate", bytes=50, times=2)),
    *_of("short reply", ("read",), _rule(_MEDIA, "short", bytes=50, times=2)),
    *_of("damaged download", ("read",), _rule(_MEDIA, "corrupt", bytes=50, times=2)),
    *_of("lost reply", ("delete", "delete if"), _rule("DELETE.*", "lost_reply", times=2)),
    *_of("lost reply", _SMALL_WRITES, _rule("POST.*", "lost_reply", times=2)),
    *_of("lost reply", _LARGE_WRITES, _rule(f"{_CHUNK}.*", "lost_reply", times=2)),
    *_of("503 for ever", _ROADS, _rule(_ANY, "status", times=-1), ends=StorageError),
    *_of("refused (403)", _ALL, _rule(_ANY, "status", code=403, times=-1),
         ends=PermissionError),
    *_of("expired (401)", _ALL, _rule(_ANY, "status", code=401, times=-1), ends=Refused),
    *_of("listed but not there", _READS, _rule(_MEDIA, "status", code=404, times=-1),
         ends=FileNotFoundError),
    *_of("short reply for ever", _READS, _rule(_MEDIA, "short", bytes=10, times=-1),
         ends=StorageError),
    *_of("upload session lost for ever", _LARGE_WRITES,
         _rule(_CHUNK, "status", code=410, times=-1), ends=StorageError),
    *_of("damaged upload for ever", _LARGE_WRITES,
         _rule(_CHUNK, "corrupt", bytes=100, times=-1), ends=StorageError),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "rules", "ends"), CASES)
def test_a_fault_is_retried_or_raised_with_its_cause(
    operation, rules, ends, bucket, fake_gcs, tmp_path, monkeypatch
):
    """Check the object after a retry, or that the exception names the object."""
    monkeypatch.setattr(gcs, "CHUNK", SHORT_CHUNK)
    monkeypatch.setattr("google.cloud.storage.blob._MAX_MULTIPART_SIZE", 256 << 10)
    before, after, act = operation
    # If the fault lasts, the operation retries until its timeout, so keep the timeout short.
    seconds = 0.3 if ends is StorageError else 3.0
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", str(seconds))
    base = f"{bucket}/d"
    if before is not None:
        fake_gcs.put(f"{base}/f", before)
    for rule in rules:
        fake_gcs.fault(**rule)
    if ends:
        with pytest.raises(ends) as ended:
            act(base, str(tmp_path))
        assert base in f"{ended.value} {getattr(ended.value, 'filename', '')}"
    else:
        assert act(base, str(tmp_path)) is not False
        fake_gcs.clear()
        names = fake_gcs.names(bucket.removeprefix("gs://"), "d/")
        assert (fake_gcs.get(f"{base}/f") if names else None) == after
    assert not [n for n in os.listdir(tmp_path) if n.startswith(storage.TEMPORARY_PREFIX)]
