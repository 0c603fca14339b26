"""Train step as functions of one replica, traced with TensorFlow and lowered to HLO.

`engines.pjrt` compiles and runs these functions, and `preflight` compiles them to estimate their
time and memory. There are two functions, and the caller sums the results of the first one over the
replicas, before it calls the second one:

    gradients(parameters, batch, step, replica, weight) -> gradients, sums
    update(parameters, slots, gradients, sums, step)    -> parameters, slots, metrics, finite

`weight` is the sum of the prediction weights over all replicas. `sums` contains terms of the loss
and the accuracy. Arguments and results are flat lists of tensors, in the order of `Traced.inputs`
and `Traced.outputs`. Both functions are pure. The caller decides which inputs are donated.

With Muon on several replicas the state is sharded: parameters, slots and gradients of `update` are
one replica's parts. There are two additional arguments: the sum of squares of all gradients
(`squares`), and the replica's rows of Muon's orthogonalized matrices (see `LoweredStep.muon`).

Functions are lowered for the CPU, as TensorFlow can lower for a TPU only on a machine with a TPU.
The HLO for CPU and TPU differs only in a few ops (stateless random numbers), which the step does
not use.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

from bigbird_ja.errors import BadInput
from bigbird_ja.model import forward
from bigbird_ja.model.params import make_parameter_specs
from bigbird_ja.model_dir.variables import name_slot
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import count_train_predictions
from bigbird_ja.train import optimizer
from bigbird_ja.train import step as step_lib
from bigbird_ja.train.engines.lowering.lowered import (
    Division,
    LoweredStep,
    Spec,
    Traced,
    choose_division,
    name_gradient,
)
from bigbird_ja.train.optimizer import list_muon_matrices, list_slot_parameters

_SCALAR = Spec((), "float32")
_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


@dataclass(frozen=True)
class Program:
    """Training step of one config, divided over replicas, with methods that lower it.

    Args:
        config: config of the run.
        data: facts of the run's data set.
        sequences: number of sequences per replica and step, over all micro-batches.
        num_replicas: number of replicas that divide the global batch.
        orthogonalize: function that orthogonalizes a stack of Muon's matrices. It is not used if
            the state is sharded.
    """

    config: Config
    data: Data
    sequences: int
    num_replicas: int
    orthogonalize: Callable[[tf.Tensor], tf.Tensor] = optimizer.orthogonalize

    @property
    def parameters(self) -> dict[str, Spec]:
        """Specs of the parameters by name, float32."""
        specs = make_parameter_specs(self.config, self.data)
        return {name: Spec(spec.shape, "float32") for name, spec in specs.items()}

    @property
    def slots(self) -> dict[str, Spec]:
        """Specs of the optimizer's slots by name, with all slots "m" before all slots "v"."""
        parameters, slots = self.parameters, list_slot_parameters(self.config, self.data)
        return {name_slot(n, slot): parameters[n] for slot in slots for n in slots[slot]}

    @property
    def batch(self) -> dict[str, Spec]:
        """Specs of one replica's part of a batch from `data.pipeline.read_batches`, by name."""
        return make_batch_specs(
            self.data, self.sequences, count_train_predictions(self.config, self.data)
        )

    @property
    def metric_names(self) -> list[str]:
        """Names of the metrics, in the order of the vector that the step's update returns."""
        names = ["loss", "masked_lm_loss", "masked_lm_accuracy", "learning_rate", "grad_norm"]
        if self.data.nsp:
            names += ["next_sentence_loss", "next_sentence_accuracy"]
        return sorted(names)

    @property
    def shards(self) -> dict[str, Division]:
        """Sharding of each parameter and each slot over the replicas, by name.

        The result is {} if the state is not sharded. Muon's matrices are sharded by rows.
        """
        matrices, count = list_muon_matrices(self.config, self.data), self.num_replicas
        if count == 1 or not matrices:
            return {}
        shards = {
            name: choose_division(spec, count, by_rows=name in matrices)
            for name, spec in self.parameters.items()
        }
        slots = list_slot_parameters(self.config, self.data)
        return shards | {name_slot(n, slot): shards[n] for slot in slots for n in slots[slot]}

    def lower(self) -> LoweredStep:
        """Lower all functions of the step.

        Raises:
            BadInput: The shapes do not suit the model.
        """
        orthogonalization = self.trace_muon()
        return LoweredStep(
            self.trace_gradients(),
            self.trace_update(orthogonalization[0].outputs if orthogonalization else {}),
            self.parameters,
            self.slots,
            self.batch,
            self.num_replicas,
            self.shards,
            orthogonalization,
        )

    def trace_gradients(self) -> Traced:
        """Trace the function that computes one replica's gradients.

        Raises:
            BadInput: The shapes do not suit the model.
        """
        parameters, batch = self.parameters, self.batch
        number = Spec((), "int32")
        scalars = {"step": number, "replica": number, "weight": _SCALAR}

        def parts(values: dict[str, tf.Tensor]) -> list[tf.Tensor]:
            gradients, sums = step_lib.compute_replica_gradients(
                self.config,
                self.data,
                {name: values[name] for name in parameters},
                {name: values[name] for name in batch},
                values["step"],
                replica_id=values["replica"],
                num_replicas=self.num_replicas,
                weight=values["weight"],
            )
            return [*(gradients[name] for name in parameters), sums]

        return trace(parts, {**parameters, **batch, **scalars}, [*parameters, "sums"])

    def trace_muon(self) -> tuple[Traced, Traced] | None:
        """Trace the two functions of `LoweredStep.muon`, or return None if nothing is sharded.

        Between the two functions, replicas exchange rows. So a replica's part of a stack of n
        matrices changes from [n, rows / replicas, columns] to [n / replicas, rows, columns].
        """
        matrices, count = list_muon_matrices(self.config, self.data), self.num_replicas
        if not matrices or not self.shards:
            return None
        parts = self._take_parts({name: self.parameters[name] for name in matrices})
        momenta = {name_slot(name, "m"): spec for name, spec in parts.items()}
        gradients = {name_gradient(name): spec for name, spec in parts.items()}
        shapes = {(parts[name].shape[0], spec.columns) for name, spec in matrices.items()}

        def compute_directions(values: dict[str, tf.Tensor]) -> list[tf.Tensor]:
            with tf.name_scope("optimizer"):
                return optimizer.muon_directions(
                    self.config.training,
                    matrices,
                    {name: values[name_slot(name, "m")] for name in parts},
                    {name: values[name_gradient(name)] for name in parts},
                    tf.sqrt(values["squares"]),
                    multiple=count,
                )

        def orthogonalize(values: dict[str, tf.Tensor]) -> list[tf.Tensor]:
            with tf.name_scope("optimizer"):
                return [optimizer.orthogonalize(stack) for stack in values.values()]

        outputs = [f"stack_{number}" for number in range(len(shapes))]
        first = trace(compute_directions, {**momenta, **gradients, "squares": _SCALAR}, outputs)
        shares = {
            name: Spec((spec.shape[0] // count, spec.shape[1] * count, spec.shape[2]), spec.dtype)
            for name, spec in first.outputs.items()
        }
        return first, trace(orthogonalize, shares, outputs)

    def trace_update(self, stacks: Mapping[str, Spec]) -> Traced:
        """Trace the function that updates parameters and slots by the global batch's gradients.

        Args:
            stacks: specs of Muon's orthogonalized stacks by name, {} if the state is not sharded.
        """
        parameters, slots = self._take_parts(self.parameters), self._take_parts(self.slots)
        by_slot = list_slot_parameters(self.config, self.data)
        given = {name_gradient(name): spec for name, spec in parameters.items()}
        totals = {"sums": Spec((step_lib.NUM_SUMS,), "float32"), "step": Spec((), "int32")}
        if self.shards:
            totals["squares"] = _SCALAR

        def update(values: dict[str, tf.Tensor]) -> list[tf.Tensor]:
            new, new_slots, metrics = step_lib.apply_gradients(
                self.config,
                self.data,
                {name: values[name] for name in parameters},
                {s: {n: values[name_slot(n, s)] for n in names} for s, names in by_slot.items()},
                {name: values[name_gradient(name)] for name in parameters},
                values["sums"],
                values["step"],
                squares=values.get("squares"),
                orthogonalized=[values[name] for name in stacks] if self.shards else None,
                orthogonalize=self.orthogonalize,
            )
            return [
                *(new[name] for name in parameters),
                *(new_slots[slot][name] for slot in by_slot for name in by_slot[slot]),
                tf.stack([metrics[name] for name in self.metric_names]),
                metrics["finite"],
            ]

        outputs = [*parameters, *slots, "metrics", "finite"]
        return trace(update, {**parameters, **slots, **given, **stacks, **totals}, outputs)

    def _take_parts(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        """Return the specs of one replica's parts, from those of whole parameters or slots."""
        shards = self.shards
        return {name: shards[name].get_part(s) if shards else s for name, s in specs.items()}


def trace_evaluation(config: Config, data: Data, sequences: int) -> Traced:
    """Trace `forward.compute_pretraining_metrics` for a batch.

    The first arguments of the traced function are the parameters.

    Args:
        config: config for evaluation, with float32 and without gradient checkpointing.
        data: facts of the run's data set.
        sequences: number of sequences in the batch.
    """
    parameters = Program(config, data, sequences, 1).parameters
    batch = make_batch_specs(data, sequences)
    outputs = ["masked_lm_losses", "masked_lm_correct"]
    if data.nsp:
        outputs += ["next_sentence_losses", "next_sentence_correct"]

    def metrics(values: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        params = {name: values[name] for name in parameters}
        inputs = {name: values[name] for name in batch}
        results = forward.compute_pretraining_metrics(params, config, data, inputs)
        return [results[name] for name in outputs]

    return trace(metrics, {**parameters, **batch}, outputs)


def make_batch_specs(data: Data, sequences: int, predictions: int | None = None) -> dict[str, Spec]:
    """Return the `Spec` (shape and dtype) of each array in a batch of `data.pipeline`, by name.

    Args:
        data: facts of the run's data set.
        sequences: number of sequences.
        predictions: maximum number of predictions per sequence, by default the data set's.
    """
    whole = (sequences, data.seq_length)
    places = (sequences, predictions or data.max_predictions_per_seq)
    return {
        "input_ids": Spec(whole, "int32"),
        "segment_ids": Spec(whole, "int32"),
        "document_ids": Spec(whole, "int32"),
        "masked_lm_positions": Spec(places, "int32"),
        "masked_lm_ids": Spec(places, "int32"),
        "masked_lm_weights": Spec(places, "float32"),
        "next_sentence_labels": Spec((sequences,), "int32"),
    }


def trace(
    function: Callable[[dict[str, tf.Tensor]], list[tf.Tensor]],
    inputs: Mapping[str, Spec],
    outputs: list[str],
) -> Traced:
    """Lower a function of named tensors.

    Args:
        function: function to lower. Its argument is a dict of input tensors by name. It returns a
            list of output tensors.
        inputs: specs of the inputs by name, in the order of the HLO module's arguments.
        outputs: names of the outputs.

    Raises:
        BadInput: The shapes do not suit the model.
    """
    results: list[tf.Tensor] = []

    def flatten(*tensors: tf.Tensor) -> list[tf.Tensor]:
        results[:] = function(dict(zip(inputs, tensors, strict=True)))
        return list(results)

    specs = [tf.TensorSpec(spec.shape, spec.dtype) for spec in inputs.values()]
    with tf.device("/CPU:0"):
        traced = tf.function(flatten, jit_compile=True, autograph=False)
        try:
            lower = traced.experimental_get_compiler_ir(*specs)
            # Without an explicit device TensorFlow 2.15 would run an op to find the default device.
            is_old = "platform_name" not in inspect.signature(lower).parameters
            where = {"device_name": _CPU} if is_old else {"platform_name": "CPU"}
            module = hlo_pb2.HloModuleProto.FromString(lower(stage="hlo_serialized", **where))
        except ValueError as error:
            raise BadInput(str(error)) from error
    shapes = [Spec(tuple(value.shape.as_list()), value.dtype.name) for value in results]
    # Equal steps must have equal bytes, but by default the order of attributes is arbitrary.
    hlo: bytes = module.SerializeToString(deterministic=True)
    return Traced(hlo, dict(inputs), dict(zip(outputs, shapes, strict=True)))
