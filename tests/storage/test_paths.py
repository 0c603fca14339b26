"""A path is classified without opening it; a bad one is refused in one line."""

import os

import pytest

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput, one_line
from bigbird_ja.storage import paths
from tests.storage import odd_paths


@pytest.mark.parametrize("kind", odd_paths.KINDS)
def test_what_is_odd_is_refused_and_named(kind, tmp_path):
    path = odd_paths.make(kind, tmp_path)
    with pytest.raises(BadInput, match=f"^--input .*({odd_paths.KINDS[kind]})") as result:
        paths.check_input_file(path, "--input")
    line = one_line(str(result.value))
    assert len(line) < 400 and line.isprintable()


@pytest.mark.parametrize(
    ("name", "printed"),
    [("", "is empty"), ("a\nb", "control"), ("a\0b", "control"), ("/", "a folder: name a file"),
     ("/nonexistent", "no such file"), ("s3://bucket/x", "neither gs://"),
     ("gs://b/" + "x" * 1025, "too long"), ("gs:///x", "expected gs://bucket/name")],
)  # fmt: skip
def test_names_that_cannot_be_a_files(name, printed):
    with pytest.raises(BadInput, match=printed):
        paths.check_input_file(name, "--input")


@pytest.mark.parametrize("kind", odd_paths.SPECIAL)
def test_nothing_opens_or_replaces_what_is_special(kind, tmp_path):
    """A FIFO in place of any file: whoever opened it would wait for ever."""
    path = odd_paths.make(kind, tmp_path)
    before = os.lstat(path)
    for act in (
        storage.read_bytes,
        storage.open_read,
        storage.read_with_token,
        storage.crc32c_of_file,
        lambda path: storage.write_bytes(path, b"x"),
        lambda path: storage.upload(path, str(tmp_path / "copy")),
    ):
        with pytest.raises(BadInput, match=odd_paths.KINDS[kind]):
            act(path)
    assert os.lstat(path) == before
    assert os.listdir(tmp_path) == [kind]
