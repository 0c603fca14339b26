"""The whole step as one JAX program per device, for `engines.pjrt` and `preflight`.

Each device computes the gradients of its part of the batch. The gradients are summed over the
devices, and each device updates its state.

With Muon on several devices the optimizer's state is sharded (ZeRO-1: Rajbhandari et al. 2020,
arXiv:1910.02054, section 5.1). Each device gets one part of the summed gradients (reduce-scatter)
and updates its part of the parameters. Then the devices join the parts again (all-gather).

Muon needs whole matrices. So devices exchange rows (all-to-all): each device sends its rows of all
matrices, and receives all rows of some matrices. It orthogonalizes these matrices, and the rows are
exchanged back. Importing this module starts no device.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bigbird_ja.compat import shard_map
from bigbird_ja.model_dir.variables import STEP
from bigbird_ja.train.engines.lowering.lowered import Division, LoweredStep, Spec, name_gradient
from bigbird_ja.train.engines.lowering.stablehlo import make_jax_function

AXIS = "replica"


class DeviceState(NamedTuple):
    """Training state. All devices contain the same values, except for sharded optimizer slots."""

    parameters: list[jax.Array]  # In the order of `LoweredStep.parameters`.
    slots: list[jax.Array]
    step: jax.Array  # int32, number of steps so far.
    first_bad: jax.Array  # int32, first step with a non-finite loss or gradient, or -1.


class Notes(NamedTuple):
    """Results of a step that the host can read even after the state is donated to the next step."""

    metrics: jax.Array  # float32, in the order of `Program.metric_names`.
    first_bad: jax.Array


def make_step(step: LoweredStep, platform: str, mesh: Mesh) -> Any:
    """Return the jitted step on a mesh of devices.

    The step maps (state, batch) to (state, notes). The state is donated. The batch is divided over
    the devices in their order.

    Args:
        step: lowered step, with as many replicas as the mesh has devices.
        platform: "cpu", "cuda" or "tpu".
        mesh: mesh with the axis `AXIS`.
    """
    gradients = make_jax_function(step.gradients, platform)
    update = make_jax_function(step.update, platform)
    divided = _Divided(step, platform) if step.shards else None

    def run_replica(
        state: DeviceState, batch: Mapping[str, jax.Array]
    ) -> tuple[DeviceState, Notes]:
        weight = lax.psum(jnp.sum(batch["masked_lm_weights"]), AXIS)
        ordered = [batch[name] for name in step.batch]
        replica = lax.axis_index(AXIS)
        *local_grads, sums = gradients(*state.parameters, *ordered, state.step, replica, weight)
        if divided:
            new, slots, metrics, finite = divided.update(
                update, state, local_grads, lax.psum(sums, AXIS)
            )
        else:
            *summed, sums = lax.psum([*local_grads, sums], AXIS)
            *values, metrics, finite = update(
                *state.parameters, *state.slots, *summed, sums, state.step
            )
            new, slots = values[: len(summed)], values[len(summed) :]
        count = state.step + 1
        bad = jnp.where(finite | (state.first_bad >= 0), state.first_bad, count)
        return DeviceState(new, slots, count, bad), Notes(metrics, bad)

    # Partition of each array of the state over the devices.
    placed = DeviceState(
        [P()] * len(step.parameters), [part for _, part in _list_slots(step)], P(), P()
    )
    over_devices = shard_map(run_replica, mesh, (placed, P(AXIS)), (placed, P()))
    return jax.jit(over_devices, donate_argnums=(0,))


def make_shapes(
    step: LoweredStep, mesh: Mesh
) -> tuple[DeviceState, dict[str, jax.ShapeDtypeStruct]]:
    """Return shapes, types and shardings of the arguments of `make_step`'s function."""

    def shape(spec: Spec, part: Any) -> Any:
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=NamedSharding(mesh, part))

    scalar = shape(Spec((), "int32"), P())
    state = DeviceState(
        [shape(spec, P()) for spec in step.parameters.values()],
        [shape(spec, part) for spec, part in _list_slots(step)],
        scalar,
        scalar,
    )
    batch = {
        name: shape(Spec((spec.shape[0] * step.replicas, *spec.shape[1:]), spec.dtype), P(AXIS))
        for name, spec in step.batch.items()
    }
    return state, batch


def _list_slots(step: LoweredStep) -> list[tuple[Spec, Any]]:
    """List the `Spec` and the `PartitionSpec` of each optimizer slot.

    The shape of a sharded slot includes its padding.
    """
    if not step.shards:
        return [(spec, P()) for spec in step.slots.values()]
    shards = [(spec, step.shards[name]) for name, spec in step.slots.items()]
    return [
        (shard.get_whole(spec, step.replicas), P(*[None] * shard.dimension, AXIS))
        for spec, shard in shards
    ]


