"""Functions for files have the same guarantees on disk and on a bucket."""

import os

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput


def test_files_are_read_as_they_were_written(base):
    path = f"{base}/日本 a b+c.json"
    before = storage.exists(path)
    storage.write_bytes(path, b"{}")
    storage.write_text(path, "二")
    assert not before and storage.read_text(path) == "二" and storage.exists(path)
    assert storage.exists(base) and not storage.exists(path[:-1])
    info = storage.stat(path)
    assert info.size == 3 and info.crc32c in (None, storage.compute_crc32c("二".encode()))
    assert not storage.exists(f"{base}/X")
    storage.write_bytes(f"{base}/empty", b"")
    assert storage.read_bytes(f"{base}/empty") == storage.open_read(f"{base}/empty").read() == b""
    storage.write_bytes(path, b"ab\xff")
    with pytest.raises(BadInput, match="byte 2"):
        storage.read_text(path)


def test_a_failing_write_leaves_the_old_file_and_nothing_else(base):
    storage.write_bytes(f"{base}/a", b"old")
    with pytest.raises(RuntimeError), storage.writing(f"{base}/a") as file:
        file.write(b"half of the new")
        raise RuntimeError
    assert storage.read_bytes(f"{base}/a") == b"old" and storage.list_files(base) == ["a"]


def test_missing_files_carry_their_name(base):
    missing = [f"{base}/nowhere/x"] + ["gs://no-such-bucket/x"] * base.startswith("gs://")
    for path in missing:
        for action in (storage.read_bytes, storage.open_read, storage.stat):
            with pytest.raises(FileNotFoundError) as caught:
                action(path)
            assert caught.value.filename == path
        storage.delete(path)
        assert storage.exists(path) is False
    if path.startswith("gs://no-such") or not path.startswith("gs://"):
        with pytest.raises(FileNotFoundError) as caught:
            storage.write_bytes(path, b"")
        assert caught.value.filename == path
    assert storage.list_files(f"{base}/nowhere") == storage.list_tree(f"{base}/nowhere") == []


def test_compare_and_swap(base):
    path = f"{base}/lock"
    assert storage.create_exclusive(path, b"A") and not storage.create_exclusive(path, b"late")
    data, token = storage.read_with_token(path)
    assert data == b"A" and storage.stat(path).token == token
    newer = storage.replace_if(path, b"B", token)
    assert newer == storage.stat(path).token
    assert storage.replace_if(path, b"late", token) is None
    assert storage.read_bytes(path) == b"B"
    if storage.is_remote(path):
        storage.delete_if(path, token)
        assert storage.read_bytes(path) == b"B"
        storage.delete_if(path, newer)
        assert not storage.exists(path)
    storage.delete(path)
    assert storage.replace_if(path, b"D", newer) is None and not storage.exists(path)


def test_listing_and_globbing(base):
    for name in ("b", "a", "d/c", "d/e/f"):
        storage.make_directory(storage.get_directory(f"{base}/{name}"))
        storage.write_bytes(f"{base}/{name}", b"")
    assert storage.list_files(base) == storage.list_files(f"{base}/") == ["a", "b"]
    assert storage.list_stats(base) == {n: storage.stat(f"{base}/{n}") for n in ("a", "b")}
    assert storage.list_tree(base) == ["a", "b", "d/c", "d/e/f"]
    assert storage.glob(f"{base}/[!b]") == [f"{base}/a"] + [f"{base}/d"] * (base[:5] != "gs://")
    assert storage.glob(f"{base}/?/c") == storage.glob(f"{base}/**/c") == [f"{base}/d/c"]
    storage.delete_many(f"{base}/{name}" for name in ("a", "b", "gone"))
    assert storage.list_tree(base) == ["d/c", "d/e/f"]
    # An error of the file system does not mean that the path is absent.
    with pytest.raises(OSError):
        storage.exists(f"/tmp/{'x' * 300}")


def test_copies_and_renames(base, tmp_path):
    source = str(tmp_path / "s")
    storage.write_bytes(source, os.urandom(3 << 20))
    for number in range(3):
        storage.upload(source, f"{base}/t{number}")
    storage.rename(f"{base}/t0", f"{base}/t1")
    storage.download(f"{base}/t1", f"{source}b")
    fetched = storage.fetch(f"{base}/t1", str(tmp_path))
    for path in (f"{source}b", fetched):
        assert storage.read_bytes(path) == storage.read_bytes(source)
    with pytest.raises(FileNotFoundError):
        storage.rename(f"{base}/t0", f"{base}/t3")
    storage.take(source, f"{base}/t2")
    assert storage.list_files(base) == ["t1", "t2"] and not os.path.exists(source)


def test_reading_a_whole_file_has_a_limit(base):
    path = f"{base}/ja.model"
    storage.write_bytes(path, bytes(100_000))
    assert storage.read_bytes(path, 100_000) == bytes(100_000)
    with pytest.raises(BadInput, match=r"ja\.model has more than 99,999 bytes"):
        storage.read_text(path, 99_999)


def test_names_cannot_leave_their_directory():
    for name in ("../x", "/x", "a/../../x", "..", "gs://other/x", "a\0b", "", "..\\x", "\\x"):
        for folder in ("/data", "gs://bucket/data"):
            with pytest.raises(BadInput):
                storage.join(folder, name)
