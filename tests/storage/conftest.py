"""A place on disk and one on a bucket, for promises that both must keep."""

import pytest


@pytest.fixture(params=["disk", "bucket"])
def base(request, tmp_path):
    """An empty folder."""
    if request.param == "bucket":
        return request.getfixturevalue("bucket") + "/d"
    (tmp_path / "d").mkdir()
    return str(tmp_path / "d")
