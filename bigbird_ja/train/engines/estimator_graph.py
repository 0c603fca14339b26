"""Model function and input function of TPUEstimator, the same on CPU, GPU and TPU.

A device loop runs many steps and returns values only at its end. So results of earlier steps are
stored in variables. A ring buffer contains the metrics of logged steps. Another variable contains
the first step whose loss or gradients were not finite.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from bigbird_ja.model.params import make_parameter_specs
from bigbird_ja.model_dir.variables import STEP, name_slot
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.optimizer import list_slot_parameters
from bigbird_ja.train.step import train_step

# Size of the ring buffer, the maximum number of logged steps in one device loop.
RING_ROWS = 256
# Name scope of variables that are not saved in checkpoints.
_NOTES = "bigbird_ja"
# Name of the feature that contains the number of the core to which a row of the batch belongs.
REPLICA_ID = "replica_id"


@dataclass(eq=False)
class TrainGraph:
    """Graph of one run. `model_fn` builds the graph, and other methods read its variables."""

    config: Config
    data: Data
    init: Callable[[], Mapping[str, Any]]  # Returns the initial values of all variables by name.

    def model_fn(self, features: Any, labels: Any, mode: str, params: Any) -> Any:
        """Build the graph of a training step, for TPUEstimator."""
        from tensorflow_estimator.python.estimator.tpu.tpu_estimator import TPUEstimatorSpec

        features = dict(features)
        replica_id = features.pop(REPLICA_ID)[0]
        on_tpu = bool(params["use_tpu"])
        shapes = {
            name: spec.shape for name, spec in make_parameter_specs(self.config, self.data).items()
        }
        names = list(shapes)
        slots = list_slot_parameters(self.config, self.data)
        shapes |= {name_slot(n, slot): shapes[n] for slot in slots for n in slots[slot]}
        self.variables = {name: _make_variable(name, shape) for name, shape in shapes.items()}
        self.global_step = tf.compat.v1.train.get_or_create_global_step()
        step = self.global_step.read_value()
        values = {name: variable.read_value() for name, variable in self.variables.items()}
        new_params, new_slots, metrics = train_step(
            self.config,
            self.data,
            {name: values[name] for name in names},
            {slot: {n: values[name_slot(n, slot)] for n in slots[slot]} for slot in slots},
            step,
            features,
            replica_id=replica_id,
            num_replicas=self.config.tpu.num_cores if on_tpu else 1,
            cross_replica_sum=tf.compat.v1.tpu.cross_replica_sum if on_tpu else tf.identity,
        )
        finite = metrics.pop("finite")
        new_params |= {name_slot(n, s): new_slots[s][n] for s in slots for n in slots[s]}
        updates = [self.variables[name].assign(value) for name, value in new_params.items()]
        updates += self._note(step, metrics, finite)
        with tf.control_dependencies(updates):
            train_op = self.global_step.assign_add(1)
        return TPUEstimatorSpec(
            mode, loss=metrics["loss"], train_op=train_op.op, scaffold_fn=self._make_scaffold
        )

    def read_notes(self, session: Any) -> tuple[int, int]:
        """Return two numbers: the global step, and the first step with non-finite results.

        The second number is -1 if all losses and gradients so far are finite.
        """
        step, bad = session.run([self.global_step, self._first_bad])
        return int(step), int(bad)

    def read_metrics(self, session: Any) -> dict[int, dict[str, float]]:
        """Return the metrics of the last step and of logged steps in the ring buffer, by step."""
        steps, rows = session.run([self._ring_steps, self._ring])
        return {
            int(step): dict(zip(self.metric_names, map(float, row), strict=True))
            for step, row in sorted(zip(steps, rows, strict=True), key=lambda pair: pair[0])
            if step > 0
        }

    def snapshot(self, session: Any) -> dict[str, Any]:
        """Return copies of all variables that belong in a checkpoint, by name."""
        return dict(session.run({**self.variables, STEP: self.global_step}))

    def _note(self, step: tf.Tensor, metrics: dict[str, tf.Tensor], finite: tf.Tensor) -> list[Any]:
        """Return ops that store a step's results.

        They store the metrics, and the first step whose loss or gradients are not finite.

        The last row of the ring buffer always contains the metrics of the last step.
        """
        self.metric_names = sorted(metrics)
        row = tf.stack([tf.cast(metrics[name], tf.float32) for name in self.metric_names])
        done = step + 1
        every = self.config.training.log_every_steps
        self._ring = _make_variable(f"{_NOTES}/ring", [RING_ROWS + 1, len(metrics)])
        self._ring_steps = _make_variable(f"{_NOTES}/ring_steps", [RING_ROWS + 1], tf.int64)
        self._first_bad = _make_variable(f"{_NOTES}/first_bad_step", [], tf.int64, -1)
        is_logged = tf.equal(done % every, 0)
        here = tf.one_hot(done // every % RING_ROWS, RING_ROWS, on_value=True, off_value=False)
        here = tf.concat([here & is_logged, [True]], 0)
        ring = tf.where(here[:, None], row[None, :], self._ring.read_value())
        steps = tf.where(here, tf.fill([RING_ROWS + 1], done), self._ring_steps.read_value())
        bad = self._first_bad.read_value()
        bad = tf.where(finite | (bad >= 0), bad, done)
        return [
            self._ring.assign(ring),
            self._ring_steps.assign(steps),
            self._first_bad.assign(bad),
        ]

    def _make_scaffold(self) -> tf.compat.v1.train.Scaffold:
        values = self.init()
        variables = {**self.variables, STEP: self.global_step}
        # The fed values replace the zeros of the initializers. All values are fed in one session
        # run, as TensorFlow would optimize the graph again for each additional run.
        feeds = {v.initializer.inputs[1]: values[name] for name, v in variables.items()}
        return tf.compat.v1.train.Scaffold(
            # Without this saver, TensorFlow would add one for all variables.
            saver=tf.compat.v1.train.Saver([self.global_step], max_to_keep=1),
            init_feed_dict=feeds,
            # The state is three times as large as the model, so its copy on the host is freed.
            init_fn=lambda scaffold, session: feeds.clear(),
        )


def make_input_fn(
    make_batches: Callable[[int, int], tf.data.Dataset], cores: int, on_tpu: bool
) -> Callable[[Mapping[str, Any]], tf.data.Dataset]:
    """Return the input function that TPUEstimator calls once, or on a TPU once per host.

    Args:
        make_batches: function with the arguments (host's number, number of hosts). It returns a
            dataset, whose elements are the host's parts of the global batches.
        cores: number of cores over all hosts.
        on_tpu: whether the input is for a TPU. If so, each element of the resulting dataset is one
            core's part of a batch (PER_HOST_V2), in the order of the cores.
    """

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        host, count = 0, 1
        if on_tpu:
            context = params["context"]
            host, count = context.current_host, context.num_hosts
        # The pipeline needs no conversion by AutoGraph, which would take seconds.
        batches = tf.autograph.experimental.do_not_convert(make_batches)(host, count)
        each = (cores if on_tpu else 1) // count
        ids = range(host * each, (host + 1) * each)
        return tf.autograph.experimental.do_not_convert(deal)(batches, ids).prefetch(4)

    return input_fn


def deal(batches: tf.data.Dataset, replica_ids: range) -> tf.data.Dataset:
    """Divide each batch into equal parts, one per core.

    The feature `REPLICA_ID` of each part contains the core's number.
    """
    cores = len(replica_ids)
    ids = tf.constant(list(replica_ids), tf.int32)[:, None]

    def cut(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        parts = {
            name: tf.reshape(value, [cores, value.shape[0] // cores, *value.shape[1:]])
            for name, value in batch.items()
        }
        return {**parts, REPLICA_ID: ids}

    return batches.map(cut).unbatch()


def _make_variable(
    name: str, shape: Any, dtype: tf.DType = tf.float32, value: int = 0
) -> tf.Variable:
    # An array as initializer would be stored in the graph as a large constant.
    initializer = (
        tf.compat.v1.constant_initializer(value) if value else tf.compat.v1.zeros_initializer()
    )
    return tf.compat.v1.get_variable(
        name, shape, dtype, initializer=initializer, use_resource=True, trainable=False
    )
