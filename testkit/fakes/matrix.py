"""Every kind of fault against every operation of `bigbird_ja.storage`, with the end it must have.

tests/storage/test_bucket.py runs it case by case; scripts/bench_faults.py counts it by kind.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process.errors import StorageError

MiB = 1 << 20
SMALL, LARGE = os.urandom(100_000), os.urandom(17 * MiB)  # one request; two pieces


class WrongEndError(AssertionError):
    """A case did not end as it must."""


@dataclass(frozen=True)
class Case:
    """One fault against one operation.

    Args:
        kind: the fault, in words for people.
        operation: a key of `OPERATIONS`.
        rules: faults to order.
        ends: the exception that must end it; None where it must be survived.
    """

    kind: str
    operation: str
    rules: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    ends: type[Exception] | None = None

    @property
    def seconds(self):
        """The deadline to run it with: a lasting fault is waited out in full."""
        return 0.3 if self.ends is StorageError else 3.0

    @property
    def name(self):
        """For a test's id."""
        return f"{self.kind} | {self.operation}".replace(" ", "_")


def run_case(case, fake, base, scratch):
    """Runs one case on an empty directory `base` of the bucket.

    Raises:
        WrongEndError: it was not survived, or did not end as it must.
    """
    before, after, act = OPERATIONS[case.operation]
    fake.clear()
    if before is not None:
        fake.put(f"{base}/f", before)
    for rule in case.rules:
        fake.fault(**rule)
    try:
        act(base, scratch)
    except Exception as error:
        _expect(case.ends is not None and isinstance(error, case.ends), repr(error))
        place = f"{error} {getattr(error, 'filename', '')}"
        _expect(base in place, f"does not name the object: {error}")
    else:
        _expect(case.ends is None, f"went through, {case.ends} was due")
        fake.clear()
        names = fake.names(base.split("/")[2], base.split("/", 3)[3] + "/")
        _expect((fake.get(f"{base}/f") if names else None) == after)
    finally:
        fake.clear()
    left = [name for name in os.listdir(scratch) if name.startswith(storage.TEMPORARY_PREFIX)]
    _expect(not left, "left a temporary file")


def _expect(condition, otherwise="the data differ"):
    if not condition:
        raise WrongEndError(otherwise)


def _upload(base, scratch):
    source = os.path.join(scratch, "source")
    storage.write_bytes(source, LARGE)
    storage.upload(source, f"{base}/f")


def _download(base, scratch):
    target = os.path.join(scratch, "target")
    storage.delete(target)
    try:
        storage.download(f"{base}/f", target)
    except Exception:
        _expect(not os.path.exists(target))
        raise
    _expect(storage.read_bytes(target) == LARGE)


def _stream(base, scratch):
    with storage.open_read(f"{base}/f") as file:
        _expect(file.read() == LARGE)


def _delete_if(base, scratch):
    _expect(storage.delete_if(f"{base}/f", storage.stat(f"{base}/f").token))


def _create(base, scratch):
    _expect(storage.create_exclusive(f"{base}/f", SMALL))
    _expect(not storage.create_exclusive(f"{base}/f", SMALL))


def _swap(base, scratch):
    token = storage.stat(f"{base}/f").token
    _expect(storage.replace_if(f"{base}/f", b"new", token) is not None)
    _expect(storage.replace_if(f"{base}/f", b"newer", token) is None)


# Operation -> the object before, the object after (None: none), what it does and checks.
OPERATIONS = {
    "write small": (None, SMALL, lambda base, s: storage.write_bytes(f"{base}/f", SMALL)),
    "write large": (None, LARGE, lambda base, s: storage.write_bytes(f"{base}/f", LARGE)),
    "upload": (None, LARGE, _upload),
    "download": (LARGE, LARGE, _download),
    "stream": (LARGE, LARGE, _stream),
    "read": (SMALL, SMALL, lambda base, s: _expect(storage.read_bytes(f"{base}/f") == SMALL)),
    "list": (SMALL, SMALL, lambda base, s: _expect(storage.list_files(base) == ["f"])),
    "exists": (SMALL, SMALL, lambda base, s: _expect(storage.exists(f"{base}/f"))),
    "delete": (SMALL, None, lambda base, s: storage.delete(f"{base}/f")),
    "delete if": (SMALL, None, _delete_if),
    "create": (None, SMALL, _create),
    "swap": (SMALL, b"new", _swap),
}
_ALL = tuple(OPERATIONS)
_SMALL_WRITES = ("write small", "create", "swap")
_LARGE_WRITES = ("write large", "upload")
_LARGE_READS = ("download", "stream")
_READS = ("read", *_LARGE_READS)
_MEDIA = "alt=media"
_PIECE = "PUT .*upload_id"
_ANY = r"/b/b-"


