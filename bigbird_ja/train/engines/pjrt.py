"""Run the step on JAX's runtime: any TPU, GPU or CPU that JAX knows, with any newer TensorFlow.

TensorFlow traces the step's two functions (`lowering.program`) and reads the input; JAX compiles
them, with the sums over the replicas between them, into one program per device, and runs it. Steps
are dispatched ahead of the one that is finished, so that nothing which happens between two steps on
this side leaves the devices idle; of logged steps alone the metrics are fetched.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bigbird_ja.model import implementation
from bigbird_ja.process.errors import StorageError
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.engines import MakeBatches, Snapshot, StepResult, memory
from bigbird_ja.train.engines.devices import Devices
from bigbird_ja.train.engines.kept_programs import CompiledPrograms
from bigbird_ja.train.engines.lowering.device_step import (
    AXIS,
    DeviceState,
    Notes,
    make_step,
    place,
    shapes,
    to_host,
)
from bigbird_ja.train.engines.lowering.program import Program
from bigbird_ja.train.engines.pjrt_forward import PjrtForward, keep_tensorflow_off_the_devices

_AHEAD = 2  # steps that are dispatched while one runs
_BATCHES_AHEAD = 2  # that wait on the devices, at most
_POLL_SECONDS = 0.2
_CLOSE_SECONDS = 30.0  # for the input to end

Step = Callable[[DeviceState, Mapping[str, jax.Array]], tuple[DeviceState, Notes]]


class PjrtEngine:
    """Run the step on JAX's devices; see the module.

    Args:
        config, data: of the run.
        first_state: gives every variable's first value, by name; called once.
        batches: the input.
        devices: to train on; the global batch divides over them.
        programs: where compiled programs are kept, or None.
    """

    def __init__(
        self,
        config: Config,
        data: Data,
        first_state: Callable[[], Mapping[str, Any]],
        batches: MakeBatches,
        devices: Devices,
        programs: CompiledPrograms | None = None,
    ) -> None:
        self._config, self._data = config, data
        self._first_state, self._batches = first_state, batches
        self._devices, self._programs = devices, programs
        self._take(implementation.resolved(config, data, devices.platform, devices.chip))
        self._mesh = Mesh(np.asarray(devices.devices), (AXIS,))
        self._divided = NamedSharding(self._mesh, P(AXIS))
        self._every = config.training.log_every_steps
        self._under_way: deque[tuple[int, Notes]] = deque()
        self._dispatched = 0
        self._last: tuple[int, Notes] | None = None
        self._feeder: Feeder | None = None
        self._forward: Any = None
        self._step: Step | None = None  # compiled

    ahead = _AHEAD + 1

    def begin(self) -> None:
        """Trace and compile the step, and bring the state to the devices."""
        keep_tensorflow_off_the_devices()
        if self._programs is not None:
            self._programs.begin()
        self._step = self._compile_with_fallback()
        if self._programs is not None:
            self._programs.keep()
        self._copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
        self._state = place(self._first_state(), self._lowered, self._mesh)
        self._dispatched = int(self._state.step)
        self._feeder = Feeder(self._read, self._place_batch)
        self._input = iter(self._feeder)

    def advance(self, limit: int) -> StepResult:
        """Dispatch what may be under way, and wait for the oldest step of it."""
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
        """Wait for every step that is under way."""
        metrics: dict[int, Mapping[str, float]] = {}
        while self._under_way:
            step, notes = self._under_way.popleft()
            self._last = step, notes
            if step % self._every == 0:
                self._note(step, notes, metrics)
        bad = None if self._last is None else self._note(*self._last, metrics)
        return StepResult(self._dispatched, metrics, bad)

    def snapshot(self) -> Snapshot:
        """Copy the state on the devices; it comes to the host while the next steps run.

        Parts that lie with other processes are gathered at once: there all take part.
        """
        if self._lowered.shards and jax.process_count() > 1:
            values = to_host(self._state, self._lowered)
            return lambda: values
        try:
            copied = jax.block_until_ready(self._copy(self._state))
        except Exception as error:  # no room for a copy: the devices wait for the host
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            values = to_host(self._state, self._lowered)
            return lambda: values
        return lambda: to_host(copied, self._lowered)

    def forward(self) -> Any:
        """Return the model on the devices of this process, for its own part of the records."""
        if self._forward is None:
            self._forward = PjrtForward(self._config, self._data, self._devices.of_process())
        self._forward.take(self._state.parameters)
        return self._forward

    def close(self) -> None:
        """End the input; the devices are given back with the process."""
        if self._feeder is not None:
            self._feeder.close()

    def _take(self, config: Config) -> None:
        """Make the program of a resolved config."""
        count = len(self._devices.devices)
        self._step_config = config
        sequences = config.training.global_batch_size // count
        self._program = Program(config, self._data, sequences, count)

    def _compile_with_fallback(self) -> Step:
        """Compile, without kernels where the compiler refuses those that `auto` had chosen."""
        try:
            return self._compile()
        except Exception as error:
            self._take(implementation.without_kernels(self._config, self._step_config, error))
            return self._compile()

    def _compile(self) -> Step:
        """Trace the step and compile it before the first one, so that what cannot run is known.

        Raises:
            OutOfMemory: the program does not fit.
        """
        with implementation.traced_for(self._step_config, self._devices.platform):
            self._lowered = self._program.lower()
        jitted = make_step(self._lowered, self._devices.platform, self._mesh)
        compiled = jitted.lower(*shapes(self._lowered, self._mesh)).compile()
        self._check_memory(compiled)
        return compiled

    def _check_memory(self, compiled: Any) -> None:
        """Refuse a program that needs more memory than there is, by the compiler's own figures."""
        sizes = compiled.memory_analysis()
        if sizes is None:
            return
        needed = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes
        needed += sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        if self._devices.platform == "cpu":
            local = sum(d.process_index == jax.process_index() for d in self._devices.devices)
            memory.refuse_if_too_large(needed * local)
            return
        there = self._devices.memory_bytes
        if there is not None and needed > there:
            raise memory.out_of_memory(needed, there, "this device")

    def _read(self) -> Any:
        """Read this process's part of each global batch, in the thread that feeds."""
        batches = self._batches(jax.process_index(), jax.process_count())
        return batches.prefetch(2).as_numpy_iterator()

    def _place_batch(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        return {
            name: jax.make_array_from_process_local_data(self._divided, batch[name])
            for name in self._program.batch
        }

    def _dispatch(self) -> None:
        batch = next(self._input, None)
        if batch is None:
            raise StorageError(
                f"the input ended at step {self._dispatched}, before"
                f" {self._config.training.num_train_steps}: check the data with"
                " `bigbird-ja check-data`"
            )
        assert self._step is not None
        self._state, notes = self._step(self._state, batch)
        self._dispatched += 1
        self._under_way.append((self._dispatched, notes))

    def _note(self, step: int, notes: Notes, metrics: dict[int, Mapping[str, float]]) -> int | None:
        """Fetch a step's metrics into `metrics`; returns the first bad step so far."""
        row = np.asarray(notes.metrics)
        metrics[step] = dict(zip(self._program.metric_names, map(float, row), strict=True))
        bad = int(notes.first_bad)
        return bad if bad >= 0 else None


class Feeder:
    """Bring batches to the devices beside the steps, in a thread that is some batches ahead.

    Args:
        batches: made, iterated and placed in the thread.
        place: brings one batch to the devices.
    """

    def __init__(self, batches: Callable[[], Iterable[Any]], place: Callable[[Any], Any]) -> None:
        self._batches, self._place = batches, place
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(_BATCHES_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="input", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        """Yield the placed batches; raises what the input raised."""
        while True:
            kind, value = self._queue.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            for batch in self._batches():
                if not self._put("batch", self._place(batch)):
                    return
            self._put("end", None)
        except BaseException as error:
            self._put("error", error)

    def _put(self, kind: str, value: Any) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put((kind, value), timeout=_POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False
