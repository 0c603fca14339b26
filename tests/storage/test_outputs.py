"""Where a command may write: into nothing, or over what it has made."""

from __future__ import annotations

import os

import pytest

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import outputs, plotting
from tests.storage import odd_paths


def _ours(path: str) -> bool:
    return storage.read_bytes(path) == b"ours"


def _check_file(path: object, overwrite: bool = True) -> None:
    outputs.check_output_file(str(path), "--output", overwrite, _ours, "report")


def _check_folder(path: object, overwrite: bool = True) -> None:
    outputs.check_output_directory(
        str(path), "--output_dir", overwrite, lambda at: os.path.exists(f"{at}/ours"), "export"
    )


@pytest.mark.parametrize("kind", odd_paths.KINDS)
@pytest.mark.parametrize("check", [_check_file, _check_folder])
def test_odd_outputs_are_refused_and_left(check, kind, tmp_path):
    path = odd_paths.make(kind, tmp_path)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(BadInput, match=r"^--output(_dir)? .*"):
        check(path)
    assert sorted(os.listdir(tmp_path)) == before


def test_only_our_own_file_is_replaced(tmp_path):
    _check_file(tmp_path / "new/deep/file")
    assert os.listdir(tmp_path) == []  # a check makes nothing
    outputs.write(str(tmp_path / "new/deep/file"), b"ours")
    _check_file(tmp_path / "new/deep/file")
    with pytest.raises(BadInput, match="exists: choose another name, or give --overwrite"):
        _check_file(tmp_path / "new/deep/file", overwrite=False)
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    for name, said in (
        ("thesis", "a file that report did not make"),
        ("link", "a symbolic link"),
        ("nowhere", "a symbolic link"),
        ("new", "a folder: name a file"),
        ("thesis/", "a folder's name"),
        ("thesis/x", "thesis is not a folder|a file, not a folder"),
    ):
        with pytest.raises(BadInput, match=said):
            _check_file(f"{tmp_path}/{name}")


def test_only_our_own_folder_is_replaced(tmp_path):
    _check_folder(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    _check_folder(tmp_path / "empty", overwrite=False)
    (tmp_path / "made").mkdir()
    (tmp_path / "made/ours").touch()
    _check_folder(tmp_path / "made")
    (tmp_path / "link").symlink_to(tmp_path / "made")
    _check_folder(tmp_path / "link")
    with pytest.raises(BadInput, match="symbolic link"):
        outputs.refuse_link(f"{tmp_path}/link/", "--output_dir")
    with pytest.raises(BadInput, match="give --overwrite"):
        _check_folder(tmp_path / "made", overwrite=False)
    with pytest.raises(BadInput, match="something that export did not make"):
        _check_folder(tmp_path)
    with pytest.raises(BadInput, match="a file of that name"):
        _check_folder(tmp_path / "made/ours")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_parent_is_found_before_work(tmp_path):
    tmp_path.chmod(0o500)
    for check in (_check_file, _check_folder):
        with pytest.raises(BadInput, match="cannot be written to"):
            check(tmp_path / "deep/x")
    tmp_path.chmod(0o700)


def test_on_a_bucket(bucket):
    _check_file(f"{bucket}/x")
    _check_folder(f"{bucket}/x")
    storage.write_text(f"{bucket}/x/thesis", "years of work")
    with pytest.raises(BadInput, match="a folder: name a file"):
        _check_file(f"{bucket}/x")
    with pytest.raises(BadInput, match="did not make"):
        _check_file(f"{bucket}/x/thesis")
    with pytest.raises(BadInput, match="did not make"):
        _check_folder(bucket)
    storage.write_text(f"{bucket}/mine", "ours")
    _check_file(f"{bucket}/mine")


@pytest.mark.parametrize(
    ("source", "output", "overlaps"),
    [
        ("a", "a", True), ("a", "a/", True), ("a/b", "a", True), ("a", "a/b", True),
        ("a", "./b/../a", True), ("a", "ab", False), ("a/b", "a/c", False),
        ("gs://b/a", "gs://b", True), ("gs://b/a", "gs://b/ab", False), (None, "a", False),
    ],
)  # fmt: skip
def test_overlap(source, output, overlaps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    if not overlaps:
        outputs.refuse_overlap({"--in": source}, {"--out": output})
        return
    with pytest.raises(BadInput, match=r"^--out .*overlaps with --in"):
        outputs.refuse_overlap({"--in": source}, {"--out": output})
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(BadInput, match="overlaps"):
        outputs.refuse_overlap({"--in": "link"}, {"--out": "a"})


def test_what_we_made_is_recognised_by_its_content(tmp_path):
    pytest.importorskip("matplotlib")
    ours, other = str(tmp_path / "ours.png"), str(tmp_path / "other.png")
    figure = plotting.new_figure(2, 2)
    plotting.save(figure, ours, dpi=50)
    figure.savefig(other, dpi=50)
    assert outputs.is_our_picture(ours) and not outputs.is_our_picture(other)
    is_ours = outputs.is_json_with("chips", "versions")
    for text, expected in (
        ('{"chips": [], "versions": {}, "more": 1}', True),
        ('{"chips": []}', False),
        ("[]", False),
        ("[" * 20_000, False),
        ("\xff", False),
        ("", False),
    ):
        (tmp_path / "x.json").write_text(text, encoding="latin-1")
        assert is_ours(str(tmp_path / "x.json")) is expected
