"""A small soak: SIGKILLs in every phase, then the same bits as a run that was left alone."""

import json
import subprocess
import sys

import pytest

from testkit import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("kills", "pod_kills"), [(6, 0), (0, 2)])
def test_killed_again_and_again_it_ends_with_the_same_weights(kills, pod_kills):
    pytest.importorskip("jax")
    command = [sys.executable, "-m", "scripts.soak", "--json", "--seed", "3"]
    command += ["--kills", str(kills), "--pod_kills", str(pod_kills)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1000)
    assert ended.returncode == 0, ended.stderr
    results = json.loads(ended.stdout.splitlines()[-1])
    assert len(results) == (2 if kills else 1)  # disk and bucket, or the pod
    assert all(result["survived"] == result["tried"] == kills + pod_kills for result in results)
