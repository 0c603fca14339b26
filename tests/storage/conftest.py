"""A place on disk and one on a bucket, for promises that both must keep."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["disk", "bucket"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder."""
    if request.param == "bucket":
        return request.getfixturevalue("bucket") + "/d"
    (tmp_path / "d").mkdir()
    return str(tmp_path / "d")
