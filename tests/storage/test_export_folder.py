"""The record of an export is written last, and only files of earlier exports are replaced."""

import os
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.storage import export_folder as folder
from bigbird_ja.storage.ownership import MANIFEST_NAME

FILES = sorted([MANIFEST_NAME, "export.json", "sub/a.txt"])


@pytest.fixture
def target(base):
    """Return the path of a folder for an export, which does not exist yet."""
    return f"{base}/deep/out"


def _record(step):
    return {"bigbird_ja": "1.0", "step": step, "checkpoint": {"x": "y"}}


def _fill(text, name="a.txt"):
    def fill(directory):
        (Path(directory) / "sub").mkdir()
        (Path(directory) / "sub" / name).write_text(text)

    return fill


def _export(target, step, text, overwrite=False, **fill):
    """Write an export as `bigbird-ja export` does. Return whether it was already finished."""
    if folder.is_finished(str(target), _record(step), overwrite):
        return True
    folder.write(str(target), _record(step), _fill(text, **fill), overwrite)
    return False


def _text(target, name="sub/a.txt"):
    return storage.read_text(f"{target}/{name}")


def _write(path, text):
    storage.make_directory(storage.get_directory(path))
    storage.write_text(path, text)


def test_files_that_a_user_changed_or_added_are_kept(target, caplog):
    """Keep files that the user changed or added: fine-tuned weights, notes, a git folder."""
    _export(target, 1, "one")
    storage.write_text(f"{target}/sub/a.txt", "fine-tuned")
    for name in ("notes.txt", ".git/HEAD", "sub/mine"):
        _write(f"{target}/{name}", name)
    assert _export(target, 1, "one") and _text(target) == "fine-tuned"
    storage.delete(f"{target}/export.json")
    assert not _export(target, 1, "one")  # Without export.json, an export is not finished.
    assert not _export(target, 2, "two", overwrite=True, name="b.txt")
    assert f"was moved to {target}.replaced-2" in caplog.text
    assert storage.list_tree(f"{target}.replaced-1") == [MANIFEST_NAME, "sub/a.txt"]
    assert _text(f"{target}.replaced-1") == "fine-tuned" and _text(f"{target}.replaced-2") == "one"
    assert _text(target, "sub/b.txt") == "two" and "sub/a.txt" not in storage.list_tree(target)
    for name in ("notes.txt", ".git/HEAD", "sub/mine"):
        assert _text(target, name) == name


def test_a_file_that_appears_during_an_export_is_kept(target):
    def fill(directory):
        _fill("new")(directory)
        _write(f"{target}/notes.txt", "mine")
        _write(f"{target}/sub/a.txt", "mine too")

    with pytest.raises(BadInput, match=r"sub/a\.txt was not created by bigbird-ja"):
        folder.write(target, _record(2), fill)
    assert _text(target, "notes.txt") == "mine" and _text(target) == "mine too"


def test_a_failing_export_leaves_the_previous_state(tmp_path):
    target = str(tmp_path / "out")

    def fail(directory):
        _fill("half")(directory)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        folder.write(target, _record(1), fail)
    assert os.listdir(tmp_path) == []
    _export(target, 1, "one")
    with pytest.raises(OSError, match="disk full"):
        folder.write(target, _record(2), fail, overwrite=True)
    assert _text(target) == "one"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("step", [1, 2])
def test_an_interrupted_upload_is_completed_by_the_same_command(
    bucket, fake_gcs, monkeypatch, step
):
    target = f"{bucket}/out"
    if step == 2:
        _export(target, 1, "one", name="old.txt")
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", "0.3")
    fake_gcs.fault(match="POST .*upload", do="status", skip=3, times=-1)
    with pytest.raises(StorageError):
        _export(target, step, "new", overwrite=step == 2)
    fake_gcs.clear()
    assert "export.json" not in storage.list_tree(target)  # The folder must not look finished.
    assert not _export(target, step, "new")
    assert storage.list_tree(target) == FILES and _text(target) == "new"


def test_the_second_of_two_exports_into_one_folder_is_refused(target):
    def fill(directory):
        with pytest.raises(BadInput, match=f"process {os.getpid()} on host .* is writing to"):
            folder.write(target, _record(2), _fill("two"))
        _fill("one")(directory)

    folder.write(target, _record(1), fill)
    assert _text(target) == "one" and storage.list_tree(target) == FILES


def test_an_export_that_another_process_finished_meanwhile_is_kept(target):
    assert not folder.is_finished(target, _record(1), overwrite=False)
    _export(target, 1, "theirs")
    folder.write(target, _record(1), _fill("ours"))  # Both exports are of step 1.
    with pytest.raises(BadInput, match="contains another export"):
        folder.write(target, _record(2), _fill("ours"))
    assert _text(target) == "theirs"
