"""The state on the devices and as checkpoints have it: whole arrays by name, on the host.

A checkpoint does not know of devices: divided slots are gathered when they are saved, and divided
anew, over as many devices as there are then, when they are restored.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bigbird_ja.run.checkpoints import STEP
from bigbird_ja.train.engines.pjrt_step import State, shapes
from bigbird_ja.train.lowered import LoweredStep, Spec


def place(values: Mapping[str, Any], step: LoweredStep, mesh: Mesh) -> State:
    """Brings a state to the devices.

    Args:
        values: every variable's value by name, whole.
        step, mesh: of the program that will take it.
    """
    state, _ = shapes(step, mesh)

    def put(name: str, shape: jax.ShapeDtypeStruct) -> jax.Array:
        value = _filled(np.asarray(values[name], np.float32), shape.shape)
        return _put(value, shape.sharding)

    return State(
        [put(*pair) for pair in zip(step.parameters, state.parameters, strict=True)],
        [put(*pair) for pair in zip(step.slots, state.slots, strict=True)],
        _put(np.asarray(values[STEP], np.int32), state.step.sharding),
        _put(np.asarray(-1, np.int32), state.first_bad.sharding),
    )


def _put(value: np.ndarray, sharding: Any) -> jax.Array:
    """Not `device_put`, which compares the values of all processes, by sums of its own."""
    return jax.make_array_from_callback(value.shape, sharding, value.__getitem__)


def to_host(state: State, step: LoweredStep) -> dict[str, np.ndarray]:
    """The values of a state by name, whole. Where slots are divided over several processes, all of
    them have to call this together: the parts travel between them, one slot at a time."""
    specs = {**step.parameters, **step.slots}
    arrays = [_local(array) for array in (*state.parameters, *state.slots)]
    for array in arrays:
        if array.is_fully_addressable:
            array.copy_to_host_async()
    named = zip(specs.items(), arrays, strict=True)
    values = {name: _cut(_read(array), spec) for (name, spec), array in named}
    return {**values, STEP: np.int64(int(state.step))}  # type: ignore[dict-item]


def _local(array: jax.Array) -> jax.Array:
    """This process's copy, where it has a whole one."""
    return array.addressable_data(0) if array.is_fully_replicated else array


def _read(array: jax.Array) -> np.ndarray:
    """The whole array; what it takes on the devices to bring it together is given back."""
    if not array.is_fully_addressable:
        array = _gathering(array.sharding.mesh)(array).addressable_data(0)
    return np.asarray(array)


@functools.lru_cache(maxsize=1)
def _gathering(mesh: Mesh) -> Any:
    """Brings a divided array to every device; one function, so that each shape is compiled once."""
    return jax.jit(lambda array: array, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _filled(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if value.shape == shape:
        return value
    return np.pad(value, [(0, to - size) for size, to in zip(value.shape, shape, strict=True)])


def _cut(value: np.ndarray, spec: Spec) -> np.ndarray:
    return value[tuple(slice(size) for size in spec.shape)]
