"""Folders appear whole or not at all, and only what exports made is ever replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.export import folder
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage.decode import FORMAT_VERSION
from bigbird_ja.storage.lease import held


def _record(step: int) -> dict:
    return {
        "format_version": FORMAT_VERSION, "bigbird_ja": "1.0", "step": step,
        "checkpoint": {"x": "y"},
    }  # fmt: skip


def _fill(text: str, name: str = "a.txt"):
    def fill(directory: str) -> None:
        (Path(directory) / "sub").mkdir()
        (Path(directory) / "sub" / name).write_text(text)
        (Path(directory) / "assets").mkdir()  # TensorFlow leaves an empty one

    return fill


def _export(target: object, step: int, text: str, overwrite: bool = False, **fill: str) -> bool:
    """What `export` does; whether it found the folder finished."""
    folder.check(str(target), {})
    if folder.finished(str(target), _record(step), overwrite):
        return True
    folder.write(str(target), _record(step), _fill(text, **fill), overwrite)
    return False


def _contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_made_found_again_refused_replaced(tmp_path):
    target = tmp_path / "deep/out"
    assert not _export(target, 1, "one")
    assert _export(target, 1, "one")
    with pytest.raises(BadInput, match=r"another export \(step: 1 -> 2\).*--overwrite"):
        _export(target, 2, "two")
    assert not _export(target, 2, "two", overwrite=True)
    assert (target / "sub/a.txt").read_text() == "two"
    assert os.listdir(tmp_path / "deep") == ["out"]  # no leftovers
    (target / "sub/a.txt").unlink()  # a file is gone: it is not finished
    assert not _export(target, 2, "two")
    assert (target / "sub/a.txt").read_text() == "two"


def test_a_failure_leaves_nothing_or_what_was_there(tmp_path):
    target = str(tmp_path / "out")

    def fail(directory: str) -> None:
        _fill("half")(directory)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        folder.write(target, _record(1), fail)
    assert os.listdir(tmp_path) == []
    _export(target, 1, "one")
    with pytest.raises(OSError, match="disk full"):
        folder.write(target, _record(2), fail, overwrite=True)
    assert (tmp_path / "out/sub/a.txt").read_text() == "one"
    assert os.listdir(tmp_path) == ["out"]


def _killed_export(target: object) -> None:
    killed = (
        "import os, signal, sys\n"
        "from bigbird_ja.export import folder\n"
        "folder.write(sys.argv[1], {}, lambda _: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    ended = subprocess.run([sys.executable, "-c", killed, str(target)])
    assert ended.returncode == -signal.SIGKILL


def test_what_a_killed_export_left_goes_with_the_next_one(tmp_path):
    for name in ("out", "other"):
        _killed_export(tmp_path / name)
    assert len(os.listdir(tmp_path)) == 2

    def beside_another(directory: str) -> None:
        folder.write(str(tmp_path / "out"), _record(1), _fill("of another process"))
        _fill("last")(directory)

    folder.write(str(tmp_path / "out"), _record(2), beside_another, overwrite=True)
    assert (tmp_path / "out/sub/a.txt").read_text() == "last"
    left = sorted(os.listdir(tmp_path))
    assert len(left) == 2 and left[0].startswith(".tmp-other.") and left[1] == "out"


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_folders_and_files_are_not_touched(tmp_path, overwrite):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("x")
    (tmp_path / "json").mkdir()
    (tmp_path / "json/export.json").write_text("{}")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("mine")
    before = _contents(tmp_path)
    for name, said in (
        ("mine", "something that export did not make"),
        ("json", "something that export did not make"),
        ("file", "a file of that name"),
        ("link", "a symbolic link"),
        (".", "something that export did not make"),
        ("..", "something that export did not make"),
    ):
        with pytest.raises(BadInput, match=said):
            _export(tmp_path / name, 1, "one", overwrite)
    assert _contents(tmp_path) == before
    (tmp_path / "empty").mkdir()
    assert not _export(tmp_path / "empty", 1, "one", overwrite)


@pytest.mark.parametrize("foreign", ["notes.txt", ".git/HEAD", ".tmp-x", "sub/link", "nothing/"])
def test_what_was_added_to_an_export_is_not_removed(tmp_path, foreign):
    target = tmp_path / "out"
    _export(target, 1, "one")
    path = target / foreign
    path.parent.mkdir(exist_ok=True)
    if foreign.endswith("link"):
        path.symlink_to(tmp_path)
    elif foreign.endswith("/"):
        path.mkdir()
    else:
        path.write_text("mine")
    name = foreign.rstrip("/")
    for step in (1, 2):
        with pytest.raises(BadInput, match=f"holds {name}, which no export made"):
            _export(target, step, "two", overwrite=True)
    assert path.exists() and (target / "sub/a.txt").read_text() == "one"


def test_what_came_meanwhile_stays(tmp_path):
    target = tmp_path / "out"
    _export(target, 1, "one")

    def fill(directory: str) -> None:
        (target / "notes.txt").write_text("mine")

    with pytest.raises(BadInput, match=r"notes\.txt"):
        folder.write(str(target), _record(2), fill)
    assert (target / "notes.txt").read_text() == "mine"
    assert (target / "sub/a.txt").read_text() == "one"


def test_an_export_of_an_unreleased_version_is_refused(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "export.json").write_text(json.dumps({**_record(1), "format_version": ""}))
    before = _contents(target)
    with pytest.raises(BadInput, match=r"export\.json: written by an unreleased version"):
        _export(target, 1, "one", overwrite=True)
    assert _contents(target) == before


def test_on_a_bucket_the_record_is_last_and_only_our_old_files_go(bucket):
    target = f"{bucket}/out"
    _export(target, 1, "one", name="old.txt")
    assert _export(target, 1, "one")
    assert not _export(target, 2, "two", overwrite=True)
    assert storage.list_tree(target) == ["export.json", "sub/a.txt"]
    assert storage.read_text(f"{target}/sub/a.txt") == "two"
    storage.write_text(f"{target}/thesis.txt", "years of work")
    with pytest.raises(BadInput, match=r"thesis\.txt, which no export made"):
        _export(target, 3, "three", overwrite=True)


@pytest.mark.parametrize("has_record", [False, True])
def test_a_bucket_is_never_emptied(bucket, has_record):
    """`--output_dir=gs://bucket --overwrite`: every object that no export made stays."""
    storage.write_text(f"{bucket}/data/manifest.json", "{}")
    if has_record:
        storage.write_text(f"{bucket}/export.json", json.dumps(_record(1)))
    before = storage.list_tree(bucket)
    with pytest.raises(BadInput, match=r"did not make|no export made"):
        _export(bucket, 1, "one", overwrite=True)
    assert storage.list_tree(bucket) == before


@pytest.mark.parametrize("step", [1, 2])
def test_an_interrupted_upload_is_continued_by_the_same_command(
    bucket, fake_gcs, monkeypatch, step
):
    target = f"{bucket}/out"
    if step == 2:
        _export(target, 1, "one", name="old.txt")
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", "0.3")
    fake_gcs.fault(match="POST .*upload", do="status", skip=2, times=-1)
    with pytest.raises(storage.StorageError):
        _export(target, step, "new", overwrite=step == 2)
    fake_gcs.clear()
    assert "export.json" not in storage.list_tree(target)  # nothing looks finished
    with pytest.raises(BadInput, match="another export"):
        _export(target, 7, "another")
    assert not _export(target, step, "new")
    assert storage.list_tree(target) == ["export.json", "sub/a.txt"]
    assert storage.read_text(f"{target}/sub/a.txt") == "new"


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_of_two_at_once_with_other_settings_the_second_is_told(where, tmp_path, request):
    base = str(tmp_path) if where == "disk" else request.getfixturevalue("bucket")
    target = f"{base}/out"

    def meanwhile(directory: str) -> None:
        folder.write(target, _record(1), _fill("first"))
        _fill("second")(directory)

    with pytest.raises(BadInput, match="another export"):
        folder.write(target, _record(2), meanwhile)
    assert storage.read_text(f"{target}/sub/a.txt") == "first"
    folder.write(target, _record(2), _fill("second"), overwrite=True)
    assert storage.list_tree(target) == ["export.json", "sub/a.txt"]
    assert storage.read_text(f"{target}/sub/a.txt") == "second"


def test_on_a_bucket_one_at_a_time(bucket):
    target = f"{bucket}/out"
    said = pytest.raises(BadInput, match=rf"process {os.getpid()} .* is exporting there")
    with held(folder._lease(target)), said:
        _export(target, 1, "one")
    assert not _export(target, 1, "one")
    assert storage.list_tree(target) == ["export.json", "sub/a.txt"]
