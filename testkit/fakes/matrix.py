"""Every kind of fault against every operation of `bigbird_ja.storage`, with the end it must have.

tests/storage/test_faults.py runs it case by case; scripts/bench_faults.py counts it by kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process.errors import StorageError
from testkit.fakes.gcs_process import FakeGcs

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
    def seconds(self) -> float:
        """The deadline to run it with: a lasting fault is waited out in full."""
        return 0.3 if self.ends is StorageError else 3.0

    @property
    def name(self) -> str:
        """For a test's id."""
        return f"{self.kind} | {self.operation}".replace(" ", "_")


def run_case(case: Case, fake: FakeGcs, base: str, scratch: str) -> None:
    """Runs one case on an empty directory `base` of the bucket.

    Raises:
        WrongEndError: it was not survived, or did not end as it must.
    """
    prepare, act = OPERATIONS[case.operation]
    fake.clear()
    prepare(fake, base)
    for rule in case.rules:
        fake.fault(**rule)
    try:
        act(fake, base, scratch)
    except Exception as error:
        if case.ends is None or not isinstance(error, case.ends):
            raise WrongEndError(f"{case.name}: {error!r}") from error
        if base not in str(error) and base not in str(getattr(error, "filename", "")):
            raise WrongEndError(f"{case.name}: does not name the object: {error}") from error
    else:
        if case.ends is not None:
            raise WrongEndError(f"{case.name}: went through, {case.ends.__name__} was due")
    finally:
        fake.clear()
    if any(name.startswith(storage.TEMPORARY_PREFIX) for name in os.listdir(scratch)):
        raise WrongEndError(f"{case.name}: left a temporary file")


def _expect(condition: bool) -> None:
    if not condition:
        raise WrongEndError("the data differ")


def _nothing(fake: FakeGcs, base: str) -> None:
    pass


def _with_small(fake: FakeGcs, base: str) -> None:
    fake.put(f"{base}/f", SMALL)


def _with_large(fake: FakeGcs, base: str) -> None:
    fake.put(f"{base}/f", LARGE)


def _write(data: bytes) -> Callable[[FakeGcs, str, str], None]:
    def act(fake: FakeGcs, base: str, scratch: str) -> None:
        storage.write_bytes(f"{base}/f", data)
        fake.clear()
        _expect(fake.get(f"{base}/f") == data)

    return act


def _upload(fake: FakeGcs, base: str, scratch: str) -> None:
    source = os.path.join(scratch, "source")
    storage.write_bytes(source, LARGE)
    storage.upload(source, f"{base}/f")
    fake.clear()
    _expect(fake.get(f"{base}/f") == LARGE)


def _download(fake: FakeGcs, base: str, scratch: str) -> None:
    target = os.path.join(scratch, "target")
    storage.delete(target)
    try:
        storage.download(f"{base}/f", target)
    except Exception:
        _expect(not os.path.exists(target))
        raise
    _expect(storage.read_bytes(target) == LARGE)


def _stream(fake: FakeGcs, base: str, scratch: str) -> None:
    with storage.open_read(f"{base}/f") as file:
        _expect(file.read() == LARGE)


def _delete(fake: FakeGcs, base: str, scratch: str) -> None:
    storage.delete(f"{base}/f", missing_ok=False)
    _expect(fake.names(base.split("/")[2], base.split("/", 3)[3] + "/") == [])


def _delete_if(fake: FakeGcs, base: str, scratch: str) -> None:
    token = storage.stat(f"{base}/f").token
    _expect(storage.delete_if(f"{base}/f", token))


def _create(fake: FakeGcs, base: str, scratch: str) -> None:
    _expect(storage.create_exclusive(f"{base}/f", SMALL))
    _expect(not storage.create_exclusive(f"{base}/f", SMALL))


def _swap(fake: FakeGcs, base: str, scratch: str) -> None:
    token = storage.stat(f"{base}/f").token
    _expect(storage.replace_if(f"{base}/f", b"new", token) is not None)
    _expect(fake.get(f"{base}/f") == b"new")
    _expect(storage.replace_if(f"{base}/f", b"newer", token) is None)


def _read(fake: FakeGcs, base: str, scratch: str) -> None:
    _expect(storage.read_bytes(f"{base}/f") == SMALL)


def _list(fake: FakeGcs, base: str, scratch: str) -> None:
    _expect(storage.list_files(base) == ["f"])


def _exists(fake: FakeGcs, base: str, scratch: str) -> None:
    _expect(storage.exists(f"{base}/f"))


