"""Profiles of training steps by JAX's profiler."""

import contextlib
from types import SimpleNamespace

import pytest

from bigbird_ja import storage
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.train import profile
from bigbird_ja.train.job import Dependencies
from bigbird_ja.train.profile import read_profile_steps


def test_a_profile_reaches_a_bucket_and_is_listed(bucket):
    jax = pytest.importorskip("jax", "0.7")
    jax.config.update("jax_platforms", "cpu")
    logged, events = [], []
    steps = read_profile_steps("2-3", 4)
    job = SimpleNamespace(
        profiled=steps, engine=SimpleNamespace(name="pjrt"), deps=Dependencies(log=logged.append)
    )
    logger = SimpleNamespace(record_event=lambda name, **fields: events.append(fields))
    model_dir = ModelDir(f"{bucket}/run")
    stack = contextlib.ExitStack()
    stack.enter_context(model_dir.lock())
    profiled = profile.Profile(job, model_dir, 0, logger)
    multiply = jax.jit(lambda x: x @ x)
    for step in range(1, 5):
        profiled.update(step - 1)
        with jax.profiler.TraceAnnotation("input"):
            multiply(jax.numpy.ones((64, 64))).block_until_ready()
    profiled.close()
    (event,) = events
    (name,) = [name for name in model_dir.owned.files if name.endswith(".xplane.pb")]
    assert name.startswith(event["folder"])
    content = storage.read_bytes(model_dir.join(name))
    model_dir.begin()
    stack.close()
    assert event["steps"] == "2-3" and event["folder"].startswith("plugins/profile/")
    assert logged == [f"profile of steps 2-3: {bucket}/run/{event['folder']}"]
    assert b"input" in content
