"""Profiles, by JAX's real profiler."""

import pytest

from bigbird_ja.preflight import figures
from bigbird_ja.train.profile import Profile, read_profile_steps


def test_a_profile_reaches_a_bucket_and_is_read_from_there(bucket, tmp_path):
    jax = pytest.importorskip("jax", "0.7")
    jax.config.update("jax_platforms", "cpu")
    logged, events = [], []
    steps = read_profile_steps("2-3", 4)
    told = (logged.append, lambda **fields: events.append(fields))
    profiled = Profile(steps, 0, "pjrt", f"{bucket}/run", str(tmp_path), *told)
    multiply = jax.jit(lambda x: x @ x)
    for step in range(1, 5):
        profiled.at(step - 1)
        multiply(jax.numpy.ones((64, 64))).block_until_ready()
    profiled.close()
    (event,) = events
    assert event["steps"] == "2-3" and event["folder"].startswith("plugins/profile/")
    assert logged == [f"profile of steps 2-3: {bucket}/run/{event['folder']}"]
    names = figures.op_seconds(f"{bucket}/run")
    assert any("dot" in name or "fusion" in name for name in names)  # of the step's product