# Operation -> what it starts from, what it does and checks.
OPERATIONS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "write small": (_nothing, _write(SMALL)),
    "write large": (_nothing, _write(LARGE)),
    "upload": (_nothing, _upload),
    "download": (_with_large, _download),
    "stream": (_with_large, _stream),
    "read": (_with_small, _read),
    "list": (_with_small, _list),
    "exists": (_with_small, _exists),
    "delete": (_with_small, _delete),
    "delete if": (_with_small, _delete_if),
    "create": (_nothing, _create),
    "swap": (_with_small, _swap),
}
_LARGE_WRITES = ("write large", "upload")
_LARGE_READS = ("download", "stream")
_MEDIA = "alt=media"
_PIECE = "PUT .*upload_id"
_ANY = r"/b/b-"


def _rule(match: str, do: str, **how: Any) -> dict[str, Any]:
    return {"match": match, "do": do, **how}


def cases() -> list[Case]:
    """The whole matrix."""
    return [*_passing(), *_transfers(), *_lost_replies(), *_lasting()]


def _passing() -> list[Case]:
    made = []
    for operation in OPERATIONS:
        for code, words in ((503, "503 burst"), (429, "429 burst"), (500, "500 burst")):
            rules = (_rule(_ANY, "status", code=code, times=3),)
            made.append(Case(words, operation, rules))
        made.append(Case("reset before the answer", operation, (_rule(_ANY, "reset", times=2),)))
        made.append(Case("30 % random 503", operation, (_rule(_ANY, "status", p=0.3, times=-1),)))
        late = (_rule(_ANY, "delay", seconds=0.3),)
        made.append(Case("slow answer", operation, late))
    return made


def _transfers() -> list[Case]:
    made = []
    stall = _rule(_PIECE, "stall", bytes=3 * MiB, seconds=9)
    for operation in _LARGE_WRITES:
        made += [
            Case(
                "reset in mid upload",
                operation,
                tuple(_rule(_PIECE, "reset", bytes=n * MiB) for n in (2, 7, 16)),
            ),
            Case("stall in mid upload", operation, (stall,)),
            Case("upload session lost", operation, (_rule(_PIECE, "status", code=410),)),
            Case("upload session lost", operation, (_rule(_PIECE, "status", code=404, skip=1),)),
            Case("damaged upload", operation, (_rule(_PIECE, "corrupt", bytes=9 * MiB),)),
        ]
    for operation in _LARGE_READS:
        for do, words in (
            ("reset", "reset in mid download"),
            ("truncate", "truncated download"),
            ("short", "complete but short reply"),
        ):
            made.append(Case(words, operation, (_rule(_MEDIA, do, bytes=5 * MiB, times=2),)))
        stall = (_rule(_MEDIA, "stall", bytes=3 * MiB, seconds=9),)
        made.append(Case("stall in mid download", operation, stall))
        slow = (_rule(_MEDIA, "slow", bytes=4 * MiB, seconds=0.05),)
        made.append(Case("slow download", operation, slow))
        # A stream's reader has used the bytes already: it can only be told. (Each reply is damaged
        # then: on a busy machine the first may come too late, and be asked for again.)
        is_stream = operation == "stream"
        damaged = (_rule(_MEDIA, "corrupt", bytes=5 * MiB, times=-1 if is_stream else 1),)
        end = StorageError if is_stream else None
        made.append(Case("damaged download", operation, damaged, end))
    for do, words in (
        ("truncate", "truncated download"),
        ("short", "complete but short reply"),
        ("corrupt", "damaged download"),
    ):
        made.append(Case(words, "read", (_rule(_MEDIA, do, bytes=50, times=2),)))
    return made


def _lost_replies() -> list[Case]:
    methods = {"delete": "DELETE", "delete if": "DELETE", "write small": "POST", "create": "POST"}
    methods |= {"swap": "POST", "write large": _PIECE, "upload": _PIECE}
    return [
        Case("lost reply", operation, (_rule(f"{method}.*", "lost_reply", times=times),))
        for operation, method in methods.items()
        for times in (1, 2)
    ]


def _lasting() -> list[Case]:
    made = []
    for operation in OPERATIONS:
        for words, rule, end in (
            ("503 for ever", _rule(_ANY, "status", times=-1), StorageError),
            ("reset for ever", _rule(_ANY, "reset", times=-1), StorageError),
            ("refused (403)", _rule(_ANY, "status", code=403, times=-1), PermissionError),
            ("expired (401)", _rule(_ANY, "status", code=401, times=-1), PermissionError),
        ):
            made.append(Case(words, operation, (rule,), end))
    for operation in ("read", "download", "stream"):
        gone = (_rule(_MEDIA, "status", code=404, times=-1),)
        made.append(Case("listed but not there", operation, gone, FileNotFoundError))
        cut = (_rule(_MEDIA, "short", bytes=10, times=-1),)
        made.append(Case("short reply for ever", operation, cut, StorageError))
    for operation in _LARGE_WRITES:
        lost = (_rule(_PIECE, "status", code=410, times=-1),)
        made.append(Case("upload session lost for ever", operation, lost, StorageError))
    return made
