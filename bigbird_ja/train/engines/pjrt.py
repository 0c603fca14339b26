"""JAX's runtime as an engine, for every TPU, GPU or CPU that JAX supports.

TensorFlow reads the input, and traces the two functions of a step, gradients and update
(`lowering.program`). JAX compiles both functions, with the sums over the replicas between them,
into one program per device, and runs it. Steps are dispatched ahead, so that the devices are not
idle while the host works between two steps. Only the metrics of logged steps are fetched.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bigbird_ja.compat import shard_map
from bigbird_ja.errors import StorageError
from bigbird_ja.model.forward import Forward, make_inference_config
from bigbird_ja.model.kernels import choose as kernels
from bigbird_ja.model.params import make_parameter_specs
from bigbird_ja.model_dir.variables import STEP
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.engines import host_memory
from bigbird_ja.train.engines.compile_cache import CompileCache
from bigbird_ja.train.engines.devices import Devices
from bigbird_ja.train.engines.lowering import program
from bigbird_ja.train.engines.lowering.device_step import (
    AXIS,
    DeviceState,
    Notes,
    fetch_variables,
    make_shapes,
    make_step,
)
from bigbird_ja.train.engines.lowering.lowered import LoweredStep
from bigbird_ja.train.engines.lowering.stablehlo import make_jax_function
from bigbird_ja.train.engines.protocol import MakeBatches, Snapshot, StepResult

# Number of steps that are dispatched ahead of the running one.
_AHEAD = 2

Step = Callable[[DeviceState, Mapping[str, jax.Array]], tuple[DeviceState, Notes]]


@dataclass(eq=False)
class PjrtEngine:
    """Engine that runs the step with JAX's runtime."""

    config: Config
    data: Data
    first_state: Callable[[], Mapping[str, Any]]  # Returns all variables by name. Called once.
    batches: MakeBatches
    devices: Devices
    cache: CompileCache | None = None

    ahead = _AHEAD + 1

    def __post_init__(self) -> None:
        """Choose the implementation of attention, without compiling the step."""
        platform, chip = self.devices.platform, self.devices.chip
        self._take(kernels.resolve_attention(self.config, self.data, platform, chip))
        self._mesh = Mesh(np.asarray(self.devices.devices), (AXIS,))
        self._divided = NamedSharding(self._mesh, P(AXIS))
        self._every = self.config.training.log_every_steps
        self._under_way: deque[tuple[int, Notes]] = deque()
        self._dispatched = 0
        self._last: tuple[int, Notes] | None = None
        self._forward: PjrtForward | None = None
        self._step: Step | None = None  # Compiled by `begin`.

    def begin(self) -> None:
        """Trace and compile the step, and place the state on the devices."""
        # In this engine TensorFlow uses only the CPU, and must not reserve a GPU's memory.
        tf.config.set_visible_devices([], "GPU")
        if self.devices.platform == "cpu":
            training, here = self.config.training, len(self.devices.select_own().devices)
            micro_batches = len(self.devices.devices) * training.gradient_accumulation_steps
            sequences = training.global_batch_size * here // micro_batches
            needed = host_memory.estimate_step(self._step_config, self.data, sequences)
            host_memory.refuse_if_too_large(host_memory.GROWTH * needed)
        if self.cache is not None:
            self.cache.begin()
        self._step = self._compile_with_fallback()
        self._copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
        self._state = place(self.first_state(), self._lowered, self._mesh)
        self._dispatched = int(self._state.step)
        batches = self.batches(jax.process_index(), jax.process_count())
        self._input = batches.as_numpy_iterator()
        # Compiled programs are stored last, as a refused run must not change MODEL_DIR.
        if self.cache is not None:
            self.cache.keep()

    def advance(self, limit: int) -> StepResult:
        """Dispatch the next steps, and wait until the oldest unfinished step is finished.

        Steps are dispatched up to `limit`, but at most `ahead` of them are unfinished at a time.
        """
        while self._dispatched < limit and len(self._under_way) <= _AHEAD:
            self._dispatch()
        metrics: dict[int, Mapping[str, float]] = {}
        while True:
            step, notes = self._under_way.popleft()
            jax.block_until_ready(notes)
            self._last = step, notes
            bad = self._note(step, notes, metrics) if step % self._every == 0 else None
            if bad is not None or not self._under_way:
                return StepResult(step, metrics, bad)
            if not self._under_way[0][1].metrics.is_ready():
                return StepResult(step, metrics, bad)

    def settle(self) -> StepResult:
        """Wait for all dispatched steps."""
        metrics: dict[int, Mapping[str, float]] = {}
        while self._under_way:
            step, notes = self._under_way.popleft()
            self._last = step, notes
            if step % self._every == 0:
                self._note(step, notes, metrics)
        bad = None if self._last is None else self._note(*self._last, metrics)
        return StepResult(self._dispatched, metrics, bad)

    def snapshot(self) -> Snapshot:
        """Implement `Engine.snapshot`, by a copy of the state on the devices.

        If slots are sharded over several processes, all processes gather the whole slots before
        the method returns.
        """
        if self._lowered.shards and jax.process_count() > 1:
            values = fetch_variables(self._state, self._lowered)
            return lambda: values
        try:
            copied = jax.block_until_ready(self._copy(self._state))
        except Exception as error:  # If a copy does not fit, the state is fetched now.
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            values = fetch_variables(self._state, self._lowered)
            return lambda: values
        return lambda: fetch_variables(copied, self._lowered)

    def forward(self) -> Any:
        """Return the model on the devices of this process."""
        if self._forward is None:
            self._forward = PjrtForward(self.config, self.data, self.devices.select_own())
        self._forward.take(self._state.parameters)
        return self._forward

    def close(self) -> None:
        """Close the input.

        The process keeps the devices until it exits.
        """
        self._input = iter(())

    def _take(self, config: Config) -> None:
        """Construct the step's `Program`. The attention in `config` is `xla` or `kernel`."""
        count = len(self.devices.devices)
        self._step_config = config
        sequences = config.training.global_batch_size // count
        self._program = program.Program(config, self.data, sequences, count)

    def _compile_with_fallback(self) -> Step:
        """Compile the step.

        If the compiler rejects the attention kernels that `auto` chose, compile it without kernels.
        """
        try:
            return self._compile()
        except Exception as error:
            self._take(kernels.fall_back_to_xla(self.config, self._step_config, error))
            return self._compile()

    def _compile(self) -> Step:
        """Trace and compile the step.

        Raises:
            OutOfMemory: The program does not fit in the devices' memory.
        """
        with kernels.trace_for(self._step_config, self.devices.platform):
            self._lowered = self._program.lower()
        jitted = make_step(self._lowered, self.devices.platform, self._mesh)
        compiled = jitted.lower(*make_shapes(self._lowered, self._mesh)).compile()
        self._check_memory(compiled)
        return compiled

    def _check_memory(self, compiled: Any) -> None:
        """Check that the program fits the memory, by the compiler's figures."""
        sizes = compiled.memory_analysis()
        if sizes is None:
            return
        needed = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes
        needed += sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        if self.devices.platform == "cpu":
            devices = len(self.devices.select_own().devices)
            host_memory.refuse_if_too_large(int(needed * devices * host_memory.OVERHEAD))
            return
        available = self.devices.memory_bytes
        if available is not None and needed > available:
            raise host_memory.make_memory_error(needed, available, "this device")

    def _place_batch(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        return {
            name: jax.make_array_from_process_local_data(self._divided, batch[name])
            for name in self._program.batch
        }

    def _dispatch(self) -> None:
        with jax.profiler.TraceAnnotation("input"):
            batch = next(self._input, None)
        if batch is None:
            raise StorageError(
                f"the input ended at step {self._dispatched}, before"
                f" {self.config.training.num_train_steps}: check the data with"
                " `bigbird-ja check-data`"
            )
        assert self._step is not None
        self._state, notes = self._step(self._state, self._place_batch(batch))
        self._dispatched += 1
        self._under_way.append((self._dispatched, notes))

    def _note(self, step: int, notes: Notes, metrics: dict[int, Mapping[str, float]]) -> int | None:
        """Fetch a step's metrics into `metrics`.

        Returns:
            The first step so far with a non-finite loss or gradient, or None.
        """
        row = np.asarray(notes.metrics)
        metrics[step] = dict(zip(self._program.metric_names, map(float, row), strict=True))
        bad = int(notes.first_bad)
        return bad if bad >= 0 else None


def place(values: Mapping[str, Any], step: LoweredStep, mesh: Mesh) -> DeviceState:
    """Place a state on the devices.

    Slots are whole in a checkpoint, and may be sharded on the devices. So a run may continue on a
    different number of devices.

    Args:
        values: whole variables by name.
        step: lowered step that uses the state.
        mesh: mesh of the devices.
    """
    state, _ = make_shapes(step, mesh)

    def put(name: str, shape: jax.ShapeDtypeStruct) -> jax.Array:
        value = _pad(np.asarray(values[name], np.float32), shape.shape)
        return place_array(value, shape.sharding)

    return DeviceState(
        [put(*pair) for pair in zip(step.parameters, state.parameters, strict=True)],
        [put(*pair) for pair in zip(step.slots, state.slots, strict=True)],
        place_array(np.asarray(values[STEP], np.int32), state.step.sharding),
        place_array(np.asarray(-1, np.int32), state.first_bad.sharding),
    )


def place_array(value: np.ndarray, sharding: Any) -> jax.Array:
    """Place an array on the devices.

    `jax.device_put` would also compare the array's values between all processes.
    """
    return jax.make_array_from_callback(value.shape, sharding, value.__getitem__)


def _pad(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if value.shape == shape:
        return value
    return np.pad(value, [(0, to - size) for size, to in zip(value.shape, shape, strict=True)])


class PjrtForward:
    """A `model.forward.Model` on JAX's devices, with one compiled program per batch size.

    Args:
        config: config of the run.
        data: facts of the run's data set.
        devices: devices of this process, over which a batch is divided.
    """

    def __init__(self, config: Config, data: Data, devices: Devices) -> None:
        self.config, self.data = make_inference_config(config), data
        self.parameters: list[jax.Array] = []
        self._devices = devices
        self._mesh = Mesh(np.asarray(devices.devices), (AXIS,))
        self._metrics: dict[int, tuple[Any, list[str]]] = {}

    def take(self, parameters: Sequence[jax.Array]) -> None:
        """Set the parameters, which must be on these devices (and may be on others, too).

        The arrays are not copied, so they are valid only until the next training step donates them.
        """
        everywhere = NamedSharding(self._mesh, P())
        self.parameters = [
            jax.make_array_from_single_device_arrays(
                array.shape, everywhere, [part.data for part in array.addressable_shards]
            )
            for array in parameters
        ]

    def compute_metrics(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Implement `Model.compute_metrics`.

        A batch is padded to a multiple of the number of devices, and the padding's results are
        removed.
        """
        arrays = {name: np.asarray(value) for name, value in batch.items()}
        rows, count = len(arrays["input_ids"]), len(self._devices.devices)
        each = -(-rows // count)
        missing = each * count - rows
        if each not in self._metrics:
            self._metrics[each] = self._compile_metrics(each)
        function, names = self._metrics[each]
        filled = {
            name: np.pad(value, [(0, missing)] + [(0, 0)] * (value.ndim - 1))
            for name, value in arrays.items()
        }
        specs = program.make_batch_specs(self.data, each)
        outputs = function(self.parameters, [filled[name] for name in specs])
        return {name: np.asarray(v)[:rows] for name, v in zip(names, outputs, strict=True)}

    def compute_log_probabilities(self, input_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Implement `Forward.compute_log_probabilities` for a few texts, on this machine's CPU."""
        names = make_parameter_specs(self.config, self.data)
        values = (np.asarray(array.addressable_data(0)) for array in self.parameters)
        params = dict(zip(names, values, strict=True))
        return Forward(self.config, self.data, params).compute_log_probabilities(
            input_ids, positions
        )

    def _compile_metrics(self, rows: int) -> tuple[Any, list[str]]:
        with kernels.trace_for(self.config, self._devices.platform):
            traced = program.trace_evaluation(self.config, self.data, rows)
        call = make_jax_function(traced, self._devices.platform)

        def evaluate_part(parameters: list[jax.Array], batch: list[jax.Array]) -> list[jax.Array]:
            return call(*parameters, *batch)

        function = shard_map(evaluate_part, self._mesh, (P(), P(AXIS)), P(AXIS))
        return jax.jit(function), list(traced.outputs)
