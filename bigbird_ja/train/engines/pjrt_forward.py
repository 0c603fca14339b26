"""Evaluate the model on JAX's devices."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bigbird_ja.model.forward import inference_config, padded
from bigbird_ja.model.params import parameter_specs
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.engines.devices import Devices
from bigbird_ja.train.engines.lowering import program
from bigbird_ja.train.engines.lowering.device_step import AXIS, to_devices
from bigbird_ja.train.engines.lowering.stablehlo import as_jax_function, shard_map


class PjrtForward:
    """Compute `model.forward.Model` on JAX's devices; one program per shape.

    Args:
        config, data: of the run.
        devices: of this process; a batch is divided over them.
    """

    def __init__(self, config: Config, data: Data, devices: Devices) -> None:
        self.config, self.data = inference_config(config), data
        self.parameters: list[jax.Array] = []
        self._devices = devices
        self._mesh = Mesh(np.asarray(devices.devices), (AXIS,))
        self._metrics: dict[int, tuple[Any, list[str]]] = {}
        self._log_probabilities: dict[tuple[int, int, int], Any] = {}

    def take(self, parameters: Sequence[jax.Array]) -> None:
        """Use parameters as they lie on these devices and perhaps on others'.

        Nothing is copied, so they are good until they are donated.
        """
        everywhere = NamedSharding(self._mesh, P())
        self.parameters = [
            jax.make_array_from_single_device_arrays(
                array.shape, everywhere, [part.data for part in array.addressable_shards]
            )
            for array in parameters
        ]

    def place(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Bring parameters to the devices, from the host and by name."""
        everywhere = NamedSharding(self._mesh, P())
        names = parameter_specs(self.config, self.data)
        ordered = [np.asarray(parameters[name], np.float32) for name in names]
        self.parameters = [to_devices(value, everywhere) for value in ordered]

    def metrics(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Compute `Model.metrics`.

        Rows that fill a batch up to a multiple of the devices are cut off again.
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
        specs = program.batch_specs(self.data, each)
        outputs = function(self.parameters, [filled[name] for name in specs])
        return {name: np.asarray(v)[:rows] for name, v in zip(names, outputs, strict=True)}

    def log_probabilities(self, input_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Compute `Forward.log_probabilities`; each row is one document."""
        ids = padded(self.config, self.data, input_ids)
        places = np.asarray(positions, np.int32)
        shape = len(ids), ids.shape[1], places.shape[1]
        if shape not in self._log_probabilities:
            traced = program.log_probabilities(self.config, self.data, *shape)
            call = as_jax_function(traced, self._devices.platform)
            self._log_probabilities[shape] = jax.jit(
                lambda parameters, *rest: call(*parameters, *rest)
            )
        (result,) = self._log_probabilities[shape](self.parameters, ids, places)
        return np.asarray(result.addressable_data(0))

    def _compile_metrics(self, rows: int) -> tuple[Any, list[str]]:
        traced = program.evaluation(self.config, self.data, rows)
        call = as_jax_function(traced, self._devices.platform)

        def each(parameters: list[jax.Array], batch: list[jax.Array]) -> list[jax.Array]:
            return call(*parameters, *batch)

        function = shard_map(each, self._mesh, (P(), P(AXIS)), P(AXIS))
        return jax.jit(function), list(traced.outputs)


def keep_tensorflow_off_the_devices() -> None:
    """Keep TensorFlow, which reads the input on the CPU, from taking the memory of a GPU."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
