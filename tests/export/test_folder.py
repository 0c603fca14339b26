"""Folders appear whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.export import folder


def _fill(text: str):
    def fill(directory: str) -> None:
        (Path(directory) / "sub").mkdir()
        (Path(directory) / "sub/a.txt").write_text(text)

    return fill


def test_made_found_again_refused_replaced(tmp_path):
    target = str(tmp_path / "deep/out")
    assert not folder.finished(target, {"step": 1}, overwrite=False)
    folder.write(target, {"step": 1}, _fill("one"))
    assert folder.finished(target, {"step": 1}, overwrite=False)
    with pytest.raises(BadInput, match=r"another export \(step: 1 -> 2\).*--overwrite"):
        folder.finished(target, {"step": 2}, overwrite=False)
    assert not folder.finished(target, {"step": 2}, overwrite=True)
    folder.write(target, {"step": 2}, _fill("two"))
    assert (tmp_path / "deep/out/sub/a.txt").read_text() == "two"
    assert os.listdir(tmp_path / "deep") == ["out"]  # no leftovers


def test_a_failure_leaves_nothing_or_what_was_there(tmp_path):
    target = str(tmp_path / "out")

    def fail(directory: str) -> None:
        _fill("half")(directory)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        folder.write(target, {"step": 1}, fail)
    assert os.listdir(tmp_path) == []
    folder.write(target, {"step": 1}, _fill("one"))
    with pytest.raises(OSError, match="disk full"):
        folder.write(target, {"step": 2}, fail)
    assert (tmp_path / "out/sub/a.txt").read_text() == "one"
    assert os.listdir(tmp_path) == ["out"]


def test_what_a_killed_export_left_goes_with_the_next_one(tmp_path):
    killed = (
        "import os, signal, sys\n"
        "from bigbird_ja.export import folder\n"
        "folder.write(sys.argv[1], {}, lambda _: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    for name in ("out", "other"):
        command = [sys.executable, "-c", killed, str(tmp_path / name)]
        assert subprocess.run(command).returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2

    def beside_another(directory: str) -> None:
        folder.write(str(tmp_path / "out"), {"step": 1}, _fill("of another process"))
        _fill("last")(directory)

    folder.write(str(tmp_path / "out"), {"step": 2}, beside_another)
    assert (tmp_path / "out/sub/a.txt").read_text() == "last"
    left = sorted(os.listdir(tmp_path))
    assert len(left) == 2 and left[0].startswith(".tmp-other.") and left[1] == "out"


def test_foreign_folders_and_files_are_not_touched(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("x")
    with pytest.raises(BadInput, match="something that is no export"):
        folder.finished(str(tmp_path / "mine"), {}, overwrite=False)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match="a file of that name"):
        folder.finished(str(tmp_path / "file"), {}, overwrite=False)
    (tmp_path / "empty").mkdir()
    assert not folder.finished(str(tmp_path / "empty"), {}, overwrite=False)


def test_on_a_bucket_the_record_is_last_and_old_files_go(bucket):
    target = f"{bucket}/out"
    folder.write(target, {"step": 1}, _fill("one"))
    storage.write_text(f"{target}/old.txt", "x")
    assert folder.finished(target, {"step": 1}, overwrite=False)
    folder.write(target, {"step": 2}, _fill("two"))
    assert storage.list_tree(target) == ["export.json", "sub/a.txt"]
    assert storage.read_text(f"{target}/sub/a.txt") == "two"
