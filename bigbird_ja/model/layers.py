"""The small pieces of the encoder and its heads: dense layers, layer norm, activations, lookups."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

Parameters = Mapping[str, tf.Tensor]


def dense(params: Parameters, scope: str, inputs: tf.Tensor) -> tf.Tensor:
    """`inputs` [rows, in] times the kernel, plus the bias: [rows, out], in the inputs' dtype."""
    kernel = tf.cast(params[f"{scope}/kernel"], inputs.dtype)
    return tf.matmul(inputs, kernel) + tf.cast(params[f"{scope}/bias"], inputs.dtype)


def layer_norm(params: Parameters, scope: str, inputs: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalises the last axis; statistics in float32, the result in the dtype of `inputs`."""
    with tf.name_scope("layer_norm"):
        values = tf.cast(inputs, tf.float32)
        mean = tf.reduce_mean(values, axis=-1, keepdims=True)
        centred = values - mean
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        scaled = centred * tf.math.rsqrt(variance + epsilon)
        return tf.cast(scaled * params[f"{scope}/gamma"] + params[f"{scope}/beta"], inputs.dtype)


def activate(name: str, inputs: tf.Tensor) -> tf.Tensor:
    """`gelu_new` (tanh form), `gelu` (error function) or `relu`; computed in float32."""
    values = tf.cast(inputs, tf.float32)
    if name == "relu":
        values = tf.nn.relu(values)
    else:
        values = tf.nn.gelu(values, approximate=name == "gelu_new")
    return tf.cast(values, inputs.dtype)
