"""A small soak: SIGKILLs in every phase, then the same bits as a run that was left alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from testkit import ROOT


@pytest.mark.slow
def test_killed_in_every_phase_it_ends_with_the_same_weights() -> None:
    command = [sys.executable, "-m", "scripts.soak", "--kills", "5", "--seed", "3", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    results = json.loads(ended.stdout.splitlines()[-1])
    assert [result["store"] for result in results] == ["disk", "bucket"]
    for result in results:
        assert result["survived"] == result["tried"] == 5
        assert set(result["kills"].values()) == {1}