def _rule(match, do, **how):
    return {"match": match, "do": do, **how}


def _of(kind, operations, *rules, ends=None):
    """The cases of one fault, for all operations that meet it."""
    return [Case(kind, operation, rules, ends) for operation in operations]


def cases():
    """The whole matrix."""
    return [
        *_of("503 burst", _ALL, _rule(_ANY, "status", code=503, times=3)),
        *_of("429 burst", _ALL, _rule(_ANY, "status", code=429, times=3)),
        *_of("500 burst", _ALL, _rule(_ANY, "status", code=500, times=3)),
        *_of("reset before the answer", _ALL, _rule(_ANY, "reset", times=2)),
        *_of("30 % random 503", _ALL, _rule(_ANY, "status", p=0.3, times=-1)),
        *_of("reset in mid upload", _LARGE_WRITES, _rule(_PIECE, "reset", bytes=2 * MiB),
             _rule(_PIECE, "reset", bytes=7 * MiB), _rule(_PIECE, "reset", bytes=16 * MiB)),
        *_of("stall in mid upload", _LARGE_WRITES, _rule(_PIECE, "stall", bytes=3 * MiB)),
        *_of("upload session lost (410)", _LARGE_WRITES, _rule(_PIECE, "status", code=410)),
        *_of("upload session lost (404)", _LARGE_WRITES, _rule(_PIECE, "status", code=404, skip=1)),
        *_of("damaged upload", _LARGE_WRITES, _rule(_PIECE, "corrupt", bytes=9 * MiB)),
        *_of("reset in mid download", _LARGE_READS, _rule(_MEDIA, "reset", bytes=5 * MiB, times=2)),
        *_of("truncated download", _LARGE_READS, _rule(_MEDIA, "truncate", bytes=5 * MiB, times=2)),
        *_of("short reply", _LARGE_READS, _rule(_MEDIA, "short", bytes=5 * MiB, times=2)),
        *_of("stall in mid download", _LARGE_READS, _rule(_MEDIA, "stall", bytes=3 * MiB)),
        *_of("damaged download", ("download",), _rule(_MEDIA, "corrupt", bytes=5 * MiB)),
        # A stream's reader has used the bytes already: all that is left is an error. (Each reply is
        # damaged: on a busy machine the first may come too late, and be requested again.)
        *_of("damaged download", ("stream",), _rule(_MEDIA, "corrupt", bytes=5 * MiB, times=-1),
             ends=StorageError),
        *_of("truncated download", ("read",), _rule(_MEDIA, "truncate", bytes=50, times=2)),
        *_of("short reply", ("read",), _rule(_MEDIA, "short", bytes=50, times=2)),
        *_of("damaged download", ("read",), _rule(_MEDIA, "corrupt", bytes=50, times=2)),
        *_of("lost reply", ("delete", "delete if"), _rule("DELETE.*", "lost_reply", times=2)),
        *_of("lost reply", _SMALL_WRITES, _rule("POST.*", "lost_reply", times=2)),
        *_of("lost reply", _LARGE_WRITES, _rule(f"{_PIECE}.*", "lost_reply", times=2)),
        *_of("503 for ever", _ALL, _rule(_ANY, "status", times=-1), ends=StorageError),
        *_of("reset for ever", _ALL, _rule(_ANY, "reset", times=-1), ends=StorageError),
        *_of("refused (403)", _ALL, _rule(_ANY, "status", code=403, times=-1),
             ends=PermissionError),
        *_of("expired (401)", _ALL, _rule(_ANY, "status", code=401, times=-1),
             ends=PermissionError),
        *_of("listed but not there", _READS, _rule(_MEDIA, "status", code=404, times=-1),
             ends=FileNotFoundError),
        *_of("short reply for ever", _READS, _rule(_MEDIA, "short", bytes=10, times=-1),
             ends=StorageError),
        *_of("upload session lost for ever", _LARGE_WRITES,
             _rule(_PIECE, "status", code=410, times=-1), ends=StorageError),
    ]  # fmt: skip
