"""Computes small pieces of the encoder and its heads: dense layers, layer norm, activations.

Gradient checkpointing keeps a function's inputs and computes it again in the backward pass.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.ops import control_flow_util

Parameters = Mapping[str, tf.Tensor]


def dense(params: Parameters, scope: str, inputs: tf.Tensor) -> tf.Tensor:
    """Multiply `inputs` [..., in] by the kernel, and add a bias if there is one: [..., out]."""
    kernel = tf.cast(params[f"{scope}/kernel"], inputs.dtype)
    if len(inputs.shape) == 2:
        product = tf.matmul(inputs, kernel)
    else:  # not by way of two dimensions: the compiler would relay out what is next to a reshape
        letters = "abcd"[: len(inputs.shape) - 1]
        product = tf.einsum(f"{letters}i,io->{letters}o", inputs, kernel)
    bias = params.get(f"{scope}/bias")
    return product if bias is None else product + tf.cast(bias, inputs.dtype)


def layer_norm(params: Parameters, scope: str, inputs: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalise the last axis; statistics in float32, the result in the dtype of `inputs`.

    Without a `beta` among the parameters nothing is added.
    """
    with tf.name_scope("layer_norm"):
        values = tf.cast(inputs, tf.float32)
        mean = tf.reduce_mean(values, axis=-1, keepdims=True)
        centred = values - mean
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        scaled = centred * tf.math.rsqrt(variance + epsilon)
        scaled *= params[f"{scope}/gamma"]
        beta = params.get(f"{scope}/beta")
        return tf.cast(scaled if beta is None else scaled + beta, inputs.dtype)


def activate(name: str, inputs: tf.Tensor, *, keeps_slope: bool = False) -> tf.Tensor:
    """Apply `gelu_new` (tanh form), `gelu` (error function) or `relu`, in float32.

    Args:
        name: of the function.
        inputs: of any shape.
        keeps_slope: `gelu_new` keeps its values and its derivatives, in the dtype of `inputs`, for
            the backward pass, instead of `inputs` alone. A TPU's compiler computes what it does not
            keep within the products that read it, once for each tile of their results; where
            products are quick, that takes longer than they do.
    """
    if name == "gelu_new":
        return _gelu_new_keeping_slope(inputs) if keeps_slope else _gelu_new(inputs)
    values = tf.cast(inputs, tf.float32)
    values = tf.nn.relu(values) if name == "relu" else tf.nn.gelu(values, approximate=False)
    return tf.cast(values, inputs.dtype)


# gelu_new(x) = x (1 + tanh(c (x + a x^3))) / 2 = x sigmoid(2 c (x + a x^3)), c = sqrt(2 / pi).
_CUBIC = 0.044715
_SLOPE = 2.0 * math.sqrt(2.0 / math.pi)


@tf.custom_gradient
def _gelu_new(inputs: tf.Tensor):  # type: ignore[no-untyped-def]
    """Compute the tanh form by the sigmoid: few operations, as each runs once per matmul tile."""

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        _, slope = _value_and_slope(inputs)
        return tf.cast(tf.cast(upstream, tf.float32) * slope, inputs.dtype)

    return tf.cast(_value_and_slope(inputs)[0], inputs.dtype), gradient


@tf.custom_gradient
def _gelu_new_keeping_slope(inputs: tf.Tensor):  # type: ignore[no-untyped-def]
    value, slope = barrier([tf.cast(one, inputs.dtype) for one in _value_and_slope(inputs)])
    return value, lambda upstream: upstream * slope


def _value_and_slope(inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute `gelu_new` and its derivative, float32."""
    x = tf.cast(inputs, tf.float32)
    square = x * x
    share = tf.sigmoid(x * (_SLOPE + _SLOPE * _CUBIC * square))
    inner = x * (_SLOPE + 3.0 * _SLOPE * _CUBIC * square)
    return x * share, share * (1.0 + inner * (1.0 - share))


# The names of a layer's parameters, and `run(hidden, *parameters) -> hidden`.
Layer = tuple[Sequence[str], Callable[..., tf.Tensor]]


def run_layers(
    params: Parameters, layers: Iterable[Layer], hidden: tf.Tensor, recomputes: bool
) -> tf.Tensor:
    """Run all layers; where `recomputes`, by gradient checkpointing."""
    for number, (names, run) in enumerate(layers):
        weights = [params[name] for name in names]
        with tf.name_scope(f"layer_{number}"):
            hidden = recompute(run, hidden, weights) if recomputes else run(hidden, *weights)
    return hidden


def recompute(
    function: Callable[..., tf.Tensor], inputs: tf.Tensor, weights: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Compute `function(inputs, *weights)`, keeping no intermediate results for the gradients.

    Unlike `tf.recompute_grad` it works in graph mode, on tensors.

    Args:
        function: deterministic; may close over tensors that need no gradient. It is called twice.
        inputs: what varies from call to call, the activations.
        weights: what else is differentiated.
    """

    @tf.custom_gradient
    def run(inputs: tf.Tensor, *weights: tf.Tensor):  # type: ignore[no-untyped-def]
        def gradient(upstream: tf.Tensor):  # type: ignore[no-untyped-def]
            # The barrier makes the second computation another one than the first, which the
            # compiler would otherwise merge, and ties it to the moment when it is needed.
            again, upstream = barrier([inputs, upstream])
            with tf.GradientTape() as tape:
                tape.watch([again, *weights])
                outputs = function(again, *weights)
            return tape.gradient(outputs, [again, *weights], output_gradients=upstream)

        return function(inputs, *weights), gradient

    return run(inputs, *weights)


def barrier(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the same tensors; a TPU's compiler merges and moves nothing across.

    On a CPU nothing guards the memory: its compiler takes barriers out early.
    """
    if compiled_by_xla():
        return list(gen_xla_ops.xla_optimization_barrier(input=list(tensors)))
    return [tf.identity(tensor) for tensor in tensors]


def compiled_by_xla() -> bool:
    """Return whether what is being traced goes to XLA: a TPU's graph, or `jit_compile=True`."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
