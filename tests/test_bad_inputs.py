"""Each bad input ends with status 2 and one clear line, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit import bad_inputs
from testkit.runs import SmallRun


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, small_run: SmallRun) -> bad_inputs.World:
    return bad_inputs.make_world(tmp_path_factory.mktemp("world"), small_run)


@pytest.mark.parametrize("case", bad_inputs.CASES)
def test_bad_input(case: str, world: bad_inputs.World, tmp_path: Path) -> None:
    assert bad_inputs.problem_of(case, world, tmp_path / "out") is None