class _Divided:
    """Optimizer update of a sharded state, as each device runs it."""

    def __init__(self, step: LoweredStep, platform: str) -> None:
        self._step, self._count = step, len(step.parameters)
        self._shards = [step.shards[name] for name in step.parameters]
        self._wholes = list(step.parameters.values())
        self._muon = [make_jax_function(traced, platform) for traced in step.muon or ()]

    def update(
        self, update: Any, state: DeviceState, local_grads: Sequence[jax.Array], sums: jax.Array
    ) -> tuple[list[jax.Array], list[jax.Array], jax.Array, jax.Array]:
        """Return new parameters and slots, metrics, and whether all values are finite."""
        summed = [self._scatter(*pair) for pair in zip(local_grads, self._shards, strict=True)]
        squares = lax.psum(sum(jnp.sum(jnp.square(part)) for part in summed), AXIS)
        parts = [self._take(*pair) for pair in zip(state.parameters, self._shards, strict=True)]
        stacks = self._orthogonalize(state, summed, squares)
        *values, metrics, finite = update(
            *parts, *state.slots, *summed, *stacks, sums, state.step, squares
        )
        new = zip(values[: self._count], self._shards, self._wholes, strict=True)
        return [self._gather(*each) for each in new], values[self._count :], metrics, finite

    def _orthogonalize(
        self, state: DeviceState, summed: Sequence[jax.Array], squares: jax.Array
    ) -> list[jax.Array]:
        """Orthogonalize Muon's stacks of matrices, and return this device's rows of each matrix."""
        assert self._step.muon is not None
        directions, orthogonalize = self._muon
        known = dict(zip(self._step.slots, state.slots, strict=True))
        known |= dict(zip(map(name_gradient, self._step.parameters), summed, strict=True))
        known["squares"] = squares
        stacks = directions(*(known[name] for name in self._step.muon[0].inputs))
        stacks = orthogonalize(*(_exchange(stack, 0, 1) for stack in stacks))
        return [_exchange(stack, 1, 0) for stack in stacks]

    def _scatter(self, gradient: jax.Array, shard: Division) -> jax.Array:
        """Return this device's part of a gradient's sum over all devices."""
        whole = self._pad(gradient, shard)
        return lax.psum_scatter(whole, AXIS, scatter_dimension=shard.dimension, tiled=True)

    def _take(self, parameter: jax.Array, shard: Division) -> jax.Array:
        start = lax.axis_index(AXIS) * shard.size
        whole = self._pad(parameter, shard)
        return lax.dynamic_slice_in_dim(whole, start, shard.size, shard.dimension)

    def _gather(self, part: jax.Array, shard: Division, spec: Spec) -> jax.Array:
        whole = lax.all_gather(part, AXIS, axis=shard.dimension, tiled=True)
        return lax.slice_in_dim(whole, 0, spec.shape[shard.dimension], axis=shard.dimension)

    def _pad(self, array: jax.Array, shard: Division) -> jax.Array:
        missing = shard.size * self._step.replicas - array.shape[shard.dimension]
        if not missing:
            return array
        after = [(0, missing if place == shard.dimension else 0) for place in range(array.ndim)]
        return jnp.pad(array, after)


def _exchange(array: jax.Array, split: int, joined: int) -> jax.Array:
    """Divide an array along dimension `split`, and exchange the parts between all devices.

    The received parts are joined along dimension `joined`.
    """
    return lax.all_to_all(array, AXIS, split, joined, tiled=True)


def fetch_variables(state: DeviceState, step: LoweredStep) -> dict[str, np.ndarray]:
    """Return the whole variables of a state by name.

    If slots are sharded over several processes, all processes must call this function at the same
    step, as each slot is gathered from all of them.
    """
    specs = {**step.parameters, **step.slots}
    arrays = [
        array.addressable_data(0) if array.is_fully_replicated else array
        for array in (*state.parameters, *state.slots)
    ]
    for array in arrays:
        if array.is_fully_addressable:
            array.copy_to_host_async()
    named = zip(specs.items(), arrays, strict=True)
    values = {name: _read(array)[tuple(map(slice, spec.shape))] for (name, spec), array in named}
    number: Any = np.int64(int(state.step))
    return {**values, STEP: number}


def _read(array: jax.Array) -> np.ndarray:
    """Return the whole array, and free the devices' memory that gathering needed."""
    if not array.is_fully_addressable:
        array = _make_gather(array.sharding.mesh)(array).addressable_data(0)
    return np.asarray(array)


@functools.lru_cache(maxsize=1)
def _make_gather(mesh: Mesh) -> Any:
    """Return a function that gathers an array on every device, compiled once for each shape."""
    return jax.jit(lambda array: array, out_shardings=NamedSharding(mesh, P()))
