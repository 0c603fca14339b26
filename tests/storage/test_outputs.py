"""Commands create outputs, and replace only outputs of their own."""

import contextlib
import os

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.storage import outputs


def _check_file(path):
    outputs.check_output_file(str(path), "--output")


def _check_folder(path):
    outputs.check_folder_place(str(path), "--output_dir")


def test_only_a_file_of_ours_is_replaced(tmp_path):
    path = tmp_path / "new/deep/file"
    _check_file(path)
    assert os.listdir(tmp_path) == []  # A check creates nothing.
    for content in (b"ours", b"newer"):
        outputs.write(str(path), content)
        _check_file(path)
    mine = path.with_name("mine")
    mine.write_text("years of work")
    outputs.check_output_file(str(mine), "--output", replaces=False)
    with pytest.raises(BadInput, match="not created by bigbird-ja"):
        outputs.write(str(mine), b"newest")  # The user created the file after the check.
    assert mine.read_text() == "years of work"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("thesis", "not created by bigbird-ja"),
        ("link", "a symbolic link"),
        ("nowhere", "a symbolic link"),
        ("nowhere/x", "nowhere, which is not a folder"),
        ("new", "a folder: name a file"),
        ("thesis/", "ends with a slash"),
        ("thesis/x", "thesis, which is not a folder"),
    ],
)
def test_places_of_no_file_are_refused(name, reason, tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / "new").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    with pytest.raises(BadInput, match=reason):
        _check_file(f"{tmp_path}/{name}")
    _check_folder(tmp_path / "new")
    for place, why in (("thesis", "is a file: name a folder"), ("nowhere", "a broken")):
        with pytest.raises(BadInput, match=why):
            _check_folder(tmp_path / place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_parent_is_found_before_work(tmp_path):
    tmp_path.chmod(0o500)
    for check in (_check_file, _check_folder):
        with pytest.raises(BadInput, match="not writable"):
            check(tmp_path / "deep/x")
    tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("source", "output", "overlaps"),
    [
        ("a", "a", True),
        ("a/b", "a", True),
        ("a", "a/b", True),
        ("a", "./b/../a", True),
        ("link", "a", True),
        ("a", "ab", False),
        ("gs://b/a", "gs://b", True),
        ("gs://b/a", "gs://b/ab", False),
        (None, "a", False),
    ],
)
def test_overlap(source, output, overlaps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    refused = pytest.raises(BadInput, match=r"^--out .*overlaps with --in")
    with refused if overlaps else contextlib.nullcontext():
        outputs.refuse_overlap({"--in": source}, output, "--out")
