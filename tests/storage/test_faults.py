"""Every kind of fault against the operations of `bigbird_ja.storage`, with the end it must have."""

import os

import pytest

from bigbird_ja import storage
from bigbird_ja.process.errors import Refused, StorageError
from bigbird_ja.storage import gcs

CHUNK = 512 << 10  # of these tests, for speed
SMALL, LARGE = os.urandom(100_000), os.urandom(CHUNK + 1000)  # one request; two pieces


def _download(base, scratch):
    try:
        storage.download(f"{base}/f", f"{scratch}/target")
    except Exception:
        assert not os.path.exists(f"{scratch}/target")
        raise
    assert storage.read_bytes(f"{scratch}/target") == LARGE


def _stream(base, scratch):
    with storage.open_read(f"{base}/f") as file:
        assert file.read() == LARGE


def _delete_if(base, scratch):
    storage.delete_if(f"{base}/f", storage.stat(f"{base}/f").token)


def _create(base, scratch):
    assert storage.create_exclusive(f"{base}/f", SMALL)
    assert not storage.create_exclusive(f"{base}/f", SMALL)


def _swap(base, scratch):
    token = storage.stat(f"{base}/f").token
    assert storage.replace_if(f"{base}/f", b"new", token) is not None
    assert storage.replace_if(f"{base}/f", b"newer", token) is None


# Operation -> the object before, the object after (None: none), what it does and checks.
OPERATIONS = {
    "write small": (None, SMALL, lambda base, s: storage.write_bytes(f"{base}/f", SMALL)),
    "write large": (None, LARGE, lambda base, s: storage.write_bytes(f"{base}/f", LARGE)),
    "download": (LARGE, LARGE, _download),
    "stream": (LARGE, LARGE, _stream),
    "read": (SMALL, SMALL, lambda base, s: storage.read_bytes(f"{base}/f") == SMALL),
    "list": (SMALL, SMALL, lambda base, s: storage.list_files(base) == ["f"]),
    "exists": (SMALL, SMALL, lambda base, s: storage.exists(f"{base}/f")),
    "delete": (SMALL, None, lambda base, s: storage.delete(f"{base}/f")),
    "delete if": (SMALL, None, _delete_if),
    "create": (None, SMALL, _create),
    "swap": (SMALL, b"new", _swap),
}
_ALL = tuple(OPERATIONS)
_ROADS = ("write small", "write large", "download", "read", "create")  # others are like these
_SMALL_WRITES = ("write small", "create", "swap")
_LARGE_WRITES = ("write large",)
_LARGE_READS = ("download", "stream")
_READS = ("read", *_LARGE_READS)
_MEDIA = "alt=media"
_PIECE = "PUT .*upload_id"
_ANY = r"/b/b-"


def _rule(match, do, **how):
    return {"match": match, "do": do, **how}


def _of(kind, operations, *rules, ends=None):
    """One fault against all operations that meet it, with the exception that must end them."""
    for operation in operations:
        name = f"{kind} {'ends' if ends else 'is survived by'} {operation}"
        yield pytest.param(OPERATIONS[operation], rules, ends, id=name)


CASES = [
    *_of("503 burst", _ALL, _rule(_ANY, "status", code=503, times=3)),
    *_of("429 burst", _ROADS, _rule(_ANY, "status", code=429, times=3)),
    *_of("500 burst", _ROADS, _rule(_ANY, "status", code=500, times=3)),
    *_of("reset before the answer", _ALL, _rule(_ANY, "reset", times=2)),
    *_of("30 % random 503", _ROADS, _rule(_ANY, "status", p=0.3, times=-1)),
    *_of("reset in mid upload", _LARGE_WRITES, _rule(_PIECE, "reset", bytes=70_000),
         _rule(_PIECE, "reset", bytes=200_000), _rule(_PIECE, "reset", bytes=500_000)),
    *_of("stall in mid upload", _LARGE_WRITES, _rule(_PIECE, "stall", bytes=90_000)),
    *_of("upload session lost (410)", _LARGE_WRITES, _rule(_PIECE, "status", code=410)),
    *_of("upload session lost (404)", _LARGE_WRITES, _rule(_PIECE, "status", code=404, skip=1)),
    *_of("damaged upload", _LARGE_WRITES, _rule(_PIECE, "corrupt", bytes=280_000)),
    *_of("reset in mid download", _LARGE_READS, _rule(_MEDIA, "reset", bytes=150_000, times=2)),
    *_of("truncated download", _LARGE_READS, _rule(_MEDIA, "truncate", bytes=150_000, times=2)),
    *_of("short reply", _LARGE_READS, _rule(_MEDIA, "short", bytes=150_000, times=2)),
    *_of("stall in mid download", _LARGE_READS, _rule(_MEDIA, "stall", bytes=90_000)),
    *_of("damaged download", ("download",), _rule(_MEDIA, "corrupt", bytes=150_000)),
    # A stream's reader has used the bytes already: all that is left is an error. (Each reply is
    # damaged: on a busy machine the first may come too late, and be requested again.)
    *_of("damaged download", ("stream",), _rule(_MEDIA, "corrupt", bytes=150_000, times=-1),
         ends=StorageError),
    *_of("truncated download", ("read",), _rule(_MEDIA, "truncate", bytes=50, times=2)),
    *_of("short reply", ("read",), _rule(_MEDIA, "short", bytes=50, times=2)),
    *_of("damaged download", ("read",), _rule(_MEDIA, "corrupt", bytes=50, times=2)),
    *_of("lost reply", ("delete", "delete if"), _rule("DELETE.*", "lost_reply", times=2)),
    *_of("lost reply", _SMALL_WRITES, _rule("POST.*", "lost_reply", times=2)),
    *_of("lost reply", _LARGE_WRITES, _rule(f"{_PIECE}.*", "lost_reply", times=2)),
    *_of("503 for ever", _ROADS, _rule(_ANY, "status", times=-1), ends=StorageError),
    *_of("reset for ever", _ROADS, _rule(_ANY, "reset", times=-1), ends=StorageError),
    *_of("refused (403)", _ALL, _rule(_ANY, "status", code=403, times=-1),
         ends=PermissionError),
    *_of("expired (401)", _ALL, _rule(_ANY, "status", code=401, times=-1), ends=Refused),
    *_of("listed but not there", _READS, _rule(_MEDIA, "status", code=404, times=-1),
         ends=FileNotFoundError),
    *_of("short reply for ever", _READS, _rule(_MEDIA, "short", bytes=10, times=-1),
         ends=StorageError),
    *_of("upload session lost for ever", _LARGE_WRITES,
         _rule(_PIECE, "status", code=410, times=-1), ends=StorageError),
    *_of("damaged upload for ever", _LARGE_WRITES,
         _rule(_PIECE, "corrupt", bytes=100, times=-1), ends=StorageError),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "rules", "ends"), CASES)
def test_a_fault_is_survived_or_ends_with_its_cause(
    operation, rules, ends, bucket, fake_gcs, tmp_path, monkeypatch
):
    """Survived: the work is done and the object is what it must be. Ended: the object is named."""
    monkeypatch.setattr(gcs, "CHUNK", CHUNK)
    monkeypatch.setattr("google.cloud.storage.blob._MAX_MULTIPART_SIZE", 256 << 10)
    before, after, act = operation
    # A lasting fault is waited out in full.
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
