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
