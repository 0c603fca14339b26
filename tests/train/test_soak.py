"""A small soak: SIGKILLs in every phase, then the same bits as a run that was left alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from testkit import ROOT
from testkit.runs import ENGINE

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.nightly
def test_killed_in_every_phase_it_ends_with_the_same_weights() -> None:
    command = [sys.executable, "-m", "scripts.soak", "--kills", "6", "--seed", "3", "--json"]
    command += ["--pod_kills", "0", ENGINE]  # the engine that starts faster
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1000)
    assert ended.returncode == 0, ended.stderr
    results = json.loads(ended.stdout.splitlines()[-1])
    assert [result["store"] for result in results] == ["disk", "bucket"]
    for result in results:
        assert result["survived"] == result["tried"] == 6
        assert set(result["kills"].values()) == {1}


@pytest.mark.nightly
def test_a_pod_of_which_one_is_killed_ends_with_the_same_weights() -> None:
    pytest.importorskip("jax")
    command = [sys.executable, "-m", "scripts.soak", "--kills", "0", "--pod_kills", "2", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1000)
    assert ended.returncode == 0, ended.stderr
    (result,) = json.loads(ended.stdout.splitlines()[-1])
    assert result["survived"] == result["tried"] == 2
