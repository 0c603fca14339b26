"""Traces the train step with a config's shapes into an HLO module, without data and without a TPU.

Parameters, optimiser slots and the global step are variables, as in training, so that the module
says which outputs reuse which arguments' memory. The module is passed on in serialized form: its
text leaves large constants out. It is lowered for the CPU, as TensorFlow offers no TPU lowering
without a TPU: the graph is the same, but a few ops (TensorFlow's stateless random numbers) expand
differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bigbird_ja.config import Config


def lower_train_step(config: Config, batch_per_core: int) -> bytes:
    """The whole train step of one core as a serialized HLO module.

    Args:
        config: completed (`config.without_data_set` or `with_data_set`).
        batch_per_core: sequences in one micro-batch of one core.
    """
    import tensorflow as tf

    from bigbird_ja.model.params import parameter_specs
    from bigbird_ja.train.step import train_step

    specs = parameter_specs(config)
    params = {name: _variable(name, spec.shape) for name, spec in specs.items()}
    slots = {
        slot: {name: _variable(f"{name}/adam_{slot}", spec.shape) for name, spec in specs.items()}
        for slot in ("m", "v")
    }
    global_step = tf.Variable(0, dtype=tf.int64, name="global_step", trainable=False)

    batch_size = batch_per_core * config.training.gradient_accumulation_steps
    inputs = batch_specs(config, batch_size)

    def step(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = dict(zip(inputs, tensors, strict=True))
        values = {name: tf.convert_to_tensor(variable) for name, variable in params.items()}
        held = {
            slot: {n: tf.convert_to_tensor(v) for n, v in slots[slot].items()} for slot in slots
        }
        new_params, new_slots, metrics = train_step(
            config, values, held, tf.convert_to_tensor(global_step), batch
        )
        for name, variable in params.items():
            variable.assign(new_params[name])
            for slot in slots:
                slots[slot][name].assign(new_slots[slot][name])
        global_step.assign_add(1)
        return metrics

    return lower(step, *inputs.values())


def batch_specs(config: Config, batch_size: int) -> dict[str, Any]:
    """What one core gets per step, as `data.pipeline.batches` yields it."""
    import tensorflow as tf

    length, predictions = config.data.seq_length, config.data.max_predictions_per_seq
    whole, places = [batch_size, length], [batch_size, predictions]
    return {
        "input_ids": tf.TensorSpec(whole, tf.int32),
        "segment_ids": tf.TensorSpec(whole, tf.int32),
        "document_ids": tf.TensorSpec(whole, tf.int32),
        "masked_lm_positions": tf.TensorSpec(places, tf.int32),
        "masked_lm_ids": tf.TensorSpec(places, tf.int32),
        "masked_lm_weights": tf.TensorSpec(places, tf.float32),
        "next_sentence_labels": tf.TensorSpec([batch_size], tf.int32),
    }


def lower(function: Callable[..., Any], *specs: Any) -> bytes:
    """A function of tensors as a serialized HLO module."""
    import tensorflow as tf

    with tf.device("/CPU:0"):
        traced = tf.function(function, jit_compile=True, autograph=False)
        ir = traced.experimental_get_compiler_ir(*specs)
        module: bytes = ir(stage="hlo_serialized")
    return module


def _variable(name: str, shape: tuple[int, ...]) -> Any:
    import tensorflow as tf

    return tf.Variable(tf.zeros(shape, tf.float32), name=name, trainable=True)
