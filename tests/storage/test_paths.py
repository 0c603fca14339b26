"""Paths that cannot be read or written are refused in one line, and never opened."""

import os

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.process.classify import classify


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is empty"),
        ("a\nb", "control"),
        ("a\0b", "control"),
        ("/", "Is a directory: check the path"),
        ("/nonexistent", "No such file"),
        ("s3://bucket/x", "neither on gs://"),
        ("gs:///x", "expected gs://bucket/name"),
        ("{}/loop", "symbolic links"),
        ("{}/file/x", "Not a directory"),
        ("{}/" + "x" * 300, "too long"),
        (os.fsdecode(b"odd-\xff"), "not UTF-8"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_a_name_that_cannot_be_read_is_bad_input(name, reason, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    with pytest.raises((BadInput, OSError)) as refused:
        storage.open_read(name.format(tmp_path))
    error = classify(refused.value)
    assert error.status == 2 and reason in str(error)


def test_a_fifo_is_neither_opened_nor_replaced(tmp_path):
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    for act in (
        storage.read_bytes,
        storage.open_read,
        storage.compute_file_crc32c,
        lambda path: storage.write_bytes(path, b"x"),
        lambda path: storage.upload(path, str(tmp_path / "copy")),
    ):
        with pytest.raises(BadInput, match="FIFO"):
            act(path)
    assert os.listdir(tmp_path) == ["fifo"]
