"""The scratch folder of a run: gone with it, or with the next one; what is not ours stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bigbird_ja.train import workspace


@pytest.mark.parametrize("name", ["thesis.txt", "model.ckpt-5.index"])
def test_of_an_earlier_versions_scratch_only_what_it_wrote_goes(tmp_path: Path, name: str) -> None:
    (tmp_path / ".scratch").mkdir()
    (tmp_path / ".scratch" / name).write_text("x")
    with workspace.scratch(str(tmp_path)) as scratch:
        assert os.listdir(scratch) == [] and Path(scratch).is_relative_to(tmp_path)
    assert os.listdir(tmp_path) == ([".scratch"] if name == "thesis.txt" else [])


def test_on_a_bucket_it_is_in_the_systems_place(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with workspace.scratch(f"{bucket}/model") as scratch:
        assert Path(scratch).is_relative_to(tmp_path)
    assert os.listdir(tmp_path) == []


def test_what_a_kill_left_before_it_said_whose_it_is_goes(tmp_path: Path) -> None:
    """Found by `make soak`: such a folder stayed in MODEL_DIR for ever."""
    for name, files in {
        "empty": {}, "begun": {"owner.json": ""}, "cut": {"owner.json": '{"pid": 4'},
        "thesis": {"chapter.txt": "x"}, "both": {"owner.json": "", "chapter.txt": "x"},
    }.items():  # fmt: skip
        folder = tmp_path / f".scratch-{name}"
        folder.mkdir()
        for file, text in files.items():
            (folder / file).write_text(text)
    with workspace.scratch(str(tmp_path)):
        pass
    assert sorted(os.listdir(tmp_path)) == [".scratch-both", ".scratch-thesis"]
