"""A path is classified without opening it; a bad one is refused in one line."""

import os

import pytest

from bigbird_ja import storage
from bigbird_ja.process.classify import classify
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import paths


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("", "is empty"),
        ("a\nb", "control"),
        ("a\0b", "control"),
        ("/", "a folder: name a file"),
        ("/nonexistent", "no such file"),
        ("s3://bucket/x", "neither gs://"),
        ("gs:///x", "expected gs://bucket/name"),
    ],
)
def test_names_that_cannot_be_a_files(name, printed):
    with pytest.raises(BadInput, match=printed):
        paths.check_input_file(name, "--input")


def test_what_cannot_be_looked_at_is_bad_input(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    odd = (("loop", "symbolic links"), ("x" * 300, "too long"), ("file/x", "no such file"))
    for name, reason in (*odd, (os.fsdecode(b"odd-\xff"), "not UTF-8")):
        with pytest.raises((BadInput, OSError)) as refused:
            paths.check_input_file(f"{tmp_path}/{name}", "--input")
        error = classify(refused.value)
        assert error.status == 2 and reason in str(error)


def test_nothing_opens_or_replaces_what_is_special(tmp_path):
    """A FIFO in place of any file: whoever opened it would wait for ever."""
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    for act in (
        storage.read_bytes,
        storage.open_read,
        storage.crc32c_of_file,
        lambda path: paths.check_input_file(path, "--input"),
        lambda path: storage.write_bytes(path, b"x"),
        lambda path: storage.upload(path, str(tmp_path / "copy")),
    ):
        with pytest.raises(BadInput, match="FIFO"):
            act(path)
    assert os.listdir(tmp_path) == ["fifo"]
