"""Divided state of several processes: brought to their devices and back, whole."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from testkit import ROOT

pytest.importorskip("jax", minversion="0.7")

# Two processes of two devices each; lengths that four devices divide and that they do not.
CHILD = """
import sys
import jax, numpy as np
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", 2, int(sys.argv[1]))
from jax.sharding import Mesh
from bigbird_ja.run.checkpoints import SLOTS, slot_name
from bigbird_ja.train.engines import pjrt_step as placement
from bigbird_ja.train.engines.pjrt_step import AXIS
from bigbird_ja.train.lowered import LoweredStep, Spec, Traced, shard_of

parameters = {"a": Spec((6, 3), "float32"), "b": Spec((2,), "float32"), "c": Spec((8,), "float32")}
slots = {slot_name(name, slot): spec for slot in SLOTS for name, spec in parameters.items()}
shards = {name: shard_of(spec, 4) for name, spec in {**parameters, **slots}.items()}
none = Traced(b"", {}, {})
step = LoweredStep(none, none, parameters, slots, {}, 4, "float32", shards)
draw = np.random.default_rng(0)
specs = {**parameters, **slots}
values = {n: draw.normal(size=s.shape).astype("float32") for n, s in specs.items()}
values["global_step"] = np.int64(7)
state = placement.place(values, step, Mesh(np.asarray(jax.devices()), (AXIS,)))
assert not any(slot.is_fully_addressable for slot in state.slots)
assert all(slot.addressable_data(0).size * 4 == slot.size for slot in state.slots)
back = placement.to_host(state, step)
assert back.keys() == values.keys()
for name, value in values.items():
    np.testing.assert_array_equal(back[name], value)
"""


def test_state_divided_over_two_processes_comes_back_whole() -> None:
    with socket.socket() as result:
        result.bind(("127.0.0.1", 0))
        port = str(result.getsockname()[1])
    flags = "--xla_force_host_platform_device_count=2"
    environment = {
        **os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)
    }  # fmt: skip
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, number, port], env=environment, stderr=subprocess.PIPE
        )
        for number in ("0", "1")
    ]
    for child in children:
        _, words = child.communicate(timeout=300)
        assert child.returncode == 0, words.decode()[-2000:]
