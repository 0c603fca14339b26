"""A small soak: SIGKILLs in every phase, then the same bits as a run that was left alone."""

import json

import pytest

from testkit import command_line

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("kills", "pod_kills"), [(6, 0), (0, 2)])
def test_killed_again_and_again_it_ends_with_the_same_weights(kills, pod_kills):
    pytest.importorskip("jax")
    flags = ("--json", "--seed", 3, "--kills", kills, "--pod_kills", pod_kills)
    ended = command_line.run_module("scripts.soak", *flags, timeout=1000)
    assert ended.status == 0, ended.stderr
    results = json.loads(ended.stdout.splitlines()[-1])
    assert len(results) == (2 if kills else 1)  # disk and bucket, or the pod
    assert all(result["survived"] == result["tried"] == kills + pod_kills for result in results)
