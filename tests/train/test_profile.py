"""Profiles, by JAX's real profiler."""

from types import SimpleNamespace

import pytest

from bigbird_ja.train import profile
from bigbird_ja.train.job import Dependencies
from bigbird_ja.train.profile import read_profile_steps


def test_a_profile_reaches_a_bucket_and_is_read_from_there(bucket, tmp_path):
    jax = pytest.importorskip("jax", "0.7")
    jax.config.update("jax_platforms", "cpu")
    logged, events = [], []
    steps = read_profile_steps("2-3", 4)
    job = SimpleNamespace(
        profiled=steps, engine=SimpleNamespace(name="pjrt"), deps=Dependencies(log=logged.append)
    )
    run_dir = SimpleNamespace(path=f"{bucket}/run", scratch=str(tmp_path), lease=object())
    recorder = SimpleNamespace(event=lambda name, **fields: events.append(fields))
    profiled = profile.Profile(job, run_dir, 0, recorder)
    multiply = jax.jit(lambda x: x @ x)
    for step in range(1, 5):
        profiled.at(step - 1)
        with jax.profiler.TraceAnnotation(profile.INPUT):
            multiply(jax.numpy.ones((64, 64))).block_until_ready()
    profiled.close()
    (event,) = events
    assert event["steps"] == "2-3" and event["folder"].startswith("plugins/profile/")
    assert logged == [f"profile of steps 2-3: {bucket}/run/{event['folder']}"]
    assert profile.input_wait_seconds(f"{bucket}/run") > 0
