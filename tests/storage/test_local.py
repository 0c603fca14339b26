"""Files on disk: whole or not at all, honest errors, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput, StorageError, classify
from bigbird_ja.storage import local

ROOT = Path(__file__).resolve().parents[2]


def test_writes_are_whole_and_obey_the_umask(tmp_path: Path) -> None:
    path = str(tmp_path / "a.json")
    old = os.umask(0o027)
    try:
        storage.write_bytes(path, b"one")
        storage.create_exclusive(path + ".lock", b"me")
    finally:
        os.umask(old)
    assert os.stat(path).st_mode & 0o777 == 0o640
    assert os.stat(path + ".lock").st_mode & 0o777 == 0o640
    storage.write_text(path, "二")
    assert storage.read_text(path) == "二"
    assert sorted(os.listdir(tmp_path)) == ["a.json", "a.json.lock"]


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    storage.write_bytes(path, b"old")
    with pytest.raises(RuntimeError), local.writing(path) as file:
        file.write(b"half of the new")
        raise RuntimeError
    assert storage.read_bytes(path) == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_names_the_file_and_is_an_io_error(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys\n"
        "from bigbird_ja import storage\n"
        "from bigbird_ja.process.errors import classify\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    storage.write_bytes(sys.argv[1], bytes(100_000))\n"
        "except OSError as error:\n"
        "    print(classify(error).status, classify(error))\n"
    )
    path = str(tmp_path / "model.data")
    storage.write_bytes(path, b"last good")
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.startswith(f"74 disk full: {path}")
    assert storage.read_bytes(path) == b"last good"
    assert os.listdir(tmp_path) == ["model.data"]


def test_a_killed_writer_is_swept_by_the_next_writer_of_that_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    program = (
        "import os, signal, sys\n"
        "from bigbird_ja.storage import local\n"
        "with local.writing(sys.argv[1]) as file:\n"
        "    file.write(b'half'); file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, path], cwd=ROOT, check=False)
    left = os.listdir(tmp_path)
    assert len(left) == 1 and left[0].startswith(storage.TEMPORARY_PREFIX)  # the second swept
    assert storage.list_files(str(tmp_path)) == [] and storage.list_tree(str(tmp_path)) == []
    assert storage.glob(str(tmp_path / "*")) == []
    storage.write_bytes(str(tmp_path / "other"), b"")
    assert len(os.listdir(tmp_path)) == 2  # not its business
    storage.write_bytes(path, b"whole")
    assert sorted(os.listdir(tmp_path)) == ["a", "other"]


def test_clean_temporary_spares_the_living(tmp_path: Path) -> None:
    directory, host = str(tmp_path), local._host
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = {
        "dead": f".tmp-a.{host}-{dead.pid}-00",
        "alive": f".tmp-a.{host}-{os.getppid()}-00",
        "foreign": ".tmp-a.ffffff-1-00",
        "old foreign": ".tmp-b.ffffff-1-00",
    }
    for name in names.values():
        (tmp_path / name).write_bytes(b"x")
    os.utime(tmp_path / names["old foreign"], (0, 0))
    with local.writing(str(tmp_path / "own")) as file:
        file.write(b"y")
        assert storage.clean_temporary(directory, older_than=60.0) == [names["old foreign"]]
        assert storage.clean_temporary(directory) == [names["dead"]]
    assert sorted(os.listdir(directory)) == sorted([names["alive"], names["foreign"], "own"])


def test_missing_and_forbidden_files_carry_their_name(tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere" / "x")
    for action in (storage.read_bytes, storage.open_read, storage.size):
        with pytest.raises(FileNotFoundError) as caught:
            action(missing)
        assert caught.value.filename == missing
    with pytest.raises(FileNotFoundError) as caught:
        storage.write_bytes(missing, b"")
    assert caught.value.filename == missing
    end = classify(caught.value)
    assert isinstance(end, BadInput) and missing in str(end)
    assert storage.exists(missing) is False
    assert storage.list_files(str(tmp_path / "nowhere")) == []
    storage.delete(missing)
    with pytest.raises(FileNotFoundError):
        storage.delete(missing, missing_ok=False)
    with pytest.raises(IsADirectoryError):
        storage.size(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_refusal_is_not_absence(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "x").write_bytes(b"")
    closed.chmod(0)
    try:
        with pytest.raises(PermissionError):
            storage.exists(str(closed / "x"))
    finally:
        closed.chmod(0o700)


def test_only_one_of_many_creates(tmp_path: Path) -> None:
    path, wins = str(tmp_path / "lock"), []

    def create(owner: int) -> None:
        if storage.create_exclusive(path, f"owner {owner}".encode()):
            wins.append(owner)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert storage.read_text(path) == f"owner {wins[0]}"
    assert os.listdir(tmp_path) == ["lock"]


def test_create_exclusive_where_links_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    path = str(tmp_path / "lock")
    assert storage.create_exclusive(path, b"1") is True
    assert storage.create_exclusive(path, b"2") is False
    assert storage.read_bytes(path) == b"1" and os.listdir(tmp_path) == ["lock"]


def test_what_is_read_whole_is_looked_at_first(tmp_path: Path) -> None:
    path = tmp_path / "ja.model"
    path.write_bytes(b"model")
    os.truncate(path, 64 << 30)  # a hole, which no memory holds
    with pytest.raises(BadInput, match=r"ja\.model: more than 268,435,456 bytes"):
        storage.read_bytes(str(path))
    path.write_bytes(b"model")
    assert storage.read_bytes(str(path), 5) == b"model"
    with pytest.raises(BadInput, match="more than 4 bytes"):
        storage.read_text(str(path), 4)


def test_compare_and_swap(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    storage.write_bytes(path, b"A")
    data, token = storage.read_with_token(path)
    assert data == b"A" and storage.stat(path).token == token
    newer = storage.replace_if(path, b"B", token)
    assert newer and storage.replace_if(path, b"C", token) is None
    assert storage.delete_if(path, token) is False
    assert storage.read_bytes(path) == b"B"
    assert storage.delete_if(path, newer) is True
    assert storage.replace_if(path, b"D", newer) is None and not storage.exists(path)


def test_listing_and_globbing(tmp_path: Path) -> None:
    for name in ("b", "a", "d/c", "d/e/f"):
        storage.make_directory(os.path.dirname(str(tmp_path / name)))
        storage.write_bytes(str(tmp_path / name), b"")
    base = str(tmp_path)
    assert storage.list_files(base) == ["a", "b"]
    assert storage.list_stats(base) == {n: storage.stat(f"{base}/{n}") for n in ("a", "b")}
    assert storage.list_stats(base + "/nowhere") == {}
    assert storage.list_tree(base) == ["a", "b", "d/c", "d/e/f"]
    assert storage.glob(base + "/d/*") == [base + "/d/c", base + "/d/e"]
    assert base + "/d/e/f" in storage.glob(base + "/**/f")


def test_copies_between_disks_need_no_special_case(tmp_path: Path) -> None:
    source = str(tmp_path / "s")
    storage.write_bytes(source, bytes(3 << 20))
    pairs = [(source, str(tmp_path / f"t{n}")) for n in range(3)]
    storage.upload_many(pairs)
    for _, target in pairs:
        storage.download(target, target + "b")
    assert storage.size(str(tmp_path / "t2b")) == 3 << 20
    storage.delete_many(target for _, target in pairs)
    storage.take(source, str(tmp_path / "t2b"))
    assert storage.list_files(str(tmp_path)) == ["t0b", "t1b", "t2b"]


def test_the_first_failure_of_many_stops_the_rest(tmp_path: Path) -> None:
    good = str(tmp_path / "s")
    storage.write_bytes(good, b"x")
    pairs = [(str(tmp_path / "missing"), str(tmp_path / "t"))] + [
        (good, str(tmp_path / f"t{n}")) for n in range(500)
    ]
    with pytest.raises(FileNotFoundError):
        storage.upload_many(pairs, workers=2)
    assert len(storage.list_files(str(tmp_path))) < 500


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "a/../../x", "..", "gs://other/x", "a\0b", "", "..\\x", "\\x"],
)
def test_names_cannot_leave_their_directory(name: str) -> None:
    for base in ("/data", "gs://bucket/data"):
        with pytest.raises(BadInput):
            storage.join(base, name)


@given(st.lists(st.text("ab./\\~", min_size=1, max_size=8), min_size=1, max_size=3))
def test_whatever_is_joined_stays_inside(names: list[str]) -> None:
    for base in ("/data/set", "gs://bucket/set"):
        try:
            path = storage.join(base, *names)
        except BadInput:
            continue
        inside = os.path.normpath(path.removeprefix("gs://bucket"))
        assert inside == "/set" or inside.startswith(("/data/set", "/set/"))


def test_joining() -> None:
    assert storage.join("gs://b/", "a", "c/d") == "gs://b/a/c/d"
    assert storage.join("d", "a.b") == "d/a.b"
    assert storage.directory_of("gs://b/a/c") == "gs://b/a"
    assert storage.directory_of("x") == "."
    assert storage.base_name("gs://b/a/c") == "c"


def test_a_bucket_needs_no_directories() -> None:
    storage.make_directory("gs://b/x")
    assert storage.clean_temporary("gs://b/x") == []
    with pytest.raises(BadInput):
        storage.read_bytes("gs:///x")


def test_not_utf8_is_the_users_input(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    storage.write_bytes(path, b"ab\xff")
    with pytest.raises(BadInput, match="byte 2"):
        storage.read_text(path)


def test_storage_error_is_status_74() -> None:
    assert StorageError("x").status == 74
